//! Handshake up to an open conversation: the requests, and the meaning of their answers.

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        ClientCapabilities, EnvVariable, HttpHeader, Implementation, InitializeRequest, InitializeResponse, McpServer,
        McpServerHttp, McpServerStdio, SystemPrompt,
    },
};
use ipc_protocol::{AgentSessionConfig, McpTransport, WireError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{failures, offer::AgentOffer, quirks::AcpQuirks};
use crate::{kit::bounds::MAX_ID, provision::claude::permission_settings};

/// Reason why the agent cannot be used as configured.
#[derive(Debug, PartialEq)]
pub(super) enum HandshakeRefusal {
    /// The agent broke the protocol; the text says how.
    Protocol(String),
    /// Nobody is logged in, in its words, and what to do.
    NotLoggedIn(String),
    /// It cannot do this.
    Unsupported(String),
    /// The agent cannot continue this conversation.
    Missing {
        /// Id of the conversation.
        id: String,
        /// Reason in the agent's words.
        reason: String,
    },
}

impl HandshakeRefusal {
    pub(super) fn of(self, agent: &str) -> WireError {
        let agent = agent.to_owned();
        match self {
            Self::Protocol(reason) => WireError::AgentProtocol { agent, reason },
            Self::NotLoggedIn(reason) => WireError::AgentRefused { agent, reason },
            Self::Unsupported(operation) => WireError::Unsupported { agent, operation },
            Self::Missing { id, reason } => WireError::NativeSessionMissing { agent, id, reason },
        }
    }
}

/// Placeholder id for a resume that names no conversation.
pub(super) const MOST_RECENT: &str = "the most recent";

/// Makes the error for an answer that does not parse.
pub(super) fn nonsense(method: &str, error: &serde_json::Error) -> HandshakeRefusal {
    HandshakeRefusal::Protocol(format!("its answer to {method} does not parse: {error}"))
}

/// The first request. The agent gets no file system and no terminal of ours: it has its own. `says_failures`: it is told that we
/// understand what it says in `_meta` of failures.
pub(super) fn initialize(says_failures: bool) -> InitializeRequest {
    let declared = if says_failures { failures::declared() } else { None };
    InitializeRequest::new(ProtocolVersion::V1)
        .client_capabilities(ClientCapabilities::new().meta(declared))
        .client_info(Implementation::new("agent-proxy", env!("CARGO_PKG_VERSION")))
}

/// Parses the answer to [`initialize`], and checks that the agent can do what the session needs.
pub(super) fn initialized(
    result: &str,
    config: &AgentSessionConfig,
    provisioned: &[String],
) -> Result<AgentOffer, HandshakeRefusal> {
    let response: InitializeResponse = serde_json::from_str(result).map_err(|e| nonsense("initialize", &e))?;
    if response.protocol_version != ProtocolVersion::V1 {
        return Err(HandshakeRefusal::Protocol(format!(
            "it speaks version {} of the Agent Client Protocol, and this build only version 1",
            response.protocol_version
        )));
    }
    let http = config.mcp_servers.iter().find(|server| matches!(server.transport, McpTransport::Http { .. }));
    match http {
        Some(server) if !response.agent_capabilities.mcp_capabilities.http => {
            return Err(HandshakeRefusal::Unsupported(format!(
                "use the MCP server {:?}: it does not speak to MCP servers over HTTP",
                server.name
            )));
        }
        _ => {}
    }
    let offer = AgentOffer::new(response, result);
    // The protocol has no field for these. Some agents have their own, and some read a file that was written for them.
    let by_file = |field: &str| provisioned.iter().any(|given| given == field);
    if !config.tools.is_empty() && !offer.quirks.claude_options && !by_file("tools") {
        return Err(HandshakeRefusal::Unsupported("restrict its tools".to_owned()));
    }
    if config.ephemeral && !offer.quirks.claude_options && !by_file("ephemeral") {
        return Err(HandshakeRefusal::Unsupported("keep nothing of its conversation".to_owned()));
    }
    Ok(offer)
}

/// Way in which the session gets its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConversationOpening {
    New,
    /// The agent continues this conversation and replays nothing of it.
    Resume(String),
    /// The agent continues this conversation and replays it first.
    Load(String),
    /// The agent continues a copy of this conversation and may replay it first.
    Fork(String),
}

impl ConversationOpening {
    /// Chooses the way to continue `id`.
    pub(super) fn of(id: String, fork: bool, offer: &AgentOffer) -> Result<Self, HandshakeRefusal> {
        let can = &offer.capabilities;
        match (fork, &can.session_capabilities) {
            (true, sessions) if sessions.fork.is_some() => Ok(Self::Fork(id)),
            (true, _) => Err(HandshakeRefusal::Unsupported("go on with a copy of a conversation".to_owned())),
            (false, sessions) if sessions.resume.is_some() => Ok(Self::Resume(id)),
            (false, _) if can.load_session => Ok(Self::Load(id)),
            (false, _) => Err(HandshakeRefusal::Unsupported("go on with a conversation".to_owned())),
        }
    }

    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::New => "session/new",
            Self::Resume(_) => "session/resume",
            Self::Load(_) => "session/load",
            Self::Fork(_) => "session/fork",
        }
    }

    /// Returns whether the agent's next messages may repeat the earlier conversation.
    pub(super) fn replays(&self) -> bool {
        matches!(self, Self::Load(_) | Self::Fork(_))
    }

    /// Returns the conversation that is continued.
    pub(super) fn conversation(&self) -> Option<&str> {
        match self {
            Self::New => None,
            Self::Resume(id) | Self::Load(id) | Self::Fork(id) => Some(id),
        }
    }

    /// Returns the parameters of the request, and whether they contain the system prompt.
    pub(super) fn params(
        &self,
        config: &AgentSessionConfig,
        system_prompt: Option<&str>,
        offer: &AgentOffer,
    ) -> (Map<String, Value>, bool) {
        let mut params = Map::new();
        if let Some(id) = self.conversation() {
            params.insert("sessionId".into(), id.into());
        }
        params.insert("cwd".into(), config.cwd.as_deref().unwrap_or("/").into());
        params.insert("mcpServers".into(), config.mcp_servers.iter().map(|server| json!(mcp_server(server))).collect());
        if let Some(meta) = meta(config, &offer.quirks) {
            params.insert("_meta".into(), meta);
        }
        let said = system_prompt.filter(|_| offer.capabilities.session_capabilities.system_prompt.is_some());
        if let Some(text) = said {
            params.insert("systemPrompt".into(), json!(SystemPrompt::new(vec![text.into()])));
        }
        (params, said.is_some())
    }
}

/// Returns the options that the wrapper of Claude Code takes beyond the protocol, with the rules that make it ask in any home.
fn meta(config: &AgentSessionConfig, quirks: &AcpQuirks) -> Option<Value> {
    if !quirks.claude_options {
        return None;
    }
    let mut options = Map::new();
    options.insert("settings".into(), permission_settings(config).into());
    if !config.tools.is_empty() {
        options.insert("tools".into(), json!(config.tools));
    }
    if let Some(turns) = config.max_turns {
        options.insert("maxTurns".into(), turns.into());
    }
    if config.ephemeral {
        options.insert("persistSession".into(), false.into());
    }
    Some(json!({ "claudeCode": { "options": options } }))
}

fn mcp_server(server: &ipc_protocol::McpServer) -> McpServer {
    match &server.transport {
        McpTransport::Stdio { command, args, env } => McpServer::Stdio(
            McpServerStdio::new(server.name.clone(), command)
                .args(args.clone())
                .env(env.0.iter().map(|(name, value)| EnvVariable::new(name.clone(), value.clone())).collect()),
        ),
        McpTransport::Http { url, headers } => McpServer::Http(
            McpServerHttp::new(server.name.clone(), url.clone())
                .headers(headers.0.iter().map(|(name, value)| HttpHeader::new(name.clone(), value.clone())).collect()),
        ),
    }
}

/// Returns the id in the answer to a [`ConversationOpening`]. A continued conversation keeps its id where the answer has none.
pub(super) fn opened(result: &str, opening: &ConversationOpening) -> Result<String, HandshakeRefusal> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct OpenedConversation {
        session_id: Option<String>,
    }
    let opened: Option<OpenedConversation> =
        serde_json::from_str(result).map_err(|e| nonsense(opening.method(), &e))?;
    let said = opened.and_then(|opened| opened.session_id);
    let kept = || match opening {
        ConversationOpening::Resume(id) | ConversationOpening::Load(id) => Some(id.clone()),
        ConversationOpening::New | ConversationOpening::Fork(_) => None,
    };
    match said.or_else(kept) {
        Some(id) if id.len() > MAX_ID => {
            Err(HandshakeRefusal::Protocol(format!("its session id has more than {MAX_ID} bytes")))
        }
        Some(id) => Ok(id),
        None => Err(HandshakeRefusal::Protocol(format!("its answer to {} names no session", opening.method()))),
    }
}
