//! The child binary's side: the fork server, and the proxy that it forks for each session.
//!
//! A program that embeds a manager calls [`run_if_child`] first in `main`; the manager starts that program (or a thin one
//! that does nothing else, such as this crate's tests use) again as its fork server.

mod fork_server;
mod own_limits;
mod proxy;

use std::ffi::OsString;

use agents::Adapters;

/// Proof that `main` called [`run_if_child`] first, so that this executable can be started again as a fork server.
#[derive(Clone, Copy, Debug)]
pub struct ChildToken(());

/// `argv[1]` of a fork server. `argv[0]` is a title, `argv[2]` how many descriptors it holds, and the arguments behind it are
/// padding, room for the titles of the proxies forked from it.
pub const FORK_SERVER_ARG: &str = "--agent-proxy-fork-server";
/// `argv[1]` of a proxy that had to be started by exec.
pub(crate) const PROXY_ARG: &str = "--agent-proxy-session";
/// `argv[1]` of a process that tries what the machine offers and had to be started by exec.
pub(crate) const PROBE_ARG: &str = "--agent-proxy-probe";
/// Descriptor under which a fork server gets its control socket (`ipc_protocol::packet`).
pub const CONTROL_FD: i32 = 3;
/// Descriptor under which a fork server gets a pidfd of its host.
pub const HOST_PIDFD: i32 = 4;

/// `argv` of a fork server. It gets `held` descriptors of directories behind [`HOST_PIDFD`] and keeps them open as long as it
/// lives: locks that say that somebody still looks after its sessions. It removes those that are empty then. No proxy has
/// them.
pub fn fork_server_argv(held: usize) -> Vec<OsString> {
    padded_argv("agent-proxy: fork server", &[FORK_SERVER_ARG, &held.to_string()])
}

/// A title, arguments, and as much room as the longest title needs.
pub(crate) fn padded_argv(title: &str, args: &[&str]) -> Vec<OsString> {
    [title].iter().chain(args).chain([&" ".repeat(128).as_str()]).map(OsString::from).collect()
}

/// Lets go of the standard error of a host that has died: who reads it waits for its end.
pub(crate) fn leave_stderr() {
    // Without it nothing is lost but that.
    let _ = std::fs::File::options().write(true).open("/dev/null").map(rustix::stdio::dup2_stderr);
}

/// Call this first in `main`. In a process that a manager started as a fork server it never returns; in any other it
/// returns the token for `Child::Current`.
///
/// It must come before any thread is started and any random number is drawn: what exists then is copied into every proxy.
pub fn run_if_child() -> ChildToken {
    run_if_child_with(&Adapters::default())
}

/// As [`run_if_child`], with protocols of your own.
pub fn run_if_child_with(adapters: &Adapters) -> ChildToken {
    let mut args = std::env::args_os().skip(1);
    let code = match args.next() {
        Some(arg) if arg == FORK_SERVER_ARG => {
            let held = args.next().and_then(|held| held.to_str()?.parse::<u8>().ok()).unwrap_or(0);
            fork_server::main(adapters, held.into())
        }
        Some(arg) if arg == PROXY_ARG => match (registry::inherited_fds(proxy::FDS), registry::Title::locate()) {
            (Ok(fds), Ok(title)) => proxy::main(title, fds, adapters),
            _ => 1,
        },
        Some(arg) if arg == PROBE_ARG => registry::inherited_fds(1).map_or(1, fork_server::probe),
        _ => return ChildToken(()),
    };
    std::process::exit(i32::from(code));
}
