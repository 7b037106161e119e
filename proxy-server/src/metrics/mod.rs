//! Metrics for Prometheus: what sessions have done, counted from their events, and what there is now.

mod fleet;
mod readers;
mod recorder;
mod snapshot;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use axum::http::{Method, StatusCode};
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};
use proxy_manager::ProxyManager;
use tokio::task::JoinHandle;

#[cfg(feature = "fleet")]
pub(crate) use self::fleet::FleetFigures;
pub(crate) use self::readers::{CountedReader, ReaderTable};
use self::{recorder::MetricsRecorder, snapshot::MetricsSnapshot};

/// What every name begins with.
const PREFIX: &str = "agent_proxy";

/// Labels of a metric, with their values.
type LabelSet = Vec<(&'static str, String)>;

/// Metrics of a manager and its router. Clones share them; with the last one the counting ends.
#[derive(Clone)]
pub struct ServerMetrics {
    manager: ProxyManager,
    counted: Arc<CountedMetrics>,
}

/// Look at a node's fleet.
type FleetProbe = Box<dyn Fn() -> fleet::FleetFigures + Send + Sync>;

struct CountedMetrics {
    registry: Registry,
    recorder: MetricsRecorder,
    readers: ReaderTable,
    /// Tells what there is of a fleet, on a node of one.
    fleet: OnceLock<FleetProbe>,
    /// Task that reads the events.
    reading: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for CountedMetrics {
    fn drop(&mut self) {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reading) = reading {
            reading.abort();
        }
    }
}

impl ServerMetrics {
    /// Begins to count, with the events that come from now on.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(manager: &ProxyManager) -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        let recorder = MetricsRecorder::register(&mut registry);
        let (mut events, mut counting) = (manager.subscribe_own(), recorder.clone());
        let of = manager.clone();
        let reading = tokio::spawn(async move {
            let (mut batch, mut sessions) = (Vec::new(), HashMap::new());
            while events.next_batch(&mut batch).await {
                for envelope in batch.drain(..) {
                    counting.record(&of, &mut sessions, &envelope);
                }
            }
        });
        let (fleet, reading) = (OnceLock::new(), Mutex::new(Some(reading)));
        let counted = CountedMetrics { registry, recorder, readers: ReaderTable::default(), fleet, reading };
        Self { manager: manager.clone(), counted: Arc::new(counted) }
    }

    /// Tells of a fleet, too.
    #[cfg(feature = "fleet")]
    pub(crate) fn set_fleet_probe(&self, probe: impl Fn() -> FleetFigures + Send + Sync + 'static) {
        // A manager is one node.
        let _ = self.counted.fleet.set(Box::new(probe));
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refusal(&self, status: StatusCode) {
        self.counted.recorder.count_refusal(status);
    }

    /// Counts a request with the time to its answer's head. `route` is its pattern, with no id in it.
    pub(crate) fn count_request(&self, method: &Method, route: &str, status: StatusCode, took: Duration) {
        self.counted.recorder.count_request(method, route, status, took);
    }

    /// Counts a webhook that came in or went out.
    pub(crate) fn count_webhook(&self, direction: &'static str, name: &str, outcome: &str) {
        self.counted.recorder.count_webhook(direction, name, outcome);
    }

    /// Readers of the event streams.
    pub(crate) fn readers(&self) -> &ReaderTable {
        &self.counted.readers
    }

    /// Writes all metrics as OpenMetrics text.
    ///
    /// # Errors
    /// If one cannot be written, which says nothing about the others.
    pub(crate) async fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.counted.registry)?;
        let snapshot = MetricsSnapshot::of(&self.manager, &self.counted.readers).await;
        let mut registry = snapshot.register();
        if let Some(probe) = self.counted.fleet.get() {
            probe().register(&mut registry);
        }
        encode_registry(&mut text, &registry)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerMetrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names of all series, by what `# TYPE` lines say; of each metric, the first.
    fn series(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut all, mut documented) = (BTreeSet::new(), BTreeSet::new());
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').expect("a type");
            let suffixes: &[&str] = match kind {
                "counter" => &["_total"],
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            all.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
            documented.insert(if kind == "counter" { format!("{name}_total") } else { name.to_owned() });
        }
        (all, documented)
    }

    /// Words of a text that begin with the prefix.
    fn names(text: &str) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        text.split(|c| !is_part(c)).filter(|word| word.starts_with("agent_proxy_")).map(str::to_owned).collect()
    }

    #[test]
    fn each_metric_is_documented_and_the_dashboard_has_no_other() {
        let mut registry = Registry::with_prefix(PREFIX);
        MetricsRecorder::register(&mut registry).touch_all();
        let mut text = String::new();
        let mut now = MetricsSnapshot::of_each().register();
        fleet::FleetFigures::of_each().register(&mut now);
        for registry in [&registry, &now] {
            encode_registry(&mut text, registry).expect("written");
        }
        let (series, metrics) = series(&text);
        assert!(metrics.len() > 40, "{metrics:?}");

        let page = include_str!("../../../docs/network.md");
        let (_, section) = page.split_once("\n## Metrics\n").expect("the section");
        let rows: String = section.lines().filter(|line| line.starts_with("| `")).collect::<Vec<_>>().join("\n");
        let documented = names(&rows);
        assert_eq!(metrics.difference(&documented).collect::<Vec<_>>(), [""; 0], "add a row to docs/network.md");
        assert_eq!(
            documented.difference(&metrics).collect::<Vec<_>>(),
            [""; 0],
            "docs/network.md has a metric too many"
        );

        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../../docs/grafana-dashboard.json")).expect("JSON");
        let mut expressions = Vec::new();
        let mut values = vec![&dashboard];
        while let Some(value) = values.pop() {
            match value {
                serde_json::Value::Array(items) => values.extend(items),
                serde_json::Value::Object(members) => {
                    expressions.extend(members.get("expr").and_then(|expr| expr.as_str()));
                    expressions.extend(members.get("query").and_then(|query| query.as_str()));
                    values.extend(members.values());
                }
                _ => {}
            }
        }
        let shown = names(&expressions.join(" "));
        assert!(shown.len() > 20, "{shown:?}");
        assert_eq!(shown.difference(&series).collect::<Vec<_>>(), [""; 0], "the dashboard asks for what there is not");
        for key in ["title", "uid", "panels", "templating"] {
            assert!(dashboard.get(key).is_some(), "{key}");
        }
    }
}
