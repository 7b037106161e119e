//! Metrics for Prometheus: what sessions have done, counted from their events, and what there is now.

mod recorder;
mod snapshot;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use axum::http::StatusCode;
use prometheus_client::{
    encoding::text::{encode_eof, encode_registry},
    registry::Registry,
};
use proxy_manager::ProxyManager;
use tokio::task::JoinHandle;

use self::recorder::MetricsRecorder;

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

struct CountedMetrics {
    registry: Registry,
    recorder: MetricsRecorder,
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
        let counted = CountedMetrics { registry, recorder, reading: Mutex::new(Some(reading)) };
        Self { manager: manager.clone(), counted: Arc::new(counted) }
    }

    /// Counts a request that was refused.
    pub(crate) fn count_refusal(&self, status: StatusCode) {
        self.counted.recorder.count_refusal(status);
    }

    /// Writes all metrics as OpenMetrics text.
    ///
    /// # Errors
    /// If one cannot be written, which says nothing about the others.
    pub(crate) async fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.counted.registry)?;
        encode_registry(&mut text, &snapshot::registry(&self.manager).await)?;
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerMetrics").finish_non_exhaustive()
    }
}
