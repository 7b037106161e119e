//! Audit log: who changed what, from where, with what outcome.
//!
//! Each request that changes something is a line of JSON in a file of mode 0600, and an event `audit:call` of its session. So is each
//! request that was refused for its caller, without the event. The file is bounded: it is renamed once it is large, and the oldest goes.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use axum::{
    extract::{MatchedPath, Request},
    http::{Method, StatusCode, header, request::Parts},
    response::Response,
};
use proxy_manager::{Json, ProxyManager, SessionId};
use serde::Serialize;
use tokio::{sync::mpsc, time::timeout};

use super::{
    Caller, Identity, Peer, Role,
    role_check::{changes, role_for},
};
use crate::ApiState;

/// Type of the event.
pub(crate) const AUDIT_EVENT: &str = "audit:call";
/// Records that wait to be written.
const QUEUE: usize = 1024;
/// Rest after records that came together: those that come meanwhile wake nobody.
const REST: Duration = Duration::from_millis(2);
/// Longest wait for room in the queue. A record that finds none is counted in the next one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Size at which the file is renamed, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// Renamed files that are kept: `FILE.1` is the newest.
const KEPT_FILES: u32 = 4;
/// Longest wait for an event to be appended.
const APPEND_TIME: Duration = Duration::from_secs(5);

/// Line of the audit log, and payload of the event.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditRecord {
    /// Time of the request. RFC 3339 in JSON.
    #[serde(with = "ipc_protocol::time_text")]
    time: SystemTime,
    /// Name of the caller: of a token, a login or a user; `host` on the local socket; `null` for nobody who is known.
    caller: Option<String>,
    role: Option<Role>,
    user: Option<String>,
    /// Address of the connection's other end; `null` for the local socket.
    address: Option<String>,
    /// Process at that end, where it is known.
    pid: Option<u32>,
    method: String,
    /// Route, as in the documentation; `null` where none was found.
    route: Option<String>,
    /// Path that was asked for.
    path: String,
    session: Option<SessionId>,
    /// HTTP status; `null` while there is none.
    status: Option<u16>,
    outcome: AuditOutcome,
    duration_ms: u64,
    /// Node of the fleet at which it was asked for, where that is another one and the request was remembered there.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_at_node: Option<String>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum AuditOutcome {
    /// It is about to end the session, whose last event tells the rest.
    Asked,
    /// It was carried out.
    Done,
    /// The caller may not do it: status 401, 403 or 429.
    Refused,
    /// It failed.
    Failed,
    /// The client left before the answer.
    Abandoned,
}

/// Audit log in a file. A clone is the same log.
#[derive(Clone, Debug)]
pub struct AuditLog {
    records: mpsc::Sender<AuditRecord>,
    lost: Arc<AtomicU64>,
}

impl AuditLog {
    /// Opens the file, and starts the thread that writes to it. Blocks.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = AuditFile::open(path)?;
        let (records, queue) = mpsc::channel(QUEUE);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = lost.clone();
        thread::Builder::new().name("ap audit".into()).spawn(move || write(file, queue, &counted))?;
        Ok(Self { records, lost })
    }

    async fn record(&self, record: AuditRecord) {
        if timeout(PATIENCE, self.records.send(record)).await.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn try_record(&self, record: AuditRecord) {
        if self.records.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records a request that did not come as far as a route.
    pub(crate) async fn record_refusal(&self, draft: AuditDraft, status: StatusCode) {
        self.record(draft.record(Some(status), AuditOutcome::Refused, None)).await;
    }
}

/// Writes records in groups: those that wait are written together.
fn write(mut file: AuditFile, mut queue: mpsc::Receiver<AuditRecord>, lost: &AtomicU64) {
    let mut group = Vec::new();
    while queue.blocking_recv_many(&mut group, QUEUE) > 0 {
        let (mut text, count) = (Vec::new(), group.len() as u64);
        let missing = lost.swap(0, Ordering::Relaxed);
        for (index, record) in group.drain(..).enumerate() {
            let line = AuditLine { record, lost: Some(missing).filter(|missing| index == 0 && *missing > 0) };
            if serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
            }
        }
        if let Err(error) = file.append(&text) {
            lost.fetch_add(missing + count, Ordering::Relaxed);
            tracing::error!(path = %file.path.display(), %error, "failed to write to the audit log");
        }
        if count > 1 {
            thread::sleep(REST);
        }
    }
}

/// Record, and how many before it are lost.
#[derive(Serialize)]
struct AuditLine {
    #[serde(flatten)]
    record: AuditRecord,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
}

/// The file, renamed as it grows.
#[derive(Debug)]
struct AuditFile {
    path: PathBuf,
    file: File,
    len: u64,
    most: u64,
}

impl AuditFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, len, most: MAX_FILE })
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.len > 0 && self.len + lines.len() as u64 > self.most {
            self.rotate()?;
        }
        self.file.write_all(lines)?;
        self.len += lines.len() as u64;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let numbered = |number: u32| PathBuf::from(format!("{}.{number}", self.path.display()));
        for number in (1..KEPT_FILES).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, numbered(1))?;
        (self.file, self.len) = (open(&self.path)?, 0);
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(no_follow()).open(path)
}

/// `O_NOFOLLOW`: a link in its place would be somebody's trap.
fn no_follow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}

/// The session of a request, once it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditedSession(Arc<OnceLock<SessionId>>);

impl AuditedSession {
    pub(crate) fn set(&self, session: &SessionId) {
        // A request has one; the first counts.
        let _ = self.0.set(session.clone());
    }
}

/// Facts of a request before its outcome.
#[derive(Clone, Debug)]
pub(crate) struct AuditDraft {
    time: SystemTime,
    began: Instant,
    identity: Option<Identity>,
    peer: Peer,
    method: Method,
    route: Option<String>,
    path: String,
}

impl AuditDraft {
    pub(crate) fn of(request: &Parts) -> Self {
        let extensions = &request.extensions;
        Self {
            time: SystemTime::now(),
            began: Instant::now(),
            identity: extensions.get().cloned(),
            peer: extensions.get().copied().unwrap_or_default(),
            method: request.method.clone(),
            route: extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned()),
            path: request.uri.path().to_owned(),
        }
    }

    fn record(&self, status: Option<StatusCode>, outcome: AuditOutcome, session: Option<SessionId>) -> AuditRecord {
        let identity = self.identity.as_ref();
        AuditRecord {
            time: self.time,
            caller: identity.map(|identity| identity.name.clone()),
            role: identity.map(|identity| identity.role),
            user: identity.and_then(|identity| identity.user.clone()),
            address: self.peer.address.map(|address| address.to_string()),
            pid: self.peer.pid,
            method: self.method.to_string(),
            route: self.route.clone(),
            path: self.path.clone(),
            session,
            status: status.map(|status| status.as_u16()),
            outcome,
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            asked_at_node: None,
        }
    }

    /// Returns true if the session has no event after this request is carried out.
    fn ends_session(&self) -> bool {
        let path = self.route.as_deref().unwrap_or_default();
        let ends = ["/kill", "/suspend", "/hand-over"].iter().any(|end| path.ends_with(end));
        ends || self.method == Method::DELETE && path.ends_with("/sessions/{id}")
    }

    /// Returns the path's value for `{id}`.
    fn id(&self) -> Option<&str> {
        let route = self.route.as_deref()?;
        route.split('/').zip(self.path.split('/')).find(|(name, _)| *name == "{id}").map(|(_, value)| value)
    }
}

/// Kill that was asked for at another node of a fleet while this one was silent, and is carried out now.
#[cfg(feature = "fleet")]
pub(crate) struct RememberedCall<'a> {
    log: &'a AuditLog,
    session: SessionId,
    draft: AuditDraft,
    at_node: String,
}

#[cfg(feature = "fleet")]
impl<'a> RememberedCall<'a> {
    /// Makes the record of a kill that `by` asked for.
    pub(crate) fn of_kill(log: &'a AuditLog, session: &SessionId, by: &str, at_node: &str) -> Self {
        let draft = AuditDraft {
            time: SystemTime::now(),
            began: Instant::now(),
            // Its role was checked where it was asked for.
            identity: Some(Identity::new(by, Role::Operate)),
            peer: Peer::default(),
            method: Method::POST,
            route: Some("/v1/sessions/{id}/kill".to_owned()),
            path: format!("/v1/sessions/{session}/kill"),
        };
        Self { log, session: session.clone(), draft, at_node: at_node.to_owned() }
    }

    fn line(&self, status: Option<StatusCode>, outcome: AuditOutcome) -> AuditRecord {
        let asked_at_node = Some(self.at_node.clone());
        AuditRecord { asked_at_node, ..self.draft.record(status, outcome, Some(self.session.clone())) }
    }

    /// Appends the event of a call that is about to end its session.
    pub(crate) async fn announce(&self, manager: &ProxyManager) {
        append(manager, &self.session, &self.line(None, AuditOutcome::Asked)).await;
    }

    /// Records its outcome.
    pub(crate) async fn record(&self, is_done: bool) {
        let (status, outcome) = match is_done {
            true => (StatusCode::OK, AuditOutcome::Done),
            false => (StatusCode::INTERNAL_SERVER_ERROR, AuditOutcome::Failed),
        };
        self.log.record(self.line(Some(status), outcome)).await;
    }
}

/// Records a request that its client leaves.
struct RecordOnDrop<'a> {
    log: &'a AuditLog,
    draft: &'a AuditDraft,
    session: &'a AuditedSession,
    is_over: bool,
}

impl Drop for RecordOnDrop<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            let session = self.session.0.get().cloned();
            self.log.try_record(self.draft.record(None, AuditOutcome::Abandoned, session));
        }
    }
}

/// State of [`record`].
#[derive(Clone, Debug)]
pub(crate) struct AuditState {
    pub(crate) log: AuditLog,
    pub(crate) api: ApiState,
}

/// Records requests that change something.
pub(crate) async fn record<A: Future<Output = Response>>(
    audit: AuditState,
    request: Request,
    next: impl FnOnce(Request) -> A,
) -> Response {
    let is_upgrade = request.headers().contains_key(header::UPGRADE);
    let path = request.extensions().get::<MatchedPath>().map_or_else(|| request.uri().path(), MatchedPath::as_str);
    if !changes(request.method(), path) && !is_upgrade {
        return next(request).await;
    }
    let (mut parts, body) = request.into_parts();
    let session = AuditedSession::default();
    parts.extensions.insert(session.clone());
    parts.extensions.get_or_insert_with(|| Identity::new("host", Role::Admin));
    let draft = AuditDraft::of(&parts);
    if draft.ends_session()
        && let Some(id) = session_to_end(&audit.api, &draft)
    {
        append(&audit.api.manager, &id, &draft.record(None, AuditOutcome::Asked, Some(id.clone()))).await;
    }
    let mut guard = RecordOnDrop { log: &audit.log, draft: &draft, session: &session, is_over: false };
    let response = next(Request::from_parts(parts, body)).await;
    guard.is_over = true;
    let status = response.status();
    let outcome = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => AuditOutcome::Refused,
        status if status.is_client_error() || status.is_server_error() => AuditOutcome::Failed,
        _ => AuditOutcome::Done,
    };
    let id = session.0.get().cloned();
    let record = draft.record(Some(status), outcome, id.clone());
    if let Some(id) = id.filter(|_| outcome != AuditOutcome::Refused && !draft.ends_session()) {
        append(&audit.api.manager, &id, &record).await;
    }
    audit.log.record(record).await;
    response
}

/// Finds the session that a caller may end.
fn session_to_end(api: &ApiState, draft: &AuditDraft) -> Option<SessionId> {
    let identity = draft.identity.clone()?;
    let needed = role_for(&draft.method, draft.route.as_deref()?);
    let caller = Caller::new(api, identity);
    (caller.identity.role >= needed).then(|| caller.session_id(draft.id()?).ok())?
}

/// Appends the event, where the session takes one still.
async fn append(manager: &ProxyManager, session: &SessionId, record: &AuditRecord) {
    let Ok(text) = serde_json::to_value(record) else { return };
    let (manager, session) = (manager.clone(), session.clone());
    // A task of its own: what is begun is done.
    let appended = tokio::spawn(async move {
        timeout(APPEND_TIME, manager.append_event(&session, AUDIT_EVENT, 1, Json::from(&text))).await
    });
    if let Ok(Ok(Err(error))) = appended.await {
        tracing::debug!(%error, "no event of an audited call");
    }
}

/// Keeps names that are logged apart from those that callers choose.
pub(crate) fn is_reserved(kind: &str) -> bool {
    kind.starts_with("audit:")
}

/// Lock that outlives a panic of its holder.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_file_is_private_and_bounded() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.jsonl");
        let mut file = AuditFile::open(&path).expect("opened");
        file.most = 100;
        for number in 0..40 {
            file.append(format!("{{\"number\":{number:>40}}}\n").as_bytes()).expect("written");
        }
        let mut names: Vec<_> =
            fs::read_dir(directory.path()).expect("readable").map(|entry| entry.expect("one").file_name()).collect();
        names.sort();
        let expected = ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3", "audit.jsonl.4"];
        assert_eq!(names, expected);
        for name in expected {
            let found = fs::metadata(directory.path().join(name)).expect("there");
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{name}");
            assert!(found.len() <= 100, "{name}: {}", found.len());
        }
        assert!(fs::read_to_string(&path).expect("readable").contains("39"), "the newest is in the file itself");
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit.jsonl");
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), &path).expect("linked");
        AuditLog::open(&path).expect_err("a link");
    }
}
