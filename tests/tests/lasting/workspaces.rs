//! Workspaces: trees of their own that agents work in.

use std::{fs, path::PathBuf};

use agent_proxy_tests::sessions::{self, all, event, shell, soon};
use proxy_manager::{
    AgentSessionConfig, Error, Event, KillOptions, ProxyManager, SandboxMode, SessionHandle, SessionSandbox,
    WorkspaceKind, WorkspaceStep,
};

use crate::place::Place;

/// A place with a tree of the user's.
struct User {
    place: Place,
    tree: PathBuf,
}

impl User {
    async fn new() -> Self {
        let place = Place::new().await;
        let tree = place.scratch.path().canonicalize().expect("a path").join("work");
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join("file"), "before\n").expect("written");
        Self { place, tree }
    }

    fn config(&self, config: AgentSessionConfig) -> AgentSessionConfig {
        let cwd = Some(self.tree.to_str().expect("UTF-8").to_owned());
        AgentSessionConfig { cwd, workspace: Some(WorkspaceKind::Copy), ..config }
    }

    fn file(&self) -> String {
        fs::read_to_string(self.tree.join("file")).expect("read")
    }

    async fn start(&self, config: AgentSessionConfig) -> SessionHandle {
        soon("a start", self.place.manager.start_session(self.config(config))).await.expect("started")
    }
}

fn steps(events: &[std::sync::Arc<proxy_manager::Envelope>]) -> Vec<(WorkspaceStep, u64)> {
    let step = |event: &Event| match event {
        Event::SessionWorkspace { step, files, .. } => Some((*step, *files)),
        _ => None,
    };
    events.iter().filter_map(|envelope| step(&envelope.event)).collect()
}

#[tokio::test]
async fn the_users_tree_is_as_it_was_until_the_changes_are_applied_and_they_are_not_deleted_unasked() {
    let user = User::new().await;
    let manager = &user.place.manager;
    let session = user.start(shell("echo after >file; pwd")).await;
    let events = all(&mut session.subscribe()).await;
    let (id, workspace) = (session.id(), manager.workspace(session.id()).await.expect("a workspace"));
    let said = events.iter().find_map(|envelope| match &envelope.event {
        Event::Text { text } => Some(text.trim().to_owned()),
        _ => None,
    });
    assert_eq!((said, steps(&events)), (Some(workspace.path.clone()), vec![(WorkspaceStep::Made, 0)]));
    assert_eq!((user.file().as_str(), workspace.changed_files), ("before\n", Some(1)));
    assert_eq!(workspace.cwd, workspace.path);
    assert_eq!(session.info().metadata.cwd, workspace.source, "it is a session of the user's tree");
    let refused = manager.delete_session(id).await;
    assert!(matches!(refused, Err(Error::WorkspaceUnapplied { files: 1, .. })), "{refused:?}");
    // Another one, in the same tree.
    let other = user.start(shell("echo other >file")).await;
    all(&mut other.subscribe()).await;
    manager.apply_workspace(id).await.expect("applied");
    assert_eq!(user.file(), "after\n");
    let refused = manager.apply_workspace(other.id()).await;
    assert!(matches!(&refused, Err(Error::WorkspaceConflict { paths, .. }) if paths == &["file"]), "{refused:?}");
    manager.delete_session(id).await.expect("deleted");
    manager.delete_session_with(other.id(), true).await.expect("deleted");
    assert_eq!(manager.workspaces().await.expect("listed"), []);
    assert_eq!(fs::read_dir(user.place.scratch.path().join("state/workspaces")).expect("there").count(), 0);
    manager.shutdown().await;
}

#[tokio::test]
async fn a_workspace_waits_for_the_resume_and_for_the_next_manager() {
    let user = User::new().await;
    let manager = user.place.manager.clone();
    let session = user.start(AgentSessionConfig::new("kept")).await;
    let id = session.id().clone();
    let workspace = manager.workspace(&id).await.expect("a workspace");
    assert!(matches!(manager.drop_workspace(&id).await, Err(Error::NotEnded { .. })), "its agent works there");
    fs::write(PathBuf::from(&workspace.path).join("file"), "first\n").expect("written");
    manager.apply_workspace(&id).await.expect("applied");
    assert_eq!(user.file(), "first\n");
    assert_eq!(user.place.ask(&session, "history").await, "0 before");
    manager.suspend_session(&id, KillOptions::NOW).await.expect("suspended");
    manager.resume_session(&id).await.expect("resumed");
    assert_eq!(user.place.ask(&session, "history").await, "1 before");
    assert_eq!(manager.workspace(&id).await.expect("the same").created_at, workspace.created_at);
    fs::write(PathBuf::from(&workspace.path).join("file"), "second\n").expect("written");
    manager.shutdown().await;
    drop(manager);
    drop(user.place.manager);
    let manager = Place::manager(&user.place.scratch).await;
    assert_eq!(manager.workspace_diff(&id).await.expect("a diff").files.len(), 1);
    // A session without processes has its events, too.
    let event_of = manager.drop_workspace(&id).await.expect("dropped");
    assert!(matches!(event_of, Event::SessionWorkspace { step: WorkspaceStep::Dropped, files: 1, .. }), "{event_of:?}");
    soon("a resume", manager.resume_session(&id)).await.expect("resumed");
    let text = fs::read_to_string(PathBuf::from(&workspace.path).join("file"));
    assert_eq!(text.expect("a new one"), "first\n");
    let mut all_events = manager.subscribe_from(&id, 0).expect("known");
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.push(
            event(&mut all_events, "a step", |envelope| match &envelope.event {
                Event::SessionWorkspace { step, files, .. } => Some((*step, *files)),
                _ => None,
            })
            .await,
        );
    }
    use WorkspaceStep::{Applied, Dropped, Made};
    assert_eq!(seen, [(Made, 0), (Applied, 1), (Dropped, 1), (Made, 0)]);
    manager.shutdown().await;
}

#[tokio::test]
async fn in_a_sandbox_the_workspace_is_written_and_the_tree_only_read() {
    let user = User::new().await;
    let tree = user.tree.display().to_string();
    let script =
        format!("cat {tree}/file >copy && echo x >>file; (echo x >>{tree}/file) 2>/dev/null && echo out; echo done");
    let sandbox = SessionSandbox { mode: Some(SandboxMode::Workspace), ..SessionSandbox::default() };
    let session = user.start(AgentSessionConfig { sandbox, ..shell(&script) }).await;
    let texts: String = all(&mut session.subscribe())
        .await
        .iter()
        .filter_map(|envelope| match &envelope.event {
            Event::Text { text } => Some(text.clone()),
            _ => None,
        })
        .collect();
    assert_eq!((texts.as_str(), user.file().as_str()), ("done\n", "before\n"));
    let diff = user.place.manager.workspace_diff(session.id()).await.expect("a diff");
    assert_eq!(diff.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["copy", "file"]);
    user.place.manager.shutdown().await;
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_workspace_and_one_without_a_directory_is_refused() {
    let user = User::new().await;
    // It ends before it is ready.
    let failing = AgentSessionConfig { command: vec!["/bin/false".into()], ..AgentSessionConfig::new("acp") };
    let failed = user.place.manager.start_session(user.config(failing)).await;
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(user.place.manager.workspaces().await.expect("listed"), []);
    user.place.manager.shutdown().await;
    let without: ProxyManager = Place::without_state(&user.place.scratch).build().await.expect("built");
    let refused = without.start_session(user.config(sessions::fake())).await;
    assert!(matches!(refused, Err(Error::InvalidConfig { field: "workspace", .. })), "{refused:?}");
    without.shutdown().await;
}
