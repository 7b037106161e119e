//! The handshake's answers, and what they set up.

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AgentCapabilities, Error, Implementation, InitializeResponse, ListSessionsResponse, McpCapabilities,
        NewSessionRequest, NewSessionResponse, PromptCapabilities, SessionCapabilities, SessionConfigOption,
        SessionConfigOptionCategory, SessionConfigSelectOption, SessionInfo, SessionListCapabilities, SessionMode,
        SessionModeState, SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    },
};
use serde_json::{Value, json};

use crate::{
    options::{Models, Options},
    store::{Conversation, Exchange, Store},
};

const MODELS: [&str; 2] = ["fake-1", "fake-2"];
const MODES: [&str; 2] = ["build", "plan"];
const LEVELS: [&str; 2] = ["low", "high"];

/// What the client has set.
#[derive(Debug)]
pub(crate) struct Setup {
    models: Models,
    pub(crate) model: String,
    pub(crate) mcp_servers: usize,
    store: Option<Store>,
    destructive_load: bool,
    modes: bool,
    pub(crate) mode: String,
    pub(crate) thinking: String,
    /// The session.
    pub(crate) id: String,
    pub(crate) conversation: Conversation,
}

impl Setup {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            models: options.models,
            model: MODELS[0].to_owned(),
            mcp_servers: 0,
            store: options.store.as_deref().map(Store::new),
            destructive_load: options.destructive_load,
            modes: options.modes,
            mode: MODES[0].to_owned(),
            thinking: LEVELS[0].to_owned(),
            id: crate::SESSION.to_owned(),
            conversation: Conversation::default(),
        }
    }

    pub(crate) fn initialize(&self, version: Option<u16>) -> Result<Value, Error> {
        let version = version.map_or(ProtocolVersion::V1, ProtocolVersion::from);
        let mut capabilities = AgentCapabilities::new()
            .mcp_capabilities(McpCapabilities::new().http(true))
            .prompt_capabilities(PromptCapabilities::new().image(true));
        if self.store.is_some() {
            let sessions = SessionCapabilities::new().list(SessionListCapabilities::new());
            capabilities = capabilities.load_session(true).session_capabilities(sessions);
        }
        let info = Implementation::new("fake-agent", env!("CARGO_PKG_VERSION"));
        let response = InitializeResponse::new(version).agent_capabilities(capabilities).agent_info(info);
        Ok(serde_json::to_value(response)?)
    }

    pub(crate) fn new_session(&mut self, params: Value) -> Result<Value, Error> {
        let request: NewSessionRequest = serde_json::from_value(params)?;
        self.mcp_servers = request.mcp_servers.len();
        if let Some(store) = &self.store {
            self.id = Store::fresh_id();
            self.conversation.cwd = request.cwd.to_string_lossy().into_owned();
            store.save(&self.id, &self.conversation).map_err(Error::into_internal_error)?;
        }
        let mut response = serde_json::to_value(NewSessionResponse::new(self.id.clone()))?;
        self.choices(&mut response)?;
        Ok(response)
    }

    /// Goes on with a conversation.
    pub(crate) fn load_session(&mut self, params: &Value) -> Result<Value, Error> {
        let Some(store) = &self.store else { return Err(Error::method_not_found()) };
        let id = params.get("sessionId").and_then(Value::as_str).ok_or_else(Error::invalid_params)?;
        if self.destructive_load {
            store.destroy(id).map_err(Error::into_internal_error)?;
            return Err(Error::internal_error().data("the conversation cannot be loaded"));
        }
        self.conversation = store.load(id).map_err(|_| Error::resource_not_found(Some(id.to_owned())))?;
        id.clone_into(&mut self.id);
        let mut response = json!({});
        self.choices(&mut response)?;
        Ok(response)
    }

    /// The conversations there are.
    pub(crate) fn list_sessions(&self) -> Result<Value, Error> {
        let Some(store) = &self.store else { return Err(Error::method_not_found()) };
        let session = |(id, conversation): (String, Conversation)| SessionInfo::new(id, conversation.cwd);
        let response = ListSessionsResponse::new(store.list().into_iter().map(session).collect());
        Ok(serde_json::to_value(response)?)
    }

    /// A turn is over.
    pub(crate) fn remember(&mut self, user: &str, agent: &str) -> std::io::Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        self.conversation.exchanges.push(Exchange { user: user.to_owned(), agent: agent.to_owned() });
        store.save(&self.id, &self.conversation)
    }

    /// Adds what the client may set.
    fn choices(&self, response: &mut Value) -> Result<(), Error> {
        if self.modes {
            let modes = MODES.iter().map(|mode| SessionMode::new(*mode, *mode)).collect();
            response["modes"] = serde_json::to_value(SessionModeState::new(self.mode.clone(), modes))?;
        }
        match self.models {
            Models::ConfigOption => response["configOptions"] = serde_json::to_value(self.options())?,
            Models::SetModel => {
                let models: Vec<_> = MODELS.iter().map(|model| json!({"modelId": model, "name": model})).collect();
                response["models"] = json!({"availableModels": models, "currentModelId": self.model});
            }
            Models::None => {}
        }
        Ok(())
    }

    pub(crate) fn options(&self) -> Vec<SessionConfigOption> {
        let choices = |values: &[&'static str]| -> Vec<_> {
            values.iter().map(|value| SessionConfigSelectOption::new(*value, *value)).collect()
        };
        let mut options = vec![
            SessionConfigOption::select("model", "Model", self.model.clone(), choices(&MODELS))
                .category(SessionConfigOptionCategory::Model),
        ];
        if self.modes {
            let thinking = SessionConfigOption::select("thinking", "Thinking", self.thinking.clone(), choices(&LEVELS));
            options.push(thinking.category(SessionConfigOptionCategory::ThoughtLevel));
        }
        options
    }

    pub(crate) fn set_mode(&mut self, params: &Value) -> Result<Value, Error> {
        let mode = params.get("modeId").and_then(Value::as_str);
        let known = mode.filter(|mode| self.modes && MODES.contains(mode));
        known.ok_or_else(Error::invalid_params)?.clone_into(&mut self.mode);
        Ok(json!({}))
    }

    pub(crate) fn set_option(&mut self, params: Value) -> Result<Value, Error> {
        if self.models != Models::ConfigOption {
            return Err(Error::method_not_found());
        }
        let request: SetSessionConfigOptionRequest = serde_json::from_value(params)?;
        match request.value.as_value_id() {
            Some(value) if &*request.config_id.0 == "model" => value.0.as_ref().clone_into(&mut self.model),
            Some(value) if &*request.config_id.0 == "thinking" && self.modes => {
                value.0.as_ref().clone_into(&mut self.thinking);
            }
            _ => return Err(Error::invalid_params().data("no such option")),
        }
        Ok(serde_json::to_value(SetSessionConfigOptionResponse::new(self.options()))?)
    }

    pub(crate) fn set_model(&mut self, params: &Value) -> Result<Value, Error> {
        if self.models != Models::SetModel {
            return Err(Error::method_not_found());
        }
        let model = params.get("modelId").and_then(Value::as_str);
        model.ok_or_else(Error::invalid_params)?.clone_into(&mut self.model);
        Ok(json!({}))
    }
}
