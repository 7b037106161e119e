//! Key-value bucket of the engine, whose every change names the revision that it expects, and whose reads are the leader's.
//!
//! Two things that the client's own store does not do are needed here. A read by "direct get" may be answered by a follower that is
//! behind: reads go to the leader. And of the two errors for a wrong expectation (10071, 10164) it knows one; which of them comes depends on
//! where the race was lost.

use std::time::Duration;

use async_nats::{
    HeaderMap,
    jetstream::{
        self, Context,
        context::{CreateStreamError, CreateStreamErrorKind, PublishError},
        kv::{self, Watch},
        stream::{LastRawMessageErrorKind, Stream},
    },
};

use crate::error::{CompareAndSetError, EngineError};

/// Codes of "wrong last sequence": for one server, and for the leader of several.
const WRONG_LAST: [u64; 2] = [10071, 10164];
/// Codes for which a bucket is made with fewer replicas: no cluster, and too few servers in it.
const TOO_FEW_SERVERS: [u64; 2] = [10074, 10005];
/// Replicas of everything, where there are as many servers.
pub(crate) const REPLICAS: usize = 3;
/// Time for which the removal of a row is remembered.
const MARKER_TIME: Duration = Duration::from_secs(3600);

const OPERATION: &str = "KV-Operation";

/// Row of a bucket as its leader has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRow {
    pub(crate) revision: u64,
    /// `None` for the marker of a row that was removed.
    pub(crate) value: Option<Vec<u8>>,
}

/// What becomes of a row without further changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Retention {
    Keep,
    For(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    name: &'static str,
    context: Context,
    store: kv::Store,
}

impl Bucket {
    /// Opens a bucket, or creates it with three replicas, or as many as there are servers.
    pub(crate) async fn open(context: &Context, name: &'static str) -> Result<Self, EngineError> {
        let store = match context.get_key_value(name).await {
            Ok(store) => store,
            Err(_) => Self::create_store(context, name).await?,
        };
        Ok(Self { name, context: context.clone(), store })
    }

    async fn create_store(context: &Context, name: &'static str) -> Result<kv::Store, EngineError> {
        let mut replicas = REPLICAS;
        loop {
            let config = kv::Config {
                bucket: name.to_owned(),
                history: 1,
                num_replicas: replicas,
                limit_markers: Some(MARKER_TIME),
                ..kv::Config::default()
            };
            match context.create_key_value(config).await {
                Ok(store) => {
                    tracing::info!(bucket = name, replicas, "a bucket of the fleet was created");
                    return Ok(store);
                }
                Err(error) if replicas > 1 && has_too_few_servers(&error) => {
                    replicas -= 1;
                }
                // Another node may have made it meanwhile.
                Err(error) => match context.get_key_value(name).await {
                    Ok(store) => return Ok(store),
                    Err(_) => return Err(EngineError::new("create the bucket", name, error)),
                },
            }
        }
    }

    /// Reads a row from the leader.
    pub(crate) async fn read(&self, key: &str) -> Result<Option<StoredRow>, EngineError> {
        let message = self.stream().get_last_raw_message_by_subject(&self.subject(key)).await;
        match message {
            Ok(message) => {
                let is_marker = message.headers.get(OPERATION).is_some()
                    || message.headers.get(async_nats::header::NATS_MARKER_REASON).is_some();
                let value = (!is_marker).then(|| message.payload.to_vec());
                Ok(Some(StoredRow { revision: message.sequence, value }))
            }
            Err(error) if matches!(error.kind(), LastRawMessageErrorKind::NoMessageFound) => Ok(None),
            Err(error) => Err(EngineError::new("read", self.target(key), error)),
        }
    }

    /// Writes a row, if its revision is `expected` (0: there is none). Returns the new revision.
    pub(crate) async fn write(
        &self,
        key: &str,
        value: Vec<u8>,
        expected: u64,
        retention: Retention,
    ) -> Result<u64, CompareAndSetError> {
        let mut headers = HeaderMap::new();
        if let Retention::For(time) = retention {
            headers.insert(async_nats::header::NATS_MESSAGE_TTL, time.as_secs().to_string());
        }
        self.publish(key, headers, value, expected).await
    }

    /// Writes a row that is not there. Returns its revision, or the row that is there.
    pub(crate) async fn create(
        &self,
        key: &str,
        value: Vec<u8>,
        retention: Retention,
    ) -> Result<Result<u64, StoredRow>, EngineError> {
        let mut expected = 0;
        loop {
            match self.write(key, value.clone(), expected, retention).await {
                Ok(revision) => return Ok(Ok(revision)),
                Err(CompareAndSetError::Engine(error)) => return Err(error),
                Err(CompareAndSetError::Changed) => match self.read(key).await? {
                    Some(row) if row.value.is_some() => return Ok(Err(row)),
                    // The marker of a removed row counts as its last revision.
                    row => expected = row.map_or(0, |row| row.revision),
                },
            }
        }
    }

    /// Removes a row, if its revision is `expected`.
    pub(crate) async fn remove(&self, key: &str, expected: u64) -> Result<(), CompareAndSetError> {
        let mut headers = HeaderMap::new();
        headers.insert(OPERATION, "DEL");
        headers.insert(async_nats::header::NATS_MESSAGE_TTL, MARKER_TIME.as_secs().to_string());
        self.publish(key, headers, Vec::new(), expected).await.map(drop)
    }

    /// Returns the revision of the last change of any row; 0 for a bucket without rows.
    pub(crate) async fn last_revision(&self) -> Result<u64, EngineError> {
        let info = self.stream().get_info().await;
        let info = info.map_err(|error| EngineError::new("describe the bucket", self.name, error))?;
        Ok(if info.state.messages == 0 { 0 } else { info.state.last_sequence })
    }

    /// Watches all rows: those that are there, then each change.
    pub(crate) async fn watch(&self) -> Result<Watch, EngineError> {
        self.store.watch_with_history(">").await.map_err(|error| EngineError::new("watch the bucket", self.name, error))
    }

    async fn publish(
        &self,
        key: &str,
        mut headers: HeaderMap,
        value: Vec<u8>,
        expected: u64,
    ) -> Result<u64, CompareAndSetError> {
        headers.insert(async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expected.to_string());
        let failed = |error: PublishError| EngineError::new("write", self.target(key), error);
        let acknowledgement = self.context.publish_with_headers(self.subject(key), headers, value.into()).await;
        match acknowledgement.map_err(failed)?.await {
            Ok(acknowledgement) => Ok(acknowledgement.sequence),
            Err(error) if is_wrong_last(&error) => Err(CompareAndSetError::Changed),
            Err(error) => Err(failed(error).into()),
        }
    }

    fn stream(&self) -> &Stream {
        &self.store.stream
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.name)
    }

    fn target(&self, key: &str) -> String {
        format!("the row {key:?} of the bucket {}", self.name)
    }
}

/// Returns true for the refusal of a publish whose expectation was wrong.
pub(crate) fn is_wrong_last(error: &PublishError) -> bool {
    engine_code(error).is_some_and(|code| WRONG_LAST.contains(&code))
}

/// Returns true for the refusal of something with more replicas than there are servers.
pub(crate) fn has_too_few_servers(error: &(dyn std::error::Error + 'static)) -> bool {
    engine_code(error).is_some_and(|code| TOO_FEW_SERVERS.contains(&code))
}

/// Returns the engine's code of an error, which is somewhere below it.
fn engine_code(error: &(dyn std::error::Error + 'static)) -> Option<u64> {
    let mut below = Some(error);
    while let Some(error) = below {
        if let Some(engine) = error.downcast_ref::<jetstream::Error>() {
            return Some(engine.error_code().0);
        }
        if let Some(CreateStreamErrorKind::JetStream(engine)) =
            error.downcast_ref::<CreateStreamError>().map(CreateStreamError::kind)
        {
            return Some(engine.error_code().0);
        }
        below = error.source();
    }
    None
}
