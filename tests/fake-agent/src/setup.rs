//! The handshake's answers, and what they set up.

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AgentCapabilities, Error, Implementation, InitializeResponse, McpCapabilities, NewSessionRequest,
        NewSessionResponse, SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption,
        SetSessionConfigOptionRequest, SetSessionConfigOptionResponse,
    },
};
use serde_json::{Value, json};

use crate::options::Models;

const MODELS: [&str; 2] = ["fake-1", "fake-2"];

/// What the client has set.
#[derive(Debug)]
pub(crate) struct Setup {
    models: Models,
    pub(crate) model: String,
    pub(crate) mcp_servers: usize,
}

impl Setup {
    pub(crate) fn new(models: Models) -> Self {
        Self { models, model: MODELS[0].to_owned(), mcp_servers: 0 }
    }

    pub(crate) fn initialize(&self, version: Option<u16>) -> Result<Value, Error> {
        let version = version.map_or(ProtocolVersion::V1, ProtocolVersion::from);
        let capabilities = AgentCapabilities::new().mcp_capabilities(McpCapabilities::new().http(true));
        let info = Implementation::new("fake-agent", env!("CARGO_PKG_VERSION"));
        let response = InitializeResponse::new(version).agent_capabilities(capabilities).agent_info(info);
        Ok(serde_json::to_value(response)?)
    }

    pub(crate) fn new_session(&mut self, params: Value) -> Result<Value, Error> {
        let request: NewSessionRequest = serde_json::from_value(params)?;
        self.mcp_servers = request.mcp_servers.len();
        let mut response = serde_json::to_value(NewSessionResponse::new(crate::SESSION))?;
        match self.models {
            Models::ConfigOption => response["configOptions"] = serde_json::to_value([self.model_option()])?,
            Models::SetModel => {
                let models: Vec<_> = MODELS.iter().map(|model| json!({"modelId": model, "name": model})).collect();
                response["models"] = json!({"availableModels": models, "currentModelId": self.model});
            }
            Models::None => {}
        }
        Ok(response)
    }

    fn model_option(&self) -> SessionConfigOption {
        let choices: Vec<_> = MODELS.iter().map(|model| SessionConfigSelectOption::new(*model, *model)).collect();
        SessionConfigOption::select("model", "Model", self.model.clone(), choices)
            .category(SessionConfigOptionCategory::Model)
    }

    pub(crate) fn set_option(&mut self, params: Value) -> Result<Value, Error> {
        if self.models != Models::ConfigOption {
            return Err(Error::method_not_found());
        }
        let request: SetSessionConfigOptionRequest = serde_json::from_value(params)?;
        match request.value.as_value_id() {
            Some(value) if &*request.config_id.0 == "model" => value.0.as_ref().clone_into(&mut self.model),
            _ => return Err(Error::invalid_params().data("no such option")),
        }
        Ok(serde_json::to_value(SetSessionConfigOptionResponse::new(vec![self.model_option()]))?)
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
