//! Validation of a catalog row.

use ipc_protocol::HomePart;

use super::{AgentSpec, DiscoverySpec, HomeFiles};
use crate::family::{AgentFamily, FAMILIES};

/// Protocols with a built-in adapter.
pub const PROTOCOLS: [&str; 7] = ["acp", "claude-code", "codex", "command", "gemini", "opencode", "pi"];

/// Field of a row, and its error.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}: {reason}")]
pub struct RowError {
    /// Full name of the field: `discovery.min_node`.
    pub name: String,
    /// Error, and the correct form.
    pub reason: String,
}

fn row_error(name: impl Into<String>, reason: impl Into<String>) -> Result<(), RowError> {
    Err(RowError { name: name.into(), reason: reason.into() })
}

/// Describes an unknown `word`: the known words, and the one that may have been meant.
pub(crate) fn suggest_known(word: &str, known: &[&str]) -> String {
    let close = |other: &&str| strsim::damerau_levenshtein(word, other) <= 1 + word.len() / 4;
    let meant = known.iter().copied().filter(close).min_by_key(|other| strsim::damerau_levenshtein(word, other));
    let meant = meant.map(|meant| format!("did you mean {meant:?}? ")).unwrap_or_default();
    format!("{meant}there are {}", known.join(", "))
}

impl AgentSpec {
    /// Checks the row. `protocols` are the names of the available adapters.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn check(&self, protocols: &[&str]) -> Result<(), RowError> {
        self.check_identity(protocols)?;
        self.check_containers()?;
        self.check_start()?;
        self.check_flags()?;
        self.check_family()?;
        self.check_conversations()?;
        self.check_models()?;
        self.check_paths()?;
        self.check_home_files()?;
        let node = &self.discovery.min_node;
        if !node.is_empty() && crate::discovery::ProgramVersion::parse(node).is_none() {
            return row_error("discovery.min_node", format!("{node:?} is no version: write it as in \"22.19.0\""));
        }
        Ok(())
    }

    fn check_identity(&self, protocols: &[&str]) -> Result<(), RowError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if self.id.is_empty() || self.id.len() > 64 || !self.id.chars().all(fits) {
            return row_error("id", "an id is 1 to 64 characters of A-Z a-z 0-9 . _ -");
        }
        if !protocols.contains(&self.protocol.as_str()) {
            return row_error(
                "protocol",
                format!("nobody speaks {:?}: {}", self.protocol, suggest_known(&self.protocol, protocols)),
            );
        }
        if !self.protocol_config.is_object() {
            return row_error("protocol_config", "it has to be an object");
        }
        match self.protocol_config.get("config") {
            None => Ok(()),
            Some(_) if self.agent_family().is_some() => Ok(()),
            Some(other) => {
                let family = other.as_str().unwrap_or_default();
                row_error(
                    "protocol_config.config",
                    format!(
                        "{other} has no files known here: {}",
                        suggest_known(family, &FAMILIES.map(|family| family.name))
                    ),
                )
            }
        }
    }

    fn check_containers(&self) -> Result<(), RowError> {
        if self.image.starts_with('-') || self.image.contains(char::is_whitespace) {
            return row_error("image", format!("{:?} is no name of an image", self.image));
        }
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !self.tag.chars().all(fits) {
            return row_error("tag", format!("{:?} is no tag: it is made of A-Z a-z 0-9 . _ -", self.tag));
        }
        if !self.tag.is_empty() && self.image.is_empty() {
            return row_error("tag", "a tag is of no use without an `image`");
        }
        let is_absolute = |path: &String| path.starts_with('/');
        match self.mounts.iter().find(|mount| !is_absolute(&mount.source) || !is_absolute(&mount.target)) {
            Some(_) => row_error("mounts", "`source` and `target` have to be absolute paths"),
            None => Ok(()),
        }
    }

    fn check_start(&self) -> Result<(), RowError> {
        if self.cmd.first().is_some_and(String::is_empty) {
            return row_error("cmd", "the program has no name");
        }
        if self.cmd.iter().any(|arg| arg.contains('\0')) {
            return row_error("cmd", "an argument holds a NUL byte");
        }
        let dir = &self.working_dir;
        if !["", "/", "{workspace}", "{home}"]
            .iter()
            .any(|start| dir == start || (!start.is_empty() && dir.starts_with(start)))
        {
            return row_error("working_dir", format!("{dir:?} has to begin with {{workspace}}, {{home}} or /"));
        }
        let unfit = |name: &&String| name.is_empty() || name.contains(['=', '\0']);
        if let Some(name) = self.required_env.iter().find(unfit) {
            return row_error("required_env", format!("{name:?} is no name of a variable"));
        }
        if let Some(name) = self.env.0.keys().find(unfit) {
            return row_error("env", format!("{name:?} is no name of a variable"));
        }
        if let Some((name, _)) = self.env.0.iter().find(|(_, value)| value.contains('\0')) {
            return row_error(format!("env.{name}"), "the value holds a NUL byte");
        }
        let limits = &self.resource_limits;
        if limits.memory_mb == Some(0) {
            return row_error("resource_limits.memory_mb", "a limit of 0 lets no agent run: leave it out for none");
        }
        if limits.timeout_seconds == Some(0) {
            return row_error(
                "resource_limits.timeout_seconds",
                "a limit of 0 lets no agent run: leave it out for none",
            );
        }
        if limits.cpu_cores.is_some_and(|cores| !cores.is_finite() || cores < 0.01) {
            return row_error(
                "resource_limits.cpu_cores",
                "less than 0.01 lets no agent run: leave it out for no limit",
            );
        }
        Ok(())
    }

    fn check_flags(&self) -> Result<(), RowError> {
        let permissions = &self.permission_config.permission_flag;
        for (name, flag) in [
            ("model_flag", &self.model_flag),
            ("workspace_flag", &self.workspace_flag),
            ("session_config.resume_flag", &self.session_config.resume_flag),
            ("permission_config.permission_flag", permissions),
        ] {
            if shlex::split(flag).is_none() || flag.contains('\0') {
                return row_error(name, format!("{flag:?} has a quote that is not closed"));
            }
        }
        if !self.model_flag.is_empty() && !self.model_flag.contains("{model}") {
            return row_error(
                "model_flag",
                format!("{:?} has no {{model}} in it: write it as in \"--model {{model}}\"", self.model_flag),
            );
        }
        if permissions.contains("{tool}") && self.permission_config.tools_requiring_permission.is_empty() {
            let name = "permission_config.tools_requiring_permission";
            return row_error(name, "the flag for them has {tool} in it, and there are none: it would never be given");
        }
        for (name, setting) in self.permission_settings.iter().filter(|(_, setting)| setting.supported) {
            if shlex::split(&setting.cli_flag).is_none_or(|words| words.is_empty()) {
                return row_error(
                    format!("permission_settings.{name}.cli_flag"),
                    "it is switched on by a flag, and this is none",
                );
            }
        }
        Ok(())
    }

    /// Refuses fields of the row whose values the agent's family determines.
    fn check_family(&self) -> Result<(), RowError> {
        let Some(AgentFamily { name: family, storage, .. }) = self.agent_family() else { return Ok(()) };
        let session = &self.session_config;
        for (name, flag) in [("model_flag", &self.model_flag), ("session_config.resume_flag", &session.resume_flag)] {
            if !flag.is_empty() {
                let reason =
                    format!("leave it out: how it is told is known, since protocol_config.config is {family:?}");
                return row_error(name, reason);
            }
        }
        let (template, expected) = (&session.session_dir_template, storage.template());
        if !template.is_empty() && *template != expected {
            return row_error(
                "session_config.session_dir_template",
                format!(
                    "{template:?} is not where agents of {family:?} keep them: leave it out, or write {expected:?}"
                ),
            );
        }
        Ok(())
    }

    fn check_conversations(&self) -> Result<(), RowError> {
        let session = &self.session_config;
        let template = session.session_dir_template.replace("{home}", "/home");
        if !template.is_empty() && (!template.starts_with('/') || template.contains(['{', '\0'])) {
            let reason =
                format!("{:?} has to begin with {{home}} or /, and knows only {{home}}", session.session_dir_template);
            return row_error("session_config.session_dir_template", reason);
        }
        if !session.attach_command.is_empty() && !session.attach_command.iter().any(|word| word.contains("{id}")) {
            return row_error(
                "session_config.attach_command",
                "it has no {id} in it: nobody knows with what it would go on",
            );
        }
        if session.native_session_resume == Some(true) && !session.resume_flag.is_empty() {
            let reason = "it would never be given, since native_session_resume says that the protocol does it";
            return row_error("session_config.resume_flag", reason);
        }
        let supports = self.discovery.discovery_capabilities.supports_session_resume;
        let ways = [
            ("session_config.native_session_resume", session.native_session_resume == Some(true)),
            ("session_config.resume_flag", !session.resume_flag.is_empty()),
            ("session_config.attach_command", !session.attach_command.is_empty()),
            ("discovery.discovery_capabilities.supports_session_resume", supports == Some(true)),
        ];
        match (self.cannot_resume(), ways.iter().find(|(_, said)| *said)) {
            (Some(field), Some((name, _))) => {
                row_error(*name, format!("{field} says that it can go on with no conversation: one of them is wrong"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that paths are absolute or start at the home directory: the base of any other path is undefined.
    fn check_paths(&self) -> Result<(), RowError> {
        let DiscoverySpec { installation_path, mcp_config_path, .. } = &self.discovery;
        for (name, paths) in [("installation_path", installation_path), ("mcp_config_path", mcp_config_path)] {
            let fits = |path: &String| path == "~" || path.starts_with("~/") || path.starts_with('/');
            if let Some(path) = paths.linux.iter().chain(&paths.macos).find(|path| !fits(path)) {
                return row_error(format!("discovery.{name}"), format!("{path:?} has to begin with ~/ or /"));
            }
        }
        Ok(())
    }

    /// Checks that the files of the home are within it.
    fn check_home_files(&self) -> Result<(), RowError> {
        let HomeFiles { login, skills, moved_by } = &self.home_files;
        let parts = login.iter().map(|file| ("login", file)).chain(skills.iter().map(|file| ("skills", file)));
        let paths = parts.flat_map(|(name, file)| {
            let to = Some(&file.to).filter(|to| !to.is_empty());
            [Some(&file.path), to].into_iter().flatten().map(move |path| (name, path))
        });
        let moved = moved_by.values().map(|path| ("moved_by", path));
        for (name, path) in paths.chain(moved) {
            if !matches!(path.parse(), Ok(HomePart::Path(parsed)) if parsed == *path) {
                return row_error(format!("home_files.{name}"), format!("{path:?} has to be a path below the home"));
            }
        }
        Ok(())
    }

    fn check_models(&self) -> Result<(), RowError> {
        let models = &self.model_config;
        if models.available_models.iter().any(|model| model.id.is_empty()) {
            return row_error("model_config.available_models", "a model has no id");
        }
        let mut defaults =
            models.available_models.iter().filter(|model| model.is_default).map(|model| model.id.as_str());
        let (first, second) = (defaults.next(), defaults.next());
        if let (Some(first), Some(second)) = (first, second) {
            return row_error("model_config.available_models", format!("{first:?} and {second:?} both say is_default"));
        }
        match first {
            Some(first) if !models.default_model.is_empty() && models.default_model != first => {
                let reason = format!("it is {:?}, and {first:?} says is_default", models.default_model);
                row_error("model_config.default_model", reason)
            }
            _ => Ok(()),
        }
    }
}
