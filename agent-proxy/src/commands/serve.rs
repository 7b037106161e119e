//! Command `serve`.

use proxy_manager::ChildProgram;

use crate::{
    args::{GlobalArgs, ServeArgs},
    configuration::LoadedConfiguration,
    daemon,
    problem::CommandFailure,
    socket_path::SocketPath,
};

/// Runs the daemon.
pub(super) async fn run(
    child: ChildProgram,
    args: ServeArgs,
    global: &GlobalArgs,
    socket: &SocketPath,
) -> Result<(), CommandFailure> {
    let configuration = LoadedConfiguration::read(global.config_dir.as_deref())?;
    daemon::serve(child, args, configuration, socket, global.json).await
}
