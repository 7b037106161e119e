//! Record of a session that a host hands to the next one. It travels as JSON, since the next host may be of another
//! release. Unknown values are left out, and it has no secrets.

use ipc_protocol::{ContainmentSpec, Json, Limits, OnUsageLimit, SessionId, Timeouts};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::SessionLaunch;
use crate::description::SessionDescription;

/// Handoff record of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HandoffRecord {
    /// Fields of a [`SessionDescription`].
    #[serde(deserialize_with = "lenient")]
    labels: Map<String, Value>,
    #[serde(deserialize_with = "lenient")]
    pub(crate) enclosure: ContainmentSpec,
    #[serde(deserialize_with = "lenient")]
    pub(crate) limits: Limits,
    #[serde(deserialize_with = "lenient")]
    pub(crate) timeouts: Timeouts,
    #[serde(deserialize_with = "lenient")]
    pub(crate) on_usage_limit: OnUsageLimit,
    pub(crate) max_prompts: Option<u32>,
    /// Family of its conversation, as leases name it.
    pub(crate) family: String,
    /// Directory in which the agent keeps the conversation.
    pub(crate) store: Option<std::path::PathBuf>,
    /// Directory in which the agent keeps the files of conversations.
    pub(crate) native_files: Option<std::path::PathBuf>,
    /// Files in its home that hold a key.
    pub(crate) keys: Vec<std::path::PathBuf>,
    /// Number in the event log from which the proxy's message numbers continue.
    pub(crate) source_base: u64,
}

/// Deserializes a value, or its default where another release writes it differently: better than losing the session.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(source: D) -> Result<T, D::Error> {
    let value = Value::deserialize(source)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

impl HandoffRecord {
    /// Reads a record; missing values get their defaults.
    pub(crate) fn read(json: &Json) -> Self {
        serde_json::from_str(json.as_str()).unwrap_or_default()
    }

    /// Serializes the record for the fork server.
    pub(crate) fn json(&self, source_base: u64) -> Json {
        let record = Self { source_base, ..self.clone() };
        serde_json::to_value(record).map_or_else(|_| Json::null(), |record| Json::from(&record))
    }

    /// Description of session `id`. Facts that are missing are those of a session that starts now.
    pub(crate) fn description(&self, id: &SessionId) -> SessionDescription {
        let unknown = SessionDescription::new(id.clone(), String::new(), String::new());
        let mut facts = facts_of(&unknown);
        facts.extend(self.labels.clone());
        serde_json::from_value(facts.into()).unwrap_or(unknown)
    }
}

fn facts_of(description: &SessionDescription) -> Map<String, Value> {
    match serde_json::to_value(description) {
        Ok(Value::Object(facts)) => facts,
        _ => Map::new(),
    }
}

impl SessionLaunch {
    /// Creates the handoff record, if the session may outlive its host.
    pub(crate) fn handoff_record(&self) -> Option<HandoffRecord> {
        self.detach.as_ref()?;
        let config = &self.attempt.config;
        let (family, store) = self.conversation.place();
        Some(HandoffRecord {
            labels: facts_of(&self.description),
            enclosure: self.enclosure.clone(),
            limits: config.limits.clone(),
            timeouts: config.timeouts,
            on_usage_limit: config.on_usage_limit,
            max_prompts: config.max_prompts,
            family: family.to_owned(),
            store: store.map(Into::into),
            native_files: self.native_files.clone(),
            keys: self.attempt.keys.clone(),
            source_base: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_record_of_another_release_is_read_as_far_as_it_is_understood() {
        let text = r#"{
            "labels":{"agent":"fake","cwd":"/x","startedAt":"1970-01-01T00:00:05Z","colour":"red"},
            "limits":{"moons":3},"family":"f","new":[1]}"#;
        let record = HandoffRecord::read(&Json::new(text).expect("JSON"));
        let id: SessionId = "s".parse().expect("an id");
        let metadata = record.description(&id).metadata;
        assert_eq!((metadata.agent.as_str(), metadata.cwd.as_str()), ("fake", "/x"));
        assert_eq!(metadata.started_at, SystemTime::UNIX_EPOCH + Duration::from_secs(5));
        assert_eq!((record.limits, record.family.as_str()), (Limits::default(), "f"));
        assert_eq!(HandoffRecord::read(&Json::null()), HandoffRecord::default());
        assert_eq!(HandoffRecord::default().description(&id).metadata.session_id, id);
    }
}
