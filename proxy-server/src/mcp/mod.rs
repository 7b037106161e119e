//! Model Context Protocol: the API as tools and resources for a model's client.
//!
//! Each tool calls routes of the API, as its caller: so it has the same checks, bounds and answers, and the same entry in the audit log.
//! [`McpServer`] serves one client over a pair of streams; the router has the same at `/mcp`, over streamable HTTP.

mod http;
mod resources;
mod tools;
mod turn;

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, Implementation, ListResourceTemplatesResult, ListResourcesResult,
        ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
        ServerConfig, Tool,
    },
    service::RequestContext,
};
use tokio::io::{AsyncRead, AsyncWrite};

pub(crate) use self::http::routes;
use self::tools::ToolCall;
use crate::api_client::{ApiClient, ApiService};

/// What a client's model is told of this server.
const INSTRUCTIONS: &str = "Runs coding agents (Claude Code, Codex, OpenCode, Pi, Gemini and others), each in a session whose processes are \
    contained. Start one with start_session, work with it by send_message, and end it with kill_session, whose receipt proves that no process \
    is left. A turn that waits for a permission returns with the request: answer it with answer_permission, then call wait_for_turn.";

/// How tools are named in the list. Calls may use either name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolNames {
    /// `coding_agent_start_session`: what every model API takes.
    #[default]
    Underscores,
    /// `coding_agent.start_session`: some model APIs refuse a dot.
    Dots,
}

/// Server for one client.
#[derive(Clone, Debug)]
pub struct McpServer {
    api: ApiClient,
    names: ToolNames,
}

impl McpServer {
    /// Creates a server whose tools send their requests to `service`. `depth` is the number of sessions around the client.
    pub fn new(service: ApiService, names: ToolNames, depth: u32) -> Self {
        Self { api: ApiClient::new(service, depth), names }
    }

    /// Serves a client over a pair of streams, one JSON message a line, until the client closes its end.
    ///
    /// # Errors
    /// Why the client could not be served: it spoke another protocol, or left before it had begun.
    pub async fn serve_client(
        self,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), crate::ProblemDetails> {
        let failed = |why: String| {
            crate::ProblemDetails::new("protocol-violation", format!("serving the MCP client failed: {why}"))
        };
        let running = rmcp::ServiceExt::serve(self, (input, output))
            .await
            .map_err(|error| failed(ipc_protocol::ErrorChain(&error).to_string()))?;
        running.waiting().await.map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Returns the API as the request's caller sees it.
    fn api_for(&self, context: &RequestContext<RoleServer>) -> ApiClient {
        match context.extensions.get::<axum::http::request::Parts>() {
            Some(request) => self.api.as_caller_of(request),
            None => self.api.clone(),
        }
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let mut program = Implementation::new("agent-proxy", env!("CARGO_PKG_VERSION"));
        program.title = Some("agent-proxy: coding agents in contained sessions".to_owned());
        let mut info = ServerConfig::new(capabilities);
        info.server_info = program;
        info.with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(self.names)))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(|tool| tool.describe(self.names))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::find(&request.name) else {
            let known = tools::list(self.names).iter().map(|tool| tool.name.to_string()).collect::<Vec<_>>().join(", ");
            let why = format!("there is no tool {:?}: the tools are {known}", request.name);
            return Err(ErrorData::invalid_params(why, None));
        };
        let call = ToolCall { api: self.api_for(&context), context };
        Ok(tool.run(request.arguments.unwrap_or_default(), call).await.into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(&self.api_for(&context)).await
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.api_for(&context), &request.uri).await.map(Into::into)
    }
}
