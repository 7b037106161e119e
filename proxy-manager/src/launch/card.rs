//! Record of a session that a host hands to the next one. It travels as JSON, since the next host may be of another
//! release. Unknown values are left out, and it has no secrets.

use std::time::{Duration, SystemTime};

use ipc_protocol::{Enclosure, Json, Limits, OnUsageLimit, Timeouts};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Labels, Launch};

/// Handoff record of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Card {
    /// Time of the start, in milliseconds since 1970.
    started_at_ms: u64,
    #[serde(deserialize_with = "lenient")]
    pub(crate) labels: Labels,
    #[serde(deserialize_with = "lenient")]
    pub(crate) enclosure: Enclosure,
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

impl Card {
    /// Reads a record; missing values get their defaults.
    pub(crate) fn read(json: &Json) -> Self {
        serde_json::from_str(json.as_str()).unwrap_or_default()
    }

    /// Serializes the record for the fork server.
    pub(crate) fn json(&self, source_base: u64) -> Json {
        let card = Self { source_base, ..self.clone() };
        serde_json::to_value(card).map_or_else(|_| Json::null(), |card| Json::from(&card))
    }

    /// Time of the session's start.
    pub(crate) fn started_at(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.started_at_ms)
    }
}

impl Launch {
    /// Creates the handoff record, if the session may outlive its host.
    pub(crate) fn card(&self) -> Option<Card> {
        self.detach.as_ref()?;
        let config = &self.attempt.config;
        let (family, store) = self.conversation.place();
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Some(Card {
            started_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            labels: self.labels.clone(),
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
    use super::*;

    #[test]
    fn a_card_of_another_release_is_read_as_far_as_it_is_understood() {
        let text =
            r#"{"startedAtMs":5,"labels":{"agent":"fake","cwd":"/x","colour":"red"},"limits":{"moons":3},"new":[1]}"#;
        let card = Card::read(&Json::new(text).expect("JSON"));
        assert_eq!((card.labels.agent.as_str(), card.labels.cwd.as_str()), ("fake", "/x"));
        assert_eq!(
            (card.limits.clone(), card.started_at()),
            (Limits::default(), SystemTime::UNIX_EPOCH + Duration::from_millis(5))
        );
        assert_eq!(Card::read(&Json::null()), Card::default());
    }
}
