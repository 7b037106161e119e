//! Command `agents`.

use super::client;
use crate::{
    args::{AgentsArgs, GlobalArgs, ListingFormat},
    command_failure::CommandFailure,
    configuration_store::agents_of,
    engine::{self, EngineToken},
    render,
    term::{self, TermStyle},
};

/// Lists the agents of this machine or, for a URL, of the daemon; or prints the schema of their rows.
pub(super) async fn run(token: EngineToken, args: &AgentsArgs, global: &GlobalArgs) -> Result<(), CommandFailure> {
    if args.schema {
        return term::out(format_args!("{:#}\n", engine::agents_schema()?));
    }
    let agents = match engine::installed_agents(token, args, global).await? {
        Some(agents) => agents,
        None => agents_of(&client(global)?).await?,
    };
    let form = args.format.form(global.json);
    render::agents::listing(&agents).print(&form, "no agents")?;
    if form != ListingFormat::Table {
        return Ok(());
    }
    term::out(render::agents::notes(&agents, TermStyle::stdout(), term::columns()))
}
