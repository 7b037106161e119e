//! Counters, and the events that they count.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, SystemTime},
};

use axum::http::{Method, StatusCode};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::{Registry, Unit},
};
use proxy_manager::{Envelope, Event, ProxyManager, Receipt, SessionId, Usage};

use serde::Serialize;
use serde_json::Value;

use super::LabelSet;

/// Bounds of the seconds that a start takes.
const START_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// Bounds of the seconds from a kill's first signal to its proof.
const KILL_SECONDS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 30.0];

/// Bounds of the seconds that a turn takes.
const TURN_SECONDS: [f64; 10] = [0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 7200.0];
/// Bounds of the seconds to a request's answer.
const REQUEST_SECONDS: [f64; 10] = [0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0];

type CounterFamily = Family<LabelSet, Counter>;
type AmountFamily = Family<LabelSet, Counter<f64, AtomicU64>>;

/// What is known of a session from its first events.
#[derive(Debug)]
pub(super) struct CountedSession {
    agent: String,
    /// Process group of the agent.
    group: u32,
    /// Beginning of the running turn.
    turn_began: Option<SystemTime>,
}

/// Counters.
#[derive(Clone, Debug)]
pub(super) struct MetricsRecorder {
    starts: CounterFamily,
    start_seconds: Family<LabelSet, Histogram>,
    resumes: CounterFamily,
    ends: CounterFamily,
    turns: CounterFamily,
    tokens: CounterFamily,
    cost: AmountFamily,
    kills: Counter,
    kill_seconds: Histogram,
    killed: Counter,
    survivors: Counter,
    escapees: Counter,
    unproven: Counter,
    limits: CounterFamily,
    timeouts: CounterFamily,
    permissions: CounterFamily,
    answers: CounterFamily,
    gaps: Counter,
    refusals: CounterFamily,
    events: CounterFamily,
    event_bytes: CounterFamily,
    turn_seconds: Family<LabelSet, Histogram>,
    tool_calls: CounterFamily,
    errors: CounterFamily,
    requests: CounterFamily,
    request_seconds: Family<LabelSet, Histogram>,
    webhooks: CounterFamily,
}

fn seconds(bounds: &[f64]) -> Histogram {
    Histogram::new(bounds.iter().copied())
}

impl MetricsRecorder {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let recorder = Self {
            starts: Family::default(),
            start_seconds: Family::new_with_constructor(|| seconds(&START_SECONDS)),
            resumes: Family::default(),
            ends: Family::default(),
            turns: Family::default(),
            tokens: Family::default(),
            cost: Family::default(),
            kills: Counter::default(),
            kill_seconds: seconds(&KILL_SECONDS),
            killed: Counter::default(),
            survivors: Counter::default(),
            escapees: Counter::default(),
            unproven: Counter::default(),
            limits: Family::default(),
            timeouts: Family::default(),
            permissions: Family::default(),
            answers: Family::default(),
            gaps: Counter::default(),
            refusals: Family::default(),
            events: Family::default(),
            event_bytes: Family::default(),
            turn_seconds: Family::new_with_constructor(|| seconds(&TURN_SECONDS)),
            tool_calls: Family::default(),
            errors: Family::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(|| seconds(&REQUEST_SECONDS)),
            webhooks: Family::default(),
        };
        registry.register("webhooks", "Webhooks that came in or went out, by outcome", recorder.webhooks.clone());
        registry.register("session_starts", "Sessions whose agent got ready", recorder.starts.clone());
        let help = "Time from a session's start to a ready agent";
        registry.register_with_unit("session_start", help, Unit::Seconds, recorder.start_seconds.clone());
        registry.register("session_resumes", "Sessions that were resumed", recorder.resumes.clone());
        registry.register("session_ends", "Sessions that ended or were suspended", recorder.ends.clone());
        registry.register("turns", "Turns that ended, by the reason of their end", recorder.turns.clone());
        registry.register("tokens", "Tokens that agents reported at the end of turns", recorder.tokens.clone());
        registry.register("cost_usd", "Costs that agents reported at the end of turns", recorder.cost.clone());
        registry.register("kills", "Kills with a receipt", recorder.kills.clone());
        let help = "Time from a kill's first signal to its proof";
        registry.register_with_unit("kill", help, Unit::Seconds, recorder.kill_seconds.clone());
        registry.register("killed_processes", "Processes in receipts", recorder.killed.clone());
        registry.register("survivors", "Processes that outlived a kill; should stay 0", recorder.survivors.clone());
        let help = "Processes in receipts that had left the agent's process group: a plain kill would have left them";
        registry.register("escapees", help, recorder.escapees.clone());
        registry.register("unproven_kills", "Receipts without a proof; should stay 0", recorder.unproven.clone());
        registry.register("limits_exceeded", "Limits that sessions have passed", recorder.limits.clone());
        registry.register("timeouts", "Clocks of sessions that ran out", recorder.timeouts.clone());
        registry.register("permission_requests", "Permission requests of agents", recorder.permissions.clone());
        registry.register(
            "permission_answers",
            "Answers to permission requests, by who gave them",
            recorder.answers.clone(),
        );
        registry.register("gaps", "Gaps that readers of the event streams were shown", recorder.gaps.clone());
        registry.register("denied_requests", "Requests that were refused: 401, 403 and 429", recorder.refusals.clone());
        registry.register("events", "Events of sessions", recorder.events.clone());
        let help = "Bytes of the events of sessions, as they are bounded in memory";
        registry.register_with_unit("events", help, Unit::Bytes, recorder.event_bytes.clone());
        let help = "Time from a turn's start to its end";
        registry.register_with_unit("turn", help, Unit::Seconds, recorder.turn_seconds.clone());
        registry.register("tool_calls", "Tool calls that ended, by how", recorder.tool_calls.clone());
        registry.register("agent_errors", "Errors that agents reported", recorder.errors.clone());
        registry.register("http_requests", "Requests, by route and status", recorder.requests.clone());
        let help = "Time to the beginning of the answer to a request";
        registry.register_with_unit("http_request", help, Unit::Seconds, recorder.request_seconds.clone());
        recorder
    }

    pub(super) fn count_request(&self, method: &Method, route: &str, status: StatusCode, took: Duration) {
        let route = vec![("method", method.to_string()), ("route", route.to_owned())];
        self.request_seconds.get_or_create(&route).observe(took.as_secs_f64());
        self.requests.get_or_create(&[route, vec![("status", status.as_u16().to_string())]].concat()).inc();
    }

    pub(super) fn count_refusal(&self, status: StatusCode) {
        self.refusals.get_or_create(&vec![("status", status.as_u16().to_string())]).inc();
    }

    pub(super) fn count_webhook(&self, direction: &'static str, name: &str, outcome: &str) {
        let labels =
            vec![("direction", direction.to_owned()), ("name", name.to_owned()), ("outcome", outcome.to_owned())];
        self.webhooks.get_or_create(&labels).inc();
    }

    /// Counts an event.
    pub(super) fn record(
        &mut self,
        manager: &ProxyManager,
        sessions: &mut HashMap<Arc<SessionId>, CountedSession>,
        envelope: &Envelope,
    ) {
        let known = sessions.get(&envelope.session);
        let agent = || vec![("agent", known.map_or_else(|| "unknown".to_owned(), |known| known.agent.clone()))];
        let with = |name, value: String| [agent(), vec![(name, value)]].concat();
        self.events.get_or_create(&agent()).inc();
        let weight = u64::try_from(envelope.event.weight()).unwrap_or(u64::MAX);
        self.event_bytes.get_or_create(&agent()).inc_by(weight);
        match &envelope.event {
            Event::SessionStarted { agent, process, .. } => {
                let labels = vec![("agent", agent.clone())];
                self.starts.get_or_create(&labels).inc();
                let begun = manager.session(&envelope.session).ok().map(|session| session.info().metadata.started_at);
                if let Some(Ok(took)) = begun.map(|begun| envelope.created_at.duration_since(begun)) {
                    self.start_seconds.get_or_create(&labels).observe(took.as_secs_f64());
                }
                sessions.insert(
                    envelope.session.clone(),
                    CountedSession { agent: agent.clone(), group: process.pid, turn_began: None },
                );
            }
            Event::SessionResumed { .. } => drop(self.resumes.get_or_create(&agent()).inc()),
            Event::SessionEnded { receipt, .. } | Event::SessionSuspended { receipt, .. } => {
                let how = if matches!(envelope.event, Event::SessionEnded { .. }) { "ended" } else { "suspended" };
                self.ends.get_or_create(&with("how", how.to_owned())).inc();
                if let Some(receipt) = receipt {
                    self.count_receipt(receipt, known.map(|known| known.group));
                }
                sessions.remove(&envelope.session);
            }
            Event::TurnStarted { .. } => {
                if let Some(session) = sessions.get_mut(&envelope.session) {
                    session.turn_began = Some(envelope.created_at);
                }
            }
            Event::ToolEnd(tool) => {
                self.tool_calls.get_or_create(&with("status", word(&tool.status))).inc();
            }
            Event::Error { .. } => {
                self.errors.get_or_create(&agent()).inc();
            }
            Event::Complete { stop_reason, usage } => {
                let began = known.and_then(|known| known.turn_began);
                if let Some(Ok(took)) = began.map(|began| envelope.created_at.duration_since(began)) {
                    self.turn_seconds.get_or_create(&agent()).observe(took.as_secs_f64());
                }
                self.turns.get_or_create(&with("reason", word(stop_reason))).inc();
                if let Some(usage) = usage {
                    self.count_usage(&agent(), usage);
                }
            }
            Event::LimitExceeded(limit) => {
                self.limits.get_or_create(&with("limit", word(&limit.limit))).inc();
            }
            Event::TimeoutFired { clock, .. } => {
                self.timeouts.get_or_create(&with("clock", word(clock))).inc();
            }
            Event::PermissionRequested(_) => {
                self.permissions.get_or_create(&agent()).inc();
            }
            Event::PermissionResolved { by, .. } => {
                self.answers.get_or_create(&with("by", word(by))).inc();
            }
            Event::SessionGap(_) => {
                self.gaps.inc();
            }
            _ => {}
        }
    }

    fn count_receipt(&self, receipt: &Receipt, group: Option<u32>) {
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        self.kills.inc();
        self.kill_seconds.observe(std::time::Duration::from_micros(receipt.duration_us).as_secs_f64());
        self.killed.inc_by(count(receipt.processes.len()).saturating_add(receipt.omitted));
        self.survivors.inc_by(count(receipt.survivors.len()));
        if let Some(group) = group {
            self.escapees.inc_by(count(receipt.processes.iter().filter(|entry| entry.pgid != group).count()));
        }
        if !receipt.is_empty() {
            self.unproven.inc();
        }
    }

    fn count_usage(&self, agent: &LabelSet, usage: &Usage) {
        for (kind, tokens) in [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ] {
            if let Some(tokens) = tokens {
                self.tokens.get_or_create(&[agent.clone(), vec![("kind", kind.to_owned())]].concat()).inc_by(tokens);
            }
        }
        if let Some(cost) = usage.cost_usd {
            self.cost.get_or_create(agent).inc_by(cost);
        }
    }
}

/// Returns the word that a value is in JSON, or the name of its one member.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        Ok(Value::Object(members)) => members.into_iter().next().map(|(name, _)| name).unwrap_or_default(),
        _ => String::new(),
    }
}

#[cfg(test)]
impl MetricsRecorder {
    /// Makes a series of each family: one without a series is not written.
    pub(super) fn touch_all(&self) {
        let labels = LabelSet::new();
        for family in [
            &self.starts,
            &self.resumes,
            &self.ends,
            &self.turns,
            &self.tokens,
            &self.limits,
            &self.timeouts,
            &self.permissions,
            &self.answers,
            &self.refusals,
            &self.events,
            &self.event_bytes,
            &self.tool_calls,
            &self.errors,
            &self.requests,
            &self.webhooks,
        ] {
            drop(family.get_or_create(&labels));
        }
        drop(self.cost.get_or_create(&labels));
        for family in [&self.start_seconds, &self.turn_seconds, &self.request_seconds] {
            drop(family.get_or_create(&labels));
        }
    }
}
