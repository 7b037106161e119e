//! From the first request to a session with its model: what is asked and what the answers mean.

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        ClientCapabilities, EnvVariable, HttpHeader, Implementation, InitializeRequest, InitializeResponse, McpServer,
        McpServerHttp, McpServerStdio, NewSessionRequest, NewSessionResponse, SessionConfigKind, SessionConfigOption,
        SessionConfigOptionCategory, SessionConfigSelectOptions, SessionId, SetSessionConfigOptionRequest,
    },
};
use ipc_protocol::{AgentSessionConfig, McpTransport, WireError};
use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::wire::MAX_ID;

/// Most models named in an error.
const MAX_NAMED: usize = 20;

/// Why the handshake went wrong.
#[derive(Debug, PartialEq)]
pub(super) enum Refused {
    /// The agent broke the protocol, in these words.
    Protocol(String),
    /// The agent cannot do this.
    Unsupported(String),
}

impl Refused {
    pub(super) fn of(self, agent: &str) -> WireError {
        let agent = agent.to_owned();
        match self {
            Self::Protocol(reason) => WireError::AgentProtocol { agent, reason },
            Self::Unsupported(operation) => WireError::Unsupported { agent, operation },
        }
    }
}

fn nonsense(method: &str, error: &serde_json::Error) -> Refused {
    Refused::Protocol(format!("its answer to {method} does not parse: {error}"))
}

/// The first request. The agent gets no file system and no terminal of ours: it has its own.
pub(super) fn initialize() -> InitializeRequest {
    InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(ClientCapabilities::new())
        .client_info(Implementation::new("agent-proxy", env!("CARGO_PKG_VERSION")))
}

/// Reads the answer to [`initialize`], and whether the agent can do what the session needs.
pub(super) fn initialized(result: &str, config: &AgentSessionConfig) -> Result<(), Refused> {
    let response: InitializeResponse = serde_json::from_str(result).map_err(|e| nonsense("initialize", &e))?;
    if response.protocol_version != ProtocolVersion::V1 {
        return Err(Refused::Protocol(format!(
            "it speaks version {} of the Agent Client Protocol, and this build only version 1",
            response.protocol_version
        )));
    }
    let http = config.mcp_servers.iter().find(|server| matches!(server.transport, McpTransport::Http { .. }));
    match http {
        Some(server) if !response.agent_capabilities.mcp_capabilities.http => Err(Refused::Unsupported(format!(
            "use the MCP server {:?}: it does not speak to MCP servers over HTTP",
            server.name
        ))),
        _ => Ok(()),
    }
}

/// The request for a session.
pub(super) fn new_session(config: &AgentSessionConfig) -> NewSessionRequest {
    let servers = config.mcp_servers.iter().map(|server| match &server.transport {
        McpTransport::Stdio { command, args, env } => McpServer::Stdio(
            McpServerStdio::new(server.name.clone(), command)
                .args(args.clone())
                .env(env.0.iter().map(|(name, value)| EnvVariable::new(name.clone(), value.clone())).collect()),
        ),
        McpTransport::Http { url, headers } => McpServer::Http(
            McpServerHttp::new(server.name.clone(), url.clone())
                .headers(headers.0.iter().map(|(name, value)| HttpHeader::new(name.clone(), value.clone())).collect()),
        ),
    });
    NewSessionRequest::new(config.cwd.as_deref().unwrap_or("/")).mcp_servers(servers.collect())
}

/// How a session's model is set.
#[derive(Debug, Serialize, PartialEq)]
#[serde(untagged)]
pub(super) enum SetModel {
    /// `session/set_config_option`.
    ConfigOption(SetSessionConfigOptionRequest),
    /// `session/set_model`, which older agents have and the schema has dropped.
    #[serde(rename_all = "camelCase")]
    Model {
        /// The session.
        session_id: SessionId,
        /// The model.
        model_id: String,
    },
}

impl SetModel {
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::ConfigOption(_) => "session/set_config_option",
            Self::Model { .. } => "session/set_model",
        }
    }
}

/// The part of a session's beginning that the schema has dropped.
#[derive(Deserialize)]
struct Models {
    #[serde(default)]
    models: Option<IgnoredAny>,
}

/// Reads the answer to [`new_session`]: the session, and the request that sets its model, if one is needed.
pub(super) fn opened(result: &str, model: Option<&str>) -> Result<(SessionId, Option<SetModel>), Refused> {
    let response: NewSessionResponse = serde_json::from_str(result).map_err(|e| nonsense("session/new", &e))?;
    let session = response.session_id;
    if session.0.len() > MAX_ID {
        return Err(Refused::Protocol(format!("its session id has more than {MAX_ID} bytes")));
    }
    let Some(model) = model else { return Ok((session, None)) };
    let options = response.config_options.unwrap_or_default();
    let option = options.iter().find(|option| option.category == Some(SessionConfigOptionCategory::Model));
    if let Some(SessionConfigOption { id, kind: SessionConfigKind::Select(select), .. }) = option {
        let offered = values(&select.options);
        if !offered.contains(&model) {
            return Err(Refused::Unsupported(format!("use the model {model:?}: it offers {}", list(&offered))));
        }
        if select.current_value.0.as_ref() == model {
            return Ok((session, None));
        }
        let request = SetSessionConfigOptionRequest::new(session.clone(), id.clone(), model);
        return Ok((session, Some(SetModel::ConfigOption(request))));
    }
    let legacy: Models = serde_json::from_str(result).map_err(|e| nonsense("session/new", &e))?;
    if legacy.models.is_none() {
        return Err(Refused::Unsupported("take a model: it offers no way to set one".to_owned()));
    }
    // Its list is not the whole truth: one agent takes any model's name.
    let request = SetModel::Model { session_id: session.clone(), model_id: model.to_owned() };
    Ok((session, Some(request)))
}

fn values(options: &SessionConfigSelectOptions) -> Vec<&str> {
    match options {
        SessionConfigSelectOptions::Ungrouped(options) => {
            options.iter().map(|option| option.value.0.as_ref()).collect()
        }
        SessionConfigSelectOptions::Grouped(groups) => {
            groups.iter().flat_map(|group| &group.options).map(|option| option.value.0.as_ref()).collect()
        }
        _ => Vec::new(),
    }
}

fn list(values: &[&str]) -> String {
    let mut named: Vec<_> = values.iter().take(MAX_NAMED).map(|value| value.chars().take(80).collect()).collect();
    if values.len() > MAX_NAMED {
        named.push(format!("{} more", values.len() - MAX_NAMED));
    }
    named.join(", ")
}
