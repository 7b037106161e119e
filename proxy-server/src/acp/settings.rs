//! Settings of a session that an editor shows and changes: those in use, and those that its agent offers.

use serde_json::{Value, json};

use crate::{
    api_client::{ApiClient, session_path},
    requests::RouteResult,
};

/// Settings of a session.
#[derive(Debug)]
pub(super) struct SessionSettings {
    model: SettingChoice,
    mode: SettingChoice,
    thinking: SettingChoice,
}

/// One setting: its value, and what it can be.
#[derive(Debug, Default)]
struct SettingChoice {
    /// `None` if the agent does not tell it.
    current: Option<String>,
    /// Each has an `id` and a `name`.
    offered: Vec<Value>,
}

impl SessionSettings {
    /// Reads the settings of a session.
    pub(super) async fn read(api: &ApiClient, id: &str) -> RouteResult<Self> {
        let choices = choices(api, id).await;
        // What is in use is read last: an agent may have changed it when asked.
        Ok(Self::new(&api.get(&session_path(id, "")).await?, &choices))
    }

    /// Takes the settings of a session that was just read.
    pub(super) async fn of(api: &ApiClient, session: &Value) -> Self {
        let id = session["sessionId"].as_str().unwrap_or_default();
        // Nobody is there to be asked.
        let choices = if session["status"] == "ended" { Value::Null } else { choices(api, id).await };
        Self::new(session, &choices)
    }

    fn new(session: &Value, choices: &Value) -> Self {
        let setting = |current: &str, offered: &str| SettingChoice::new(&session[current], &choices[offered]);
        Self {
            model: setting("currentModel", "models"),
            mode: setting("currentMode", "modes"),
            thinking: setting("currentThinking", "thinking"),
        }
    }

    /// Modes to choose from, where the agent tells the one that it is in.
    pub(super) fn modes(&self) -> Option<Value> {
        Some(json!({ "currentModeId": self.mode.current.as_ref()?, "availableModes": self.mode.values("id") }))
    }

    /// Models to choose from, where the agent tells the one that it uses.
    pub(super) fn models(&self) -> Option<Value> {
        Some(json!({ "currentModelId": self.model.current.as_ref()?, "availableModels": self.model.values("modelId") }))
    }

    /// All of them, as options.
    pub(super) fn config_options(&self) -> Value {
        let settings = [
            ("mode", "Mode", "mode", &self.mode),
            ("model", "Model", "model", &self.model),
            ("thinking", "Thinking", "thought_level", &self.thinking),
        ];
        let option = |(id, name, category, setting): (&str, &str, &str, &SettingChoice)| {
            let current = setting.current.as_ref()?;
            let options = setting.values("value");
            Some(json!({
                "id": id, "name": name, "category": category, "type": "select", "currentValue": current, "options": options,
            }))
        };
        settings.into_iter().filter_map(option).collect()
    }
}

impl SettingChoice {
    fn new(current: &Value, offered: &Value) -> Self {
        let current = current.as_str().map(str::to_owned);
        let mut offered = offered.as_array().cloned().unwrap_or_default();
        // One that the agent does not list is used all the same.
        if let Some(current) = &current
            && !offered.iter().any(|choice| choice["id"] == *current)
        {
            offered.insert(0, json!({ "id": current, "name": current }));
        }
        Self { current, offered }
    }

    /// What it can be; each choice has its value in `id`.
    fn values(&self, id: &str) -> Vec<Value> {
        let value = |choice: &Value| {
            let mut value = json!({ id: choice["id"], "name": choice["name"] });
            if let Some(description) = choice["description"].as_str() {
                value["description"] = json!(description);
            }
            value
        };
        self.offered.iter().map(value).collect()
    }
}

/// Asks the agent what it offers. One that does not say so offers what it uses.
async fn choices(api: &ApiClient, id: &str) -> Value {
    let asked = api.post(&session_path(id, "/operations"), &json!("listChoices")).await;
    asked.unwrap_or_else(|problem| {
        tracing::debug!(why = problem.detail, "an agent does not tell what it offers");
        Value::Null
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_those_of_the_agent() {
        let session = json!({ "currentModel": "m-2", "currentMode": "own", "currentThinking": null });
        let choices = json!({
            "models": [{ "id": "m-1", "name": "M 1", "description": "small" }, { "id": "m-2", "name": "M 2" }],
            "modes": [{ "id": "plan", "name": "Plan" }], "thinking": [{ "id": "low", "name": "low" }],
        });
        let settings = SessionSettings::new(&session, &choices);
        assert_eq!(
            settings.models().expect("models"),
            json!({
                "currentModelId": "m-2",
                "availableModels": [{ "modelId": "m-1", "name": "M 1", "description": "small" }, { "modelId": "m-2", "name": "M 2" }],
            })
        );
        assert_eq!(
            settings.modes().expect("modes"),
            json!({ "currentModeId": "own", "availableModes": [{ "id": "own", "name": "own" }, { "id": "plan", "name": "Plan" }] })
        );
        let options = settings.config_options();
        let ids: Vec<_> = options.as_array().expect("a list").iter().map(|option| option["id"].clone()).collect();
        assert_eq!(ids, ["mode", "model"], "the agent does not tell how hard it thinks");
        assert_eq!(options[1]["options"][1], json!({ "value": "m-2", "name": "M 2" }));
        let none = SessionSettings::new(&json!({}), &Value::Null);
        assert_eq!((none.modes(), none.models(), none.config_options()), (None, None, json!([])));
    }
}
