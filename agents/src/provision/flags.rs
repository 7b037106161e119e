//! Flags that a row has as data.

use ipc_protocol::PermissionMode;

use super::{Provision, ProvisionError, ProvisionRequest, Result};
use crate::AgentSpec;

/// Splits `flag` into arguments.
fn split_flag(flag: &str) -> Vec<String> {
    shlex::split(flag).unwrap_or_else(|| flag.split_whitespace().map(str::to_owned).collect())
}

/// Splits `flag` into arguments and fills in `placeholder`. A flag without it is followed by the value; an empty flag adds nothing.
fn with_value(flag: &str, placeholder: &str, value: &str) -> Vec<String> {
    let words = split_flag(flag);
    let follows = !words.is_empty() && !words.iter().any(|word| word.contains(placeholder));
    let filled = words.iter().map(|word| word.replace(placeholder, value));
    filled.chain(follows.then(|| value.to_owned())).collect()
}

/// Adds the flag for the working directory.
pub(super) fn workspace(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) {
    if let Some(cwd) = &request.config.cwd {
        provision.argv.extend(with_value(&spec.workspace_flag, "{workspace}", cwd));
    }
}

/// Adds the flags that make the agent ask, or ask nothing.
pub(super) fn permissions(spec: &AgentSpec, request: &ProvisionRequest<'_>, provision: &mut Provision) {
    let config = request.config;
    let ruled = !config.permissions.rules.is_empty();
    let allows_all = config.permission_mode == PermissionMode::Allow && !ruled;
    let asks = &spec.permission_config;
    if !allows_all {
        if asks.permission_flag.contains("{tool}") {
            for tool in &asks.tools_requiring_permission {
                provision.argv.extend(with_value(&asks.permission_flag, "{tool}", tool));
            }
        } else {
            provision.argv.extend(split_flag(&asks.permission_flag));
        }
    }
    for (name, setting) in spec.permission_settings.iter().filter(|(_, setting)| setting.supported) {
        let on = match (name.as_str(), config.permission_mode) {
            ("auto_approve", _) if allows_all => true,
            ("auto_approve", PermissionMode::Deny | PermissionMode::ReadOnly) => false,
            ("auto_approve", _) if ruled => false,
            _ => setting.on,
        };
        if on {
            provision.argv.extend(split_flag(&setting.cli_flag));
        }
    }
}

/// Adds the model, if the row has a flag for it.
pub(super) fn model(spec: &AgentSpec, provision: &mut Provision) {
    if spec.model_flag.is_empty() {
        return;
    }
    if let Some(model) = provision.model.take() {
        provision.argv.extend(with_value(&spec.model_flag, "{model}", &model));
    }
}

/// Adds the conversation to continue, if the row has a flag for it.
pub(super) fn resume(spec: &AgentSpec, provision: &mut Provision) -> Result<()> {
    let session = &spec.session_config;
    if session.native_session_resume == Some(true) || session.resume_flag.is_empty() {
        return Ok(());
    }
    let Some(resume) = provision.resume.take() else { return Ok(()) };
    if resume.fork {
        return Err(ProvisionError::unsupported(spec, "go on with a copy of a conversation"));
    }
    let Some(id) = resume.id else {
        return Err(ProvisionError::unsupported(spec, "go on with its most recent conversation: name one by its id"));
    };
    provision.argv.extend(with_value(&session.resume_flag, "{id}", &id));
    Ok(())
}
