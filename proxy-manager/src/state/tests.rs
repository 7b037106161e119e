//! The directory itself, and what is read back from it.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::PathBuf,
    sync::{
        atomic::{AtomicU32, Ordering},
        mpsc,
    },
};

use ipc_protocol::EnvVars;

use super::*;
use crate::homes::SessionHomes;

/// A directory of a test's own, removed with its end.
pub(super) struct Scratch(pub(super) PathBuf);

impl Scratch {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("agent-proxy-state-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a scratch directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl JournalDir {
    /// Has writes to journals hang until the result is dropped.
    pub(crate) fn hang(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        self.work.push("hanging", move || _ = released.recv()).expect("handed over");
        release
    }
}

pub(super) fn own() -> ProcessId {
    registry::identify(std::process::id()).expect("alive")
}

fn reason(path: &Path) -> String {
    match StateDir::open(path, own()) {
        Err(Error::InvalidConfig { field: "state directory", reason }) => reason,
        Err(error @ Error::StateDirInUse { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_manager_at_a_time_has_the_directory() {
    let scratch = Scratch::new();
    let path = scratch.0.join("deeper/state");
    let state = StateDir::open(&path, own()).expect("made");
    for made in [&path, &path.join("sessions")] {
        assert_eq!(fs::metadata(made).expect("there").permissions().mode() & 0o7777, 0o700);
    }
    let reason = self::reason(&path);
    assert!(reason.contains(&format!("in use by process {}:", std::process::id())), "{reason}");
    fs::remove_file(path.join("lock")).expect("anybody of this user can");
    let reason = self::reason(&path);
    assert!(reason.contains("in use by another process"), "{reason}");
    drop(state);
    StateDir::open(&path, own()).expect("free again");
}

#[test]
fn what_others_can_write_to_is_refused() {
    let scratch = Scratch::new();
    for mode in [0o777, 0o770, 0o702] {
        fs::set_permissions(&scratch.0, Permissions::from_mode(mode)).expect("ours");
        let reason = reason(&scratch.0);
        assert!(reason.contains(&format!("mode {mode:o}")) && reason.contains("chmod"), "{reason}");
        assert_eq!(fs::read_dir(&scratch.0).expect("readable").count(), 0, "nothing is made in there");
    }
    fs::set_permissions(&scratch.0, Permissions::from_mode(0o755)).expect("ours");
    StateDir::open(&scratch.0, own()).expect("others may look");
}

#[test]
fn anothers_directory_is_refused() {
    let scratch = Scratch::new();
    let theirs = if nix::unistd::geteuid().is_root() {
        chown(&scratch.0, Some(65534), None).expect("root may");
        scratch.0.clone()
    } else {
        PathBuf::from("/")
    };
    let reason = reason(&theirs);
    assert!(reason.contains("name a directory of your own"), "{reason}");
}

#[test]
fn what_names_nothing_is_told_and_out_of_the_way() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.0, own()).expect("made");
    let header = JournalHeader {
        session: "rebooted".parse().expect("valid"),
        marker: "m".into(),
        place: BootNamespace { boot: "another".into(), ..state.place.clone() },
        since: 0,
        strict: false,
        host: own(),
        fork_server: own(),
        cgroup: None,
        container: None,
    };
    let sessions = scratch.0.join("sessions");
    // It names this very process: were it believed, this would be the end of the test.
    fs::write(sessions.join("a.journal"), header.line() + &format!("+{}\nnonsense\n", own())).expect("written");
    fs::write(sessions.join("b.journal"), b"\0\0\0\n\xff\n").expect("written");
    fs::write(sessions.join("c.journal"), b"").expect("written");
    fs::write(sessions.join("other"), b"not ours").expect("written");
    let recovered = recover(&state, &EnvVars::default(), &mut |_, _| false);
    let told: Vec<_> =
        recovered.iter().map(|r| (r.session_id.as_ref().map(ToString::to_string), r.damaged_lines)).collect();
    assert_eq!(told, [(Some("rebooted".to_owned()), 1), (None, 2), (None, 0)]);
    let reasons: Vec<_> = recovered
        .iter()
        .map(|r| match &r.outcome {
            RecoveryOutcome::Dropped { reason } => reason.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(reasons[0].contains("started again") && reasons[1].contains("set aside"), "{reasons:?}");
    assert_eq!(recovered[0].found, sessions.join("a.journal"));
    let mut left: Vec<_> = fs::read_dir(&sessions).expect("there").map(|e| e.expect("read").file_name()).collect();
    left.sort();
    assert_eq!(left, ["b.journal.damaged", "c.journal.damaged", "other"]);
    assert_eq!(recover(&state, &EnvVars::default(), &mut |_, _| false), []);
}

#[test]
fn what_only_looks_like_a_home_is_none() {
    let scratch = Scratch::new();
    let state = StateDir::open(&scratch.0.join("state"), own()).expect("a state directory");
    let homes = state.directory(HOMES).expect("made");
    let made = |path: PathBuf| {
        let mut all = DirBuilder::new();
        all.mode(0o700).recursive(true).create(&path).expect("made");
        path
    };
    let id = "1".parse().expect("a valid id");
    let home = homes.join("s-1");
    let kept = Arc::new(SessionHomes::persistent(homes.clone(), []));
    kept.make(&id).expect("made").retain();
    assert!(is_home(&home));
    // By another path to the state directory.
    let link = scratch.0.join("link");
    symlink(scratch.0.join("state"), &link).expect("made");
    assert!(is_home(&link.join("homes/s-1")));
    symlink(&home, homes.join("s-2")).expect("made");
    fs::write(homes.join("s-file"), "").expect("written");
    let open = made(homes.join("s-open"));
    fs::set_permissions(&open, Permissions::from_mode(0o750)).expect("changed");
    let others = made(homes.join("s-others"));
    // Only root can give it away.
    let another = nix::unistd::geteuid().as_raw() ^ 1;
    let is_given_away = chown(&others, Some(another), None).is_ok();
    assert_eq!(is_home(&others), !is_given_away);
    for wrong in [
        made(scratch.0.join("s-photos")),
        made(scratch.0.join("homes/s-photos")),
        made(homes.join("photos")),
        made(homes.join("s-")),
        made(homes.join("s-a b")),
        made(scratch.0.join("state/sessions/s-1")),
        made(homes.join("s-1/homes/s-1")),
        homes.join("s-1/.."),
        homes.join("s-2"),
        homes.join("s-file"),
        homes.join("s-nothing"),
        open,
        scratch.0.join("state/homes"),
        "state/homes/s-1".into(),
    ] {
        assert!(!is_home(&wrong), "{wrong:?}");
    }
    // A directory of that name alone is no state directory.
    fs::remove_file(scratch.0.join("state/lock")).expect("removed");
    assert!(!is_home(&home));
}
