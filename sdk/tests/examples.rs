//! The example in the book runs and does what it says. `cargo test` builds it beside this test.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::channel,
    time::Duration,
};

#[test]
#[expect(clippy::disallowed_methods, reason = "tests start the program as a shell does")]
fn embed() {
    // From target/PROFILE/deps/examples-HASH to target/PROFILE/examples/embed.
    let this = std::env::current_exe().expect("a path");
    let path: PathBuf = this.ancestors().nth(2).expect("a target directory").join("examples/embed");
    assert!(path.exists(), "{} is not there: cargo build -p agent-proxy-sdk --examples", path.display());
    let (ended, end) = channel();
    let child = Command::new(path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("started");
    let pid = child.id();
    std::thread::spawn(move || ended.send(child.wait_with_output()));
    let output = end.recv_timeout(Duration::from_secs(60));
    let output = output.unwrap_or_else(|_| panic!("the example (process {pid}) does not end")).expect("its output");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    for expected in ["[exec-123] working on it", "[exec-123] ended: killed", "sleep 600"] {
        assert!(said.contains(expected), "{expected:?}: {said}");
    }
}
