//! Command `serve`.

use proxy_manager::ChildProgram;

use crate::{
    args::{GlobalArgs, ServeArgs},
    command_failure::CommandFailure,
    configuration, daemon,
    socket_path::SocketPath,
};

/// Runs the daemon.
pub(super) async fn run(
    child: ChildProgram,
    args: ServeArgs,
    global: &GlobalArgs,
    socket: &SocketPath,
) -> Result<(), CommandFailure> {
    let configuration = configuration::read_with_prices(global.config_dir.as_deref(), args.prices.as_deref())?;
    daemon::serve(child, args, configuration, socket, global.json).await
}
