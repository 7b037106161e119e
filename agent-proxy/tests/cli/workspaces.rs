//! Workspaces: of a session in the terminal, and of a daemon that is killed.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use nix::sys::signal::Signal;

/// A user without rights.
const ORDINARY: u32 = 65_534;

use crate::{
    documented::documented,
    durable::end,
    harness::{PROGRAM, Place, Ran, Running, not_run},
};

/// A place with a tree of the user's.
struct User {
    place: Place,
    tree: PathBuf,
    kind: &'static str,
}

impl User {
    fn new() -> Self {
        Self::in_place(Place::new(), "copy")
    }

    fn in_place(place: Place, kind: &'static str) -> Self {
        let tree = place.directory.join("work");
        fs::create_dir(&tree).expect("made");
        fs::write(tree.join("file"), "before\n").expect("written");
        fs::create_dir(tree.join("directory")).expect("made");
        fs::write(tree.join("directory/one"), "1\n").expect("written");
        for path in ["", "file", "directory", "directory/one"].map(|path| tree.join(path)) {
            // The place may be another user's.
            let owner = fs::metadata(&place.directory).expect("there");
            std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).expect("handed over");
        }
        Self { place, tree, kind }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.place.command(args);
        command.env("XDG_STATE_HOME", self.place.directory.join("local"));
        Running::new(command).end()
    }

    fn work(&self, command: &[&str], script: &str) -> Ran {
        let options = ["--agent", "command", "--workspace", self.kind, "--cwd", self.tree.to_str().expect("UTF-8")];
        self.run(&[command, &options, &["--", "/bin/sh", "-c", script]].concat())
    }

    fn file(&self) -> String {
        fs::read_to_string(self.tree.join("file")).expect("read")
    }

    /// Id of the only workspace.
    fn only(&self) -> String {
        let listed = documented("workspaces", self.run(&["workspaces", "--json"]).exits(0).json());
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
        listed[0]["sessionId"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn a_run_says_what_it_has_left_and_its_changes_are_applied_or_dropped() {
    changes_are_settled(&User::new());
}

/// As the session decides: else it would be denied what it has allowed already.
#[test]
fn relative_paths_of_rules_are_those_of_the_workspace() {
    let user = User::new();
    let cwd = user.tree.to_str().expect("UTF-8");
    let agent = format!("sed -u \"s|@CWD|$PWD|\" | exec '{PROGRAM}' fake-agent");
    let prompt = r#"ask-call {"title":"Edit","kind":"edit","locations":[{"path":"@CWD/directory/one"}]}"#;
    let options = ["run", "--agent", "acp", "--workspace", "copy", "--cwd", cwd, "--allow", "path=directory/**"];
    let ran = user.run(&[&options[..], &[prompt, "--", "/bin/sh", "-c", &agent]].concat()).exits(0);
    assert_eq!(ran.stdout, "permission: allow-once\n", "{}", ran.stderr);
}

#[test]
fn so_are_those_of_an_overlay() {
    changes_are_settled(&User::in_place(Place::new(), "overlay"));
}

/// In a user namespace the layers have other marks.
#[test]
fn so_are_those_of_an_ordinary_user_s_overlay() {
    match nix::unistd::geteuid().is_root() {
        true => changes_are_settled(&User::in_place(Place::of_user(ORDINARY), "overlay")),
        false => not_run("takes root to become another user; the test above runs as an ordinary one already"),
    }
}

fn changes_are_settled(user: &User) {
    let ran = user.work(&["run"], "echo after >file").exits(0);
    let id = user.only();
    assert!(ran.stderr.contains(&format!("workspace: 1 file changed; `agent-proxy diff {id}`")), "{}", ran.stderr);
    // The beginning that a listing shows is enough.
    assert_eq!(user.run(&["diff", &id[..13], "--stat"]).exits(0).stdout, "modified file\n");
    assert!(user.run(&["diff", &id]).exits(0).stdout.contains("-before\n+after\n"));
    assert_eq!(user.file(), "before\n");
    user.run(&["apply", &id]).exits(0);
    assert_eq!((user.file().as_str(), user.run(&["workspaces"]).exits(0).stdout.as_str()), ("after\n", ""));
    user.work(&["run"], "echo more >file").exits(0);
    let id = user.only();
    fs::write(user.tree.join("file"), "mine\n").expect("written");
    let refused = user.run(&["apply", &id, "--json"]).exits(8).problem();
    assert!(refused["type"].as_str().is_some_and(|kind| kind.ends_with("workspace-conflict")), "{refused}");
    assert_eq!(user.run(&["drop", &id, "--json"]).exits(0).json()["files"], 1);
    assert_eq!((user.file().as_str(), user.run(&["workspaces"]).exits(0).stdout.as_str()), ("mine\n", ""));
    // A directory in the place of another one has nothing of that.
    user.work(&["run"], "rm -r directory; mkdir directory; echo 2 >directory/two").exits(0);
    let id = user.only();
    user.run(&["apply", &id[..13]]).exits(0);
    assert!(!user.tree.join("directory/one").exists() && user.tree.join("directory/two").exists());
    // One without changes goes by itself.
    user.work(&["run"], "cat file").exits(0);
    assert_eq!(user.run(&["workspaces", "--json"]).exits(0).stdout.trim(), "[]");
}

#[test]
fn a_workspace_outlives_a_daemon_that_is_killed_and_no_prune_deletes_it_unasked() {
    outlives_its_daemon(&User::new());
}

#[test]
fn an_overlay_outlives_a_daemon_that_is_killed_without_its_mount() {
    outlives_its_daemon(&User::in_place(Place::new(), "overlay"));
}

fn outlives_its_daemon(user: &User) {
    let state = user.place.directory.join("state");
    let flags = ["--state-dir", state.to_str().expect("UTF-8")];
    let daemon = user.place.serve_with(&flags);
    user.work(&["start", "--id", "s"], "echo after >file; echo done; exec sleep 1000").exits(0);
    let mut events = user.place.spawn(&["events", "s", "--follow", "--json"]);
    events.until_printed(&["done"]);
    drop(events);
    let refused = user.run(&["drop", "s", "--json"]).exits(8).problem();
    assert!(refused["type"].as_str().is_some_and(|kind| kind.ends_with("not-ended")), "{refused}");
    end(&user.place, daemon, Signal::SIGKILL);
    let is_mounted = |process: &fs::DirEntry| {
        // A process that has just gone has no mounts.
        let mounts = fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
        mounts.contains(user.place.directory.to_str().expect("UTF-8"))
    };
    let left = fs::read_dir("/proc").expect("listed").flatten().find(is_mounted);
    assert!(left.is_none(), "{left:?} has its overlay");
    let daemon = user.place.serve_with(&flags);
    assert_eq!(user.only(), "s");
    assert_eq!(user.run(&["prune", "--dry-run"]).exits(0).stdout, "");
    assert_eq!(user.run(&["prune", "--dry-run", "--force"]).exits(0).stdout, "s\n");
    let refused = user.run(&["prune"]).exits(8);
    assert!(refused.stderr.contains("s has 1 file that is not applied"), "{}", refused.stderr);
    user.run(&["apply", "s"]).exits(0);
    assert_eq!(user.file(), "after\n");
    assert_eq!(user.run(&["prune", "--dry-run"]).exits(0).stdout, "s\n");
    assert_eq!(user.run(&["prune"]).exits(0).stdout, "s\n");
    assert_eq!(user.run(&["workspaces", "--json"]).exits(0).stdout.trim(), "[]");
    assert_eq!(fs::read_dir(state.join("workspaces")).expect("there").count(), 0);
    daemon.end(Signal::SIGTERM).exits(0);
}

/// The agent writes whatever it likes into a file.
#[test]
fn a_diff_does_nothing_to_the_terminal_and_a_pipe_has_it_as_it_is() {
    let user = User::new();
    let state = user.place.directory.join("state");
    let daemon = user.place.serve_with(&["--state-dir", state.to_str().expect("UTF-8")]);
    let script = r"printf 'a\033[2Jb\n' >file; echo changed; exec cat";
    let tree = user.tree.to_str().expect("UTF-8");
    let start = ["start", "--id", "s", "--agent", "command", "--workspace", "copy", "--cwd", tree, "--", "sh", "-c"];
    daemon.run(&[&start[..], &[script]].concat()).exits(0);
    daemon.spawn(&["events", "s", "--follow", "--json"]).until_printed(&["changed"]);
    let (_, shown) = crate::listings::on_screen(&user.place, &["diff", "s"], 80, true);
    assert!(shown.contains(r"+a\u{1b}[2Jb") && !shown.contains('\u{1b}'), "{shown:?}");
    assert!(daemon.run(&["diff", "s"]).exits(0).stdout.contains("+a\u{1b}[2Jb\n"));
    daemon.run(&["kill", "s"]).exits(0);
    let applied = daemon.run(&["apply", "s"]).exits(0).stderr;
    assert!(applied.starts_with("1 file applied to "), "{applied}");
    assert!(daemon.run(&["apply", "s"]).exits(0).stderr.starts_with("nothing to apply"));
    let dropped = daemon.run(&["drop", "s"]).exits(0).stderr;
    assert!(dropped.contains("no changes that were not applied"), "{dropped}");
}

#[test]
fn changes_that_cannot_be_counted_are_no_0_files() {
    let user = User::new();
    user.work(&["run"], "echo after >file").exits(0);
    let id = user.only();
    // Without it nobody can say what the changes are.
    fs::remove_dir_all(&user.tree).expect("removed");
    let dropped = user.run(&["drop", &id]).exits(0).stderr;
    assert!(dropped.contains("could not be counted"), "{dropped}");
}
