//! Command `models`.

use agents::{Secret, StoredModel};
use api_types::ProblemDetails;
use serde_json::Value;

use crate::{
    args::{CreateModelArgs, FormatArgs, GlobalArgs, ListingFormat, ModelsArgs, ModelsCommand},
    command_failure::CommandFailure,
    configuration_store::ConfigurationStore,
    render::listing::{Column, ColumnFit, Listing, ListingRow},
    term,
};

/// Lists, shows, creates or deletes model configurations. Never prints a key.
pub(super) async fn run(args: ModelsArgs, global: &GlobalArgs) -> Result<(), CommandFailure> {
    let store = ConfigurationStore::find(global)?;
    let as_json = global.json;
    match args.command.unwrap_or_else(|| ModelsCommand::List(FormatArgs::default())) {
        ModelsCommand::List(format) => list(&store.models().await?, &format.form(as_json)),
        ModelsCommand::Show(args) => print_model(&store.model(&args.name).await?, as_json),
        ModelsCommand::Create(args) => create(&store, args, as_json).await,
        ModelsCommand::Delete(args) => Ok(store.delete_model(&args.name).await?),
    }
}

const COLUMNS: &[Column] = &[
    Column { key: "id", heading: "NAME", fit: ColumnFit::Whole, from: 0 },
    Column { key: "provider", heading: "PROVIDER", fit: ColumnFit::End, from: 0 },
    Column { key: "api", heading: "API", fit: ColumnFit::Whole, from: 0 },
    Column { key: "model", heading: "MODEL", fit: ColumnFit::End, from: 0 },
    Column { key: "address", heading: "ADDRESS", fit: ColumnFit::End, from: 0 },
    Column { key: "key", heading: "KEY", fit: ColumnFit::Start, from: 0 },
];

fn list(models: &[Value], form: &ListingFormat) -> Result<(), CommandFailure> {
    let row = |model: &Value| {
        let text = |member: &str| term::printable(model[member].as_str().unwrap_or_default(), false);
        let cells = ["name", "provider", "api", "model", "baseUrl", "key"].map(text).to_vec();
        ListingRow { cells, json: model.clone() }
    };
    let rows = models.iter().map(row).collect();
    Listing { columns: COLUMNS, rows }.print(form, "no model configurations: make one with `agent-proxy models create`")
}

fn print_model(model: &Value, as_json: bool) -> Result<(), CommandFailure> {
    if as_json {
        return term::json(model);
    }
    let lines = model.as_object().into_iter().flatten().filter_map(|(name, value)| {
        let value = value.as_str()?;
        Some(format!("{name}: {}\n", term::printable(value, false)))
    });
    term::out(lines.collect::<String>())
}

async fn create(store: &ConfigurationStore, args: CreateModelArgs, as_json: bool) -> Result<(), CommandFailure> {
    let key = if args.key_stdin { Some(key_of_stdin()?) } else { None };
    let key_file = args.key_file.map(std::path::absolute).transpose();
    let key_file = key_file.map_err(|error| ProblemDetails::usage(format!("--key-file is no path: {error}")))?;
    let stored = StoredModel {
        provider: args.provider,
        api: args.api,
        base_url: args.base_url,
        model: args.model,
        key,
        key_env: args.key_env,
        key_file,
    };
    let description = store.create_model(&args.name, &stored).await?;
    if as_json { term::json(&description) } else { Ok(()) }
}

fn key_of_stdin() -> Result<Secret, ProblemDetails> {
    let text = std::io::read_to_string(std::io::stdin().lock())
        .map_err(|error| ProblemDetails::usage(format!("reading the key from standard input failed: {error}")))?;
    match text.trim() {
        "" => Err(ProblemDetails::usage("there is no key on standard input")),
        key => Ok(Secret::from(key.to_owned())),
    }
}
