//! What an agent offers, in the one shape of [`Operation::ListChoices`](ipc_protocol::Operation::ListChoices).

use ipc_protocol::Json;
use serde_json::{Map, Value, json};

use super::bounds::{json, words};

/// Most choices of one kind.
const MOST: usize = 1000;

/// Models, modes and thinking levels to choose from; `None` for what the agent does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentChoices {
    pub(crate) models: Option<Vec<Value>>,
    pub(crate) modes: Option<Vec<Value>>,
    pub(crate) thinking: Option<Vec<Value>>,
}

impl AgentChoices {
    /// Makes the answer of the operation.
    pub(crate) fn to_json(&self) -> Json {
        let kinds = [("models", &self.models), ("modes", &self.modes), ("thinking", &self.thinking)];
        let of_kind = |(name, choices): (&str, &Option<Vec<Value>>)| {
            let choices = choices.as_ref()?.iter().take(MOST).cloned().collect();
            Some((name.to_owned(), Value::Array(choices)))
        };
        json(&Value::Object(kinds.into_iter().filter_map(of_kind).collect::<Map<_, _>>()))
    }
}

/// Makes one choice. Without a name it is called by its id.
pub(crate) fn choice(id: &str, name: Option<&str>, description: Option<&str>) -> Value {
    let mut choice = json!({ "id": words(id), "name": words(name.filter(|name| !name.is_empty()).unwrap_or(id)) });
    if let Some(description) = description.filter(|description| !description.is_empty()) {
        choice["description"] = words(description).into();
    }
    choice
}

/// Makes choices that are called by their ids.
pub(crate) fn choices<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<Value> {
    ids.into_iter().map(|id| choice(id, None, None)).collect()
}
