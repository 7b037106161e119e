//! Homes of sessions' own, and the keys in them.

use std::{
    fs,
    io::{ErrorKind, Write},
    os::unix::fs::{MetadataExt, symlink},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use agent_proxy_tests::sessions::{self, all, event, fake, said, shell, soon};
use proxy_manager::{
    AgentSessionConfig, AgentSpec, Error, Event, Home, HomeFile, HomeFiles, HomePart, KillOptions, ManagerBuilder,
    ModelConfig, OnMissing, Profile, Profiles, PromptMode, ProxyManager, ResumeFrom, ResumeRequest, SessionHandle,
    SessionId,
};
use tempfile::TempDir;

const FAKE: &str = env!("CARGO_BIN_EXE_fake-agent");

/// All that is logged in this program, as much as there is.
static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();

/// Writes to [`LOG`].
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged() -> String {
    let log = LOG.get().expect("set up").lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&log).into_owned()
}

fn builder() -> ManagerBuilder {
    LOG.get_or_init(|| {
        let log = Arc::new(Mutex::new(Vec::new()));
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || Log(writer.clone()))
            .finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        log
    });
    sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), FAKE)
}

struct Place {
    manager: ProxyManager,
    scratch: TempDir,
}

impl Place {
    async fn new(adapt: impl FnOnce(ManagerBuilder) -> ManagerBuilder) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let manager = adapt(builder().state_dir(scratch.path().join("state"))).build().await.expect("built");
        Self { manager, scratch }
    }

    fn home(&self, session: &SessionHandle) -> PathBuf {
        self.scratch.path().join("state/homes").join(format!("s-{}", session.id()))
    }
}

fn own() -> AgentSessionConfig {
    AgentSessionConfig { home: Some(Home::Own), ..fake() }
}

/// The fake agent, configured as an agent that reads its key from a file in its home. It takes none of that one's arguments.
fn keyed() -> AgentSpec {
    AgentSpec {
        protocol_config: serde_json::json!({ "config": "codex" }),
        ..AgentSpec::new("keyed", "acp", &["/bin/sh", "-c", &format!("exec {FAKE}"), "sh"])
    }
}

fn model(key: &str) -> ModelConfig {
    let json = serde_json::json!({
        "name": "secret", "provider": "mock", "api": "openai-responses", "base_url": "http://127.0.0.1:9/v1", "model": "fake-1", "key": key,
    });
    serde_json::from_value(json).expect("parses")
}

/// The files below `directory`, with their contents.
fn files(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("listed") {
        let entry = entry.expect("listed");
        if entry.file_type().expect("known").is_dir() {
            found.extend(files(&entry.path()));
        } else {
            let contents = match fs::read(entry.path()) {
                // One with a key that goes meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                contents => contents.expect("read"),
            };
            found.push((entry.path(), String::from_utf8_lossy(&contents).into_owned()));
        }
    }
    found
}

/// Waits until there is no such file.
async fn gone(path: &Path) {
    soon("it is removed", async {
        while path.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_login_is_in_the_home_while_its_session_runs_and_skills_are_copied_once() {
    let user = tempfile::tempdir().expect("a directory");
    let file = |path: &str, contents: &str| {
        let path = user.path().join(path);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, contents).expect("written");
    };
    file(".fake/login.json", "first");
    file(".fake/skills/plum.md", "pick plums");
    let row = |path: &str| HomeFile { path: path.into(), ..HomeFile::default() };
    let mut spec = AgentSpec::new("fake", "acp", &[FAKE, "--store", "chats"]);
    spec.home_files =
        HomeFiles { login: vec![row(".fake/login.json")], skills: vec![row(".fake/skills")], ..HomeFiles::default() };
    let env = [("HOME", user.path().to_str().expect("UTF-8")), ("PATH", "/usr/bin:/bin")].into_iter().collect();
    let place = Place::new(|builder| builder.agent(spec).base_env(env)).await;
    let config = AgentSessionConfig {
        cwd: Some("/".into()),
        home_copy: vec![HomePart::Login, HomePart::Skills],
        ..AgentSessionConfig::new("fake")
    };
    let session = place.manager.start_session(config.clone()).await.expect("started");
    let home = place.home(&session);
    let (login, skill) = (home.join(".fake/login.json"), home.join(".fake/skills/plum.md"));
    let read = |path: &Path| fs::read_to_string(path).ok();
    assert_eq!((read(&login).as_deref(), read(&skill).as_deref()), (Some("first"), Some("pick plums")));
    assert_eq!(fs::metadata(&login).expect("there").mode() & 0o777, 0o600);
    let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", turn.wait()).await.expect("ended");
    place.manager.suspend_session(session.id(), KillOptions::NOW).await.expect("suspended");
    gone(&login).await;
    // What the agent made of its skills stays; the login is the user's of now.
    fs::write(&skill, "pick pears").expect("written");
    file(".fake/login.json", "second");
    let session = place.manager.resume_session(session.id()).await.expect("resumed");
    assert_eq!((read(&login).as_deref(), read(&skill).as_deref()), (Some("second"), Some("pick pears")));
    session.kill(KillOptions::NOW).await.expect("killed");
    gone(&login).await;

    let refused = |config| async {
        match place.manager.start_session(config).await {
            Err(Error::InvalidConfig { field: "homeCopy", reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    let shared = AgentSessionConfig { home: Some(Home::Shared), session_id: SessionId::mint(), ..config.clone() };
    assert!(refused(shared).await.contains("your home itself"));
    fs::remove_file(user.path().join(".fake/login.json")).expect("removed");
    let missing = AgentSessionConfig { session_id: SessionId::mint(), ..config };
    assert!(refused(missing).await.contains("no login of yours"));
    assert!(!logged().contains("pick plums") && !logged().contains("\"second\""), "names only");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_key_is_in_a_file_of_the_home_and_nowhere_else() {
    let key = format!("sk-secret-{}", uuid::Uuid::now_v7().simple());
    let place = Place::new(|builder| builder.agent(keyed()).models([model(&key)])).await;
    let config = AgentSessionConfig {
        model_config: Some("secret".into()),
        cwd: Some("/".into()),
        ..AgentSessionConfig::new("keyed")
    };
    let session = place.manager.start_session(config.clone()).await.expect("started");
    let mut events = session.subscribe();
    let turn = session.prompt("env\nspawn exec sleep 300", PromptMode::Refuse).await.expect("prompted");
    soon("the turn's end", turn.wait()).await.expect("ended");

    // Where it has to be, for nobody else to read.
    let home = place.home(&session);
    let (with, without): (Vec<_>, Vec<_>) =
        files(place.scratch.path()).into_iter().partition(|(_, contents)| contents.contains(&key));
    assert!(!with.is_empty() && with.iter().all(|(path, _)| path.starts_with(&home)), "{with:?}");
    for (path, _) in &with {
        let mode = fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    assert_eq!(fs::metadata(&home).expect("there").mode() & 0o777, 0o700);
    assert!(without.iter().any(|(path, _)| path.ends_with(format!("{}.journal", session.id()))), "{without:?}");

    // What can be seen of processes: the session's, and ours.
    let processes = session.processes().await.expect("listed");
    let info = session.info();
    let ours = [
        info.processes.proxy.expect("it runs"),
        info.processes.agent_process.expect("it runs"),
        place.manager.fork_server(),
    ];
    for id in processes.iter().map(|info| info.id).chain(ours) {
        let cmdline = fs::read(format!("/proc/{}/cmdline", id.pid)).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&cmdline).contains(&key), "{id}");
    }
    let seen = format!("{processes:?} {info:?} {:?} {:?} {config:?}", place.manager, session);
    assert!(!seen.contains(&key));
    assert!(!serde_json::to_string(&(processes, info)).expect("JSON").contains(&key));

    session.kill(KillOptions::NOW).await.expect("killed");
    for envelope in all(&mut events).await {
        let json = envelope.to_json().expect("JSON").to_string();
        assert!(!json.contains(&key) && !format!("{envelope:?}").contains(&key), "{json}");
    }
    assert!(!session.transcript().await.expect("read").contains(&key));
    assert!(!logged().contains(&key) && logged().contains(session.id().as_str()));
    place.manager.shutdown().await;
}

/// The files with a key in the home of a session.
fn keyed_files(home: &Path, key: &str) -> Vec<PathBuf> {
    files(home).into_iter().filter(|(_, contents)| contents.contains(key)).map(|(path, _)| path).collect()
}

#[tokio::test]
async fn a_key_goes_with_the_end_of_its_session_and_is_there_again_when_it_goes_on() {
    let key = format!("sk-secret-{}", uuid::Uuid::now_v7().simple());
    let agent = || AgentSpec {
        protocol_config: serde_json::json!({ "config": "codex" }),
        ..AgentSpec::new("keyed", "acp", &["/bin/sh", "-c", &format!("exec {FAKE} --store chats"), "sh"])
    };
    let mut place = Place::new(|builder| builder.agent(agent()).models([model(&key)])).await;
    let config = AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new("keyed") };
    let named = AgentSessionConfig { model_config: Some("secret".into()), ..config.clone() };
    let first = place.manager.start_session(named).await.expect("started");
    let home = place.home(&first);
    let mut last = first;
    for round in 0..3 {
        let there = keyed_files(&home, &key);
        assert!(!there.is_empty(), "round {round}");
        if round == 1 {
            // Its manager ends it, and the next one knows as well what it was started with.
            place.manager.shutdown().await;
            assert_eq!(keyed_files(&home, &key), <[PathBuf; 0]>::default());
            let state = place.scratch.path().join("state");
            // As if it had been killed before it came to that.
            for path in &there {
                fs::write(path, &key).expect("written");
            }
            let record = place.scratch.path().join(format!("state/conversations/{}.json", last.id()));
            let written = fs::read_to_string(&record).expect("there");
            let mut json: serde_json::Value = serde_json::from_str(&written).expect("JSON");
            json["keys"] = there.iter().map(|path| path.strip_prefix(&home).expect("in it").to_str()).collect();
            fs::write(&record, json.to_string()).expect("written");
            place.manager =
                builder().state_dir(state).agent(agent()).models([model(&key)]).build().await.expect("built");
        } else {
            last.kill(KillOptions::NOW).await.expect("killed");
        }
        let gone = async {
            while !keyed_files(&home, &key).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        soon("the keys' end", gone).await;
        assert!(
            files(&home).iter().any(|(path, _)| path.parent().is_some_and(|at| at.ends_with("chats"))),
            "the rest stays"
        );
        let from = ResumeFrom::Session { id: last.id().clone() };
        let resume = Some(ResumeRequest { from, fork: false, on_missing: OnMissing::Fail });
        let config = AgentSessionConfig { resume, session_id: SessionId::mint(), ..config.clone() };
        last = place.manager.start_session(config).await.expect("started");
        assert_eq!(last.info().metadata.home.as_deref(), home.to_str());
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_key_is_in_no_error() {
    let key = format!("sk-secret-{}", uuid::Uuid::now_v7().simple());
    let program = AgentSpec { cmd: vec!["/no/such/agent".into()], ..keyed() };
    let place = Place::new(|builder| builder.agent(program).models([model(&key)])).await;
    let config = AgentSessionConfig { model_config: Some("secret".into()), ..AgentSessionConfig::new("keyed") };
    let id = config.session_id.clone();
    let error = place.manager.start_session(config).await.expect_err("no program");
    assert!(matches!(error, Error::ProgramNotFound { .. }), "{error}");
    assert!(place.manager.session(&id).is_err(), "as if it never had been");
    assert!(!place.scratch.path().join(format!("state/homes/s-{id}")).exists(), "as if it never had been");
    let ended = format!("{error} {error:?}");
    assert!(!ended.contains(&key) && !logged().contains(&key), "{ended}");
    // One that cannot even be planned.
    let config = AgentSessionConfig {
        model_config: Some("secret".into()),
        home: Some(Home::Shared),
        ..AgentSessionConfig::new("keyed")
    };
    match place.manager.start_session(config).await {
        Err(Error::InvalidConfig { field: "home", reason }) => assert!(!reason.contains(&key), "{reason}"),
        other => panic!("{other:?}"),
    }
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_home_is_kept_until_its_session_is_deleted() {
    let place = Place::new(|builder| builder).await;
    let session = place.manager.start_session(own()).await.expect("started");
    let home = place.home(&session);
    assert_eq!(session.info().metadata.home.as_deref(), home.to_str());
    let mut events = session.subscribe();
    let script =
        "run cd && mkdir -p a/b && echo x > a/b/c && chmod 555 a/b && ln -s /etc link && echo $HOME $XDG_CACHE_HOME";
    let turn = session.prompt(script, PromptMode::Refuse).await.expect("prompted");
    let output = event(&mut events, "its output", |envelope| match &envelope.event {
        Event::ToolEnd(end) => Some(end.output.clone()),
        _ => None,
    })
    .await;
    assert_eq!(output.trim(), format!("{0} {0}/.cache", home.display()));
    soon("the turn's end", turn.wait()).await.expect("ended");

    let alive = place.manager.delete_session(session.id()).await.expect_err("it lives");
    assert!(matches!(alive, Error::NotEnded { .. }), "{alive}");
    session.kill(KillOptions::NOW).await.expect("killed");
    assert!(home.join("a/b/c").exists());
    place.manager.delete_session(session.id()).await.expect("deleted");
    assert!(!home.exists() && Path::new("/etc/passwd").exists());
    assert!(matches!(place.manager.session(session.id()), Err(Error::UnknownSession { .. })));
    let unknown = place.manager.delete_session(session.id()).await.expect_err("gone");
    assert!(matches!(unknown, Error::UnknownSession { .. }), "{unknown}");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn the_next_manager_deletes_what_an_earlier_one_left() {
    let place = Place::new(|builder| builder).await;
    let session = place.manager.start_session(own()).await.expect("started");
    let home = place.home(&session);
    place.manager.shutdown().await;
    assert!(home.exists(), "it was not deleted");
    let state = place.scratch.path().join("state");
    let next = builder().state_dir(state).build().await.expect("built");
    // Its id is taken as long as that is there.
    let again = AgentSessionConfig { session_id: session.id().clone(), ..own() };
    let taken = next.start_session(again.clone()).await.expect_err("taken");
    assert!(matches!(taken, Error::DuplicateSession { .. }), "{taken}");
    next.delete_session(session.id()).await.expect("deleted");
    assert!(!home.exists());
    next.start_session(again).await.expect("free");
    next.shutdown().await;
}

#[tokio::test]
async fn what_links_out_of_a_home_stays() {
    let place = Place::new(|builder| builder).await;
    let session = place.manager.start_session(own()).await.expect("started");
    let outside = place.scratch.path().join("outside");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("file"), "mine").expect("written");
    let home = place.home(&session);
    symlink(&outside, home.join("link")).expect("linked");
    session.kill(KillOptions::NOW).await.expect("killed");
    // Even where the home itself has become one.
    fs::rename(&home, place.scratch.path().join("moved")).expect("moved");
    symlink(&outside, &home).expect("linked");
    place.manager.delete_session(session.id()).await.expect("deleted");
    assert!(home.symlink_metadata().is_err());
    assert_eq!(fs::read_to_string(outside.join("file")).expect("there"), "mine");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn without_a_state_directory_homes_go_with_the_manager() {
    let scratch = tempfile::tempdir().expect("a directory");
    let env = [("PATH", "/usr/bin:/bin"), ("TMPDIR", scratch.path().to_str().expect("UTF-8"))];
    let manager = builder().base_env(env.into_iter().collect()).build().await.expect("built");
    let session = manager.start_session(own()).await.expect("started");
    let home = PathBuf::from(session.info().metadata.home.expect("its own"));
    assert!(home.starts_with(scratch.path()) && home.exists(), "{}", home.display());
    session.kill(KillOptions::NOW).await.expect("killed");
    assert!(home.exists());
    // Another does not take them for a dead one's, but what one left that was killed.
    let parent = home.parent().and_then(Path::parent).expect("in the scratch directory");
    let left = parent.join("agent-proxy-homes.left");
    fs::create_dir_all(left.join("s-1")).expect("made");
    let other = builder().base_env(env.into_iter().collect()).build().await.expect("built");
    let gone = async {
        while left.exists() {
            tokio::task::yield_now().await;
        }
    };
    soon("the end of what was left", gone).await;
    other.shutdown().await;
    assert!(home.exists());
    manager.shutdown().await;
    assert_eq!(fs::read_dir(scratch.path()).expect("listed").count(), 0);
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_no_home() {
    let place = Place::new(|builder| builder.agent(AgentSpec::new("mute", "acp", &[FAKE, "--no-handshake"]))).await;
    let config = AgentSessionConfig { home: Some(Home::Own), ..AgentSessionConfig::new("mute") };
    let id = config.session_id.clone();
    let manager = place.manager.clone();
    let start = tokio::spawn(async move { manager.start_session(config).await.map(drop) });
    let home = place.scratch.path().join("state/homes").join(format!("s-{id}"));
    let is_there = async |there: bool| {
        while home.exists() != there {
            tokio::task::yield_now().await;
        }
    };
    soon("the home", is_there(true)).await;
    start.abort();
    soon("the end of the home", is_there(false)).await;
    place.manager.shutdown().await;
}

#[tokio::test]
async fn profiles_can_be_changed_while_the_manager_runs() {
    let place = Place::new(|builder| builder).await;
    let config =
        || AgentSessionConfig { profile: Some("p".into()), cwd: Some("/".into()), ..AgentSessionConfig::new("") };
    let unknown = place.manager.start_session(config()).await.expect_err("no such profile");
    assert!(matches!(unknown, Error::UnknownProfile { .. }), "{unknown}");
    let mut profiles = Profiles::default();
    let model = Some("fake-2".to_owned());
    profiles.add(Profile { name: "p".into(), agent: sessions::FAKE.into(), model, ..Profile::default() });
    place.manager.set_profiles(profiles);
    let session = place.manager.start_session(config()).await.expect("started");
    let info = session.info();
    assert_eq!((info.metadata.profile.as_deref(), info.settings.model.as_deref()), (Some("p"), Some("fake-2")));
    let mut events = session.subscribe();
    session.prompt("model", PromptMode::Refuse).await.expect("prompted");
    assert_eq!(said(&mut events, "fake-").await, "2\n");
    place.manager.shutdown().await;
}

#[tokio::test]
async fn a_session_knows_how_deep_it_is() {
    let place = Place::new(|builder| builder.max_depth(2)).await;
    let config = || AgentSessionConfig { depth: 1, ..shell("echo depth $AGENT_PROXY_DEPTH; cat") };
    let session = place.manager.start_session(config()).await.expect("started");
    assert_eq!(session.info().metadata.depth, 2);
    assert_eq!(said(&mut session.subscribe(), "depth ").await, "2\n");
    let deeper = place.manager.start_session(AgentSessionConfig { depth: 2, ..config() }).await.expect_err("too deep");
    assert!(matches!(deeper, Error::TooDeep { depth: 3, max: 2 }), "{deeper}");
    place.manager.shutdown().await;
}
