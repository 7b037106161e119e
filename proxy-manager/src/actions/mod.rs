//! Things asked for on the stream: who may append an event may ask for a prompt, an abort, a session. Pure: an event's type and
//! payload in, what is to be done out.
//!
//! ```text
//! agent:action:prompt:called                   {"content": "…"}
//! harness:<agent>:action:abort:called          for a session of this agent only
//! iterate:agent:harness:<agent>:action:…       an `iterate:` or `agent:` in front changes nothing
//! ```

mod rules;

use ipc_protocol::{AgentSessionConfig, Json, KillOptions, PermissionAnswer, Prompt};
use serde::Deserialize;
use serde_json::Value;

pub use self::rules::{ActionRule, fill_text};
use crate::session::PromptMode;

/// The end of the type of what is to be done.
const CALLED: &str = ":called";

/// Action that an event asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SessionAction {
    /// For an agent of this catalog id only.
    pub(crate) agent: Option<String>,
    pub(crate) verb: ActionVerb,
}

/// Operation on the session of the stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ActionVerb {
    Prompt {
        prompt: Prompt,
        mode: PromptMode,
        by: Option<String>,
    },
    Abort {
        kill: bool,
    },
    Steer {
        text: String,
    },
    Permission {
        request: String,
        answer: PermissionAnswer,
    },
    /// `is_named`: the session is to have the id of the configuration.
    Create {
        config: Box<AgentSessionConfig>,
        is_named: bool,
    },
    Destroy(KillOptions),
}

/// Returns whether an event of this type asks for something.
pub(crate) fn is_action(kind: &str) -> bool {
    parse_kind(kind).is_some()
}

/// The agent and the verb in a type.
fn parse_kind(kind: &str) -> Option<(Option<&str>, &str)> {
    let mut rest = kind.strip_suffix(CALLED)?;
    for prefix in ["iterate:", "agent:"] {
        rest = rest.strip_prefix(prefix).unwrap_or(rest);
    }
    let agent = match rest.strip_prefix("harness:") {
        Some(of_agent) => {
            let (agent, verb) = of_agent.split_once(":action:")?;
            rest = verb;
            Some(agent)
        }
        None => {
            rest = rest.strip_prefix("action:")?;
            None
        }
    };
    (!rest.is_empty() && !rest.contains(':')).then_some((agent, rest))
}

/// Parses the action of an event; `None` if the event asks for nothing.
///
/// # Errors
/// What is wrong with its verb or its payload.
pub(crate) fn parse(kind: &str, payload: &Json) -> Option<Result<SessionAction, String>> {
    let (agent, verb) = parse_kind(kind)?;
    Some(self::verb(verb, payload).map(|verb| SessionAction { agent: agent.map(str::to_owned), verb }))
}

fn verb(verb: &str, payload: &Json) -> Result<ActionVerb, String> {
    Ok(match verb {
        "prompt" | "send-user-message" => {
            let PromptRequestPayload { prompt, mode, by } = read(payload)?;
            let prompt = match prompt {
                PromptText::Text(text) => text.into(),
                PromptText::Parts(prompt) => prompt,
            };
            ActionVerb::Prompt { prompt, mode: mode.unwrap_or(PromptMode::Queue), by }
        }
        "steer" => ActionVerb::Steer { text: read::<PromptPayload>(payload)?.text },
        "abort" => ActionVerb::Abort { kill: read::<AbortPayload>(payload)?.kill_turn },
        "permission-respond" => {
            let PermissionPayload { request, answer } = read(payload)?;
            ActionVerb::Permission { request, answer }
        }
        "session-create" => create(payload)?,
        "session-destroy" => {
            let grace = read::<DestroyPayload>(payload)?.grace_ms.map(std::time::Duration::from_millis);
            ActionVerb::Destroy(grace.map_or_else(KillOptions::default, KillOptions::grace))
        }
        other => return Err(format!("nobody knows the action {other:?}: there are {}", VERBS.join(", "))),
    })
}

/// Parses the payload of a `session-create`. Its configuration needs no agent where the type names one.
fn create(payload: &Json) -> Result<ActionVerb, String> {
    let mut value = payload.value();
    let config = value.get_mut("config").and_then(Value::as_object_mut);
    let is_named = config.as_ref().is_some_and(|config| config.contains_key("sessionId"));
    if let Some(config) = config {
        config.entry("agent").or_insert_with(|| "".into());
    }
    Ok(ActionVerb::Create { config: read::<CreatePayload>(&Json::from(&value))?.config, is_named })
}

const VERBS: [&str; 7] =
    ["prompt", "send-user-message", "abort", "steer", "permission-respond", "session-create", "session-destroy"];

fn read<T: for<'de> Deserialize<'de>>(payload: &Json) -> Result<T, String> {
    let value = match payload.value() {
        // An action that says nothing more has no payload.
        Value::Null => Value::Object(serde_json::Map::new()),
        value => value,
    };
    serde_json::from_value(value).map_err(|error| format!("its payload does not fit: {error}"))
}

#[derive(Deserialize)]
struct PromptRequestPayload {
    #[serde(alias = "content", alias = "text", alias = "message")]
    prompt: PromptText,
    mode: Option<PromptMode>,
    /// Who sends it.
    by: Option<String>,
}

/// Words, or parts with pictures and files among them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`text` is a text, or an array of parts")]
enum PromptText {
    Text(String),
    Parts(Prompt),
}

#[derive(Deserialize)]
struct PromptPayload {
    #[serde(alias = "content", alias = "prompt", alias = "message")]
    text: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AbortPayload {
    #[serde(default)]
    kill_turn: bool,
}

#[derive(Deserialize)]
struct PermissionPayload {
    #[serde(alias = "id")]
    request: String,
    answer: PermissionAnswer,
}

#[derive(Deserialize)]
struct CreatePayload {
    config: Box<AgentSessionConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DestroyPayload {
    grace_ms: Option<u64>,
}

#[cfg(test)]
mod tests {
    use ipc_protocol::PromptPart;
    use serde_json::json;

    use super::*;

    fn action(kind: &str, payload: Value) -> Option<Result<SessionAction, String>> {
        parse(kind, &Json::from(&payload))
    }

    #[test]
    fn types_say_what_and_for_whom() {
        let prompt = |agent: Option<&str>| SessionAction {
            agent: agent.map(str::to_owned),
            verb: ActionVerb::Prompt { prompt: "hi".into(), mode: PromptMode::Queue, by: None },
        };
        for (kind, agent) in [
            ("agent:action:prompt:called", None),
            ("iterate:agent:action:send-user-message:called", None),
            ("action:prompt:called", None),
            ("harness:pi:action:prompt:called", Some("pi")),
            ("iterate:agent:harness:pi:action:prompt:called", Some("pi")),
        ] {
            assert_eq!(action(kind, json!({"content": "hi"})), Some(Ok(prompt(agent))), "{kind}");
            assert!(is_action(kind));
        }
        for kind in ["slack:webhook-received", "agent:action:prompt", "agent:action::called", "called", ":called"] {
            assert_eq!(action(kind, json!({})), None, "{kind}");
            assert!(!is_action(kind));
        }
    }

    #[test]
    fn payloads_that_do_not_fit_are_told() {
        let verb = |verb: &str, payload| action(&format!("agent:action:{verb}:called"), payload).expect("an action");
        assert!(verb("prompt", json!({})).expect_err("no text").contains("prompt"));
        assert!(verb("prompt", json!({"text": 1})).expect_err("a number").contains("an array of parts"));
        let parts = vec![PromptPart::Text("look".into()), PromptPart::File { path: "/a".into() }];
        let payload = json!({"prompt": [{"text": "look"}, {"file": {"path": "/a"}}], "mode": "refuse"});
        let prompted = verb("prompt", payload).expect("it fits").verb;
        assert_eq!(prompted, ActionVerb::Prompt { prompt: parts.into(), mode: PromptMode::Refuse, by: None });
        assert!(verb("dance", json!({})).expect_err("unknown").contains("session-destroy"));
        assert!(verb("prompt", json!([1])).is_err());
        let verbs = |payload, name| verb(name, payload).expect("it fits").verb;
        assert_eq!(verbs(Value::Null, "abort"), ActionVerb::Abort { kill: false });
        assert_eq!(verbs(json!({"killTurn": true}), "abort"), ActionVerb::Abort { kill: true });
        assert_eq!(verbs(json!({"text": "left"}), "steer"), ActionVerb::Steer { text: "left".into() });
        let answer = PermissionAnswer::Option("once".into());
        let payload = json!({"request": "permission-1", "answer": {"option": "once"}});
        assert_eq!(
            verbs(payload, "permission-respond"),
            ActionVerb::Permission { request: "permission-1".into(), answer }
        );
        assert_eq!(verbs(json!({}), "session-destroy"), ActionVerb::Destroy(KillOptions::default()));
        let created = verbs(json!({"config": {"agent": "pi"}}), "session-create");
        assert!(matches!(created, ActionVerb::Create { config, is_named: false } if config.agent == "pi"));
        let created = verbs(json!({"config": {"sessionId": "s-1"}}), "session-create");
        assert!(matches!(created, ActionVerb::Create { config, is_named: true } if config.agent.is_empty()));
    }
}
