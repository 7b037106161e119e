//! Workspaces: trees of their own that agents work in.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use agent_proxy_tests::sessions::{self, all, event, shell, soon};
use proxy_manager::{
    AgentSessionConfig, Error, Event, HostDeath, KillOptions, PromptMode, ProxyManager, SandboxMode, SessionHandle,
    SessionSandbox, WorkspaceKind, WorkspaceStep,
};

use crate::place::Place;

/// A place with a tree of the user's.
struct User {
    place: Place,
    tree: PathBuf,
    kind: WorkspaceKind,
}

impl User {
    async fn new() -> Self {
        Self::of(WorkspaceKind::Copy).await
    }

    async fn of(kind: WorkspaceKind) -> Self {
        let place = Place::new().await;
        let tree = place.scratch.path().canonicalize().expect("a path").join("work");
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join("file"), "before\n").expect("written");
        Self { place, tree, kind }
    }

    fn config(&self, config: AgentSessionConfig) -> AgentSessionConfig {
        let cwd = Some(self.tree.to_str().expect("UTF-8").to_owned());
        AgentSessionConfig { cwd, workspace: Some(self.kind), ..config }
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
    changes_wait(WorkspaceKind::Copy).await;
}

#[tokio::test]
async fn so_it_is_below_an_overlay() {
    changes_wait(WorkspaceKind::Overlay).await;
}

async fn changes_wait(kind: WorkspaceKind) {
    let user = User::of(kind).await;
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
    writes_in_a_sandbox(WorkspaceKind::Copy).await;
}

#[tokio::test]
async fn so_it_is_with_an_overlay_in_a_sandbox() {
    writes_in_a_sandbox(WorkspaceKind::Overlay).await;
}

async fn writes_in_a_sandbox(kind: WorkspaceKind) {
    let user = User::of(kind).await;
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
    failures_leave_nothing(WorkspaceKind::Copy).await;
    failures_leave_nothing(WorkspaceKind::Overlay).await;
}

async fn failures_leave_nothing(kind: WorkspaceKind) {
    let user = User::of(kind).await;
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

/// Runs a script to its end in a workspace of the user's tree.
async fn run(user: &User, script: &str) -> SessionHandle {
    let session = user.start(shell(&format!("set -e; {script}; echo all done"))).await;
    let events = all(&mut session.subscribe()).await;
    let is_done = |event: &Event| matches!(event, Event::Text { text } if text.contains("all done"));
    assert!(events.iter().any(|envelope| is_done(&envelope.event)), "{events:#?}");
    session
}

fn git(tree: &Path, words: &str) {
    #[expect(clippy::disallowed_methods, reason = "a user's own git")]
    let mut git = std::process::Command::new("git");
    let identity = ["-c", "user.name=u", "-c", "user.email=u@example.com"];
    let done = git.current_dir(tree).args(identity).args(words.split(' ')).env("HOME", tree).status().expect("git");
    assert!(done.success(), "git {words}");
}

/// Each change that a layer notes in a way of its own: files removed and replaced, directories that are opaque, renamed, of another
/// kind than before; and what is ignored below a file that only the lower layer has.
#[tokio::test]
async fn every_change_in_an_overlay_is_found_and_applied() {
    let user = User::of(WorkspaceKind::Overlay).await;
    let tree = &user.tree;
    for (file, text) in [
        ("gone", "x\n"),
        ("old", "some lines\nthat stay\nthe same\n"),
        ("directory/one", "1\n"),
        ("directory/deep/two", "2\n"),
        ("emptied/a", "a\n"),
        ("moved/file", "of a directory\nthat is renamed\n"),
        ("becomes-directory", "f\n"),
        ("becomes-file/inner", "d\n"),
        ("script", "#!/bin/sh\n"),
        ("kept-log.log", "although ignored\n"),
        (".gitignore", "*.log\nbuild/\n"),
        ("nested/inner", "of another repository\n"),
    ] {
        let path = tree.join(file);
        fs::create_dir_all(path.parent().expect("one")).expect("made");
        fs::write(path, text).expect("written");
    }
    std::os::unix::fs::symlink("file", tree.join("link")).expect("linked");
    git(&tree.join("nested"), "init --quiet");
    git(tree, "init --quiet");
    git(tree, "add .gitignore file link script");
    git(tree, "add --force kept-log.log");
    git(tree, "commit --quiet -m first");
    let session = run(
        &user,
        "rm gone; mv old new; rm -r directory; mkdir directory; echo 3 >directory/three; rm -r emptied; mv moved renamed; \
         rm becomes-directory; mkdir becomes-directory; echo in >becomes-directory/file; rm -r becomes-file; echo now >becomes-file; \
         chmod 755 script; ln -sf script link; printf '\\000\\377' >binary; echo more >>kept-log.log; echo x >other.log; \
         mkdir build; echo x >build/output; echo changed >>nested/inner; mkdir -p 'with space/deep'; echo s >'with space/deep/file'",
    )
    .await;
    let diff = user.place.manager.workspace_diff(session.id()).await.expect("a diff");
    let changes: Vec<_> = diff.files.iter().map(|file| (file.path.as_str(), file.change)).collect();
    use proxy_manager::FileChange::{Created, Deleted, Modified, Moved};
    let mut expected = vec![
        ("becomes-directory", Deleted),
        ("becomes-directory/file", Created),
        ("becomes-file", Created),
        ("becomes-file/inner", Deleted),
        ("binary", Created),
        ("directory/deep/two", Deleted),
        ("directory/one", Deleted),
        ("directory/three", Created),
        ("emptied/a", Deleted),
        ("gone", Deleted),
        ("kept-log.log", Modified),
        ("link", Modified),
        ("new", Moved),
        ("renamed/file", Moved),
        ("script", Modified),
        ("with space/deep/file", Created),
    ];
    let mut changes = changes;
    changes.sort_by_key(|(path, _)| *path);
    expected.sort_by_key(|(path, _)| *path);
    assert_eq!(changes, expected);
    assert_eq!(diff.left_out, ["nested"]);
    assert!(tree.join("gone").exists() && !tree.join("new").exists(), "nothing has changed yet");
    user.place.manager.apply_workspace(session.id()).await.expect("applied");
    let read = |file: &str| fs::read_to_string(tree.join(file)).expect(file);
    assert_eq!((read("directory/three").as_str(), read("becomes-directory/file").as_str()), ("3\n", "in\n"));
    assert_eq!((read("becomes-file").as_str(), read("new").as_str()), ("now\n", "some lines\nthat stay\nthe same\n"));
    assert_eq!(read("kept-log.log"), "although ignored\nmore\n");
    assert_eq!(read("nested/inner"), "of another repository\n");
    assert_eq!(fs::read(tree.join("binary")).expect("read"), [0, 255]);
    assert_eq!(fs::read_link(tree.join("link")).expect("a link"), Path::new("script"));
    assert_eq!(fs::metadata(tree.join("script")).expect("there").permissions().mode() & 0o111, 0o111);
    for gone in ["gone", "old", "directory/one", "directory/deep", "emptied/a", "moved/file", "other.log", "build"] {
        assert!(tree.join(gone).symlink_metadata().is_err(), "{gone}");
    }
    assert_eq!(user.place.manager.workspace(session.id()).await.expect("there").changed_files, Some(0));
    user.place.manager.delete_session(session.id()).await.expect("deleted");
    user.place.manager.shutdown().await;
}

/// Output of a command that the agent runs.
async fn output(user: &User, session: &SessionHandle, command: &str) -> String {
    let manager = &user.place.manager;
    let mut events = manager.subscribe_from(session.id(), user.place.info(session).last_offset).expect("known");
    let turn = manager.send_prompt(session.id(), format!("run {command}"), PromptMode::Refuse).await.expect("prompted");
    let output = event(&mut events, "the end of a tool", |envelope| match &envelope.event {
        Event::ToolEnd(tool) => Some(tool.output.trim().to_owned()),
        _ => None,
    })
    .await;
    soon("the turn's end", turn.wait()).await.expect("ended");
    output
}

#[tokio::test]
async fn an_overlay_is_mounted_again_and_by_nobody_else() {
    let user = User::of(WorkspaceKind::Overlay).await;
    let manager = &user.place.manager;
    let session = user.start(AgentSessionConfig::new("kept")).await;
    let id = session.id().clone();
    assert_eq!(output(&user, &session, "echo first >file; cat file").await, "first");
    assert_eq!(user.file(), "before\n");
    let workspace = manager.workspace(&id).await.expect("a workspace");
    let mounts = || fs::read_to_string("/proc/self/mountinfo").expect("read");
    assert!(!mounts().contains(&workspace.path), "the mount is the session's");
    assert_eq!(fs::read_dir(&workspace.path).expect("there").count(), 0);
    manager.suspend_session(&id, KillOptions::NOW).await.expect("suspended");
    assert_eq!(manager.workspace_diff(&id).await.expect("a diff").files.len(), 1);
    let resumed = manager.resume_session(&id).await.expect("resumed");
    assert_eq!(output(&user, &resumed, "cat file").await, "first");
    manager.apply_workspace(&id).await.expect("applied");
    assert_eq!(user.file(), "first\n");
    assert_eq!(output(&user, &resumed, "echo second >file; cat file").await, "second");
    manager.suspend_session(&id, KillOptions::NOW).await.expect("suspended");
    manager.drop_workspace(&id).await.expect("dropped");
    assert_eq!(user.file(), "first\n");
    assert_eq!(fs::read_dir(user.place.scratch.path().join("state/workspaces")).expect("there").count(), 0);
    manager.shutdown().await;
}

#[tokio::test]
async fn what_an_overlay_cannot_be_made_with_is_named() {
    let user = User::of(WorkspaceKind::Overlay).await;
    let refused = |config| async {
        let refused = user.place.manager.start_session(user.config(config)).await.expect_err("refused");
        assert!(matches!(refused, Error::InvalidConfig { field: "workspace", .. }), "{refused:?}");
        refused.to_string()
    };
    let weaker = AgentSessionConfig { containment: Some(proxy_manager::Containment::Cgroup), ..shell("true") };
    assert!(refused(weaker).await.contains("needs the containment strict, and cgroup was asked for"));
    user.place.manager.shutdown().await;
}

/// A session that outlives its manager goes on in its workspace; an archived one has its changes still.
#[tokio::test]
async fn a_workspace_is_adopted_with_its_session_and_kept_with_an_archived_one() {
    for kind in [WorkspaceKind::Copy, WorkspaceKind::Worktree, WorkspaceKind::Overlay] {
        adopted_and_archived(kind).await;
    }
}

async fn adopted_and_archived(kind: WorkspaceKind) {
    let mut user = User::of(kind).await;
    if kind == WorkspaceKind::Worktree {
        for words in ["init --quiet", "add file", "commit --quiet --message first"] {
            git(&user.tree, words);
        }
    }
    let on_host_death = HostDeath::Detach { fetch_within_ms: 60_000, spool_bytes: 1 << 20 };
    let session = user.start(AgentSessionConfig { on_host_death, ..AgentSessionConfig::new("kept") }).await;
    let id = session.id().clone();
    assert_eq!(output(&user, &session, "echo first >file; cat file").await, "first", "{kind:?}");
    let workspace = user.place.manager.workspace(&id).await.expect("a workspace");
    let proxy = user.place.info(&session).processes.proxy;
    drop(session);
    assert_eq!(soon("the end of the host", user.place.manager.shutdown_detaching()).await, []);

    user.place.manager = soon("the next manager", next_manager(&user)).await;
    let session = user.place.manager.session(&id).expect("adopted");
    assert_eq!(user.place.info(&session).processes.proxy, proxy, "{kind:?}: it is the same");
    let adopted = user.place.manager.workspace(&id).await.expect("a workspace");
    assert_eq!((&adopted.path, adopted.created_at, adopted.kind), (&workspace.path, workspace.created_at, kind));
    assert_eq!(output(&user, &session, "cat file; echo more >new").await, "first", "{kind:?}");
    let files = async |user: &User| -> Vec<String> {
        let diff = user.place.manager.workspace_diff(&id).await.expect("a diff");
        diff.files.into_iter().map(|file| file.path).collect()
    };
    assert_eq!((files(&user).await, user.file().as_str()), (vec!["file".into(), "new".into()], "before\n"), "{kind:?}");
    assert!(
        matches!(user.place.manager.drop_workspace(&id).await, Err(Error::NotEnded { .. })),
        "its agent works there"
    );

    soon("the kill", session.kill(KillOptions::NOW)).await.expect("killed");
    let record = user.place.manager.archive_session(&id, true).await.expect("archived");
    assert!(record.archived);
    assert_eq!(files(&user).await.len(), 2, "{kind:?}");
    let refused = user.place.manager.delete_session(&id).await;
    assert!(matches!(refused, Err(Error::WorkspaceUnapplied { files: 2, .. })), "{refused:?}");
    user.place.manager.apply_workspace(&id).await.expect("applied");
    assert_eq!(user.file(), "first\n", "{kind:?}");
    assert_eq!(fs::read_to_string(user.tree.join("new")).expect("read"), "more\n", "{kind:?}");
    user.place.manager.delete_session(&id).await.expect("deleted");
    assert_eq!(user.place.manager.workspaces().await.expect("listed"), []);
    assert_eq!(fs::read_dir(user.place.scratch.path().join("state/workspaces")).expect("there").count(), 0);
    user.place.manager.shutdown().await;
}

/// The next manager of the place, once the one before has given up its state directory.
async fn next_manager(user: &User) -> ProxyManager {
    loop {
        match Place::builder(&user.place.scratch).build().await {
            Ok(manager) => return manager,
            Err(Error::Log(_) | Error::StateDirInUse { .. }) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}
