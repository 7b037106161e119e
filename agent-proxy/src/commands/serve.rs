//! `serve`.

use proxy_manager::Child;

use crate::{args::ServeArgs, daemon, problem::Failure, socket_path::SocketPath};

/// Runs the daemon.
pub(super) async fn run(child: Child, args: ServeArgs, socket: &SocketPath, as_json: bool) -> Result<(), Failure> {
    daemon::serve(child, args, socket, as_json).await
}
