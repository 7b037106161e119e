use std::{os::unix::fs::PermissionsExt as _, os::unix::fs::symlink};

use ipc_protocol::FileChange;

use super::*;

/// A user with a tree, and a store of workspaces.
struct User {
    scratch: tempfile::TempDir,
    store: WorkspaceStore,
}

const KINDS: [WorkspaceKind; 2] = [WorkspaceKind::Copy, WorkspaceKind::Worktree];

impl User {
    fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let root = scratch.path().canonicalize().expect("a path");
        fs::create_dir_all(root.join("home")).expect("made");
        fs::create_dir_all(root.join("work/sub")).expect("made");
        let path = std::env::var("PATH").expect("set");
        let env = [("PATH", path), ("HOME", root.join("home").display().to_string())].into_iter().collect();
        Self { store: WorkspaceStore::new(root.join("state/workspaces"), env), scratch }
    }

    /// One whose tree is a repository with a commit, changes that are not committed, and ignored files.
    fn with_repository() -> Self {
        let user = Self::new();
        for (file, text) in [
            ("text", "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\n"),
            ("gone", "to be deleted\n"),
            ("old-name", "some lines\nthat stay\nthe same\nwhen moved\n"),
            ("sub/script", "#!/bin/sh\n"),
            ("ignored-but-kept", "kept\n"),
            (".gitignore", "ignored*\n"),
            (".gitattributes", "* text=auto eol=crlf\n"),
        ] {
            user.write(file, text.as_bytes());
        }
        user.write("binary", &[0, 159, 146, 150]);
        for words in [
            &["init", "--quiet"][..],
            &["add", "."],
            &["add", "--force", "ignored-but-kept"],
            &["-c", "user.name=u", "-c", "user.email=u@example.com", "commit", "--quiet", "-m", "first"],
        ] {
            user.git(words);
        }
        user.write("text", b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine changed by the user\n");
        user.write("untracked", b"not added\n");
        user.write("ignored", b"of a build\n");
        user
    }

    fn tree(&self) -> PathBuf {
        self.scratch.path().canonicalize().expect("a path").join("work")
    }

    fn write(&self, file: &str, bytes: &[u8]) {
        fs::write(self.tree().join(file), bytes).expect("written");
    }

    fn read(&self, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.tree().join(file)).expect(file)).into_owned()
    }

    fn git(&self, words: &[&str]) -> String {
        let git = GitProgram::find(&self.store.env).expect("git");
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        String::from_utf8(git.run_in(&self.tree(), &words).expect("git")).expect("UTF-8")
    }

    fn try_make(&self, id: &str, kind: WorkspaceKind, cwd: &Path) -> Result<WorkspacePlan> {
        let plan = self.store.plan((&session(id), None), kind, cwd.to_str().expect("UTF-8"))?;
        self.store.make(&plan)?.keep();
        Ok(plan)
    }

    fn make(&self, id: &str, kind: WorkspaceKind) -> PathBuf {
        self.try_make(id, kind, &self.tree()).expect("made").tree()
    }

    fn worktrees(&self) -> usize {
        self.git(&["worktree", "list", "--porcelain"]).matches("worktree ").count()
    }

    /// All files of the user's tree, but those of git.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        let mut waiting = vec![self.tree()];
        while let Some(directory) = waiting.pop() {
            for entry in fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry")) {
                let kind = entry.file_type().expect("a type");
                match entry.file_name() != ".git" {
                    true if kind.is_dir() => waiting.push(entry.path()),
                    true if kind.is_symlink() => {
                        let target = fs::read_link(entry.path()).expect("a link");
                        files.push((entry.path(), target.into_os_string().into_encoded_bytes()));
                    }
                    true => files.push((entry.path(), fs::read(entry.path()).expect("read"))),
                    false => {}
                }
            }
        }
        files.sort();
        files
    }
}

fn session(id: &str) -> SessionId {
    id.parse().expect("an id")
}

/// Changes a tree in every way.
fn work(tree: &Path) {
    let text = fs::read_to_string(tree.join("text")).expect("read");
    fs::write(tree.join("text"), text.replace("one\n", "ONE by the agent\n")).expect("written");
    fs::remove_file(tree.join("gone")).expect("removed");
    fs::rename(tree.join("old-name"), tree.join("new-name")).expect("moved");
    fs::set_permissions(tree.join("sub/script"), fs::Permissions::from_mode(0o755)).expect("set");
    fs::write(tree.join("binary"), [0, 1, 2, 255, 254]).expect("written");
    fs::create_dir(tree.join("made")).expect("made");
    fs::write(tree.join("made/with space"), "new\r\nlines").expect("written");
    symlink("../text", tree.join("made/link")).expect("linked");
    fs::write(tree.join("untracked"), "changed by the agent\n").expect("written");
    fs::write(tree.join("ignored-but-kept"), "changed\n").expect("written");
    fs::write(tree.join("ignored-output"), "of the agent's build\n").expect("written");
}

#[test]
fn changes_of_every_sort_come_to_the_users_tree_when_they_are_applied_and_not_before() {
    for kind in KINDS {
        let user = User::with_repository();
        let (before, status) = (user.files(), user.git(&["status", "--porcelain"]));
        let tree = user.make("s", kind);
        assert_eq!(fs::read_to_string(tree.join("untracked")).expect("there"), "not added\n", "{kind}");
        assert_eq!(tree.join("ignored").exists(), kind == WorkspaceKind::Copy);
        assert_eq!(user.store.changed_files(&session("s")).expect("counted"), 0, "{kind}");
        work(&tree);
        let diff = user.store.diff(&session("s")).expect("a diff");
        let mut paths: Vec<_> = diff.files.iter().map(|file| (file.path.as_str(), file.change)).collect();
        paths.sort_by_key(|(path, _)| *path);
        let expected = [
            ("binary", FileChange::Modified),
            ("gone", FileChange::Deleted),
            ("ignored-but-kept", FileChange::Modified),
            ("made/link", FileChange::Created),
            ("made/with space", FileChange::Created),
            ("new-name", FileChange::Moved),
            ("sub/script", FileChange::Modified),
            ("text", FileChange::Modified),
            ("untracked", FileChange::Modified),
        ];
        assert_eq!(paths, expected, "{kind}");
        assert!(diff.patch.expect("short").contains("+ONE by the agent"), "{kind}");
        assert_eq!((user.files(), user.git(&["status", "--porcelain"])), (before, status), "{kind}: nothing yet");
        // The user goes on elsewhere in the same file.
        user.write("text", b"one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine again\n");
        let event = user.store.apply(&session("s")).expect("applied");
        assert!(matches!(event, Event::SessionWorkspace { step: WorkspaceStep::Applied, files: 9, .. }), "{event:?}");
        assert_eq!(user.read("text"), "ONE by the agent\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine again\n");
        assert_eq!(user.read("made/with space"), "new\r\nlines");
        assert_eq!(user.read("ignored-but-kept"), "changed\n");
        assert_eq!(fs::read(user.tree().join("binary")).expect("read"), [0, 1, 2, 255, 254]);
        assert_eq!(fs::read_link(user.tree().join("made/link")).expect("a link"), Path::new("../text"));
        let mode = fs::metadata(user.tree().join("sub/script")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        for (gone, there) in [("gone", "new-name"), ("old-name", "untracked"), ("ignored-output", "ignored")] {
            assert!(!user.tree().join(gone).exists() && user.tree().join(there).exists(), "{kind}: {gone}, {there}");
        }
        // Only later changes are left.
        assert_eq!(user.store.changed_files(&session("s")).expect("counted"), 0);
        fs::write(tree.join("later"), "x").expect("written");
        assert!(matches!(
            user.store.apply(&session("s")).expect("applied"),
            Event::SessionWorkspace { step: WorkspaceStep::Applied, files: 1, .. }
        ));
        assert_eq!(user.read("later"), "x");
        user.store.remove(&session("s")).expect("removed");
        assert_eq!((user.worktrees(), user.store.list()), (1, Vec::new()), "{kind}: nothing is left");
        assert!(!tree.exists() && !user.tree().join(".git/worktrees").exists());
    }
}

#[test]
fn what_changed_in_the_same_places_is_named_and_nothing_is_written() {
    for kind in KINDS {
        let user = User::with_repository();
        work(&user.make("s", kind));
        user.write("text", b"one by the user\ntwo\nthree\n");
        fs::remove_file(user.tree().join("untracked")).expect("removed");
        fs::create_dir(user.tree().join("made")).expect("made");
        user.write("made/with space", b"of the user");
        let before = user.files();
        match user.store.apply(&session("s")) {
            Err(Error::WorkspaceConflict { mut paths, source_tree, .. }) => {
                paths.sort();
                assert_eq!(paths, ["made/with space", "text", "untracked"], "{kind}");
                assert_eq!(Path::new(&source_tree), user.tree());
            }
            other => panic!("{kind}: {other:?}"),
        }
        assert_eq!(user.files(), before, "{kind}");
        assert_eq!(user.store.changed_files(&session("s")).expect("counted"), 9, "the workspace is as it was");
    }
}

#[test]
fn what_a_killed_host_has_applied_is_not_applied_again() {
    let user = User::with_repository();
    work(&user.make("s", WorkspaceKind::Copy));
    let path = user.store.path(&session("s")).join("record.json");
    let record = fs::read(&path).expect("read");
    user.store.apply(&session("s")).expect("applied");
    let applied = user.files();
    fs::write(&path, record).expect("the record of before");
    user.store.apply(&session("s")).expect("applied already");
    assert_eq!((user.files(), user.store.changed_files(&session("s")).expect("counted")), (applied, 0));
}

#[test]
fn a_directory_without_git_is_copied_and_compared_too() {
    let user = User::new();
    user.write("a", b"1\n");
    let tree = user.make("s", WorkspaceKind::Copy);
    fs::write(tree.join("a"), "2\n").expect("written");
    fs::write(tree.join("sub/b"), "new\n").expect("written");
    user.store.apply(&session("s")).expect("applied");
    assert_eq!((user.read("a"), user.read("sub/b")), ("2\n".to_owned(), "new\n".to_owned()));
    let refused = user.try_make("t", WorkspaceKind::Worktree, &user.tree()).expect_err("no repository");
    assert!(refused.to_string().contains("use `copy`"), "{refused}");
}

#[test]
fn a_session_below_a_repository_works_below_the_workspace() {
    for kind in KINDS {
        let user = User::with_repository();
        let plan = user.try_make("s", kind, &user.tree().join("sub")).expect("made");
        assert_eq!((plan.cwd(), plan.source()), (plan.tree().join("sub"), user.tree().as_path()), "{kind}");
        fs::write(plan.cwd().join("../text"), "above\n").expect("written");
        fs::write(plan.cwd().join("here"), "below\n").expect("written");
        user.store.apply(&session("s")).expect("applied");
        assert_eq!((user.read("text"), user.read("sub/here")), ("above\n".to_owned(), "below\n".to_owned()), "{kind}");
        // The next incarnation has the same one.
        let again =
            user.store.plan((&session("s"), None), kind, user.tree().to_str().expect("UTF-8")).expect("planned");
        assert!(again.exists && again.cwd() == plan.cwd(), "{kind}");
    }
}

#[test]
fn a_worktree_looks_to_git_as_the_tree_did() {
    let user = User::with_repository();
    let status = user.git(&["status", "--porcelain"]);
    let tree = user.make("s", WorkspaceKind::Worktree);
    let git = GitProgram::find(&user.store.env).expect("git");
    let theirs = git.run_in(&tree, &["status", "--porcelain"].map(OsStr::new)).expect("a status");
    assert_eq!(String::from_utf8_lossy(&theirs), status);
    assert_eq!(user.worktrees(), 2);
}

#[test]
fn nothing_of_the_agents_is_run_when_its_work_is_looked_at() {
    for kind in KINDS {
        let user = User::with_repository();
        let tree = user.make("s", kind);
        let mark = user.scratch.path().join("mark");
        let script = user.scratch.path().join("evil");
        fs::write(&script, format!("#!/bin/sh\ntouch {}\ncat\n", mark.display())).expect("written");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("set");
        let _ = fs::remove_file(tree.join(".git"));
        let _ = directory_files::remove(&tree.join(".git"));
        fs::create_dir_all(tree.join(".git/hooks")).expect("made");
        let evil = script.display();
        let config = format!(
            "[core]\n\tfsmonitor = {evil}\n\tpager = {evil}\n[filter \"x\"]\n\tclean = {evil}\n\tsmudge = {evil}\n[diff]\n\texternal = {evil}\n"
        );
        fs::write(tree.join(".git/config"), config).expect("written");
        fs::write(tree.join(".gitattributes"), "* filter=x diff=x\n").expect("written");
        fs::write(tree.join("text"), "changed\n").expect("written");
        user.store.diff(&session("s")).expect("a diff");
        user.store.apply(&session("s")).expect("applied");
        user.store.remove(&session("s")).expect("removed");
        assert!(!mark.exists(), "{kind}");
        assert_eq!((user.read("text").as_str(), user.worktrees()), ("changed\n", 1), "{kind}");
    }
}

#[test]
fn repositories_within_are_left_out_by_name() {
    let user = User::with_repository();
    let tree = user.make("s", WorkspaceKind::Copy);
    // One without a commit is an error to `git add`.
    fs::create_dir_all(tree.join("inner/.git")).expect("made");
    fs::write(tree.join("inner/file"), "x").expect("written");
    fs::write(tree.join("outer"), "x").expect("written");
    let diff = user.store.diff(&session("s")).expect("a diff");
    assert_eq!(diff.left_out, ["inner"]);
    assert_eq!(diff.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["outer"]);
}

#[test]
fn what_was_not_finished_is_removed_by_the_next_host_and_the_rest_stays() {
    let user = User::with_repository();
    user.make("whole", WorkspaceKind::Worktree);
    user.make("partial", WorkspaceKind::Worktree);
    let directory = user.store.path(&session("partial"));
    let mut record = read_record(&directory).expect("a record");
    // A host that was killed right after `git worktree add`.
    (record.is_complete, record.entry) = (false, None);
    write_record(&directory, &record).expect("written");
    user.store.recover();
    assert!(!directory.exists() && user.worktrees() == 2);
    assert_eq!(user.store.list().len(), 1);
    // A start that fails leaves nothing.
    let plan = user.store.plan((&session("new"), None), WorkspaceKind::Worktree, user.tree().to_str().expect("UTF-8"));
    user.store.make(&plan.expect("planned")).expect("made").remove();
    assert!(!user.store.path(&session("new")).exists() && user.worktrees() == 2);
}

#[test]
fn what_cannot_be_had_is_refused() {
    let user = User::with_repository();
    let text = |refused: Result<WorkspacePlan>| refused.expect_err("refused").to_string();
    let around = user.scratch.path().canonicalize().expect("a path");
    assert!(text(user.try_make("s", WorkspaceKind::Copy, &around)).contains("around the state directory"));
    user.git(&["worktree", "add", "--quiet", "--detach", "../linked"]);
    assert!(text(user.try_make("s", WorkspaceKind::Copy, &around.join("linked"))).contains("use `worktree`"));
    user.try_make("s", WorkspaceKind::Worktree, &around.join("linked")).expect("made");
    let unborn = User::new();
    unborn.git(&["init", "--quiet"]);
    assert!(text(unborn.try_make("s", WorkspaceKind::Worktree, &unborn.tree())).contains("has no commit"));
    assert!(!unborn.store.path(&session("s")).exists());
    let store = WorkspaceStore::new(around.join("state"), [("PATH", "/nowhere")].into_iter().collect());
    let refused = store.plan((&session("s"), None), WorkspaceKind::Copy, user.tree().to_str().expect("UTF-8"));
    assert!(text(refused).contains("git is not in PATH"));
    let busy = user.store.lock(&session("s")).expect("free");
    assert!(matches!(user.store.diff(&session("s")), Err(Error::WorkspaceBusy { .. })));
    drop(busy);
    assert!(matches!(user.store.diff(&session("none")), Err(Error::UnknownWorkspace { .. })));
}
