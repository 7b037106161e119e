//! Messages of our webhooks, made of the events that they tell of. A message has the same id and content each time it is made.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ipc_protocol::time_text;
use proxy_manager::{Envelope, Event, Json, OpenPermission, ProxyManager, SessionFilter, SessionRecord};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    config::{SessionLabels, WebhookEvent},
    links::PermissionLinks,
    turn::{self, EndedTurn},
};

/// Member of a prompt's metadata with its callback.
pub(crate) const CALLBACK_MEMBER: &str = "askCallback";

/// Callback of an ask, in the metadata of its prompt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AskCallback {
    /// Address that is called.
    pub(crate) url: String,
    /// The caller's own.
    #[serde(default)]
    pub(crate) context: Value,
}

impl AskCallback {
    /// Finds it in the metadata of a prompt.
    pub(super) fn of(metadata: &Json) -> Option<Self> {
        let mut metadata = metadata.value();
        serde_json::from_value(metadata.get_mut(CALLBACK_MEMBER)?.take()).ok()
    }
}

/// Message that is ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct WebhookMessage {
    pub(super) id: String,
    pub(super) body: Vec<u8>,
}

/// Time of an event in RFC 3339.
#[derive(Serialize)]
struct TimeText(#[serde(with = "time_text")] SystemTime);

impl WebhookMessage {
    fn new(kind: &str, position: u64, envelope: &Envelope, data: Value) -> Self {
        // A position is never used again; a session's id may be.
        let mut hash = Sha256::new();
        hash.update(format!("{kind} {} {position} {:?}", envelope.session, envelope.created_at));
        let id = format!("msg_{}", URL_SAFE_NO_PAD.encode(&hash.finalize()[..18]));
        let body = json!({ "type": kind, "timestamp": TimeText(envelope.created_at), "data": data });
        Self { id, body: body.to_string().into_bytes() }
    }
}

impl WebhookEvent {
    /// Returns what an event is to receivers, if anything.
    pub(super) fn of(envelope: &Envelope) -> Option<Self> {
        match &envelope.event {
            Event::PermissionRequested(_) => Some(Self::PermissionRequested),
            Event::SessionIdle {} => envelope.turn.filter(|turn| *turn > 0).map(|_| Self::TurnEnded),
            Event::SessionEnded { .. } => Some(Self::SessionEnded),
            Event::BudgetExceeded(_) => Some(Self::BudgetExceeded),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::PermissionRequested => "permission:requested",
            Self::TurnEnded => "turn:ended",
            Self::SessionEnded => "session:ended",
            Self::BudgetExceeded => "budget:exceeded",
        }
    }
}

impl SessionLabels {
    /// Returns true if a session has these labels. One without a record has none.
    pub(super) fn match_session(&self, record: Option<&SessionRecord>) -> bool {
        if *self == Self::default() {
            return true;
        }
        let filter = SessionFilter {
            agent: self.agent.clone(),
            user_id: self.user.clone(),
            workspace_id: self.workspace.clone(),
            tag: self.tag.clone(),
            archived: true,
            ..SessionFilter::default()
        };
        let has_type = |record: &SessionRecord| self.r#type.is_none() || record.config.agent_type == self.r#type;
        record.is_some_and(|record| filter.matches(record) && has_type(record))
    }
}

/// Makes the message of an event.
pub(super) async fn of_event(
    manager: &ProxyManager,
    links: Option<&PermissionLinks>,
    kind: WebhookEvent,
    position: u64,
    envelope: &Envelope,
) -> WebhookMessage {
    let mut data = session_data(manager, envelope);
    match &envelope.event {
        Event::PermissionRequested(request) => {
            data.insert("request".to_owned(), json!(request));
            if let Some(links) = links {
                // As of the event: a message that is sent again has the same links.
                data.insert(
                    "links".to_owned(),
                    json!(links.create(&envelope.session, &OpenPermission::from(&**request), envelope.created_at)),
                );
            }
        }
        Event::SessionIdle {} => {
            let turn = turn::find(manager, &envelope.session, envelope.offset).await;
            data.extend(turn_data(turn.unwrap_or_default()));
        }
        Event::SessionEnded { reason, .. } => _ = data.insert("reason".to_owned(), json!(reason)),
        Event::BudgetExceeded(budget) => _ = data.insert("budget".to_owned(), json!(budget)),
        _ => {}
    }
    WebhookMessage::new(kind.name(), position, envelope, Value::Object(data))
}

/// Makes the message of an ask whose turn has ended, with its address; `None` if the event ends none that has a callback.
pub(super) async fn of_callback(
    manager: &ProxyManager,
    position: u64,
    envelope: &Envelope,
) -> Option<(String, WebhookMessage)> {
    let turn = turn::find(manager, &envelope.session, envelope.offset).await?;
    let AskCallback { url, context } = AskCallback::of(turn.metadata.as_ref()?)?;
    let mut data = session_data(manager, envelope);
    data.insert("turn".to_owned(), turn.number.into());
    data.extend(turn_data(turn));
    data.insert("context".to_owned(), context);
    Some((url, WebhookMessage::new("ask:ended", position, envelope, Value::Object(data))))
}

fn session_data(manager: &ProxyManager, envelope: &Envelope) -> Map<String, Value> {
    let config = manager.record(&envelope.session).ok().map(|record| record.config);
    let label = |of: fn(&proxy_manager::AgentSessionConfig) -> Option<String>| config.as_ref().and_then(of);
    let session = json!({
        "id": envelope.session,
        "agent": label(|config| Some(config.agent.clone())),
        "type": label(|config| config.agent_type.clone()),
        "user": label(|config| config.user_id.clone()),
        "workspace": label(|config| config.workspace_id.clone()),
    });
    let offset = format!("{:020}", envelope.offset);
    let mut data = Map::new();
    data.insert("session".to_owned(), session);
    data.insert("offset".to_owned(), offset.into());
    data.insert("turn".to_owned(), json!(envelope.turn));
    data
}

fn turn_data(turn: EndedTurn) -> Map<String, Value> {
    let EndedTurn { stop_reason, error, text, is_cut, .. } = turn;
    let mut data = Map::new();
    data.insert("stopReason".to_owned(), json!(stop_reason));
    data.insert("error".to_owned(), json!(error.filter(|_| stop_reason.is_none())));
    data.insert("text".to_owned(), text.into());
    data.insert("isCut".to_owned(), is_cut.into());
    data
}
