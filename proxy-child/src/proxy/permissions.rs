//! Permission requests: what the session's policy says to them, and how long they may wait for somebody's answer. Tool calls that
//! ran without one.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use agents::{
    Action, Adapter,
    permission::{BypassDetector, CompiledPolicy, PolicyError, PolicyVerdict},
};
use ipc_protocol::{
    AgentSessionConfig, BypassAction, Event, PermissionAnswer, PermissionPolicy, PermissionRequest, ResolvedBy,
    message::PermissionSupport,
};

/// Most requests that wait for an answer; what comes beyond has waited long enough.
const MAX_WAITING: usize = 1024;

/// Policy of a session's permission requests, and the requests that wait.
#[derive(Debug)]
pub(crate) struct SessionPermissions {
    policy: CompiledPolicy,
    bypasses: BypassDetector,
    config: PermissionPolicy,
    /// When it is over, and what happens then.
    deadlines: BTreeMap<String, (Instant, PolicyVerdict)>,
}

impl SessionPermissions {
    /// For a session of this configuration, of an agent of which `asking` is known.
    ///
    /// # Errors
    /// [`PolicyError`] names a rule that cannot be followed.
    pub(crate) fn new(config: &AgentSessionConfig, asking: PermissionSupport) -> Result<Self, PolicyError> {
        let cwd = config.cwd.as_deref().unwrap_or("/");
        let policy = CompiledPolicy::new(&config.permissions, config.permission_mode, cwd)?;
        let bypasses = BypassDetector::new(&policy, asking);
        Ok(Self { policy, bypasses, config: config.permissions.clone(), deadlines: BTreeMap::new() })
    }

    /// Takes note of an event of the agent's. Where that is a request which the policy answers, has `adapter` answer it; what
    /// is to be done then follows the event. Where it is a tool call that bypassed the policy, that is an event too, and has the
    /// turn aborted where the call would have been denied.
    pub(crate) fn handle_event(&mut self, event: &Event, now: Instant, adapter: &mut dyn Adapter) -> Vec<Action> {
        if let Some(bypassed) = self.bypasses.note(event, &self.policy) {
            let aborts = bypassed.action == BypassAction::AbortTurn;
            let mut out = vec![Action::Event(Event::PermissionBypassed(Box::new(bypassed)))];
            if aborts && let Err(error) = adapter.abort(&mut out) {
                let action = "aborting the turn in which a tool call bypassed the permission policy".to_owned();
                out.push(Action::Event(Event::ActionFailed { action, error: error.to_string() }));
            }
            return out;
        }
        match event {
            Event::PermissionRequested(request) => {
                let verdict = self.policy.decide(request);
                let (answered, out) = answer(&request.id, verdict, adapter);
                if !answered {
                    self.start_deadline(request, now);
                }
                out
            }
            Event::PermissionResolved { id, .. } => {
                self.deadlines.remove(id);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn start_deadline(&mut self, request: &PermissionRequest, now: Instant) {
        let Some(deadline) = self.config.deadline_ms else { return };
        let patience =
            if self.deadlines.len() < MAX_WAITING { Duration::from_millis(deadline) } else { Duration::ZERO };
        // One that could only be waited for longer than there is time is waited for without an end.
        if let Some(until) = now.checked_add(patience) {
            self.deadlines.insert(request.id.clone(), (until, CompiledPolicy::at_deadline(&self.config, request)));
        }
    }

    /// When the next request has waited long enough.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.deadlines.values().map(|(until, _)| *until).min()
    }

    /// Has `adapter` answer the requests that have waited long enough.
    pub(crate) fn expire(&mut self, now: Instant, adapter: &mut dyn Adapter) -> Vec<Action> {
        if self.next().is_none_or(|next| now < next) {
            return Vec::new();
        }
        let mut actions = Vec::new();
        for (id, (_, verdict)) in self.deadlines.extract_if(.., |_, (until, _)| *until <= now) {
            let (answered, mut out) = answer(&id, verdict, adapter);
            if !answered {
                // It cannot be allowed, and nobody will say more.
                out = answer(&id, PolicyVerdict::Deny(ResolvedBy::Deadline), adapter).1;
            }
            actions.append(&mut out);
        }
        actions
    }
}

/// Has `adapter` answer the request `id` as `verdict` says. Whether there is nothing left to answer, and what is to be done.
fn answer(id: &str, verdict: PolicyVerdict, adapter: &mut dyn Adapter) -> (bool, Vec<Action>) {
    let mut out = Vec::new();
    let answered = match verdict {
        PolicyVerdict::Ask => false,
        // Where there is no option that allows, it takes more than a yes: it is left to the user.
        PolicyVerdict::Allow(by) => adapter.permission(id, &PermissionAnswer::Allow, by, &mut out).is_ok(),
        PolicyVerdict::Deny(by) => {
            if adapter.permission(id, &PermissionAnswer::Deny, by.clone(), &mut out).is_err() {
                // There is no option that rejects; or the request is closed by now, which is as well.
                let _ = adapter.permission(id, &PermissionAnswer::Cancelled, by, &mut out);
            }
            true
        }
    };
    (answered, out)
}
