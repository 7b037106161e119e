//! Rules by which events of others become things that are asked for.

use std::collections::BTreeMap;

use ipc_protocol::Json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A rule: an event whose type fits becomes an action.
///
/// ```json
/// {"on": "slack:*", "action": "prompt", "payload": {"content": "{text}", "mode": "queue"}}
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionRule {
    /// Type of the events it is for; a `*` stands for any text.
    pub on: String,
    /// Members of the event's payload that have to fit, by their paths: `{"event": "push", "body.action": "*ed"}`. The text of a member
    /// that is not there is empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub when: BTreeMap<String, String>,
    /// Verb of the action: `prompt`, `abort`, …
    pub action: String,
    /// The action's payload. In its texts `{a.b}` stands for what the event's payload has there: a text as it is, anything else
    /// as JSON.
    #[serde(default)]
    pub payload: Map<String, Value>,
}

impl ActionRule {
    /// Returns whether it can ever do anything.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where it is for no event, or nobody knows its action.
    pub fn check(&self) -> Result<()> {
        let invalid = |reason| Err(Error::InvalidConfig { field: "rule", reason });
        if self.on.is_empty() {
            return invalid("`on` is empty: name a type of events, as in \"slack:*\"".to_owned());
        }
        if !super::VERBS.contains(&self.action.as_str()) {
            let known = super::VERBS.join(", ");
            return invalid(format!("nobody knows the action {:?} (on {:?}): there are {known}", self.action, self.on));
        }
        Ok(())
    }

    /// Type and payload of the action that an event becomes, if it does.
    pub(crate) fn apply(&self, kind: &str, payload: &Json) -> Option<(String, Json)> {
        if super::is_action(kind) || !matches_pattern(&self.on, kind) {
            return None;
        }
        let payload = payload.value();
        if !self.when.iter().all(|(path, pattern)| matches_pattern(pattern, &member_text(&payload, path))) {
            return None;
        }
        let filled = fill(&Value::Object(self.payload.clone()), &payload);
        Some((format!("agent:action:{}:called", self.action), Json::from(&filled)))
    }
}

/// Returns whether a type fits a pattern with `*` in it.
fn matches_pattern(pattern: &str, kind: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| kind.strip_prefix(first)) else { return false };
    let parts: Vec<_> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn fill(template: &Value, payload: &Value) -> Value {
    match template {
        Value::String(text) => Value::String(fill_text(text, payload)),
        Value::Array(items) => items.iter().map(|item| fill(item, payload)).collect(),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(name, value)| (name.clone(), fill(value, payload))).collect())
        }
        other => other.clone(),
    }
}

/// Text of the member at a path `a.b`: a text as it is, anything else as JSON, and nothing where there is none.
fn member_text(payload: &Value, path: &str) -> String {
    let pointer: String = path.split('.').map(|step| format!("/{step}")).collect();
    match payload.pointer(&pointer) {
        Some(Value::String(value)) => value.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// Fills a template: `{a.b}` in it stands for what the payload has there, a text as it is, anything else as JSON.
pub fn fill_text(template: &str, payload: &Value) -> String {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let Some((path, behind)) = after.split_once('}') else {
            text.push('{');
            rest = after;
            continue;
        };
        text.push_str(&member_text(payload, path));
        rest = behind;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_becomes_an_action_with_what_it_says() {
        let rule: ActionRule = serde_json::from_value(json!({
            "on": "slack:*-received", "action": "prompt",
            "payload": {"content": "{user.name} says {text}{nothing}", "list": ["{n}"], "mode": "queue", "open": "{"},
        }))
        .expect("a rule");
        let payload = Json::from(&json!({"user": {"name": "Ada"}, "text": "hi {n}", "n": 7}));
        let (kind, payload) = rule.apply("slack:webhook-received", &payload).expect("it fits");
        assert_eq!(kind, "agent:action:prompt:called");
        let filled = json!({"content": "Ada says hi {n}", "list": ["7"], "mode": "queue", "open": "{"});
        assert_eq!(payload.value(), filled);
    }

    #[test]
    fn a_rule_is_for_events_whose_members_fit() {
        let rule: ActionRule = serde_json::from_value(json!({
            "on": "*", "when": {"event": "issue*", "body.n": "7", "body.bot": ""}, "action": "prompt",
        }))
        .expect("a rule");
        let applies = |payload| rule.apply("github:webhook-received", &Json::from(&payload)).is_some();
        assert!(applies(json!({"event": "issues", "body": {"n": 7}})));
        assert!(!applies(json!({"event": "push", "body": {"n": 7}})));
        assert!(!applies(json!({"event": "issues", "body": {"n": 8}})));
        assert!(!applies(json!({"event": "issues", "body": {"n": 7, "bot": "b1"}})), "it is there");
        assert!(!applies(json!(null)));
    }

    #[test]
    fn a_rule_that_does_nothing_is_refused() {
        let rule = |on: &str, action: &str| ActionRule {
            on: on.into(),
            when: BTreeMap::new(),
            action: action.into(),
            payload: Map::new(),
        };
        rule("slack:*", "prompt").check().expect("it does something");
        assert!(rule("", "prompt").check().expect_err("for nothing").to_string().contains("`on` is empty"));
        assert!(rule("x", "dance").check().expect_err("unknown").to_string().contains("session-destroy"));
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, kind, does) in [
            ("slack:x", "slack:x", true),
            ("slack:x", "slack:xy", false),
            ("*", "anything", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("*:received", "mail:received", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches_pattern(pattern, kind), does, "{pattern} {kind}");
        }
        let rule = ActionRule { on: "*".into(), when: BTreeMap::new(), action: "prompt".into(), payload: Map::new() };
        assert!(rule.apply("agent:action:prompt:called", &Json::null()).is_none(), "it would go on for ever");
    }
}
