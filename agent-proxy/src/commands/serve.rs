//! Command `serve`.

use proxy_manager::Child;

use crate::{
    args::{Global, ServeArgs},
    configuration::Configuration,
    daemon,
    problem::Failure,
    socket_path::SocketPath,
};

/// Runs the daemon.
pub(super) async fn run(child: Child, args: ServeArgs, global: &Global, socket: &SocketPath) -> Result<(), Failure> {
    let configuration = Configuration::read(global.config_dir.as_deref())?;
    daemon::serve(child, args, configuration, socket, global.json).await
}
