//! Child binary: the fork server, and the proxy that it forks for each session.
//!
//! A program that embeds a manager calls [`run_if_child`] first in `main`. The manager starts that program again as its fork server,
//! or a thin one that does nothing else, such as this crate's tests use.

mod fork_server;
mod own_limits;
mod proxy;
mod terminal;

use std::ffi::OsString;

use agents::Adapters;

/// Proof that `main` called [`run_if_child`] first, so that this executable can be started again as a fork server.
#[derive(Clone, Copy, Debug)]
pub struct ChildToken(());

/// `argv[1]` of a fork server. `argv[0]` is a title, `argv[2]` the number of descriptors that it holds. The arguments after it are
/// padding: room for the titles of the proxies forked from it.
pub const FORK_SERVER_ARG: &str = "--agent-proxy-fork-server";
/// `argv[1]` of a proxy that had to be started by exec.
pub(crate) const PROXY_ARG: &str = "--agent-proxy-session";
/// `argv[1]` of a process that checks what the machine offers and had to be started by exec.
pub(crate) const PROBE_ARG: &str = "--agent-proxy-probe";
/// Exit code of a fork server whose program called [`run_if_child`] inside a tokio runtime.
pub const IN_RUNTIME: i32 = 113;
/// Descriptor under which a fork server gets its control socket (`ipc_protocol::packet`).
pub const CONTROL_FD: i32 = 3;
/// Descriptor under which a fork server gets a pidfd of its host.
pub const HOST_PIDFD: i32 = 4;

/// Returns the `argv` of a fork server. The fork server gets `held` descriptors of directories after [`HOST_PIDFD`] and keeps them
/// open as long as it lives: locks that show that its sessions are still guarded. At its end it removes those directories that are
/// empty. No proxy inherits the descriptors.
pub fn fork_server_argv(held: usize) -> Vec<OsString> {
    padded_argv("agent-proxy: fork server", &[FORK_SERVER_ARG, &held.to_string()])
}

/// Makes an argv of a title, arguments, and as much padding as the longest title needs.
pub(crate) fn padded_argv(title: &str, args: &[&str]) -> Vec<OsString> {
    [title].iter().chain(args).chain([&" ".repeat(128).as_str()]).map(OsString::from).collect()
}

/// Replaces the standard error of a host that has died: its reader waits for the end of the stream.
pub(crate) fn detach_stderr() {
    // If this fails nothing else is lost.
    let _ = std::fs::File::options().write(true).open("/dev/null").map(rustix::stdio::dup2_stderr);
}

/// Turns the process into a fork server if a manager started it as one, and then never returns. In any other process it returns the
/// token for `Child::Current`.
///
/// Call it first in `main`, before any thread is started and any random number is drawn: both would be copied into every proxy.
/// A function below `#[tokio::main]` is too late: a fork server inside a runtime ends with [`IN_RUNTIME`], and the manager is not
/// built. Write instead:
///
/// ```no_run
/// fn main() {
///     let token = proxy_child::run_if_child();
///     tokio::runtime::Runtime::new().expect("a runtime").block_on(run(token));
/// }
///
/// async fn run(token: proxy_child::ChildToken) {
/// #   let _ = token;
///     // ProxyManager::builder(ChildProgram::Current(token)).build().await
/// }
/// ```
pub fn run_if_child() -> ChildToken {
    run_if_child_with(&Adapters::default())
}

/// Same as [`run_if_child`], with protocols of the caller's own.
pub fn run_if_child_with(adapters: &Adapters) -> ChildToken {
    let mut args = std::env::args_os().skip(1);
    let first = args.next();
    let is_child =
        first.as_ref().is_some_and(|arg| [FORK_SERVER_ARG, PROXY_ARG, PROBE_ARG].iter().any(|known| arg == known));
    if is_child && tokio::runtime::Handle::try_current().is_ok() {
        // A proxy has a runtime of its own, which cannot run inside another one. The manager knows the code, and says it.
        std::process::exit(IN_RUNTIME);
    }
    let code = match first {
        Some(arg) if arg == FORK_SERVER_ARG => {
            let held = args.next().and_then(|held| held.to_str()?.parse::<u8>().ok()).unwrap_or(0);
            fork_server::main(adapters, held.into())
        }
        Some(arg) if arg == PROXY_ARG => {
            match (registry::inherited_fds(proxy::FDS), registry::ProcessTitle::locate()) {
                (Ok(fds), Ok(title)) => proxy::main(title, fds, adapters),
                _ => 1,
            }
        }
        Some(arg) if arg == PROBE_ARG => registry::inherited_fds(1).map_or(1, fork_server::probe),
        _ => return ChildToken(()),
    };
    std::process::exit(i32::from(code));
}
