//! Command `fleet`.

use proxy_server::{ProblemDetails, api::path_segment};
use serde_json::{Value, json};

use super::client;
use crate::{
    args::{AccountsArgs, DrainArgs, FleetCommand, FleetCommandArgs, ForgetArgs, FormatArgs, GlobalArgs, MoveArgs},
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
        FleetCommand::Accounts(args) => accounts(&args),
    }
}

fn text(value: &Value) -> String {
    term::printable(value.as_str().unwrap_or_default(), false)
}

#[cfg(not(feature = "fleet"))]
fn accounts(_: &AccountsArgs) -> Result<(), CommandFailure> {
    let detail = "fleet accounts: this build has no fleets: build it with `cargo install agent-proxy --features fleet`";
    Err(ProblemDetails::new("unsupported", detail).into())
}

/// Makes the keys that are missing, and prints the configuration with all.
#[cfg(feature = "fleet")]
fn accounts(args: &AccountsArgs) -> Result<(), CommandFailure> {
    use std::{fs, io};

    use fleet::{NodeKey, NodeName, account_configuration};

    let AccountsArgs { directory, nodes } = args;
    let failed = |path: &std::path::Path, error: &dyn std::fmt::Display| {
        ProblemDetails::failed(format!("the key {}: {error}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let mut keys = Vec::new();
    for name in nodes {
        let node: NodeName = name.parse().map_err(|error| ProblemDetails::usage(format!("{error}")))?;
        let path = directory.join(format!("{node}.nk"));
        let key = match fs::read_to_string(&path) {
            Ok(seed) => NodeKey::from_seed(node, &seed).map_err(|error| failed(&path, &error))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = NodeKey::generate(node).map_err(|error| failed(&path, &error))?;
                proxy_server::write_private(&path, key.seed().as_bytes()).map_err(|error| failed(&path, &error))?;
                key
            }
            Err(error) => return Err(failed(&path, &error).into()),
        };
        keys.push(key);
    }
    term::out(account_configuration(&keys))
}
