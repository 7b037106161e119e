//! Whether a row makes sense.

use super::AgentSpec;

/// The protocols that are spoken without an adapter of the embedder's.
pub const PROTOCOLS: [&str; 7] = ["acp", "claude-code", "codex", "command", "gemini", "opencode", "pi"];

/// Agents whose configuration files can be written.
const FAMILIES: [&str; 5] = ["claude", "codex", "gemini", "opencode", "pi"];

/// A field of a row, and what is wrong with it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}: {reason}")]
pub struct Field {
    /// Its name, with those around it: `discovery.min_node`.
    pub name: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

fn wrong(name: impl Into<String>, reason: impl Into<String>) -> Result<(), Field> {
    Err(Field { name: name.into(), reason: reason.into() })
}

/// `word` is none of `known`: those, and the one that may have been meant.
pub(crate) fn instead(word: &str, known: &[&str]) -> String {
    let close = |other: &&str| strsim::damerau_levenshtein(word, other) <= 1 + word.len() / 4;
    let meant = known.iter().copied().filter(close).min_by_key(|other| strsim::damerau_levenshtein(word, other));
    let meant = meant.map(|meant| format!("did you mean {meant:?}? ")).unwrap_or_default();
    format!("{meant}there are {}", known.join(", "))
}

impl AgentSpec {
    /// Whether the row makes sense. `protocols` are the names of the adapters there are.
    ///
    /// # Errors
    /// The first field that does not.
    pub fn check(&self, protocols: &[&str]) -> Result<(), Field> {
        self.check_identity(protocols)?;
        self.check_containers()?;
        self.check_start()?;
        self.check_flags()?;
        self.check_models()?;
        let node = &self.discovery.min_node;
        if !node.is_empty() && crate::discovery::Version::parse(node).is_none() {
            return wrong("discovery.min_node", format!("{node:?} is no version: write it as in \"22.19.0\""));
        }
        Ok(())
    }

    fn check_identity(&self, protocols: &[&str]) -> Result<(), Field> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.id.is_empty() || self.id.len() > 64 || !self.id.chars().all(fits) {
            return wrong("id", "an id is 1 to 64 characters of A-Z a-z 0-9 . _ -");
        }
        if !protocols.contains(&self.protocol.as_str()) {
            return wrong(
                "protocol",
                format!("nobody speaks {:?}: {}", self.protocol, instead(&self.protocol, protocols)),
            );
        }
        if !self.protocol_config.is_object() {
            return wrong("protocol_config", "it has to be an object");
        }
        match self.protocol_config.get("config") {
            None => Ok(()),
            Some(serde_json::Value::String(family)) if FAMILIES.contains(&family.as_str()) => Ok(()),
            Some(other) => {
                let family = other.as_str().unwrap_or_default();
                wrong(
                    "protocol_config.config",
                    format!("{other} has no files known here: {}", instead(family, &FAMILIES)),
                )
            }
        }
    }

    /// A row that is switched off may wait for containers.
    fn check_containers(&self) -> Result<(), Field> {
        const ADVICE: &str =
            "there are no containers yet: leave it empty and give `cmd`, or set `enabled` to false to keep the row";
        let fields =
            [("image", self.image.is_empty()), ("tag", self.tag.is_empty()), ("mounts", self.mounts.is_empty())];
        match fields.iter().find(|(_, empty)| !empty && self.enabled) {
            Some((name, _)) => wrong(*name, ADVICE),
            None => Ok(()),
        }
    }

    fn check_start(&self) -> Result<(), Field> {
        if self.cmd.first().is_some_and(String::is_empty) {
            return wrong("cmd", "the program has no name");
        }
        if self.cmd.iter().any(|arg| arg.contains('\0')) {
            return wrong("cmd", "an argument holds a NUL byte");
        }
        let dir = &self.working_dir;
        if !["", "/", "{workspace}", "{home}"]
            .iter()
            .any(|start| dir == start || (!start.is_empty() && dir.starts_with(start)))
        {
            return wrong("working_dir", format!("{dir:?} has to begin with {{workspace}}, {{home}} or /"));
        }
        let unfit = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.required_env.iter().find(unfit) {
            return wrong("required_env", format!("{name:?} is no name of a variable"));
        }
        if let Some(name) = self.env.0.keys().find(unfit) {
            return wrong("env", format!("{name:?} is no name of a variable"));
        }
        if let Some((name, _)) = self.env.0.iter().find(|(_, value)| value.contains('\0')) {
            return wrong(format!("env.{name}"), "the value holds a NUL byte");
        }
        let limits = &self.resource_limits;
        if limits.memory_mb == Some(0) {
            return wrong("resource_limits.memory_mb", "a limit of 0 lets no agent run: leave it out for none");
        }
        if limits.timeout_seconds == Some(0) {
            return wrong("resource_limits.timeout_seconds", "a limit of 0 lets no agent run: leave it out for none");
        }
        if limits.cpu_cores.is_some_and(|cores| !cores.is_finite() || cores < 0.01) {
            return wrong("resource_limits.cpu_cores", "less than 0.01 lets no agent run: leave it out for no limit");
        }
        Ok(())
    }

    fn check_flags(&self) -> Result<(), Field> {
        let permissions = &self.permission_config.permission_flag;
        for (name, flag) in [
            ("model_flag", &self.model_flag),
            ("workspace_flag", &self.workspace_flag),
            ("session_config.resume_flag", &self.session_config.resume_flag),
            ("permission_config.permission_flag", permissions),
        ] {
            if shlex::split(flag).is_none() || flag.contains('\0') {
                return wrong(name, format!("{flag:?} has a quote that is not closed"));
            }
        }
        if !self.model_flag.is_empty() && !self.model_flag.contains("{model}") {
            return wrong(
                "model_flag",
                format!("{:?} has no {{model}} in it: write it as in \"--model {{model}}\"", self.model_flag),
            );
        }
        for (name, setting) in self.permission_settings.iter().filter(|(_, setting)| setting.supported) {
            if shlex::split(&setting.cli_flag).is_none_or(|words| words.is_empty()) {
                return wrong(
                    format!("permission_settings.{name}.cli_flag"),
                    "it is switched on by a flag, and this is none",
                );
            }
        }
        Ok(())
    }

    fn check_models(&self) -> Result<(), Field> {
        let models = &self.model_config;
        if models.available_models.iter().any(|model| model.id.is_empty()) {
            return wrong("model_config.available_models", "a model has no id");
        }
        let mut defaults =
            models.available_models.iter().filter(|model| model.is_default).map(|model| model.id.as_str());
        let (first, second) = (defaults.next(), defaults.next());
        if let (Some(first), Some(second)) = (first, second) {
            return wrong("model_config.available_models", format!("{first:?} and {second:?} both say is_default"));
        }
        match first {
            Some(first) if !models.default_model.is_empty() && models.default_model != first => {
                let reason = format!("it is {:?}, and {first:?} says is_default", models.default_model);
                wrong("model_config.default_model", reason)
            }
            _ => Ok(()),
        }
    }
}
