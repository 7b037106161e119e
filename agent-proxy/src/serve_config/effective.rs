//! Values that count: of a flag, else of its environment variable, else of the file, else the default.

use std::{ffi::OsString, fmt, path::PathBuf};

use super::{ConfigFault, ConfigFile, ConfigKey, keys, keys::ValueKind};

/// Words that switch something on in an environment variable.
const ON: [&str; 4] = ["true", "1", "yes", "on"];
/// Words that switch something off there.
const OFF: [&str; 4] = ["false", "0", "no", "off"];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment(String),
    /// A line of the file.
    File(PathBuf, usize),
    /// The program.
    Default,
}

impl SettingOrigin {
    /// Name of the kind, for JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Flag => "flag",
            Self::Environment(_) => "environment",
            Self::File(..) => "file",
            Self::Default => "default",
        }
    }
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "${name}"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Value of a key that counts.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) key: &'static ConfigKey,
    /// Values; several of a list, none where nothing is set and there is no default.
    pub(crate) values: Vec<String>,
    pub(crate) origin: SettingOrigin,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.key.name, self.origin)
    }
}

/// Values of all keys.
#[derive(Clone, Debug)]
pub(crate) struct EffectiveConfig {
    /// One setting for each key, in the order of the keys.
    pub(crate) settings: Vec<Setting>,
}

impl EffectiveConfig {
    /// Decides which value counts of each key.
    ///
    /// # Errors
    /// Variables whose values make no sense.
    pub(crate) fn resolve(
        flags: &[OsString],
        file: Option<&ConfigFile>,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Vec<ConfigFault>> {
        let mut faults = Vec::new();
        let mut settings = Vec::new();
        for key in keys() {
            let of_variable = match of_variable(key, &variable) {
                Ok(found) => found,
                Err(fault) => {
                    faults.push(*fault);
                    continue;
                }
            };
            let of_file = || {
                let file = file?;
                let entry = file.entries.iter().find(|entry| entry.key == key.name)?;
                Some((entry.values.clone(), SettingOrigin::File(file.path.clone(), entry.line)))
            };
            let default = || (key.default.iter().cloned().collect(), SettingOrigin::Default);
            let given = flag_values(key, flags).map(|values| (values, SettingOrigin::Flag));
            let (values, origin) = given.or(of_variable).or_else(of_file).unwrap_or_else(default);
            settings.push(Setting { key, values, origin });
        }
        if faults.is_empty() { Ok(Self { settings }) } else { Err(faults) }
    }

    /// Settings of variables and file.
    pub(crate) fn given_elsewhere(&self) -> impl Iterator<Item = &Setting> {
        let elsewhere = |origin: &SettingOrigin| !matches!(origin, SettingOrigin::Flag | SettingOrigin::Default);
        self.settings.iter().filter(move |setting| elsewhere(&setting.origin))
    }

    /// Flags that say the same as variables and file.
    pub(crate) fn additions(&self) -> Vec<OsString> {
        self.given_elsewhere().flat_map(Setting::flags).collect()
    }

    /// Flags that say the same as the given flags, but for keys of these names. They mean the same in any directory.
    pub(crate) fn flags_but(&self, is_left_out: impl Fn(&str) -> bool) -> Vec<OsString> {
        let given = self.settings.iter().filter(|setting| setting.origin == SettingOrigin::Flag);
        let kept = given.filter(|setting| !is_left_out(&setting.key.name)).cloned().map(|mut setting| {
            if setting.key.kind == ValueKind::Path {
                for value in &mut setting.values {
                    *value = std::path::absolute(&*value)
                        .ok()
                        .and_then(|path| path.into_os_string().into_string().ok())
                        .unwrap_or_else(|| value.clone());
                }
            }
            setting
        });
        kept.flat_map(|setting| setting.flags()).collect()
    }
}

impl Setting {
    /// Flags with these values.
    fn flags(&self) -> Vec<OsString> {
        let is_off = self.key.kind == ValueKind::Switch && self.values == ["false"];
        let values = if is_off { &[] } else { &self.values[..] };
        values.iter().map(|value| format!("--{}={value}", self.key.flag).into()).collect()
    }
}

/// Values that the flags have for a key; `None` without them.
fn flag_values(key: &ConfigKey, flags: &[OsString]) -> Option<Vec<String>> {
    let (name, begin) = (format!("--{}", key.flag), format!("--{}=", key.flag));
    let mut values = Vec::new();
    let mut words = flags.iter().take_while(|word| *word != "--").map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        if let Some(value) = word.strip_prefix(&begin) {
            values.push(value.to_owned());
        } else if word == name {
            let is_switch = key.kind == ValueKind::Switch;
            values.push(if is_switch { "true".to_owned() } else { words.next().unwrap_or_default().into_owned() });
        }
    }
    (!values.is_empty()).then_some(values)
}

fn of_variable(
    key: &ConfigKey,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<(Vec<String>, SettingOrigin)>, Box<ConfigFault>> {
    let name = key.variable();
    let Some(value) = variable(&name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let fault = |reason: String| {
        Box::new(ConfigFault {
            file: None,
            line: None,
            key: Some(format!("${name}")),
            given: Some(key.redacted(&value.to_string_lossy())),
            reason,
            allowed: Some(if key.is_list {
                format!("{}, with commas between them", key.allowed())
            } else {
                key.allowed()
            }),
        })
    };
    let text = value.to_str().ok_or_else(|| fault("it is not UTF-8".to_owned()))?;
    let values: Vec<String> = match &key.kind {
        ValueKind::Switch if ON.contains(&text) => vec!["true".to_owned()],
        ValueKind::Switch if OFF.contains(&text) => vec!["false".to_owned()],
        ValueKind::Switch => return Err(fault("no such value".to_owned())),
        _ if key.is_list => {
            text.split(',').map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).collect()
        }
        _ => vec![text.to_owned()],
    };
    values.iter().try_for_each(|value| key.check(value)).map_err(fault)?;
    Ok(Some((values, SettingOrigin::Environment(name.clone()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve_config::file::FileEntry;

    fn resolve(
        flags: &str,
        variables: &[(&str, &str)],
        entries: &[(&str, &str)],
    ) -> Result<EffectiveConfig, Vec<ConfigFault>> {
        let flags: Vec<OsString> = flags.split_whitespace().map(OsString::from).collect();
        let entries = entries.iter().enumerate().map(|(at, (key, value))| FileEntry {
            key: (*key).to_owned(),
            values: vec![(*value).to_owned()],
            line: at + 1,
        });
        let file = ConfigFile { path: "/c.toml".into(), entries: entries.collect() };
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        EffectiveConfig::resolve(&flags, Some(&file), variable)
    }

    fn shown(config: &EffectiveConfig, key: &str) -> String {
        let setting = config.settings.iter().find(|setting| setting.key.name == key).expect("a key");
        format!("{} from {}", setting.values.join(" "), setting.origin)
    }

    #[test]
    fn a_flag_before_a_variable_before_the_file_before_the_default() {
        let variable = [("AGENT_PROXY_MAX_DEPTH", "5"), ("AGENT_PROXY_LISTEN", "127.0.0.1:1, [::1]:2")];
        let file = [("max_depth", "7"), ("listen", "127.0.0.1:9"), ("drain", "1m")];
        let config = resolve("agent-proxy serve --max-depth 4 --listen=127.0.0.1:3", &variable, &file).expect("valid");
        assert_eq!(shown(&config, "max_depth"), "4 from flag");
        assert_eq!(shown(&config, "listen"), "127.0.0.1:3 from flag");
        assert_eq!(config.additions(), ["--drain=1m"]);
        let config = resolve("serve", &variable, &file).expect("valid");
        assert_eq!(shown(&config, "max_depth"), "5 from $AGENT_PROXY_MAX_DEPTH");
        assert_eq!(shown(&config, "listen"), "127.0.0.1:1 [::1]:2 from $AGENT_PROXY_LISTEN");
        let config = resolve("serve", &[], &file).expect("valid");
        assert_eq!(shown(&config, "max_depth"), "7 from /c.toml:1");
        assert_eq!(shown(&config, "queue"), "0 from default");
    }

    #[test]
    fn a_switch_can_be_switched_off() {
        let file = [("allow_sessions", "true")];
        assert_eq!(resolve("serve", &[], &file).expect("valid").additions(), ["--allow-sessions=true"]);
        let off = [("AGENT_PROXY_ALLOW_SESSIONS", "no")];
        assert!(resolve("serve", &off, &file).expect("valid").additions().is_empty());
        let config = resolve("serve --allow-sessions=false", &[], &file).expect("valid");
        assert_eq!(shown(&config, "allow_sessions"), "false from flag");
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_named() {
        let variables = [("AGENT_PROXY_DRAIN", "soon"), ("AGENT_PROXY_DETACH", "maybe")];
        let faults = resolve("serve", &variables, &[]).expect_err("faults");
        let texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(texts[0].starts_with("$AGENT_PROXY_DETACH = maybe: "), "{texts:?}");
        assert!(
            texts[1].starts_with("$AGENT_PROXY_DRAIN = soon: ") && texts[1].contains("allowed: a time"),
            "{texts:?}"
        );
    }
}
