//! Command `agents`.

use std::path::Path;

use proxy_manager::Child;

use crate::{
    args::AgentsArgs,
    configuration::Configuration,
    installed::installed,
    problem::Failure,
    render,
    term::{self, Style},
};

/// Lists the agents, or prints the schema of their rows.
pub(super) async fn run(
    child: Child,
    args: &AgentsArgs,
    directory: Option<&Path>,
    as_json: bool,
) -> Result<(), Failure> {
    if args.schema {
        return term::out(format_args!("{:#}\n", agents::schema()));
    }
    let configuration = Configuration::read(directory)?;
    let agents = installed(&configuration.catalog, (!args.no_run).then_some(child)).await?;
    if as_json {
        return term::json(&agents);
    }
    term::out(render::agents::render(&agents, Style::stdout(), term::columns()))
}
