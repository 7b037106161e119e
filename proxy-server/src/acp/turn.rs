//! A session's events, passed on to the editor as they come.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
};

use super::{
    connection::AcpConnection,
    updates::{kind, options, stop_reason, updates},
};
use crate::{
    api_client::{ApiClient, LineStream, session_path},
    requests::RouteResult,
};

/// Ends of turns that are remembered, for a prompt that asks late.
const MOST_ENDS: usize = 32;

/// How a turn ended.
#[derive(Clone, Debug)]
pub(super) enum TurnOutcome {
    /// By itself, for this reason.
    Ended(&'static str),
    /// By an error.
    Failed(String),
}

/// Turns of a session that have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct TurnEnds {
    ends: BTreeMap<u64, TurnOutcome>,
    /// Why the session has no more turns.
    over: Option<String>,
}

impl TurnEnds {
    /// Returns how the turn has ended; `None` while it runs, or waits.
    pub(super) fn of(&self, turn: u64) -> Option<TurnOutcome> {
        self.ends.get(&turn).cloned().or_else(|| self.over.clone().map(TurnOutcome::Failed))
    }

    fn add(&mut self, turn: u64, outcome: TurnOutcome) {
        self.ends.insert(turn, outcome);
        while self.ends.len() > MOST_ENDS {
            self.ends.pop_first();
        }
    }
}

/// Passes on a session's events.
pub(super) struct EventFollower {
    pub(super) api: ApiClient,
    pub(super) connection: AcpConnection,
    /// Whole id of the session.
    pub(super) session: String,
    pub(super) ends: watch::Sender<TurnEnds>,
    /// Turn that runs, with what is known of its end.
    running: Option<(u64, Option<TurnOutcome>)>,
    /// Requests that the editor shows, by their ids.
    asked: HashMap<String, AbortHandle>,
    questions: JoinSet<()>,
}

impl EventFollower {
    pub(super) fn new(
        api: ApiClient,
        connection: AcpConnection,
        session: String,
        ends: watch::Sender<TurnEnds>,
    ) -> Self {
        Self { api, connection, session, ends, running: None, asked: HashMap::new(), questions: JoinSet::new() }
    }

    /// Follows the session from an offset to its end.
    pub(super) async fn follow(mut self, from: u64) {
        let why = match self.pass_on(from).await {
            Ok(()) => "the session has ended".to_owned(),
            Err(problem) => problem.detail,
        };
        self.ends.send_modify(|ends| ends.over = Some(why));
    }

    async fn pass_on(&mut self, from: u64) -> RouteResult<()> {
        let path = session_path(&self.session, &format!("/events?follow=true&raw=false&from={from}"));
        let mut events = self.api.lines(&path).await?;
        while let Some(event) = events.next().await? {
            self.take(&event).await;
            while self.questions.try_join_next().is_some() {}
        }
        Ok(())
    }

    /// Tells the editor of what was before: the conversation up to an offset, with its prompts.
    pub(super) async fn replay(&self, until: u64) -> RouteResult<()> {
        let path = session_path(&self.session, "/events?raw=false");
        let mut events: LineStream = self.api.lines(&path).await?;
        while let Some(event) = events.next().await? {
            if offset(&event).is_some_and(|offset| offset > until) {
                break;
            }
            for update in updates(&event, true) {
                self.tell(update).await;
            }
        }
        Ok(())
    }

    async fn take(&mut self, event: &Value) {
        let (turn, payload) = (event["metadata"]["turn"].as_u64(), &event["payload"]);
        for update in updates(event, false) {
            self.tell(update).await;
        }
        match event["type"].as_str().unwrap_or_default() {
            "turn:started" => self.running = turn.map(|turn| (turn, None)),
            "stream:complete" => self.ends_as(TurnOutcome::Ended(stop_reason(&payload["stopReason"]))),
            "stream:error" => {
                let message = payload["message"].as_str().unwrap_or("the agent failed").to_owned();
                self.ends_as(TurnOutcome::Failed(message));
            }
            "session:idle" => self.ended("the turn ended without a word"),
            "session:suspended" => self.ended("the session was suspended"),
            "session:ended" => self.ended("the session has ended"),
            "permission:requested" => self.ask(payload),
            "permission:resolved" => {
                // Somebody else was first.
                if let Some(question) = payload["id"].as_str().and_then(|id| self.asked.remove(id)) {
                    question.abort();
                }
            }
            _ => {}
        }
    }

    fn ends_as(&mut self, outcome: TurnOutcome) {
        if let Some((_, end)) = &mut self.running {
            // An error that the agent got over is followed by an end.
            *end = Some(outcome);
        }
    }

    fn ended(&mut self, otherwise: &str) {
        if let Some((turn, end)) = self.running.take() {
            let outcome = end.unwrap_or_else(|| TurnOutcome::Failed(otherwise.to_owned()));
            self.ends.send_modify(|ends| ends.add(turn, outcome));
        }
    }

    /// Has the editor's user answer a permission request, as one of those who may.
    fn ask(&mut self, request: &Value) {
        let Some(id) = request["id"].as_str().map(str::to_owned) else { return };
        let call = request["toolCallId"].as_str().unwrap_or(&id);
        let mut tool_call = json!({ "toolCallId": call, "title": request["title"], "kind": kind(&request["kind"]), "status": "pending" });
        if !request["input"].is_null() {
            tool_call["rawInput"] = request["input"].clone();
        }
        let params =
            json!({ "sessionId": self.session, "toolCall": tool_call, "options": options(&request["options"]) });
        let (api, connection) = (self.api.clone(), self.connection.clone());
        let path = session_path(&self.session, &format!("/permissions/{}", crate::api_client::encode(&id)));
        let question = self.questions.spawn(async move {
            let Some(answer) = connection.request("session/request_permission", params).await else { return };
            let outcome = &answer["outcome"];
            let answer = match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
                (Some("selected"), Some(option)) => json!({ "option": option }),
                _ => json!("cancelled"),
            };
            if let Err(problem) = api.post(&path, &json!({ "answer": answer })).await {
                tracing::info!(why = problem.detail, "an answer of the editor was not taken");
            }
        });
        self.asked.insert(id, question);
    }

    async fn tell(&self, update: Value) {
        self.connection.notify("session/update", json!({ "sessionId": self.session, "update": update })).await;
    }
}

/// Offset of an event.
pub(super) fn offset(event: &Value) -> Option<u64> {
    event["offset"].as_str()?.parse().ok()
}
