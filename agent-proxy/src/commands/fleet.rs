//! Command `fleet`.

use api_types::api::path_segment;
use serde_json::{Value, json};

use super::client;
use crate::{
    args::{DrainArgs, FleetCommand, FleetCommandArgs, ForgetArgs, FormatArgs, GlobalArgs, MoveArgs},
    command_failure::CommandFailure,
    render, term,
};

/// Lists the nodes or the sessions of the fleet, or makes its nodes' keys.
pub(super) async fn run(global: &GlobalArgs, args: FleetCommandArgs) -> Result<(), CommandFailure> {
    match args.command.unwrap_or_else(|| FleetCommand::Nodes(FormatArgs::default())) {
        FleetCommand::Nodes(format) => {
            let nodes: Vec<Value> = client(global)?.get("/v1/fleet/nodes").await?;
            render::fleet::nodes(nodes).print(&format.form(global.json), "no nodes")
        }
        FleetCommand::Sessions(format) => {
            let sessions: Vec<Value> = client(global)?.get("/v1/fleet/sessions").await?;
            render::fleet::sessions(sessions).print(&format.form(global.json), "no sessions")
        }
        FleetCommand::Move(MoveArgs { id, to }) => {
            let moved: Value =
                client(global)?.post(&format!("/v1/fleet/sessions/{id}/move"), &json!({ "to": to })).await?;
            if global.json {
                return term::json(&moved);
            }
            term::line(moved["to"].as_str().unwrap_or_default())
        }
        FleetCommand::Drain(DrainArgs { node }) => {
            let path = format!("/v1/fleet/nodes/{}/drain", path_segment(&node));
            let drained: Value = client(global)?.post(&path, &json!({})).await?;
            if global.json {
                return term::json(&drained);
            }
            let rows = |name: &str| drained[name].as_array().cloned().unwrap_or_default();
            for row in rows("moved") {
                term::line(format_args!("{} -> {}", text(&row["sessionId"]), text(&row["to"])))?;
                if row["problem"].is_string() {
                    term::error_line(format_args!(
                        "{} does not run there yet: {}",
                        text(&row["sessionId"]),
                        text(&row["problem"])
                    ));
                }
            }
            for row in rows("stay") {
                term::error_line(format_args!("{} stays: {}", text(&row["sessionId"]), text(&row["reason"])));
            }
            Ok(())
        }
        FleetCommand::Forget(ForgetArgs { node }) => {
            let path = format!("/v1/fleet/nodes/{}/forget", path_segment(&node));
            let forgotten: Value = client(global)?.post(&path, &json!({})).await?;
            if global.json {
                return term::json(&forgotten);
            }
            forgotten["sessions"].as_array().into_iter().flatten().try_for_each(|session| term::line(text(session)))
        }
        #[cfg(feature = "engine")]
        FleetCommand::Accounts(args) => super::engine::fleet_accounts::run(&args),
    }
}

fn text(value: &Value) -> String {
    term::printable(value.as_str().unwrap_or_default(), false)
}
