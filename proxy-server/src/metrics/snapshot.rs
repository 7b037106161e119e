//! What there is now: sessions, processes, memory, queues.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{
        MetricType,
        counter::ConstCounter,
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};
use proxy_manager::{CommitTimes, ProxyManager, SessionInfo, SessionStatus};

use super::{LabelSet, PREFIX, ReaderTable, readers::ReaderLag};

/// Histogram of commits, which the event log counts itself.
#[derive(Debug)]
struct CommitSeconds(CommitTimes);

impl EncodeMetric for CommitSeconds {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = CommitTimes::BOUNDS.iter().map(std::time::Duration::as_secs_f64).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(self.0.counts).collect();
        let count = self.0.counts.iter().sum();
        encoder.encode_histogram::<NoLabelSet>(self.0.total.as_secs_f64(), count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// What there is at one moment.
#[derive(Debug, Default)]
pub(super) struct MetricsSnapshot {
    by_state: Family<LabelSet, Gauge>,
    processes: Family<LabelSet, Gauge>,
    memory: Family<LabelSet, Gauge<u64, AtomicU64>>,
    queued: Family<LabelSet, Gauge>,
    events: u64,
    event_bytes: u64,
    open_permissions: usize,
    warm: usize,
    waiting_starts: usize,
    troubles: usize,
    lag: ReaderLag,
    log: Option<LogSnapshot>,
}

/// Counters of the event log.
#[derive(Debug, Default)]
struct LogSnapshot {
    commits: u64,
    events: u64,
    bytes: u64,
    failures: u64,
    removed: u64,
    commit_times: CommitTimes,
    queue_bytes: usize,
}

fn gauge(number: u64) -> ConstGauge<i64> {
    ConstGauge::new(i64::try_from(number).unwrap_or(i64::MAX))
}

fn number(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl MetricsSnapshot {
    /// Looks at everything.
    pub(super) async fn of(manager: &ProxyManager, readers: &ReaderTable) -> Self {
        let log = manager.log_metrics().map(|log| LogSnapshot {
            commits: log.commits,
            events: log.events,
            bytes: log.bytes,
            failures: log.failures,
            removed: log.removed,
            commit_times: log.commit_times,
            queue_bytes: log.queue_bytes,
        });
        let mut snapshot = Self {
            waiting_starts: manager.occupancy().waiting,
            warm: manager.warm_sessions(),
            troubles: manager.trouble().len(),
            lag: readers.lag(manager).await,
            log,
            ..Self::default()
        };
        manager.measured_sessions().await.iter().for_each(|session| snapshot.add(session));
        snapshot
    }

    fn add(&mut self, session: &SessionInfo) {
        let agent = vec![("agent", session.metadata.agent.clone())];
        let status = SessionStatus::from(&session.state);
        let state = vec![("state", status.as_str().to_owned())];
        self.by_state.get_or_create(&[agent.clone(), state].concat()).inc();
        self.queued.get_or_create(&agent).inc_by(number(session.queued.len()));
        if let Some(used) = &session.process_use {
            self.processes.get_or_create(&agent).inc_by(number(used.processes));
            self.memory.get_or_create(&agent).inc_by(used.rss_bytes);
        }
        self.events = self.events.saturating_add(session.metrics.events);
        self.event_bytes = self.event_bytes.saturating_add(session.metrics.event_bytes);
        self.open_permissions += session.open_permissions.len();
    }

    /// Registers everything.
    pub(super) fn register(self) -> Registry {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register("sessions", "Sessions that are remembered, by state", self.by_state);
        registry.register("processes", "Living processes of sessions", self.processes);
        registry.register_with_unit("memory", "Resident memory of sessions' processes", Unit::Bytes, self.memory);
        registry.register("queued_prompts", "Prompts that wait for their turn", self.queued);
        let help = "Permission requests that wait for an answer";
        registry.register("open_permissions", help, ConstGauge::new(number(self.open_permissions)));
        registry.register(
            "waiting_starts",
            "Starts that wait for a place",
            ConstGauge::new(number(self.waiting_starts)),
        );
        registry.register("warm_sessions", "Sessions that wait for a start", ConstGauge::new(number(self.warm)));
        let help = "Failures that the server has now; should stay 0";
        registry.register("degraded", help, ConstGauge::new(number(self.troubles)));
        registry.register("session_events", "Events of the sessions that are remembered", gauge(self.events));
        let help = "Bytes of the events of the sessions that are remembered";
        registry.register("session_event_size", help, gauge(self.event_bytes));
        let help = "Readers that follow the events of a session, or of all";
        registry.register("event_readers", help, ConstGauge::new(number(self.lag.readers)));
        let help = "Events that the slowest reader has not been sent yet";
        registry.register("event_reader_lag_max", help, gauge(self.lag.most));
        let help = "Events that all readers together have not been sent yet";
        registry.register("event_reader_lag", help, gauge(self.lag.total));
        if let Some(log) = self.log {
            log.register(&mut registry);
        }
        registry
    }

    /// A snapshot with a series of each family: one without a series is not written.
    #[cfg(test)]
    pub(super) fn of_each() -> Self {
        let snapshot = Self { log: Some(LogSnapshot::default()), ..Self::default() };
        let labels = LabelSet::new();
        for family in [&snapshot.by_state, &snapshot.processes, &snapshot.queued] {
            drop(family.get_or_create(&labels));
        }
        drop(snapshot.memory.get_or_create(&labels));
        snapshot
    }
}

impl LogSnapshot {
    fn register(self, registry: &mut Registry) {
        registry.register("log_commits", "Commits of the event log", ConstCounter::new(self.commits));
        registry.register("log_events", "Events that were written to the event log", ConstCounter::new(self.events));
        registry.register("log_size", "Bytes that were written to the event log", ConstCounter::new(self.bytes));
        registry.register("log_failures", "Failed writes of the event log", ConstCounter::new(self.failures));
        let help = "Events that retention or a deletion has removed from the event log";
        registry.register("log_removed_events", help, ConstCounter::new(self.removed));
        let help = "Time of a commit of the event log";
        registry.register_with_unit("log_commit", help, Unit::Seconds, CommitSeconds(self.commit_times));
        let waiting = ConstGauge::new(number(self.queue_bytes));
        registry.register("log_queue_size", "Bytes that wait to be written to the event log", waiting);
    }
}
