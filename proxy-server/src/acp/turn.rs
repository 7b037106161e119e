//! A session's events, passed on to the editor as they come.

use std::{collections::HashMap, time::Duration};

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::{
    connection::AcpConnection,
    prompt_table::{PromptStage, PromptTable, TurnOutcome, token_of},
    settings::SessionSettings,
    tool_contents::ToolContents,
    updates::{kind, options, stop_reason, updates},
};
use crate::{
    ProblemDetails,
    api_client::{ApiClient, LineStream, session_path},
    requests::RouteResult,
};

/// Pause before a daemon that does not answer is asked again.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Time for a daemon to come back. Afterwards prompts have failed.
const RECONNECT_TIME: Duration = Duration::from_secs(30);

/// Passes on a session's events.
pub(super) struct EventFollower {
    pub(super) api: ApiClient,
    pub(super) connection: AcpConnection,
    /// Whole id of the session.
    pub(super) session: String,
    pub(super) prompts: watch::Sender<PromptTable>,
    /// Turn that runs.
    running: Option<RunningTurn>,
    /// Time since which the daemon does not answer.
    lost: Option<Instant>,
    contents: ToolContents,
    /// Requests that the editor shows, by their ids.
    asked: HashMap<String, AbortHandle>,
    /// Tells the editor the settings, after a change.
    refresh: Option<AbortHandle>,
    tasks: JoinSet<()>,
}

/// Turn that runs, with what is known of its end.
struct RunningTurn {
    /// Prompt of the editor's that began it.
    token: Option<String>,
    end: Option<TurnOutcome>,
}

impl EventFollower {
    pub(super) fn new(
        api: ApiClient,
        connection: AcpConnection,
        session: String,
        prompts: watch::Sender<PromptTable>,
    ) -> Self {
        Self {
            api,
            connection,
            session,
            prompts,
            running: None,
            lost: None,
            contents: ToolContents::default(),
            asked: HashMap::new(),
            refresh: None,
            tasks: JoinSet::new(),
        }
    }

    /// Follows the session from an offset to its end, over restarts of the daemon. The editor is asked first what is open.
    pub(super) async fn follow(mut self, mut from: u64, open_permissions: &Value) {
        open_permissions.as_array().into_iter().flatten().for_each(|request| self.ask(request));
        let why = loop {
            match self.pass_on(&mut from).await {
                Ok(()) => break "the session has ended".to_owned(),
                Err(problem) if is_final(&problem) => break problem.detail,
                Err(problem) => {
                    if self.lost.get_or_insert_with(Instant::now).elapsed() > RECONNECT_TIME {
                        self.prompts.send_modify(|prompts| prompts.fail_all(&problem.detail));
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        };
        self.prompts.send_modify(|prompts| prompts.close(why));
    }

    /// Passes on the events after an offset, to the session's end.
    async fn pass_on(&mut self, from: &mut u64) -> RouteResult<()> {
        let path = session_path(&self.session, &format!("/events?follow=true&raw=false&from={from}"));
        let mut events = self.api.lines(&path).await?;
        self.lost = None;
        while let Some(event) = events.next().await? {
            self.take(&event).await;
            *from = offset(&event).unwrap_or(*from);
            while self.tasks.try_join_next().is_some() {}
        }
        let session = self.api.get(&session_path(&self.session, "")).await?;
        match session["status"].as_str() {
            Some("ended") => Ok(()),
            _ => Err(ProblemDetails::new("no-daemon", "the daemon has ended")),
        }
    }

    /// Tells the editor of what was before: the conversation up to an offset, with its prompts.
    pub(super) async fn replay(&self, until: u64) -> RouteResult<()> {
        let path = session_path(&self.session, "/events?raw=false");
        let mut events: LineStream = self.api.lines(&path).await?;
        let mut contents = ToolContents::default();
        while let Some(event) = events.next().await? {
            if offset(&event).is_some_and(|offset| offset > until) {
                break;
            }
            for mut update in updates(&event, true) {
                contents.complete(&mut update);
                self.tell(update).await;
            }
        }
        Ok(())
    }

    async fn take(&mut self, event: &Value) {
        let (turn, payload) = (event["metadata"]["turn"].as_u64(), &event["payload"]);
        let own = token_of(event).filter(|token| self.prompts.borrow().has(token));
        for mut update in updates(event, own.is_none()) {
            self.contents.complete(&mut update);
            self.tell(update).await;
        }
        match event["type"].as_str().unwrap_or_default() {
            "agent:action:prompt:called" => {
                if let (Some(token), Some(offset)) = (own, offset(event)) {
                    self.prompts.send_modify(|prompts| prompts.set(token, PromptStage::Queued { offset }));
                }
            }
            "action:failed" => {
                let (action, error) = (payload["action"].as_str(), payload["error"].as_str());
                self.prompts.send_if_modified(|prompts| {
                    prompts.fail_queued(action.unwrap_or_default(), error.unwrap_or_default())
                });
            }
            "turn:started" => {
                self.ended("another turn has begun");
                if let Some(token) = own {
                    self.prompts.send_modify(|prompts| prompts.set(token, PromptStage::Running));
                }
                self.running = turn.map(|_| RunningTurn { token: own.map(str::to_owned), end: None });
            }
            "stream:complete" => self.ends_as(TurnOutcome::Ended(stop_reason(&payload["stopReason"]))),
            "stream:error" => {
                let message = payload["message"].as_str().unwrap_or("the agent failed").to_owned();
                self.ends_as(TurnOutcome::Failed(message));
            }
            "session:idle" => self.ended("the turn ended without a word"),
            "session:suspended" => self.ended("the session was suspended"),
            "session:ended" => self.ended("the session has ended"),
            "session:model" | "session:mode" | "session:thinking" => self.refresh(),
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
        if let Some(turn) = &mut self.running {
            // An error that the agent got over is followed by an end.
            turn.end = Some(outcome);
        }
    }

    fn ended(&mut self, otherwise: &str) {
        let Some(RunningTurn { token: Some(token), end }) = self.running.take() else { return };
        let outcome = end.unwrap_or_else(|| TurnOutcome::Failed(otherwise.to_owned()));
        self.prompts.send_modify(|prompts| prompts.set(&token, PromptStage::Ended(outcome)));
    }

    /// Tells the editor the settings, one of which has changed.
    fn refresh(&mut self) {
        let (api, connection, session) = (self.api.clone(), self.connection.clone(), self.session.clone());
        let refresh = self.tasks.spawn(async move {
            match SessionSettings::read(&api, &session).await {
                Ok(settings) => {
                    let options = settings.config_options();
                    let update = json!({ "sessionUpdate": "config_option_update", "configOptions": options });
                    connection.notify("session/update", json!({ "sessionId": session, "update": update })).await;
                }
                Err(problem) => tracing::debug!(why = problem.detail, "failed to read the settings of a session"),
            }
        });
        // What was read before the change counts no more.
        self.refresh.replace(refresh).iter().for_each(AbortHandle::abort);
    }

    /// Has the editor's user answer a permission request, as one of those who may.
    fn ask(&mut self, request: &Value) {
        let Some(id) = request["id"].as_str().map(str::to_owned) else { return };
        // What is open when a session is loaded may be among the events after that, too.
        if self.asked.get(&id).is_some_and(|question| !question.is_finished()) {
            return;
        }
        let call = request["toolCallId"].as_str().unwrap_or(&id);
        let mut tool_call = json!({ "toolCallId": call, "title": request["title"], "kind": kind(&request["kind"]), "status": "pending" });
        if !request["input"].is_null() {
            tool_call["rawInput"] = request["input"].clone();
        }
        let options = options(&request["options"]);
        let offered: Vec<String> = options
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|option| option["optionId"].as_str())
            .map(str::to_owned)
            .collect();
        let params = json!({ "sessionId": self.session, "toolCall": tool_call, "options": options });
        let (api, connection) = (self.api.clone(), self.connection.clone());
        let path = session_path(&self.session, &format!("/permissions/{}", crate::api_client::encode(&id)));
        let question = self.tasks.spawn(async move {
            let Some(answer) = connection.request("session/request_permission", params).await else { return };
            let outcome = &answer["outcome"];
            // Anything but an option that was offered allows nothing.
            let answer = match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
                (Some("selected"), Some(option)) if offered.iter().any(|offered| offered == option) => {
                    json!({ "option": option })
                }
                (Some("cancelled"), _) => json!("cancelled"),
                _ => {
                    tracing::warn!(%outcome, "the editor answered a permission request with none of its options");
                    json!("cancelled")
                }
            };
            let (answered, answer) = (Instant::now(), json!({ "answer": answer }));
            while let Err(problem) = api.post(&path, &answer).await {
                if is_final(&problem) || problem.status == 501 || answered.elapsed() > RECONNECT_TIME {
                    tracing::info!(why = problem.detail, "an answer of the editor was not taken");
                    break;
                }
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        });
        self.asked.insert(id, question);
    }

    async fn tell(&self, update: Value) {
        self.connection.notify("session/update", json!({ "sessionId": self.session, "update": update })).await;
    }
}

/// Returns true for a problem that does not go away: the session is gone, or the daemon does not let us. One that has too much to do
/// just now (408, 429) will.
pub(super) fn is_final(problem: &ProblemDetails) -> bool {
    (400..500).contains(&problem.status) && !matches!(problem.status, 408 | 429)
}

/// Offset of an event.
pub(super) fn offset(event: &Value) -> Option<u64> {
    event["offset"].as_str()?.parse().ok()
}
