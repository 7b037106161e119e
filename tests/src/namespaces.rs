//! Tests in a process for which there are no namespaces.

use std::{os::unix::process::CommandExt, path::Path, process::Command};

use crate::system::not_run;

/// Variable of a process for which there are none.
const APART: &str = "AGENT_PROXY_TEST_WITHOUT_NAMESPACES";
const TOOLS: [&str; 3] = ["/usr/bin/unshare", "/usr/bin/setpriv", "/bin/sh"];
/// Becomes an ordinary user in a user namespace in which nobody can make another one.
const ORDINARY: &str =
    "echo 0 >/proc/sys/user/max_user_namespaces && exec /usr/bin/setpriv --inh-caps -all --ambient-caps -all \"$@\"";

/// Arguments of a program that becomes the one behind them, as an ordinary user without user namespaces; `None` with a note where that
/// cannot be had.
pub fn ordinary_without_namespaces() -> Option<Vec<&'static str>> {
    let [unshare, _, sh] = TOOLS;
    let argv = vec![unshare, "--user", "--map-user=1000", "--map-group=1000", "--keep-caps", sh, "-c", ORDINARY, sh];
    try_wrapper(argv)
}

/// The same of a root that may not make namespaces.
pub fn root_without_namespaces() -> Option<Vec<&'static str>> {
    if !nix::unistd::geteuid().is_root() {
        not_run("takes root");
        return None;
    }
    try_wrapper(vec![TOOLS[1], "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"])
}

#[expect(clippy::disallowed_methods, reason = "tests start programs as a shell does")]
fn try_wrapper(argv: Vec<&'static str>) -> Option<Vec<&'static str>> {
    let tried = Command::new(argv[0]).args(&argv[1..]).arg("/bin/true").output();
    if TOOLS.iter().all(|tool| Path::new(tool).exists()) && tried.is_ok_and(|output| output.status.success()) {
        return Some(argv);
    }
    not_run("there is no way to be without namespaces here (unshare, setpriv)");
    None
}

/// Runs the test of this name of this program again behind `wrapper`. Returns true in the process in which it has to run.
///
/// # Panics
/// When it fails there.
#[expect(clippy::disallowed_methods, reason = "tests start themselves")]
pub fn is_apart(wrapper: fn() -> Option<Vec<&'static str>>, test: &str) -> bool {
    if std::env::var_os(APART).is_some() {
        return true;
    }
    let Some(wrapper) = wrapper() else { return false };
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(program).args(["--exact", test, "--nocapture"]).env(APART, "1").process_group(0);
    let output = command.output().expect("started");
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("NOT RUN: ")) {
        not_run(line.trim_start_matches("NOT RUN: "));
    }
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}
