//! Spans for OpenTelemetry, made from events and sent over OTLP/HTTP as JSON (feature `otlp`).
//!
//! A session is a trace: its span, below it a span of each turn (`invoke_agent`), below that one of each tool call (`execute_tool`),
//! with the names and attributes of the semantic conventions for generative AI. No text of a prompt, an answer or a tool is in them.

mod spans;

use std::{collections::HashMap, sync::Arc, time::Duration};

use opentelemetry::{
    InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{SpanContext, SpanKind, Status, TraceState},
};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks},
};
use proxy_manager::{Envelope, ProxyManager};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};

use self::spans::{AttributeValue, FinishedSpan, SpanRecorder};
use crate::ProblemDetails;

/// Most spans that wait for the collector. Beyond that the oldest are dropped, and a log line says how many.
const MAX_WAITING: usize = 4_096;
/// Most spans in one request.
const BATCH: usize = 512;
/// Longest time that a span waits for others.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest time of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time of the last request, at the daemon's end.
const LAST: Duration = Duration::from_secs(3);

/// Export of spans. Dropping it ends the export without the spans that wait.
#[derive(Debug)]
pub struct TraceExport {
    stop: oneshot::Sender<()>,
    exporting: JoinHandle<()>,
}

impl TraceExport {
    /// Begins to send spans of the manager's sessions to the collector at `endpoint`, as in `http://127.0.0.1:4318/v1/traces`.
    ///
    /// # Errors
    /// `usage` for an endpoint that is no address.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        manager: &ProxyManager,
        endpoint: &str,
        headers: HashMap<String, String>,
    ) -> Result<Self, ProblemDetails> {
        if !endpoint.starts_with("http://") {
            let detail = format!("{endpoint:?} is no address of a collector: write http://HOST:4318/v1/traces");
            return Err(ProblemDetails::usage(detail));
        }
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint)
            .with_protocol(Protocol::HttpJson)
            .with_headers(headers)
            .with_timeout(TIMEOUT)
            .build();
        let mut exporter =
            exporter.map_err(|error| ProblemDetails::usage(format!("no collector can be at {endpoint}: {error}")))?;
        let resource = Resource::builder()
            .with_service_name("agent-proxy")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        exporter.set_resource(&resource);
        let (stop, stopped) = oneshot::channel();
        let exporting = tokio::spawn(export(manager.clone(), exporter, stopped));
        Ok(Self { stop, exporting })
    }

    /// Sends what waits, and ends the export.
    pub async fn finish(self) {
        let _ = self.stop.send(());
        if tokio::time::timeout(LAST * 2, self.exporting).await.is_err() {
            tracing::warn!("timed out sending the last spans");
        }
    }
}

async fn export(manager: ProxyManager, exporter: opentelemetry_otlp::SpanExporter, mut stopped: oneshot::Receiver<()>) {
    let (mut events, mut batch): (_, Vec<Arc<Envelope>>) = (manager.subscribe_own(), Vec::new());
    let mut waiting = WaitingSpans { exporter, spans: Vec::new(), dropped: 0, failing: false };
    let mut recorder = SpanRecorder::default();
    let mut due = interval(PAUSE);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            more = events.next_batch(&mut batch) => {
                for envelope in batch.drain(..) {
                    let model = || manager.session(&envelope.session).ok().and_then(|session| session.info().settings.model);
                    waiting.spans.extend(recorder.record(&envelope, model));
                }
                waiting.bound();
                if !more {
                    break;
                }
                if waiting.spans.len() >= BATCH {
                    waiting.send(TIMEOUT).await;
                }
            }
            _ = due.tick() => waiting.send(TIMEOUT).await,
            _ = &mut stopped => break,
        }
    }
    // The last events, which are there already.
    let last = Instant::now() + LAST / 3;
    while let Ok(true) = tokio::time::timeout_at(last, events.next_batch(&mut batch)).await {
        for envelope in batch.drain(..) {
            waiting.spans.extend(recorder.record(&envelope, || None));
        }
    }
    waiting.spans.extend(recorder.finish(std::time::SystemTime::now()));
    waiting.bound();
    while !waiting.spans.is_empty() && !waiting.failing {
        waiting.send(LAST).await;
    }
}

/// Spans that wait for the collector.
struct WaitingSpans {
    exporter: opentelemetry_otlp::SpanExporter,
    spans: Vec<FinishedSpan>,
    dropped: usize,
    /// True after a request that failed: that is logged once, until one succeeds.
    failing: bool,
}

impl WaitingSpans {
    fn bound(&mut self) {
        let beyond = self.spans.len().saturating_sub(MAX_WAITING);
        if beyond > 0 {
            self.spans.drain(..beyond);
            self.dropped += beyond;
        }
    }

    /// Sends the oldest spans. Those of a request that fails are sent again the next time.
    async fn send(&mut self, longest: Duration) {
        if self.spans.is_empty() {
            return;
        }
        let many = self.spans.len().min(BATCH);
        let batch = self.spans[..many].iter().map(span_data).collect();
        let sent = tokio::time::timeout(longest, self.exporter.export(batch)).await;
        let failure = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {longest:?}")),
        };
        match failure {
            None => {
                self.spans.drain(..many);
                self.failing = false;
                let dropped = std::mem::take(&mut self.dropped);
                if dropped > 0 {
                    tracing::warn!(dropped, "spans were dropped while the collector did not take them");
                }
            }
            Some(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(error, "failed to send spans to the collector; they wait");
            }
            Some(_) => {}
        }
    }
}

fn span_data(span: &FinishedSpan) -> SpanData {
    let context = SpanContext::new(
        TraceId::from_bytes(span.trace),
        SpanId::from_bytes(span.id),
        TraceFlags::SAMPLED,
        false,
        TraceState::default(),
    );
    let attributes = span.attributes.iter().map(|(name, value)| {
        let value = match value {
            AttributeValue::Text(text) => Value::from(text.clone()),
            AttributeValue::Number(number) => Value::from(*number),
            AttributeValue::Amount(amount) => Value::from(*amount),
            AttributeValue::List(texts) => {
                Value::Array(texts.iter().cloned().map(Into::into).collect::<Vec<opentelemetry::StringValue>>().into())
            }
        };
        KeyValue::new(*name, value)
    });
    SpanData {
        span_context: context,
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.clone().into(),
        start_time: span.start,
        end_time: span.end,
        attributes: attributes.collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.error.clone().map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("agent-proxy")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}
