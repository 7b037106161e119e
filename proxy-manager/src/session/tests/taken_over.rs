//! Sessions that another host started.

use ipc_protocol::{Budget, Lifecycle, Timeouts, message::Attached, reattach::Wire};
use tokio::time::Instant;

use super::*;
use crate::{
    deadlines::Health,
    launch::{Conversation, Is},
    session::{Adoption, core::Core},
    supervision::{Admission, Claim, SessionBounds},
};

#[tokio::test]
async fn what_is_taken_over_is_looked_after_as_what_was_started() {
    const SECOND: Duration = Duration::from_secs(1);
    let health = Some(Health { interval: 2 * SECOND, misses: 1, ends: true });
    let launch = plan(AgentSessionConfig::new("acp"), &Arc::default()).expect("valid");
    for turn in [None, Some(3)] {
        let deadlines = Deadlines { health, ..patient() };
        let id = launch.id().clone();
        let (session, _inlets, log) = Session::new(id.clone(), launch.labels.clone(), deadlines, &Streams::default());
        let claim = Claim { user: None, agent: "acp".to_owned() };
        let conversation = Conversation::new(Arc::default(), "acp".into(), None, "acp".into(), id, Is::Its);
        let adoption = Adoption {
            native_files: None,
            proxy: PROXY,
            host: HOST,
            after_seq: 0,
            wire: Wire::Plain,
            started_at: std::time::SystemTime::now(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            max_prompts: None,
            enclosure: launch.enclosure.clone(),
            conversation,
            journal: None,
            source_base: 0,
            lifecycle: Lifecycle { idle_suspend_ms: Some(1000), ..Lifecycle::default() },
            slot: Arc::new(Admission::new(SessionBounds::default())).take(claim),
            budget: Budget::default(),
            interrupted: None,
            on_usage_limit: ipc_protocol::OnUsageLimit::Fail,
        };
        let now = Instant::now();
        let (mut core, _ready) = Core::adopt(session, log, adoption, now).expect("a core");
        core.message(FromProxy::Hello(Hello { version: VERSION, process: PROXY }), now);
        let attached = Attached {
            next_seq: 1,
            agent: Some(AGENT),
            native_session_id: Some("n-1".into()),
            turns: true,
            turn,
            ..Attached::default()
        };
        core.message(FromProxy::Attached(Box::new(attached)), now);
        // A ping while a turn runs; else it is suspended before that.
        assert_eq!(core.next(), Some(now + if turn.is_some() { 2 * SECOND } else { SECOND }));
    }
}
