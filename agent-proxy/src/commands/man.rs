//! Command `man`, for packages: it is hidden.

use api_types::ProblemDetails;
use clap::CommandFactory as _;

use crate::{
    args::{Cli, ManArgs},
    command_failure::CommandFailure,
};

/// Writes a man page of the program, and one of each command.
pub(super) fn run(args: &ManArgs) -> Result<(), CommandFailure> {
    let failed =
        |error| ProblemDetails::failed(format!("writing man pages to {} failed: {error}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    Ok(clap_mangen::generate_to(Cli::command(), &args.folder).map_err(failed)?)
}
