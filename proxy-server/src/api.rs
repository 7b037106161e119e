//! Bodies of the daemon's requests and answers, besides the library's own types.

pub use api_types::api::*;

#[cfg(feature = "fleet")]
use std::collections::BTreeMap;

use agents::{ModelApi, Secret};
use proxy_manager::Receipt;
#[cfg(feature = "fleet")]
use proxy_manager::SessionId;
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/models`: a model configuration. `key` is written to a file that the server's user alone can read.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NewModel {
    /// Name of the model configuration.
    pub(crate) name: String,
    /// Provider: `anthropic`, `openai`, `google`, or any other word.
    pub(crate) provider: String,
    /// API of the model; by default the one of the provider's name, else Chat Completions.
    #[serde(default)]
    pub(crate) api: Option<ModelApi>,
    /// Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
    #[serde(default)]
    pub(crate) base_url: Option<String>,
    /// Model in the provider's spelling; a session's `model` overrides it.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Key for the API.
    #[serde(default)]
    pub(crate) key: Option<Secret>,
    /// Variable of the server's environment that has the key.
    #[serde(default)]
    pub(crate) key_env: Option<String>,
}

/// Body of `PUT /v1/models/{name}`: a model configuration. Without `key` and `keyEnv` the stored key stays.
#[derive(Debug, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ModelSettings {
    /// Provider: `anthropic`, `openai`, `google`, or any other word.
    pub(crate) provider: String,
    /// API of the model; by default the one of the provider's name, else Chat Completions.
    #[serde(default)]
    pub(crate) api: Option<ModelApi>,
    /// Address of the API with its version (`https://api.example.com/v1`); the provider's own by default.
    #[serde(default)]
    pub(crate) base_url: Option<String>,
    /// Model in the provider's spelling; a session's `model` overrides it.
    #[serde(default)]
    pub(crate) model: Option<String>,
    /// Key for the API.
    #[serde(default)]
    pub(crate) key: Option<Secret>,
    /// Variable of the server's environment that has the key.
    #[serde(default)]
    pub(crate) key_env: Option<String>,
}

/// Body of `PATCH /v1/models/{name}`: what is given is changed, and `null` removes it.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct ModelChange {
    /// Provider: `anthropic`, `openai`, `google`, or any other word.
    pub(crate) provider: Option<String>,
    /// API of the model.
    #[serde(deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<ModelApi>"))]
    pub(crate) api: Option<Option<ModelApi>>,
    /// Address of the API with its version.
    #[serde(deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<String>"))]
    pub(crate) base_url: Option<Option<String>>,
    /// Model in the provider's spelling.
    #[serde(deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<String>"))]
    pub(crate) model: Option<Option<String>>,
    /// Key for the API; it takes the place of a variable or file with the key.
    #[serde(deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<Secret>"))]
    pub(crate) key: Option<Option<Secret>>,
    /// Variable of the server's environment that has the key; it takes the place of a stored key, or of a file.
    #[serde(deserialize_with = "given")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<String>"))]
    pub(crate) key_env: Option<Option<String>>,
}

/// Tells a value that is `null` from one that is not given.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Receipt in a session's stream.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordedReceipt {
    /// Offset of its event: 20 decimal digits.
    pub(crate) offset: String,
    /// Time of its event.
    #[serde(rename = "createdAt", with = "ipc_protocol::time_text")]
    #[cfg_attr(feature = "openapi", schemars(with = "ipc_protocol::json_schema::TimeText"))]
    pub(crate) at: std::time::SystemTime,
    /// Type of its event: `session:ended` or `session:suspended`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The receipt.
    pub(crate) receipt: Receipt,
}

/// Body of `POST /v1/fleet/sessions/{id}/move`: `{"to":"b"}`.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct MoveRequest {
    /// Node that the session goes to; without it one is chosen.
    pub to: Option<fleet::NodeName>,
}

/// Session that has moved.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct MovedSession {
    /// Id of the session.
    pub session_id: SessionId,
    /// Node that had it.
    pub from: fleet::NodeName,
    /// Node that has it.
    pub to: fleet::NodeName,
    /// Number of times that the session changed hands, with its start.
    pub epoch: u64,
    /// Reason why it does not run there yet as it did here, in the answer to a drain; `null` if all is well.
    pub problem: Option<String>,
}

/// What became of the sessions of a node that was drained.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct DrainedNode {
    /// Sessions that have moved.
    pub moved: Vec<MovedSession>,
    /// Sessions that stay, with the reason of each.
    pub stay: Vec<StayingSession>,
}

/// Answer to `POST /v1/fleet/nodes/{node}/forget`.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ForgottenNode {
    /// Sessions of which the fleet has nothing any more.
    pub sessions: Vec<SessionId>,
}

/// Session that did not move.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct StayingSession {
    /// Id of the session.
    pub session_id: SessionId,
    /// Reason for which it stays.
    pub reason: String,
}

/// Session of a fleet, and who has it.
#[cfg(feature = "fleet")]
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FleetSession {
    /// Id of the session.
    pub session_id: SessionId,
    /// Node that has it.
    pub node: fleet::NodeName,
    /// Whether that node is there; `null` for one that this node has not seen since it joined.
    pub presence: Option<fleet::NodePresence>,
    /// Seconds since that node's last beat.
    pub silent_seconds: Option<u64>,
    /// Number of times that the session changed hands, with its start.
    pub epoch: u64,
    /// Whether it runs, as its node told last.
    pub phase: fleet::SessionPhase,
    /// Catalog id of its agent, once that is known.
    pub agent: Option<String>,
    /// Labels that its node has to have.
    pub labels: BTreeMap<String, String>,
    /// User label.
    pub user_id: Option<String>,
    /// Object with its conversation, where another node can go on with it.
    pub snapshot: Option<String>,
    /// Kill that was asked for while the node was silent.
    pub kill: Option<fleet::RememberedKill>,
}
