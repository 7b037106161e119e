//! `with_…` methods of a session's configuration.

use crate::{
    AgentSandbox, AgentSessionConfig, Budget, Containment, Hardening, Home, HomePart, HostDeath, Lifecycle, Limits,
    McpServer, OnAgentExit, OnUsageLimit, PermissionMode, PermissionPolicy, ResumeRequest, SessionContainer, SessionId,
    SessionSandbox, Timeouts, WorkspaceKind,
    terminal::{Surface, TerminalConfig},
};

/// Defines methods that set a field: `text` as an optional `String`, `some` as another optional value, `value` as it is.
macro_rules! setters {
    (
        text: [$($text:ident $text_field:ident,)*]
        some: [$($some:ident $some_field:ident $some_type:ty,)*]
        value: [$($value:ident $field:ident $type:ty,)*]
    ) => {
        impl AgentSessionConfig {
            $(
                #[doc = concat!("Sets [`AgentSessionConfig::", stringify!($text_field), "`].")]
                #[must_use]
                pub fn $text(mut self, value: impl Into<String>) -> Self {
                    self.$text_field = Some(value.into());
                    self
                }
            )*
            $(
                #[doc = concat!("Sets [`AgentSessionConfig::", stringify!($some_field), "`].")]
                #[must_use]
                pub fn $some(mut self, value: $some_type) -> Self {
                    self.$some_field = Some(value);
                    self
                }
            )*
            $(
                #[doc = concat!("Sets [`AgentSessionConfig::", stringify!($field), "`].")]
                #[must_use]
                pub fn $value(mut self, value: $type) -> Self {
                    self.$field = value;
                    self
                }
            )*
        }
    };
}

setters! {
    text: [
        with_agent_type agent_type,
        with_user_id user_id,
        with_workspace_id workspace_id,
        with_cwd cwd,
        with_model model,
        with_system_prompt system_prompt,
        with_profile profile,
        with_model_config model_config,
        with_mode mode,
        with_thinking thinking,
        with_endpoint endpoint,
    ]
    some: [
        with_max_turns max_turns u32,
        with_max_prompts max_prompts u32,
        with_resume resume ResumeRequest,
        with_home home Home,
        with_verbatim verbatim bool,
        with_containment containment Containment,
        with_agent_sandbox agent_sandbox AgentSandbox,
        with_terminal terminal TerminalConfig,
        with_surface surface Surface,
        with_workspace workspace WorkspaceKind,
    ]
    value: [
        with_container container SessionContainer,
        with_session_id session_id SessionId,
        with_permission_mode permission_mode PermissionMode,
        with_limits limits Limits,
        with_on_agent_exit on_agent_exit OnAgentExit,
        with_on_host_death on_host_death HostDeath,
        with_permissions permissions PermissionPolicy,
        with_ephemeral ephemeral bool,
        with_timeouts timeouts Timeouts,
        with_runtime_context runtime_context bool,
        with_lifecycle lifecycle Lifecycle,
        with_hardening hardening Hardening,
        with_budget budget Budget,
        with_on_usage_limit on_usage_limit OnUsageLimit,
        with_sandbox sandbox SessionSandbox,
    ]
}

impl AgentSessionConfig {
    /// Sets [`AgentSessionConfig::command`]: program and arguments.
    #[must_use]
    pub fn with_command<T: Into<String>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// Sets [`AgentSessionConfig::tools`].
    #[must_use]
    pub fn with_tools<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a variable to [`AgentSessionConfig::env`].
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.0.insert(name.into(), value.into());
        self
    }

    /// Adds a server to [`AgentSessionConfig::mcp_servers`].
    #[must_use]
    pub fn with_mcp_server(mut self, server: McpServer) -> Self {
        self.mcp_servers.push(server);
        self
    }

    /// Adds a part to [`AgentSessionConfig::home_copy`].
    #[must_use]
    pub fn with_home_copy(mut self, part: HomePart) -> Self {
        self.home_copy.push(part);
        self
    }

    /// Adds a name to [`AgentSessionConfig::not_secret`].
    #[must_use]
    pub fn with_not_secret(mut self, name: impl Into<String>) -> Self {
        self.not_secret.insert(name.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_public_field_has_a_method() {
        let fields = |config: &AgentSessionConfig| match serde_json::to_value(config) {
            Ok(serde_json::Value::Object(fields)) => fields.keys().cloned().collect::<BTreeSet<_>>(),
            other => panic!("{other:?}"),
        };
        let source = include_str!("config_setters.rs");
        for field in fields(&AgentSessionConfig::new("a")) {
            let snake: String = field
                .chars()
                .map(|c| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.into() })
                .collect();
            let snake = if snake == "mcp_servers" { "mcp_server" } else { &snake };
            let internal = ["agent", "explicit", "depth"].contains(&snake);
            assert_ne!(internal, source.contains(&format!("with_{snake}")[..]) && snake != "agent", "{field}");
        }
    }
}
