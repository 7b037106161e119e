//! Sessions that another host started.

use std::collections::BTreeSet;

use ipc_protocol::{Lifecycle, message::AttachedSession};

use super::{
    effects::{appended, process, setup},
    *,
};
use crate::{deadlines::HealthPolicy, session::core::HostHandover};

/// The core of a session that another host started, and whose proxy reports this state.
fn handed_over(
    config: &AgentSessionConfig,
    deadlines: Deadlines,
    attached: AttachedSession,
    now: Instant,
) -> SessionCore {
    let setup = CoreSetup { source_base: Some(0), ..setup(config, deadlines) };
    let handover = HostHandover {
        after_seq: 0,
        started: Some(now),
        processes: BTreeSet::from([TOOL]),
        interrupted: None,
        last_request: 9,
    };
    let (mut core, _ready) = SessionCore::adopt(setup, handover, now).expect("a core");
    core.message(FromProxy::Hello(Hello { version: VERSION, process: PROXY }), now);
    core.message(FromProxy::Attached(Box::new(attached)), now);
    core
}

fn attached(turn: Option<u64>) -> AttachedSession {
    let native_session_id = Some("n-1".into());
    AttachedSession {
        next_seq: 1,
        agent: Some(AGENT),
        native_session_id,
        turns: true,
        turn,
        ..AttachedSession::default()
    }
}

#[test]
fn what_is_taken_over_is_looked_after_as_what_was_started() {
    const SECOND: Duration = Duration::from_secs(1);
    let health = Some(HealthPolicy { interval: 2 * SECOND, misses: 1, ends: true });
    let lifecycle = Lifecycle { idle_suspend_ms: Some(1000), ..Lifecycle::default() };
    let config = AgentSessionConfig { lifecycle, ..AgentSessionConfig::new("acp") };
    let now = Instant::now();
    for turn in [None, Some(3)] {
        let core = handed_over(&config, Deadlines { health, ..patient() }, attached(turn), now);
        // A ping while a turn runs; else it is suspended before that.
        assert_eq!(core.next(), Some(now + if turn.is_some() { 2 * SECOND } else { SECOND }));
    }
}

#[test]
fn what_an_earlier_host_reported_is_not_reported_again() {
    let now = Instant::now();
    let mut core = handed_over(&AgentSessionConfig::new("acp"), patient(), attached(None), now);
    let spawned = |id| Event::ProcessSpawned(Box::new(process(id)));
    let exited = || Event::ProcessExited { process: TOOL, command: None, exit: None };
    appended(&mut core);
    for event in [spawned(TOOL), spawned(AGENT), spawned(AGENT), exited(), spawned(TOOL)] {
        core.message(FromProxy::Event { turn: 0, event }, now);
    }
    assert_eq!(appended(&mut core), [spawned(AGENT), exited(), spawned(TOOL)]);
}
