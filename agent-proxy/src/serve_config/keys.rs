//! Keys of the file, from the flags of `serve`.

use std::{ffi::OsString, sync::LazyLock};

use clap::{Arg, ArgAction, Command, error::ErrorKind};

use crate::args;

/// Key of the file, for a flag of `serve`.
#[derive(Clone, Debug)]
pub(crate) struct ConfigKey {
    /// Name in the file: that of the flag, with `_` for `-`.
    pub(crate) name: String,
    /// Long name of the flag, without dashes.
    pub(crate) flag: String,
    /// Form of its values.
    pub(crate) kind: ValueKind,
    /// True for a list of values.
    pub(crate) is_list: bool,
    /// Value without any setting; `None` where there is none.
    pub(crate) default: Option<String>,
    /// First sentence of the flag's help.
    pub(crate) about: String,
}

/// Form of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// True or false.
    Switch,
    /// Whole number.
    Number,
    /// Time, as in `30s`.
    Duration,
    /// Number of bytes, as in `64MiB`.
    Size,
    /// Path of a file or directory. A relative one is below the directory of the file that it stands in.
    Path,
    /// One of some words.
    Choice(Vec<String>),
    /// Any other text, by the name of the flag's value.
    Text(String),
}

impl ConfigKey {
    fn of(arg: &Arg) -> Option<Self> {
        let flag = arg.get_long()?.to_owned();
        let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<String> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
        // Defaults that depend on other flags stand in the help.
        let told =
            about.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']')).map(|(text, _)| text.to_owned());
        Some(Self {
            name: flag.replace('-', "_"),
            kind: ValueKind::of(arg),
            is_list: matches!(arg.get_action(), ArgAction::Append),
            default: if defaults.is_empty() { told } else { Some(defaults.join(",")) },
            about,
            flag,
        })
    }

    /// Environment variable of the key.
    pub(crate) fn variable(&self) -> String {
        format!("AGENT_PROXY_{}", self.name.to_uppercase())
    }

    /// Says what may stand there.
    pub(crate) fn allowed(&self) -> String {
        let one = match &self.kind {
            ValueKind::Switch => "true or false".to_owned(),
            ValueKind::Number => "a whole number".to_owned(),
            ValueKind::Duration => "a time, as in \"30s\" or \"5m\"".to_owned(),
            ValueKind::Size => "a size, as in \"64MiB\"".to_owned(),
            ValueKind::Path => "a path".to_owned(),
            ValueKind::Choice(words) => format!("one of {}", words.join(", ")),
            ValueKind::Text(what) => format!("text, as {what}"),
        };
        if self.is_list { format!("a list; each value: {one}") } else { one }
    }

    /// Checks a value as the command line would.
    ///
    /// # Errors
    /// The reason why it makes no sense.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        let flag: OsString = format!("--{}={value}", self.flag).into();
        let parsed = args::serve_definition().no_binary_name(true).try_get_matches_from([flag]);
        let Err(error) = parsed else { return Ok(()) };
        match error.kind() {
            // What it needs beside it may stand elsewhere.
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => Ok(()),
            _ => Err(std::error::Error::source(&error).map_or_else(|| "no such value".to_owned(), ToString::to_string)),
        }
    }

    /// Value that may be shown: a login in an address, and whatever is a secret by its name, is not.
    pub(crate) fn redacted(&self, value: &str) -> String {
        const SECRETS: [&str; 3] = ["secret", "password", "token"];
        let is_path = self.kind == ValueKind::Path;
        if !is_path && SECRETS.iter().any(|word| self.name.split('_').any(|part| part == *word)) {
            return "(secret)".to_owned();
        }
        match value.split_once("://") {
            Some((scheme, rest)) => {
                let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                match host.rsplit_once('@') {
                    Some((_, host)) => format!("{scheme}://(secret)@{host}{path}"),
                    None => value.to_owned(),
                }
            }
            None => value.to_owned(),
        }
    }
}

impl ValueKind {
    fn of(arg: &Arg) -> Self {
        let name = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
        if name == args::SWITCH_VALUE {
            return Self::Switch;
        }
        let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        match name.as_str() {
            _ if !choices.is_empty() => Self::Choice(choices),
            "N" => Self::Number,
            "DURATION" | "DURATION|never" => Self::Duration,
            "SIZE" => Self::Size,
            "DIR" | "FILE" | "PATH" | "FILE|URL" => Self::Path,
            _ => Self::Text(name),
        }
    }
}

/// Returns true for text that is an address, and no path.
pub(crate) fn is_address(text: &str) -> bool {
    ["https://", "http://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Keys of all flags of `serve`, in the order of its definition.
pub(crate) fn keys() -> &'static [ConfigKey] {
    static KEYS: LazyLock<Vec<ConfigKey>> = LazyLock::new(|| of_command(&args::serve_definition()));
    &KEYS
}

fn of_command(serve: &Command) -> Vec<ConfigKey> {
    serve.get_arguments().filter_map(ConfigKey::of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_flag_is_a_key() {
        let serve = args::serve_definition().arg(Arg::new("brand_new").long("brand-new").value_name("SIZE"));
        let key = of_command(&serve).pop().expect("the last");
        assert_eq!((key.name.as_str(), key.kind, key.is_list), ("brand_new", ValueKind::Size, false));
    }

    #[test]
    fn forms_and_defaults_of_known_keys() {
        let key = |name: &str| keys().iter().find(|key| key.name == name).expect("a key");
        assert_eq!((key("detach").kind.clone(), key("detach").default.as_deref()), (ValueKind::Switch, Some("false")));
        assert_eq!(
            (key("max_depth").kind.clone(), key("max_depth").default.as_deref()),
            (ValueKind::Number, Some("3"))
        );
        assert_eq!(key("drain").kind, ValueKind::Duration);
        assert_eq!(key("idle_suspend").default.as_deref(), Some("300s with --state-dir, else never"));
        assert!(key("listen").is_list && key("containment").allowed().starts_with("one of auto"));
        assert!(key("drain").check("5m").is_ok() && key("retention_age").check("3days").is_ok());
        assert!(key("drain").check("soon").is_err_and(|reason| reason.contains("number")));
        assert!(key("containment").check("loose").is_err());
    }

    #[test]
    fn secrets_are_not_shown() {
        let key = |name: &str, kind| ConfigKey { name: name.into(), kind, ..keys()[0].clone() };
        let text = || ValueKind::Text(String::new());
        assert_eq!(key("oidc_client_secret", text()).redacted("x"), "(secret)");
        assert_eq!(key("token_file", ValueKind::Path).redacted("/a/token"), "/a/token");
        let address = key("otlp_endpoint", text());
        assert_eq!(address.redacted("http://ada:pw@h:4318/v1"), "http://(secret)@h:4318/v1");
        assert_eq!(address.redacted("http://h:4318/a@b"), "http://h:4318/a@b");
    }
}
