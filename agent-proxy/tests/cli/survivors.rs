//! What no kill can end: a process that has become another user's.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use ipc_protocol::{Event, ExitStatus, KillCause, ProcessId, ProcessOutcome, Proof, Receipt, Signal};

use crate::harness::{Place, Ran, gone, is_there, not_run, parent, process};

/// Nobody.
const ORDINARY: u32 = 65534;
/// Runs a program as root, if it belongs to root and says so in its mode; part of util-linux.
const SETPRIV: &str = "/usr/bin/setpriv";
/// An agent beside a process that becomes root's and then tells its pid. That one ends itself after two minutes.
const BECOMES_ROOTS: &str = r#""$0" --reuid 0 --clear-groups sh -c 'echo $$; exec sleep 120' & exec cat"#;

/// A place of an ordinary user's, with a program that makes root of whoever runs it; `None` where that cannot be.
fn place() -> Option<(Place, String)> {
    if !nix::unistd::geteuid().is_root() {
        not_run("survivors: takes root to set up");
        return None;
    }
    if !Path::new(SETPRIV).exists() {
        not_run(format_args!("survivors: no {SETPRIV}"));
        return None;
    }
    let place = Place::of_user(ORDINARY);
    let program = place.directory.join("becomes-root");
    fs::copy(SETPRIV, &program).expect("copied");
    // Whatever becomes of this test, nobody else becomes root by it.
    std::os::unix::fs::chown(&program, None, Some(ORDINARY)).expect("given");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4750)).expect("set");
    Some((place, program.to_str().expect("text").to_owned()))
}

/// A process that only root can end: with this.
struct Roots(ProcessId);

impl Roots {
    /// `None` where the machine does not let it become root's.
    fn new(pid: &str) -> Option<Self> {
        let this = Self(process(pid.trim().parse().expect("a pid")));
        let status = fs::read_to_string(format!("/proc/{}/status", this.0.pid)).expect("it is there");
        if status.lines().any(|line| line.starts_with("Uid:\t0\t0\t")) {
            return Some(this);
        }
        not_run("survivors: the temporary directory's file system lets nobody become root");
        None
    }

    fn end(&self) {
        // It fails only if it is gone.
        let _ = registry::PidFd::open(self.0).and_then(|process| process.signal(Signal::Kill));
        gone(self.0);
    }

    /// The receipt that `kill` printed: it names this process, and nobody else is alive.
    #[track_caller]
    fn is_named_by(&self, ran: &Ran) -> Receipt {
        let receipt: Receipt = serde_json::from_value(ran.json()).expect("a receipt");
        assert_eq!((receipt.survivors.as_slice(), receipt.proof), ([self.0].as_slice(), Proof::None), "{receipt:?}");
        for entry in &receipt.processes {
            let survived = entry.outcome == ProcessOutcome::Survived;
            assert_eq!((survived, is_there(entry.id)), (entry.id == self.0, survived), "{receipt:?}");
        }
        assert!(!receipt.is_empty());
        receipt
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn what_outlives_a_kill_is_named_and_the_exit_code_says_so() {
    let Some((place, program)) = place() else { return };
    let daemon = place.serve();
    let mut events = daemon.start("s", &["sh", "-c", BECOMES_ROOTS, &program]);
    let pid = events.until(|envelope| match &envelope.event {
        Event::Text { text } => Some(text.trim().to_owned()),
        _ => None,
    });
    let Some(roots) = Roots::new(&pid) else { return };
    let agent = process(parent(roots.0.pid));

    // By the proxy, which goes on.
    let ran = daemon.run(&["kill", "s", "--pid", &pid, "--signal", "KILL", "--json"]).exits(5);
    assert_eq!(ran.problem()["type"], "survivors", "{ran:?}");
    assert_eq!(roots.is_named_by(&ran).cause, KillCause::KillProcess);
    daemon.run(&["prompt", "s", "still here"]).exits(0);
    events.until_printed(&["still here"]);

    // By the fork server, which the host asks when the proxy comes to no end.
    let ran = daemon.run(&["kill", "s", "--grace", "0s", "--json"]).exits(5);
    assert_eq!(ran.problem()["type"], "survivors", "{ran:?}");
    let receipt = roots.is_named_by(&ran);
    assert_eq!(receipt.cause, KillCause::KillSession);
    let ended = Some(ProcessOutcome::Ended(ExitStatus::Signal(9)));
    assert_eq!(
        receipt.processes.iter().find(|entry| entry.id == agent).map(|entry| entry.outcome),
        ended,
        "{receipt:?}"
    );
    let last = events.end().exits(0).envelopes().pop().expect("events");
    let Event::SessionEnded { receipt: Some(told), .. } = last.event else { panic!("{last:?}") };
    assert_eq!(*told, receipt);

    // It is nobody else's, while it lives and when it has ended.
    for id in ["while", "after"] {
        let events = daemon.start(id, &["cat"]);
        let ran = daemon.run(&["kill", id, "--json"]).exits(0);
        let clean: Receipt = serde_json::from_value(ran.json()).expect("a receipt");
        let named = clean.processes.iter().chain(&clean.unattributed).any(|entry| entry.id == roots.0);
        assert!(clean.is_empty() && !named, "{clean:?}");
        events.end().exits(0);
        roots.end();
    }
    // The receipt of an ended session stays what it was.
    let text = daemon.run(&["kill", "s"]).exits(5).stdout;
    assert!(text.contains("1 survivor, "), "{text}");
}

#[test]
fn a_command_that_leaves_what_cannot_be_ended_has_survivors() {
    let Some((place, program)) = place() else { return };
    let script = BECOMES_ROOTS.replace("exec cat", "read _");
    let flags = ["leaktest", "--json", "--timeout", "1s", "--grace", "0s"];
    let mut running = place.spawn(&[&flags[..], &["--", "sh", "-c", &script, &program]].concat());
    let mut stderr = running.stderr();
    let Some(roots) = Roots::new(&stderr.line().expect("its pid")) else { return };
    let report = running.end().exits(5).json();
    assert_eq!((&report["verdict"], &report["exited"]), (&"survivors".into(), &false.into()), "{report}");
    let survivors: Vec<ProcessId> = serde_json::from_value(report["receipt"]["survivors"].clone()).expect("processes");
    assert_eq!(survivors, [roots.0]);
}
