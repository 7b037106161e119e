//! Configuration of the daemon: each flag of `serve` is also a key of the file `config.toml` and an environment variable.
//!
//! Keys come from the command line's definition, so a new flag has a key at once. A flag wins over its variable, that over the
//! file, and the file over the default. What variables and file have becomes flags of the command line before it is parsed.

mod effective;
mod file;
mod keys;

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use clap::error::ErrorKind;
use proxy_server::ProblemDetails;
use serde::Serialize;

pub(crate) use self::{
    effective::{EffectiveConfig, Setting},
    file::ConfigFile,
    keys::{ConfigKey, ValueKind, is_address, keys},
};
use crate::{args, config_dir};

/// Name of the file in the configuration directory.
const FILE_NAME: &str = "config.toml";

/// Flags that ask for a text, and run nothing.
const HELP_FLAGS: [&str; 5] = ["-h", "--help", "--help-all", "-V", "--version"];

/// Value that makes no sense, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ConfigFault {
    /// File; `null` for an environment variable.
    pub(crate) file: Option<PathBuf>,
    /// Line in the file, from 1.
    pub(crate) line: Option<usize>,
    /// Key, or the name of an environment variable.
    pub(crate) key: Option<String>,
    /// Value that was given.
    pub(crate) given: Option<String>,
    /// What is wrong.
    pub(crate) reason: String,
    /// What may stand there.
    pub(crate) allowed: Option<String>,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            self.line.map_or(Ok(()), |line| write!(f, "{line}:"))?;
            f.write_str(" ")?;
        }
        match (&self.key, &self.given) {
            (Some(key), Some(given)) => write!(f, "{key} = {given}: ")?,
            (Some(key), None) => write!(f, "{key}: ")?,
            _ => {}
        }
        f.write_str(&self.reason)?;
        self.allowed.as_ref().map_or(Ok(()), |allowed| write!(f, "; allowed: {allowed}"))
    }
}

/// Makes one problem of faults.
pub(crate) fn problem(faults: &[ConfigFault]) -> ProblemDetails {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    ProblemDetails::new("invalid-config", lines.join("\n"))
}

/// Path of the file: in `--config-dir`, or in the directory that the environment names. `None` where there is no such directory.
pub(crate) fn path(config_dir: Option<&Path>) -> Option<PathBuf> {
    config_dir::directory_path(config_dir).map(|directory| directory.join(FILE_NAME))
}

/// Reads the file and this process's environment, beside these flags of `serve`.
///
/// # Errors
/// Each value that makes no sense.
pub(crate) fn effective(path: Option<&Path>, flags: &[OsString]) -> Result<EffectiveConfig, Vec<ConfigFault>> {
    let file = path.map(ConfigFile::read).transpose()?.flatten();
    EffectiveConfig::resolve(flags, file.as_ref(), |name| std::env::var_os(name))
}

/// Adds what environment and file set to a command line of `serve`. Another command stays as it is.
///
/// # Errors
/// `invalid-config` for a value that makes no sense, with its file, line and key; `usage` for values that do not go together.
pub(crate) fn complete(args: Vec<OsString>) -> Result<Vec<OsString>, ProblemDetails> {
    let words = args.iter().take_while(|arg| *arg != "--");
    if !words.clone().any(|arg| arg == "serve") || words.clone().any(|arg| HELP_FLAGS.iter().any(|flag| arg == flag)) {
        return Ok(args);
    }
    let found = args::command().ignore_errors(true).try_get_matches_from(&args);
    let Ok(found) = found else { return Ok(args) };
    if found.subcommand_name() != Some("serve") {
        return Ok(args);
    }
    let path = path(found.get_one::<PathBuf>("config_dir").map(PathBuf::as_path));
    let config = effective(path.as_deref(), &args).map_err(|faults| problem(&faults))?;
    let additions = config.additions();
    if additions.is_empty() {
        return Ok(args);
    }
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let whole = [&args[..end], &additions, &args[end..]].concat();
    match args::parse(&whole) {
        Err(error) if matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict) => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
            let names: Vec<String> = config.given_elsewhere().map(ToString::to_string).collect();
            let detail =
                format!("{}; set elsewhere: {}; see `agent-proxy config show`", first.join(" "), names.join(", "));
            Err(ProblemDetails::usage(detail))
        }
        _ => Ok(whole),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A flag without a row is one that nobody finds.
    #[test]
    fn each_flag_of_serve_has_a_key_and_each_key_a_row() {
        let page = include_str!("../../../docs/configuration.md");
        let (_, section) = page.split_once("\n## The daemon's file\n").expect("the section");
        let section = section.split("\n## ").next().unwrap_or(section);
        let (_, section) = section.split_once("| key | sets |").expect("the table of keys");
        let rows: Vec<&str> =
            section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(key, _)| key)).collect();
        let serve = args::serve_definition();
        let flags: Vec<String> = serve.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned).collect();
        let known: Vec<String> = keys().iter().map(|key| key.flag.clone()).collect();
        for flag in &flags {
            assert!(known.contains(flag), "--{flag} has no key in config.toml");
        }
        assert_eq!(serve.get_arguments().count(), flags.len(), "a flag without a long name can have no key");
        for key in keys() {
            assert!(rows.contains(&key.name.as_str()), "add a row to docs/configuration.md: | `{}` | … |", key.name);
        }
        for row in rows {
            assert!(keys().iter().any(|key| key.name == row), "docs/configuration.md has `{row}`, which is no key");
        }
    }

    #[test]
    fn no_variable_has_another_meaning() {
        let others = ["SOCKET", "URL", "TOKEN_FILE", "CONFIG_DIR", "SESSION", "DEPTH", "COMPLETE"];
        for key in keys() {
            let name = key.variable();
            assert!(!others.iter().any(|other| name == format!("AGENT_PROXY_{other}")), "{name}");
        }
    }

    #[test]
    fn a_command_line_gets_what_the_file_sets() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = directory.path().to_str().expect("UTF-8");
        let file = directory.path().join(FILE_NAME);
        let line = |words: &str| {
            let words = words.split_whitespace().map(OsString::from);
            complete(["agent-proxy".into(), "--config-dir".into(), config.into()].into_iter().chain(words).collect())
        };
        fs::write(&file, "max_sessions = 4\nstate_dir = 'state'\ninsecure = false\nlisten = ['127.0.0.1:1']")
            .expect("written");
        let complete = line("serve --max-sessions=9").expect("valid");
        let added: Vec<String> = complete[5..].iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert_eq!(added, [format!("--state-dir={config}/state"), "--listen=127.0.0.1:1".to_owned()]);
        for other in ["ps", "serve --help"] {
            assert_eq!(line(other).expect("as it is").len(), 3 + other.split_whitespace().count());
        }
        fs::write(&file, "retention_age = '3days'").expect("written");
        let problem = line("serve").expect_err("it needs a state directory");
        assert!(problem.kind == "usage" && problem.detail.contains("--state-dir"), "{}", problem.detail);
        assert!(problem.detail.contains("retention_age"), "{}", problem.detail);
        fs::write(&file, "\nmax_sessions = 'many'").expect("written");
        let problem = line("serve").expect_err("no number");
        assert_eq!(problem.kind, "invalid-config");
        for part in ["config.toml:2: max_sessions = 'many': ", "allowed: a whole number"] {
            assert!(problem.detail.contains(part), "{}", problem.detail);
        }
    }
}
