//! Requests that their callers name, so that one that is sent again is done once. Their records are in the event log, where the manager
//! has one, and else in memory.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use event_log::{LogError, MAX_REQUESTS};
use ipc_protocol::SessionId;
use serde::{Deserialize, Serialize};
use tokio::{
    sync::{OwnedMutexGuard, oneshot},
    time::timeout,
};

use super::{ProxyManager, keys::KeyLocks};
use crate::{
    blocking::READING,
    error::{Error, Result},
};

/// Record of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RequestRecord {
    /// What tells it from another request of its name.
    fingerprint: String,
    /// Session that it is about.
    session: Option<SessionId>,
    /// Answer; `None` while it is being done.
    answer: Option<String>,
}

/// Requests in memory, and locks of those that are being done.
#[derive(Debug, Default)]
pub(super) struct NamedRequests {
    locks: KeyLocks,
    memory: Mutex<RequestMemory>,
}

#[derive(Debug, Default)]
struct RequestMemory {
    records: HashMap<String, String>,
    /// Names, the oldest first.
    names: VecDeque<String>,
}

/// Beginning of a request.
#[derive(Debug)]
pub enum RequestStart {
    /// It is new: do it, and tell the guard its answer.
    New(RequestGuard),
    /// It was done, and this is its answer.
    Answered(String),
    /// A manager ended while it did this; nobody knows how far it came. The session that it was about, if it named one.
    Interrupted(Option<SessionId>, RequestGuard),
    /// Its name was used for another request.
    Reused,
}

/// Request that is being done. Others of its name wait. Dropped without an answer, it counts as interrupted.
#[derive(Debug)]
pub struct RequestGuard {
    manager: ProxyManager,
    name: String,
    record: RequestRecord,
    _one_at_a_time: OwnedMutexGuard<()>,
}

impl ProxyManager {
    /// Begins a request that its caller names. Waits while one of that name is being done. With a state directory it is durable that the
    /// request was begun. Records are retained for a day, and the newest 10,000 are.
    ///
    /// # Errors
    /// [`Error::Log`] and [`Error::Deadline`] if the event log cannot take it.
    ///
    /// # Cancel safety
    /// Dropped half-way, the request may count as interrupted.
    pub async fn begin_request(
        &self,
        name: &str,
        fingerprint: &str,
        session: Option<&SessionId>,
    ) -> Result<RequestStart> {
        let one_at_a_time = self.inner.requests.locks.lock(name).await;
        let found = self.request_record(name).await?;
        let record = RequestRecord { fingerprint: fingerprint.to_owned(), session: session.cloned(), answer: None };
        let guard = |record| RequestGuard {
            manager: self.clone(),
            name: name.to_owned(),
            record,
            _one_at_a_time: one_at_a_time,
        };
        match found {
            None => {
                self.put_request(name, Some(&record)).await?;
                Ok(RequestStart::New(guard(record)))
            }
            Some(found) if found.fingerprint != fingerprint => Ok(RequestStart::Reused),
            Some(RequestRecord { answer: Some(answer), .. }) => Ok(RequestStart::Answered(answer)),
            Some(found) => Ok(RequestStart::Interrupted(found.session.clone(), guard(found))),
        }
    }

    async fn request_record(&self, name: &str) -> Result<Option<RequestRecord>> {
        let text = match self.inner.streams.log.get() {
            Some(log) => {
                let name = name.to_owned();
                READING.run("looking for a request", move || log.request(&name)).await??
            }
            None => self.inner.requests.memory().records.get(name).cloned(),
        };
        // One that does not parse is of another release: it is done again.
        Ok(text.and_then(|text| serde_json::from_str(&text).ok()))
    }

    async fn put_request(&self, name: &str, record: Option<&RequestRecord>) -> Result<()> {
        let text = record.map(|record| serde_json::to_string(record).unwrap_or_default());
        let Some(log) = self.inner.streams.log.get() else {
            self.inner.requests.memory().put(name, text);
            return Ok(());
        };
        let (done, stored) = oneshot::channel();
        log.put_request(name, text, Box::new(move |result: Result<(), LogError>| _ = done.send(result)));
        let after: Duration = self.inner.deadlines.control;
        match timeout(after, stored).await {
            Ok(stored) => stored.unwrap_or(Ok(())).map_err(Error::from),
            Err(_) => Err(Error::Deadline { operation: "noting a request".to_owned(), after }),
        }
    }
}

impl RequestGuard {
    /// Stores the answer: whoever sends the request again gets it.
    ///
    /// # Errors
    /// The event log's. The request counts as interrupted then.
    ///
    /// # Cancel safety
    /// A dropped future may still store the answer; else the request counts as interrupted.
    pub async fn answer(mut self, answer: String) -> Result<()> {
        self.record.answer = Some(answer);
        self.manager.put_request(&self.name, Some(&self.record)).await
    }

    /// Forgets the request, of which nothing was done: sent again, it is tried again.
    ///
    /// # Errors
    /// The event log's.
    ///
    /// # Cancel safety
    /// A dropped future may still take effect; else the request counts as interrupted.
    pub async fn forget(self) -> Result<()> {
        self.manager.put_request(&self.name, None).await
    }
}

impl NamedRequests {
    fn memory(&self) -> MutexGuard<'_, RequestMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RequestMemory {
    fn put(&mut self, name: &str, text: Option<String>) {
        match text {
            None => {
                self.records.remove(name);
                self.names.retain(|known| known != name);
            }
            Some(text) => {
                if self.records.insert(name.to_owned(), text).is_none() {
                    self.names.push_back(name.to_owned());
                }
                while self.names.len() as u64 > MAX_REQUESTS
                    && let Some(oldest) = self.names.pop_front()
                {
                    self.records.remove(&oldest);
                }
            }
        }
    }
}
