//! Checks that need no session.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use agents::{
    AgentSpec,
    discovery::{self, SearchPaths},
    provision::{default_sandbox, settings_file},
};
use ipc_protocol::EnvVars;
use nix::sys::prctl;
use proxy_manager::ChildProgram;
use rustix::{
    fs::Access,
    process::{Resource, getrlimit},
};

use super::DoctorCheck;
use crate::{
    command_failure::CommandFailure,
    configuration::{self, places},
    installed_agents::installed,
    socket_path::SocketPath,
};

/// Approximate number of descriptors per session in the host, for the advice on the limit.
const FDS_PER_SESSION: u64 = 4;

/// Checks the requirements of sessions.
pub(super) fn before() -> Vec<DoctorCheck> {
    vec![kernel(), pidfd(), subreaper(), children()]
}

/// Checks everything besides sessions and agents.
pub(super) fn after(socket: &SocketPath) -> Vec<DoctorCheck> {
    vec![descriptors(), pids(), socket_directory(socket)]
}

fn kernel() -> DoctorCheck {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 4) {
        DoctorCheck::ok("kernel", format!("Linux {release}"))
    } else {
        DoctorCheck::missing(
            "kernel",
            format!("Linux {release}"),
            "pidfds that can be waited for need Linux 5.4 or later",
        )
    }
}

fn pidfd() -> DoctorCheck {
    const NAME: &str = "pidfd";
    let opened = registry::identify(std::process::id()).and_then(registry::PidFd::open);
    let held = match opened {
        Ok(held) => held,
        Err(error) => {
            let advice = "needs Linux 5.3, a mounted /proc, and a seccomp filter that lets pidfd_open through";
            return DoctorCheck::missing(NAME, format!("pidfd_open: {error}"), advice).needed();
        }
    };
    let other = ipc_protocol::ProcessId { start_time: held.id().start_time + 1, ..held.id() };
    match registry::PidFd::open(other) {
        Err(_) => DoctorCheck::ok(NAME, "pidfd_open, checked against the start time").needed(),
        Ok(_) => {
            DoctorCheck::missing(NAME, "start times cannot be told apart", "is /proc of this PID namespace?").needed()
        }
    }
}

/// Sets the flag in this process and restores it: nothing was started, so nothing can be adopted meanwhile.
fn subreaper() -> DoctorCheck {
    const NAME: &str = "subreaper";
    let before = prctl::get_child_subreaper();
    let tried = prctl::set_child_subreaper(true).and_then(|()| prctl::get_child_subreaper());
    let restored = before.and_then(prctl::set_child_subreaper);
    match (tried, restored) {
        (Ok(true), Ok(())) => DoctorCheck::ok(NAME, "PR_SET_CHILD_SUBREAPER").needed(),
        (tried, _) => {
            let found = format!("PR_SET_CHILD_SUBREAPER: {tried:?}");
            DoctorCheck::missing(NAME, found, "a seccomp filter refuses prctl: allow it").needed()
        }
    }
}

fn children() -> DoctorCheck {
    const NAME: &str = "children lists";
    let path = format!("/proc/self/task/{}/children", std::process::id());
    match fs::read(&path) {
        Ok(_) => DoctorCheck::ok(NAME, "/proc/PID/task/TID/children"),
        Err(error) => DoctorCheck::note(
            NAME,
            format!("/proc/PID/task/TID/children: {error}"),
            Some("kills scan all of /proc, which is slower; CONFIG_PROC_CHILDREN would help".into()),
        ),
    }
}

fn descriptors() -> DoctorCheck {
    const NAME: &str = "open files";
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let found = format!("limit {soft} (hard {hard}), about {} sessions", soft / FDS_PER_SESSION);
    if soft < 256 {
        DoctorCheck::missing(NAME, found, "raise it with `ulimit -n 4096`")
    } else {
        DoctorCheck::ok(NAME, found)
    }
}

fn pids() -> DoctorCheck {
    const NAME: &str = "pids";
    let path = "/proc/sys/kernel/pid_max";
    match fs::read_to_string(path).map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(max)) if max <= 32_768 => DoctorCheck::note(
            NAME,
            format!("pid_max {max}: recycled soon; start times tell processes apart"),
            Some("`sysctl kernel.pid_max=4194304` leaves room for many sessions".into()),
        ),
        Ok(Ok(max)) => DoctorCheck::ok(NAME, format!("pid_max {max}")),
        other => DoctorCheck::note(NAME, format!("{path}: {other:?}"), None),
    }
}

fn socket_directory(socket: &SocketPath) -> DoctorCheck {
    const NAME: &str = "socket directory";
    let advice = "give --socket, or set AGENT_PROXY_SOCKET, to a socket in a directory of your own";
    if let Some(why) = socket.unusable() {
        return DoctorCheck::missing(NAME, why, advice);
    }
    let directory = socket.directory();
    let shown = directory.display();
    let found = match fs::metadata(directory) {
        Ok(found) => found,
        Err(_) => {
            // `serve` will create it in the nearest existing directory.
            let parent = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
            let trial = parent.join(format!(".agent-proxy-doctor-{}", std::process::id()));
            return match fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)) {
                Ok(()) => DoctorCheck::ok(NAME, format!("{shown} will be created by `serve`, mode 0700")),
                Err(error) => DoctorCheck::missing(NAME, format!("{shown} cannot be created: {error}"), advice),
            };
        }
    };
    let mode = found.mode() & 0o7777;
    let owned = found.uid() == nix::unistd::geteuid().as_raw();
    let writable = rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    let text = format!("{shown} (mode {mode:04o})");
    match (found.is_dir() && owned && writable, mode & 0o077) {
        (true, 0) => DoctorCheck::ok(NAME, text),
        (true, _) if socket.default_place => DoctorCheck::ok(NAME, format!("{text}, `serve` will make it 0700")),
        (true, open) if open & 0o022 == 0 => {
            DoctorCheck::note(NAME, text, Some(format!("others can look into it: chmod 700 {shown}")))
        }
        _ => DoctorCheck::missing(NAME, format!("{text} is not yours alone"), advice),
    }
}

/// The sandbox of an agent's own, in sessions in the shared home that ask for none.
fn own_sandbox(row: &AgentSpec, places: &SearchPaths) -> String {
    let file = places.home.as_deref().and_then(|home| settings_file(row, &EnvVars::default(), home));
    let settings = file.and_then(|file| std::fs::read_to_string(file).ok());
    let sandbox = default_sandbox(row, settings.as_deref());
    sandbox.map_or_else(String::new, |sandbox| format!("; its own sandbox: {sandbox}"))
}

/// Reports each agent of the catalog that has a program, in a line. Starts each for a moment: one that is there may fail to run.
pub(super) async fn agents(child: ChildProgram, directory: Option<&Path>) -> Vec<DoctorCheck> {
    let configuration = match configuration::read(directory) {
        Ok(configuration) => configuration,
        Err(problem) => return vec![DoctorCheck::missing("configuration", problem.detail, "change what it names")],
    };
    let places = places();
    let (installed, trouble) = match installed(&configuration.catalog, Some(child)).await {
        Ok(installed) => (installed, None),
        Err(failure) => {
            let why =
                if let CommandFailure::Problem(problem) = failure { problem.detail } else { "it broke off".to_owned() };
            (Vec::new(), Some(DoctorCheck::note("agent", format!("none was started to see that it runs: {why}"), None)))
        }
    };
    let lacks = |id: &str| {
        let agent = installed.iter().find(|agent| agent.id == id).filter(|agent| agent.enabled)?;
        (!agent.missing.is_empty()).then(|| agent.missing.join("; "))
    };
    let note = |found: String, advice: &str| DoctorCheck::note("agent", found, Some(advice.to_owned()));
    let check = |row: &AgentSpec| {
        let found = discovery::discover(row, &places);
        match (found.program, found.start_program) {
            (Some(path), Some(_)) if let Some(why) = lacks(&row.id) => {
                note(format!("{}: {}: {why}", row.id, path.display()), "`agent-proxy agents` says what is missing")
            }
            (Some(path), Some(_)) => {
                DoctorCheck::ok("agent", format!("{}: {}{}", row.id, path.display(), own_sandbox(row, &places)))
            }
            (Some(path), None) => note(
                format!("{}: {}, which is not what sessions of it start", row.id, path.display()),
                "`agent-proxy agents` says what is missing",
            ),
            (None, _) => note(format!("{}: not found", row.id), "`agent-proxy agents` says what installs it"),
        }
    };
    configuration.catalog.rows().iter().filter(|row| !row.cmd.is_empty()).map(check).chain(trouble).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckVerdict;

    #[test]
    fn what_the_tests_run_on_is_enough() {
        for check in [kernel(), pidfd(), subreaper(), descriptors(), pids()] {
            assert_ne!(check.verdict, CheckVerdict::Missing, "{check:?}");
        }
        assert_eq!(prctl::get_child_subreaper(), Ok(false), "it was put back");
    }

    #[test]
    fn a_socket_directory_that_is_not_there_can_be_created() {
        let socket = |path: &str| SocketPath { path: path.into(), default_place: false, owner: None };
        let temp = std::env::temp_dir().join("agent-proxy-doctor-none/daemon.sock");
        assert_eq!(socket_directory(&socket(&temp.display().to_string())).verdict, CheckVerdict::Ok);
        assert_eq!(socket_directory(&socket("/proc/nowhere/daemon.sock")).verdict, CheckVerdict::Missing);
    }
}
