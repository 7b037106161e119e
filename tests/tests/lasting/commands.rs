//! Commands before the start of sessions and after their end.

use std::{fs, path::PathBuf, time::Duration};

use agent_proxy_tests::sessions::{all, shell, soon};
use proxy_manager::{
    AgentSessionConfig, EndReason, Error, KillOptions, Lifecycle, ProxyManager, SessionFilter, SessionHandle,
    SessionId, SessionStatus,
};

use crate::place::Place;

/// A place with a directory that commands write to.
struct Notes {
    place: Place,
    directory: PathBuf,
}

impl Notes {
    async fn new() -> Self {
        let place = Place::new().await;
        let directory = place.scratch.path().join("notes");
        fs::create_dir(&directory).expect("made");
        Self { place, directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).into_os_string().into_string().expect("UTF-8")
    }

    fn lifecycle(&self, before: &str, after: &str) -> Lifecycle {
        let command = |text: &str| (!text.is_empty()).then(|| text.replace("NOTES", &self.path("notes")));
        Lifecycle { before_start: command(before), after_end: command(after), ..Lifecycle::default() }
    }

    /// Lines that the commands have written.
    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(self.directory.join("notes")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until the commands have written so many lines.
    async fn wait_for(&self, lines: usize) {
        let written = async {
            while self.lines().len() < lines {
                tokio::task::yield_now().await;
            }
        };
        soon("what a command writes", written).await;
    }

    async fn start(&self, config: AgentSessionConfig) -> SessionHandle {
        soon("a start", self.place.manager.start_session(config)).await.expect("started")
    }
}

fn id(text: &str) -> SessionId {
    text.parse().expect("a valid id")
}

/// Waits until the session of a command has ended; returns why.
async fn ended(manager: &ProxyManager, session: &SessionId) -> EndReason {
    let started = async {
        let mut events = manager.subscribe_all();
        loop {
            if let Ok(known) = manager.session(session) {
                break known;
            }
            events.next().await.expect("events");
        }
    };
    let session = tokio::time::timeout(Duration::from_secs(20), started).await;
    let session = session.unwrap_or_else(|_| panic!("no command: {:#?}", manager.records(&SessionFilter::default())));
    all(&mut session.subscribe()).await;
    match session.info().state {
        proxy_manager::SessionState::Ended { reason, receipt, .. } => {
            assert!(receipt.expect("a receipt").is_empty());
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_a_session_works_in_is_made_before_its_start_and_removed_after_its_end_and_outlives_a_suspension() {
    let notes = Notes::new().await;
    let manager = &notes.place.manager;
    let tree = notes.path("tree/deep");
    let lifecycle = notes.lifecycle(
        "echo \"made for $AGENT_PROXY_OF_SESSION in $PWD\" >>NOTES; mkdir -p \"$AGENT_PROXY_OF_CWD\"",
        "echo \"removed: $AGENT_PROXY_OF_END, $GIVEN\" >>NOTES; rm -r \"$AGENT_PROXY_OF_CWD\"",
    );
    let config = AgentSessionConfig {
        session_id: id("s"),
        cwd: Some(tree.clone()),
        lifecycle,
        ..AgentSessionConfig::new("kept").with_env("GIVEN", "kept")
    };
    let session = notes.start(config).await;
    let made = format!("made for s in {}", notes.directory.display());
    assert_eq!(notes.lines(), std::slice::from_ref(&made), "in the nearest directory that was there");
    assert_eq!(notes.place.ask(&session, "history").await, "0 before");
    manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    let session = soon("a resume", manager.resume_session(session.id())).await.expect("resumed");
    assert_eq!((notes.lines().len(), fs::metadata(&tree).is_ok()), (1, true), "no command ran meanwhile");
    session.kill(KillOptions::NOW).await.expect("killed");
    assert!(
        matches!(ended(manager, &id("s.after-end")).await, EndReason::AgentExited(Some(status)) if status.success())
    );
    assert_eq!(notes.lines(), [made, "removed: killed, kept".to_owned()]);
    assert!(fs::metadata(&tree).is_err());
    manager.shutdown().await;
    assert_eq!(notes.lines().len(), 2, "once");
}

#[tokio::test]
async fn an_agent_whose_command_fails_is_not_started_and_the_command_after_its_end_runs() {
    let notes = Notes::new().await;
    let manager = &notes.place.manager;
    let lifecycle = notes.lifecycle("echo no such branch >&2; exit 7", "echo cleared >>NOTES");
    let started = notes.path("started");
    let config = AgentSessionConfig { session_id: id("s"), lifecycle, ..shell(&format!("touch {started}; cat")) };
    let error = soon("a start", manager.start_session(config.clone())).await.expect_err("refused");
    let Error::CommandFailed { session, outcome, output, exited } = &error else { panic!("{error:?}") };
    assert_eq!(
        (session.as_str(), outcome.as_str(), output.as_str(), *exited),
        ("s.before-start", "exit code 7", "no such branch", true)
    );
    assert_eq!((notes.lines(), fs::metadata(&started).is_err()), (vec!["cleared".to_owned()], true));
    assert!(matches!(manager.session(&id("s")), Err(Error::UnknownSession { .. })));
    // Its id is free, and so are those of its commands.
    let lifecycle = notes.lifecycle("true", "");
    let session = notes.start(AgentSessionConfig { lifecycle, ..config }).await;
    session.kill(KillOptions::NOW).await.expect("killed");
    manager.delete_session(&id("s")).await.expect("deleted");
    assert!(matches!(manager.session(&id("s.before-start")), Err(Error::UnknownSession { .. })), "deleted with it");
    manager.shutdown().await;
}

#[tokio::test]
async fn a_command_after_the_end_runs_before_a_shutdown_is_over_and_what_it_leaves_is_ended() {
    let notes = Notes::new().await;
    let lifecycle = notes.lifecycle("", "setsid sleep 300 & echo bye >>NOTES");
    notes.start(AgentSessionConfig { session_id: id("s"), lifecycle, ..shell("exec cat") }).await;
    notes.place.manager.shutdown().await;
    assert_eq!(notes.lines(), ["bye"]);
    let command = notes.place.manager.record(&id("s.after-end")).expect("a record");
    assert_eq!(command.status(), SessionStatus::Ended);
    assert!(matches!(command.state.reason(), Some(EndReason::AgentExited(_))));
    let record = notes.place.manager.record(&id("s")).expect("a record");
    assert_eq!(record.config.lifecycle.after_end, None, "nothing is left to run");
}

#[tokio::test]
async fn a_command_that_a_shutdown_ends_runs_again_with_the_next_manager_and_one_of_a_suspended_session_waits() {
    let mut notes = Notes::new().await;
    let there = notes.path("there");
    // The first time it takes longer than its manager lives.
    let after = format!("echo ran >>NOTES; test -e {there} && exit; touch {there}; exec sleep 300");
    let lifecycle = notes.lifecycle("", &after);
    let session = notes.start(AgentSessionConfig { session_id: id("s"), lifecycle, ..shell("exec cat") }).await;
    let lifecycle = notes.lifecycle("", "echo rested >>NOTES");
    let resting =
        AgentSessionConfig { session_id: id("r"), cwd: Some("/".into()), lifecycle, ..AgentSessionConfig::new("kept") };
    let resting = notes.start(resting).await;
    notes.place.manager.suspend_session(resting.id(), KillOptions::NOW).await.expect("suspended");
    session.kill(KillOptions::NOW).await.expect("killed");
    let command = id("s.after-end");
    let running = soon("the command", async {
        let mut events = notes.place.manager.subscribe_all();
        while notes.lines().is_empty() {
            events.next().await.expect("events");
        }
        notes.place.manager.session(&command).expect("it runs")
    })
    .await;
    running.kill(KillOptions::NOW).await.expect("killed");
    notes.place.again().await;
    notes.wait_for(2).await;
    notes.place.manager.kill_session(&id("r"), KillOptions::NOW).await.expect("ended");
    notes.wait_for(3).await;
    assert_eq!(notes.lines(), ["ran", "ran", "rested"]);
    notes.place.manager.shutdown().await;
}

#[tokio::test]
async fn what_is_no_command_is_refused_before_anything_runs() {
    let notes = Notes::new().await;
    let long = "x".repeat(60);
    for (name, lifecycle, said) in [
        ("s.before-start", Lifecycle::default(), "are those of the commands"),
        ("s.after-end", notes.lifecycle("", "echo no >>NOTES"), "are those of the commands"),
        ("s", notes.lifecycle(" ", "echo no >>NOTES"), "is no shell command"),
        (long.as_str(), notes.lifecycle("", "echo no >>NOTES"), "54 characters"),
    ] {
        let config = AgentSessionConfig { session_id: id(name), lifecycle, ..shell("cat") };
        let error = notes.place.manager.start_session(config).await.expect_err("refused");
        assert!(matches!(&error, Error::InvalidConfig { reason, .. } if reason.contains(said)), "{error:?}");
    }
    assert_eq!(notes.lines(), Vec::<String>::new());
    notes.place.manager.shutdown().await;
}
