//! Command `agents`.

use std::path::Path;

use proxy_manager::ChildProgram;

use crate::{
    args::{AgentsArgs, ListingFormat},
    command_failure::CommandFailure,
    configuration,
    installed_agents::installed,
    render,
    term::{self, TermStyle},
};

/// Lists the agents, or prints the schema of their rows.
pub(super) async fn run(
    child: ChildProgram,
    args: &AgentsArgs,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), CommandFailure> {
    if args.schema {
        return term::out(format_args!("{:#}\n", agents::schema()));
    }
    let configuration = configuration::read(directory)?;
    let agents = installed(&configuration.catalog, (!args.no_run).then_some(child)).await?;
    let form = args.format.form(as_json);
    render::agents::listing(&agents).print(&form, "no agents")?;
    if form == ListingFormat::Table { term::out(render::agents::notes(&agents, TermStyle::stdout())) } else { Ok(()) }
}
