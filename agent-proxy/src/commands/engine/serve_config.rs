//! Command `config`: the daemon's file.

use std::path::{Path, PathBuf};

use proxy_server::{ProblemDetails, ProgramExit};
use serde_json::json;

use crate::{
    args::{ConfigArgs, ConfigCheckArgs, ConfigCommand, ConfigShowArgs, ListingFormat},
    command_failure::CommandFailure,
    render::{
        count,
        listing::{Column, ColumnFit, Listing, ListingRow},
    },
    serve_config::{self, ConfigFile, ConfigKey, Setting, keys},
    term,
};

/// Checks or shows the configuration of `serve`.
pub(super) fn run(args: ConfigArgs, config_dir: Option<&Path>, as_json: bool) -> Result<(), CommandFailure> {
    let path = serve_config::path(config_dir);
    match args.command.unwrap_or_else(|| ConfigCommand::Show(ConfigShowArgs::default())) {
        ConfigCommand::Check(ConfigCheckArgs { file }) => check(file.or(path), as_json),
        ConfigCommand::Show(args) => show(path.as_deref(), &args, as_json),
        ConfigCommand::Path => {
            let path = path.ok_or_else(no_directory)?;
            if as_json { term::json(&json!({ "path": path })) } else { term::line(path.display()) }
        }
        ConfigCommand::Example => term::out(example()),
    }
}

fn no_directory() -> ProblemDetails {
    ProblemDetails::usage("there is no configuration directory: set HOME to an absolute path, or give --config-dir")
}

/// Prints each fault of the file and of the environment.
fn check(path: Option<PathBuf>, as_json: bool) -> Result<(), CommandFailure> {
    let path = path.ok_or_else(no_directory)?;
    let file = ConfigFile::read(&path);
    let entries = file.as_ref().ok().and_then(Option::as_ref).map(|file| file.entries.len());
    let faults = file.err().or_else(|| serve_config::effective(Some(&path), &[]).err()).unwrap_or_default();
    if as_json {
        term::json(&json!({ "path": path, "exists": path.exists(), "keys": entries, "faults": faults }))?;
    } else if faults.is_empty() {
        term::line(match entries {
            Some(keys) => format!("{}: {}, no fault", path.display(), count(keys, "key", "keys")),
            None => format!("{}: no such file; the defaults count", path.display()),
        })?;
    } else {
        faults.iter().try_for_each(term::line)?;
    }
    if faults.is_empty() { Ok(()) } else { Err(CommandFailure::Exit(ProgramExit::Usage)) }
}

const COLUMNS: &[Column] = &[
    Column { key: "key", heading: "KEY", fit: ColumnFit::Whole, from: 0 },
    Column { key: "value", heading: "VALUE", fit: ColumnFit::End, from: 0 },
    Column { key: "origin", heading: "FROM", fit: ColumnFit::Start, from: 0 },
];

/// Prints the values that count.
fn show(path: Option<&Path>, args: &ConfigShowArgs, as_json: bool) -> Result<(), CommandFailure> {
    let config = serve_config::effective(path, &args.flags).map_err(|faults| serve_config::problem(&faults))?;
    let row = |setting: &Setting| {
        let Setting { key, values, origin } = setting;
        let values: Vec<String> = values.iter().map(|value| key.redacted(value)).collect();
        let value = match &values[..] {
            values if key.is_list => json!(values),
            [] => serde_json::Value::Null,
            [value] if key.kind == serve_config::ValueKind::Switch => json!(value == "true"),
            [value, ..] => json!(value),
        };
        let (kind, source) = (origin.kind(), origin.to_string());
        let json = json!({ "key": key.name, "flag": format!("--{}", key.flag), "variable": key.variable(), "value": value,
            "origin": kind, "source": source });
        let shown = if values.is_empty() { "-".to_owned() } else { values.join(", ") };
        ListingRow { cells: vec![key.name.clone(), term::printable(&shown, false), source], json }
    };
    let rows = config.settings.iter().map(row).collect();
    let form: ListingFormat = args.format.form(as_json);
    Listing { columns: COLUMNS, rows }.print(&form, "no keys")
}

/// Writes a file with each key, switched off by a comment.
fn example() -> String {
    let mut text = "# The daemon's configuration: a key for each flag of `agent-proxy serve`.\n\
                    # Flags win over variables (AGENT_PROXY_KEY), and these over this file.\n"
        .to_owned();
    for key in keys() {
        text.push_str(&format!("\n# {}\n#{} = {}\n", key.about.replace('\n', " "), key.name, sample(key)));
    }
    text
}

/// Value of a key in TOML: its default, or one of its form.
fn sample(key: &ConfigKey) -> String {
    use serve_config::ValueKind;
    let value = match (&key.kind, &key.default) {
        (ValueKind::Switch | ValueKind::Number, Some(default)) if !default.contains(' ') => default.clone(),
        (ValueKind::Number, _) => "8".to_owned(),
        (_, Some(default)) if !default.contains(' ') => format!("{default:?}"),
        (ValueKind::Duration, _) => "\"5m\"".to_owned(),
        (ValueKind::Size, _) => "\"64MiB\"".to_owned(),
        (ValueKind::Path, _) => "\"~/path\"".to_owned(),
        (ValueKind::Choice(words), _) => format!("{:?}", words.first().map(String::as_str).unwrap_or_default()),
        (ValueKind::Switch, _) => "true".to_owned(),
        (ValueKind::Text(what), _) => format!("{what:?}"),
    };
    if key.is_list { format!("[{value}]") } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the text forms, whose samples are names of what belongs there.
    #[test]
    fn the_example_is_a_file_once_its_comments_go() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config.toml");
        let texts: Vec<String> = keys()
            .iter()
            .filter(|key| matches!(key.kind, serve_config::ValueKind::Text(_)))
            .map(|key| key.name.to_owned())
            .collect();
        let lines: String = example()
            .lines()
            .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ')))
            .filter(|line| line.split_once(" =").is_none_or(|(key, _)| texts.iter().all(|text| text != key)))
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(&path, &lines).expect("written");
        let file = ConfigFile::read(&path).unwrap_or_else(|faults| panic!("{faults:#?}\n{lines}")).expect("there");
        assert_eq!(file.entries.len(), keys().len() - texts.len());
    }
}
