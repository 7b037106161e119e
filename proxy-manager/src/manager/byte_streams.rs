//! Byte streams in the manager's event log: streams of bytes or JSON messages that belong to no session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use event_log::{BytePage, ByteStreamChange, ByteStreamInfo, ByteStreamOutcome, LogError};
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};

use super::ProxyManager;
use crate::{
    blocking::READING,
    error::{Error, Result},
};

/// Readers that wait for changes of streams, by the streams' names.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamWakers(Arc<Mutex<HashMap<String, watch::Sender<()>>>>);

impl StreamWakers {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, path: &str) {
        if let Some(waker) = self.lock().get(path) {
            waker.send_replace(());
        }
    }
}

/// Wait for changes of one byte stream.
#[derive(Debug)]
pub struct ByteStreamWatch {
    wakers: StreamWakers,
    path: String,
    receiver: watch::Receiver<()>,
}

impl ByteStreamWatch {
    /// Waits for a change that was made since the last call, or since the watch began.
    ///
    /// # Cancel safety
    /// Cancel safe: no change is missed.
    pub async fn changed(&mut self) {
        // The sender is in the table for as long as this is there.
        _ = self.receiver.changed().await;
    }
}

impl Drop for ByteStreamWatch {
    fn drop(&mut self) {
        let mut wakers = self.wakers.lock();
        // This one is counted.
        if wakers.get(&self.path).is_some_and(|waker| waker.receiver_count() <= 1) {
            wakers.remove(&self.path);
        }
    }
}

impl ProxyManager {
    /// Changes a byte stream. What was done is durable.
    ///
    /// # Errors
    /// [`Error::Log`] if the event log cannot take it: [`LogError::InMemory`] for a manager without a state directory.
    /// [`Error::Deadline`] if it takes too long: it may be done yet.
    ///
    /// # Cancel safety
    /// A change that was begun is made, also if its future is dropped.
    pub async fn change_byte_stream(&self, mut change: ByteStreamChange) -> Result<ByteStreamOutcome> {
        let log = self.inner.streams.log.get().ok_or(LogError::InMemory)?;
        let path = match &mut change {
            ByteStreamChange::Create(new) => {
                new.has_rules = self.inner.stream_mapper.has_rules();
                new.path.clone()
            }
            ByteStreamChange::Append(append) => append.path.clone(),
            ByteStreamChange::Delete(path) | ByteStreamChange::Expire(path) | ByteStreamChange::SetMapped(path, ..) => {
                path.clone()
            }
            ByteStreamChange::HaveRules(_) => String::new(),
        };
        let mapper = self.inner.stream_mapper.clone();
        let (reply, answer) = oneshot::channel();
        let wakers = self.inner.stream_wakers.clone();
        log.change_byte_stream(
            change,
            Box::new(move |outcome| {
                wakers.wake(&path);
                if let Ok(ByteStreamOutcome::Created(info) | ByteStreamOutcome::Appended(info)) = &outcome
                    && info.is_json()
                    && info.mapped.is_some_and(|mapped| mapped < info.tail)
                {
                    mapper.add(path);
                }
                // A caller that has gone misses nothing.
                _ = reply.send(outcome);
            }),
        );
        drop(log);
        let after = self.inner.deadlines.control;
        match timeout(after, answer).await {
            Ok(Ok(outcome)) => Ok(outcome?),
            Ok(Err(_)) => Err(Error::ShutDown),
            Err(_) => Err(Error::Deadline { operation: "changing a stream".to_owned(), after }),
        }
    }

    /// Returns the state of a byte stream whose life is not over.
    pub fn byte_stream(&self, path: &str) -> Option<ByteStreamInfo> {
        self.inner.streams.log.get()?.byte_stream(path)
    }

    /// Notes that a byte stream is read: its time begins anew, where that counts.
    pub fn touch_byte_stream(&self, path: &str) {
        if let Some(log) = self.inner.streams.log.get() {
            log.touch_byte_stream(path);
        }
    }

    /// Reads a byte stream from a position: about `bytes` bytes at most, and something, where there is something.
    ///
    /// # Errors
    /// [`Error::Log`]: [`LogError::NoStream`] if there is no such stream.
    ///
    /// # Cancel safety
    /// A dropped future has changed nothing.
    pub async fn read_byte_stream(&self, path: &str, from: u64, bytes: usize) -> Result<BytePage> {
        let log = self.inner.streams.log.get().ok_or(LogError::InMemory)?;
        let path = path.to_owned();
        let read = move || log.read_byte_stream(&path, from, bytes);
        Ok(READING.run("reading a stream", read).await??)
    }

    /// Begins to wait for changes of a byte stream.
    pub fn watch_byte_stream(&self, path: &str) -> ByteStreamWatch {
        let wakers = self.inner.stream_wakers.clone();
        let receiver = wakers.lock().entry(path.to_owned()).or_insert_with(|| watch::channel(()).0).subscribe();
        ByteStreamWatch { wakers, path: path.to_owned(), receiver }
    }
}
