//! `serve`.

use proxy_manager::Child;

use crate::{daemon, problem::Failure, socket_path::SocketPath};

/// Runs the daemon.
pub(super) async fn run(child: Child, socket: &SocketPath, as_json: bool) -> Result<(), Failure> {
    daemon::serve(child, socket, as_json).await
}
