//! What there is now: sessions, processes, memory, queues.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    metrics::{
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use proxy_manager::{ProxyManager, SessionStatus};

use super::{LabelSet, PREFIX};

/// Looks at everything, and registers it.
pub(super) async fn registry(manager: &ProxyManager) -> Registry {
    let sessions = manager.measured_sessions().await;
    let by_state: Family<LabelSet, Gauge> = Family::default();
    let processes: Family<LabelSet, Gauge> = Family::default();
    let memory: Family<LabelSet, Gauge<u64, AtomicU64>> = Family::default();
    let queued: Family<LabelSet, Gauge> = Family::default();
    let (mut events, mut bytes, mut open) = (0, 0, 0_i64);
    let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    for session in &sessions {
        let agent = vec![("agent", session.metadata.agent.clone())];
        let status = SessionStatus::from(&session.state);
        by_state.get_or_create(&[agent.clone(), vec![("state", status.as_str().to_owned())]].concat()).inc();
        queued.get_or_create(&agent).inc_by(number(session.queued.len()));
        if let Some(used) = &session.process_use {
            processes.get_or_create(&agent).inc_by(number(used.processes));
            memory.get_or_create(&agent).inc_by(used.rss_bytes);
        }
        events += session.metrics.events;
        bytes += session.metrics.event_bytes;
        open += number(session.open_permissions.len());
    }
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register("sessions", "Sessions that are remembered, by state", by_state);
    registry.register("processes", "Living processes of sessions", processes);
    registry.register_with_unit("memory", "Resident memory of sessions' processes", Unit::Bytes, memory);
    registry.register("queued_prompts", "Prompts that wait for their turn", queued);
    registry.register("open_permissions", "Permission requests that wait for an answer", ConstGauge::new(open));
    let waiting = number(manager.occupancy().waiting);
    registry.register("waiting_starts", "Starts that wait for a place", ConstGauge::new(waiting));
    let troubles = number(manager.trouble().len());
    registry.register("degraded", "Failures that the server has now; should stay 0", ConstGauge::new(troubles));
    let help = "Events of the sessions that are remembered";
    registry.register("session_events", help, ConstGauge::new(i64::try_from(events).unwrap_or(i64::MAX)));
    let help = "Bytes of the events of the sessions that are remembered";
    registry.register("session_event_size", help, ConstGauge::new(i64::try_from(bytes).unwrap_or(i64::MAX)));
    if let Some(log) = manager.log_metrics() {
        registry.register("log_commits", "Commits of the event log", ConstCounter::new(log.commits));
        registry.register("log_events", "Events that were written to the event log", ConstCounter::new(log.events));
        registry.register("log_size", "Bytes that were written to the event log", ConstCounter::new(log.bytes));
        registry.register("log_failures", "Failed writes of the event log", ConstCounter::new(log.failures));
        let waiting = number(log.queue_bytes);
        registry.register("log_queue_size", "Bytes that wait to be written to the event log", ConstGauge::new(waiting));
    }
    registry
}
