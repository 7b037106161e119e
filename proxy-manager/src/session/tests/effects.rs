//! The core alone: inputs go in, and the effects that come out are looked at.

use std::time::SystemTime;

use ipc_protocol::{ContainmentSpec, ProcessInfo, ProcessStatus};

use super::*;
use crate::{
    launch::LaunchAttempt,
    session::core::{AgentStart, HostConditions, LeasePurpose, SessionEffect, SessionPast, SessionRules},
};

/// What a core of a session with this configuration is made of.
pub(super) fn setup(config: &AgentSessionConfig, deadlines: Deadlines) -> CoreSetup {
    let past = SessionPast {
        has_been: false,
        turns: 0,
        usage: Default::default(),
        turn_usage: Default::default(),
        crashes: Default::default(),
        native: None,
        is_kept: true,
        agent_status: Default::default(),
        model: None,
        batched: 0,
    };
    CoreSetup {
        is_warm: false,
        id: config.session_id.clone(),
        agent: config.agent.clone(),
        host: HOST,
        deadlines,
        queue: Arc::default(),
        past,
        conditions: HostConditions {
            wall_clock: SystemTime::UNIX_EPOCH,
            is_draining: false,
            is_durable: false,
            prices: None,
        },
        rules: SessionRules::of(config),
        enclosure: ContainmentSpec::default(),
        wire: WireFormat::Bincode,
        can_sweep: true,
        source_base: None,
    }
}

pub(super) fn agent_start(config: AgentSessionConfig) -> AgentStart {
    let LaunchAttempt { config, command, preamble, restart_reason: anew, .. } =
        plan(config, &Arc::default()).expect("valid").attempt;
    AgentStart { config, command, preamble, anew }
}

pub(super) fn process(id: ProcessId) -> ProcessInfo {
    ProcessInfo {
        id,
        ppid: 1,
        pgid: 1,
        sid: 1,
        session_id: "s".parse().expect("valid"),
        command: None,
        args: Vec::new(),
        cwd: None,
        started_at: SystemTime::UNIX_EPOCH,
        status: ProcessStatus::Running,
        exit: None,
        error: None,
        cpu_percent: None,
        rss_bytes: None,
        tracked: false,
    }
}

/// Takes all effects.
fn effects(core: &mut SessionCore) -> Vec<SessionEffect> {
    std::iter::from_fn(|| core.next_effect()).collect()
}

/// Takes all effects. Returns the events that are appended.
pub(super) fn appended(core: &mut SessionCore) -> Vec<Event> {
    let event = |effect| match effect {
        SessionEffect::Append { event, .. } | SessionEffect::Record { event, .. } => Some(event),
        _ => None,
    };
    effects(core).into_iter().filter_map(event).collect()
}

/// A core whose agent has this conversation when it is ready.
fn ready_in(conversation: &str, now: Instant) -> (SessionCore, oneshot::Receiver<crate::Result<()>>) {
    let config = AgentSessionConfig::new("acp");
    let (mut core, ready) = SessionCore::new(setup(&config, patient()), agent_start(config), now).expect("a core");
    core.message(FromProxy::Hello(Hello { version: VERSION, process: PROXY }), now);
    let (native_session_id, measures) = (Some(conversation.to_owned()), Box::default());
    core.message(FromProxy::Started { request: 1, process: AGENT, native_session_id, turns: true, measures }, now);
    (core, ready)
}

#[test]
fn a_session_is_ready_once_its_conversation_is_leased() {
    let now = Instant::now();
    for leased in [Ok(()), Err(Error::ShutDown)] {
        let (mut core, mut ready) = ready_in("n-1", now);
        let last = effects(&mut core).pop();
        let is_lease = |id: &str| id == "n-1";
        assert!(
            matches!(last, Some(SessionEffect::Lease { ref id, purpose: LeasePurpose::Start }) if is_lease(id)),
            "it is waited for"
        );
        core.leased_at_start(leased.clone(), now);
        let mut events = Vec::new();
        for effect in effects(&mut core) {
            match effect {
                SessionEffect::Append { event, .. } => events.push(event),
                SessionEffect::Reply(reply) | SessionEffect::ReplyDurably(reply) => {
                    assert!(ready.try_recv().is_err(), "nobody is answered before");
                    reply();
                }
                _ => {}
            }
        }
        assert_eq!(events.contains(&Event::SessionIdle {}), leased.is_ok());
        assert_eq!(ready.try_recv().expect("answered").is_ok(), leased.is_ok());
    }
}

#[test]
fn all_that_is_held_is_released_once_and_before_the_last_event() {
    let now = Instant::now();
    let (mut core, _ready) = ready_in("n-1", now);
    core.leased_at_start(Ok(()), now);
    effects(&mut core);
    core.abandon(now);
    let effects = effects(&mut core);
    let at = |is: fn(&SessionEffect) -> bool| effects.iter().position(is).expect("it is there");
    let released = at(|effect| matches!(effect, SessionEffect::Release { is_left: false, is_clean: false }));
    let ended = at(|effect| matches!(effect, SessionEffect::Append { event: Event::SessionEnded { .. }, .. }));
    assert!(released < ended);
    core.abandon(now);
    assert!(core.next_effect().is_none() && core.is_over());
}
