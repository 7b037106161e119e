//! Command `models`.

use std::path::Path;

use agents::{Secret, StoredModel};
use proxy_server::{LoadedConfiguration, ProblemDetails, model_json};

use crate::{
    args::{CreateModelArgs, FormatArgs, ListingFormat, ModelsArgs, ModelsCommand},
    command_failure::CommandFailure,
    configuration,
    render::listing::{Column, ColumnFit, Listing, ListingRow},
    term,
};

/// Lists, shows, creates or deletes model configurations. Never prints a key.
pub(super) fn run(args: ModelsArgs, directory: Option<&Path>, as_json: bool) -> Result<(), CommandFailure> {
    let configuration = configuration::read(directory)?;
    match args.command.unwrap_or_else(|| ModelsCommand::List(FormatArgs::default())) {
        ModelsCommand::List(format) => list(&configuration, &format.form(as_json)),
        ModelsCommand::Show(args) => {
            let stored = configuration.models.get(&args.name).ok_or_else(|| configuration.no_model(&args.name))?;
            print_model(&args.name, stored, as_json)
        }
        ModelsCommand::Create(args) => create(&configuration, args, as_json),
        ModelsCommand::Delete(args) => {
            configuration.directory()?.delete_model(&args.name).map_err(|error| ProblemDetails::from(error).into())
        }
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

fn list(configuration: &LoadedConfiguration, form: &ListingFormat) -> Result<(), CommandFailure> {
    let row = |(name, stored): (&String, &StoredModel)| {
        let json = model_json(name, stored);
        let text = |member: &str| term::printable(json[member].as_str().unwrap_or_default(), false);
        let cells = ["name", "provider", "api", "model", "baseUrl", "key"].map(text).to_vec();
        ListingRow { cells, json }
    };
    let rows = configuration.models.iter().map(row).collect();
    Listing { columns: COLUMNS, rows }.print(form, "no model configurations: make one with `agent-proxy models create`")
}

fn print_model(name: &str, stored: &StoredModel, as_json: bool) -> Result<(), CommandFailure> {
    let view = model_json(name, stored);
    if as_json {
        return term::json(&view);
    }
    let lines = view.as_object().into_iter().flatten().filter_map(|(name, value)| {
        let value = value.as_str()?;
        Some(format!("{name}: {}\n", term::printable(value, false)))
    });
    term::out(lines.collect::<String>())
}

fn create(configuration: &LoadedConfiguration, args: CreateModelArgs, as_json: bool) -> Result<(), CommandFailure> {
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
    configuration.directory()?.create_model(&args.name, &stored).map_err(ProblemDetails::from)?;
    if as_json { term::json(&model_json(&args.name, &stored)) } else { Ok(()) }
}

fn key_of_stdin() -> Result<Secret, ProblemDetails> {
    let text = std::io::read_to_string(std::io::stdin().lock())
        .map_err(|error| ProblemDetails::usage(format!("reading the key from standard input failed: {error}")))?;
    match text.trim() {
        "" => Err(ProblemDetails::usage("there is no key on standard input")),
        key => Ok(Secret::from(key.to_owned())),
    }
}
