//! The task that owns a session: it waits for what comes (calls, bytes of the proxy, words of the fork server, time), and gives it to
//! the [`SessionDriver`].

use std::{
    future::{pending, ready},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use ipc_protocol::{
    ContainmentSpec, Json, KillOptions, Limits, ProcessId, Receipt,
    codec::{Inbox, Outbox},
    message::{DetachSpec, ToForkServer},
    packet,
};
use registry::SessionCgroup;
use tokio::{
    io::AsyncReadExt,
    net::{UnixStream, unix::WriteHalf},
    sync::{mpsc, oneshot},
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};
use tracing::Instrument;

use super::{
    ManagedSession, SessionAdoption, SessionInlets,
    container::ContainerRemover,
    core::{FAILURE, SessionCore},
    driver::{LARGE, SessionDriver},
    native_file,
};
use crate::{
    blocking::{ENDING, blocking},
    error::{Error, Result},
    fork_server::{ForkServer, ForkServerEvent, OutgoingFrame},
    history::HistoryWriter,
    launch::{HandoffRecord, LaunchAttempt, SessionLaunch, StartAftermath},
    runtime,
};

/// Bytes that may wait for the proxy; beyond that, further prompts stay in their channel.
const BACKLOG: usize = 2 * ipc_protocol::codec::MAX_MESSAGE;
/// Timer setting while nothing is due.
const FAR_FUTURE: Duration = Duration::from_secs(24 * 3600);

/// Inputs from which a task gets its proxy.
#[derive(Debug)]
pub(crate) struct ForkRequest {
    pub(crate) server: Arc<ForkServer>,
    /// The proxy's end of the session's socket.
    pub(crate) socket: OwnedFd,
}

/// A session's task, before it runs.
pub(crate) struct SessionTask {
    session: Arc<ManagedSession>,
    driver: Box<SessionDriver>,
    inlets: SessionInlets,
    stream: UnixStream,
    enclosure: ContainmentSpec,
    limits: Limits,
    /// Detach settings if the session outlives this host; the record for the next host follows.
    detach: Option<Box<DetachSpec>>,
    handoff_record: Option<HandoffRecord>,
    /// Proxy to adopt, with the number of its last message that is known.
    adopted_proxy: Option<(ProcessId, u64)>,
    aftermath: Arc<StartAftermath>,
    /// Directory in which its agent keeps the files of conversations.
    native_files: Option<PathBuf>,
}

impl SessionTask {
    /// Kill options for a session that failed to start.
    pub(crate) const FAILED: KillOptions = FAILURE;

    /// Creates a task for `session`, whose end of the socket is `stream`, and a receiver that resolves when the agent
    /// is ready.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent: nothing was emitted then.
    pub(crate) fn new(
        session: Arc<ManagedSession>,
        inlets: SessionInlets,
        log: HistoryWriter,
        launch: SessionLaunch,
        stream: UnixStream,
        host: ProcessId,
        aftermath: Arc<StartAftermath>,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let (enclosure, limits) = (launch.enclosure.clone(), launch.attempt.config.limits.clone());
        let (detach, card, native_files) =
            (launch.detach.clone(), launch.handoff_record(), launch.native_files.clone());
        let (driver, ready) = SessionDriver::start(session.clone(), log, launch, host)?;
        let adopts = None;
        let task = Self {
            session,
            driver,
            inlets,
            stream,
            enclosure,
            limits,
            detach,
            handoff_record: card,
            adopted_proxy: adopts,
            aftermath,
            native_files,
        };
        Ok((task, ready))
    }

    /// Creates a task for a session that another host started; `stream` is this host's end of a new socket for its
    /// proxy.
    ///
    /// # Errors
    /// None expected.
    pub(crate) fn adopt(
        session: Arc<ManagedSession>,
        inlets: SessionInlets,
        log: HistoryWriter,
        adoption: SessionAdoption,
        stream: UnixStream,
        aftermath: Arc<StartAftermath>,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let (enclosure, limits) = (adoption.enclosure.clone(), adoption.rules.limits.clone());
        let adopts = Some((adoption.proxy, adoption.after_seq));
        let native_files = adoption.native_files.clone();
        let (driver, ready) = SessionDriver::adopt(session.clone(), log, adoption)?;
        let (detach, card) = (None, None);
        let task = Self {
            session,
            driver,
            inlets,
            stream,
            enclosure,
            limits,
            detach,
            handoff_record: card,
            adopted_proxy: adopts,
            aftermath,
            native_files,
        };
        Ok((task, ready))
    }

    /// Discards the task before it runs: see [`SessionDriver::call_off`].
    pub(crate) fn cancel(mut self) {
        self.driver.call_off();
    }

    /// Runs the session to its end.
    pub(crate) async fn run(self, fork: ForkRequest) {
        let span = tracing::info_span!("session", id = %self.session.id(), agent = self.session.metadata().agent);
        let (session, aftermath) = (self.session.clone(), self.aftermath.clone());
        let native_files = self.native_files.clone();
        let cgroup = self.enclosure.cgroup.clone();
        let life = async {
            if let Err(error) = self.drive(fork).await {
                tracing::error!(%error, "the session's task failed");
            }
            session.save_record();
            remove_group(cgroup).await;
            session.leave_table();
            // Callers that wait for the start may clean up too, but they may also be gone.
            aftermath.ended(session.outcome()).await;
        };
        async {
            tokio::join!(life, native_file::find(&session, native_files.as_deref()));
            session.settle();
        }
        .instrument(span)
        .await;
    }

    async fn drive(self, ForkRequest { server, mut socket }: ForkRequest) -> Result<()> {
        let Self {
            session, mut driver, mut inlets, mut stream, enclosure, limits, detach, handoff_record: card, ..
        } = self;
        let Self { adopted_proxy: mut adopts, aftermath, .. } = self;
        session.set_fork_server(&server);
        loop {
            let (id, adopts) = (session.id().clone(), adopts.take());
            let words = server.watch(&id, adopts.map(|(proxy, _)| proxy));
            let message = match adopts {
                Some((_, after_seq)) => ToForkServer::Adopt { session: id, after_seq },
                None => ToForkServer::Fork {
                    session: id,
                    enclosure: Box::new(enclosure.clone()),
                    limits: limits.clone(),
                    detach: detach.clone(),
                    card: card.as_ref().map_or_else(Json::null, |card| card.json(driver.core().source_base())),
                },
            };
            aftermath.persist();
            let order = server.encode(&message, Some(socket))?;
            let remover = ContainerRemover::new(enclosure.container.clone());
            drive_core(&server, &session, (words, remover), &mut driver, &mut inlets, &mut stream, order).await?;
            let Some(attempt) = driver.next_attempt() else { return Ok(()) };
            let after = session.deadlines().start;
            let late = |_| Error::Deadline { operation: "preparing a second start".to_owned(), after };
            let prepared = timeout(after, prepare(&aftermath, attempt)).await.map_err(late).flatten();
            match prepared {
                Ok((attempt, ours, theirs)) => {
                    (stream, socket) = (ours, theirs);
                    if let Err(error) = driver.begin_again(*attempt) {
                        return cannot_begin_again(&mut driver, error).await;
                    }
                }
                Err(error) => return cannot_begin_again(&mut driver, error).await,
            }
        }
    }
}

/// Ends a session whose second attempt cannot begin.
async fn cannot_begin_again(driver: &mut SessionDriver, error: Error) -> Result<()> {
    driver.feed(|core, now| core.fail_retry(error, now));
    driver.journal_ended().await;
    Ok(())
}

/// Prepares a second attempt, with both ends of a socket for its proxy.
async fn prepare(
    aftermath: &Arc<StartAftermath>,
    mut attempt: Box<LaunchAttempt>,
) -> Result<(Box<LaunchAttempt>, UnixStream, OwnedFd)> {
    let aftermath = aftermath.clone();
    let prepared = blocking("preparing a second start", move || {
        aftermath.restore_backup();
        if let Some(broken) = attempt.broken_database.take() {
            let kept = broken.set_database_aside()?;
            let anew = attempt.restart_reason.get_or_insert_default();
            anew.push_str(&format!("; what was there is kept as {}", kept.display()));
        }
        aftermath.write(&attempt).map(|()| attempt)
    });
    let attempt = prepared.await??;
    let (ours, theirs) = sockets()?;
    Ok((attempt, ours, theirs))
}

/// Removes a session's cgroup where it is still there. Whoever proves the end removes it, unless a supervisor was in it just then.
async fn remove_group(path: Option<String>) {
    let Some(path) = path.map(PathBuf::from) else { return };
    let remove =
        move || if path.exists() { SessionCgroup::open(&path).and_then(|group| group.remove()) } else { Ok(()) };
    let removed = ENDING.run("removing a session's cgroup", remove);
    match removed.await {
        Ok(Ok(())) => {}
        // The session lives on, or something in it does: then it is its next host's, or the next manager's.
        Ok(Err(error)) => tracing::debug!(%error, "failed to remove a session's cgroup"),
        Err(error) => tracing::warn!(%error, "failed to remove a session's cgroup"),
    }
}

/// Creates both ends of a socket: the session's, and its proxy's.
///
/// # Errors
/// [`Error::System`].
pub(crate) fn sockets() -> Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = packet::stream_pair().map_err(|error| Error::system("making a proxy's socket", error))?;
    Ok((runtime::watch_stream(ours)?, theirs))
}

/// Runs the session until it is over or has to be started once more. `order` makes the fork server fork the proxy, or
/// hand it over.
async fn drive_core(
    server: &Arc<ForkServer>,
    session: &ManagedSession,
    (mut words, mut remover): (mpsc::Receiver<ForkServerEvent>, ContainerRemover),
    driver: &mut SessionDriver,
    inlets: &mut SessionInlets,
    stream: &mut UnixStream,
    order: OutgoingFrame,
) -> Result<()> {
    let SessionInlets { desired_state: demand, urgent, ordered } = inlets;
    let mut listens_to_server = true;
    let mut order = Some(order);
    let (mut reader, writer) = stream.split();
    let mut inbox = Inbox::default();
    let history = session.history();
    let mut view = session.watch();
    let mut sweep = None;
    let mut is_noted = false;
    // Messages since it last yielded.
    let mut handled = 0;
    loop {
        driver.write_journal();
        let sends_orders = driver.sends_orders();
        if sends_orders {
            send_orders(server, &mut order, driver)?;
        }
        flush(&writer, driver);
        if driver.core().is_over() || driver.core().is_retry_due() {
            // Whoever has seen the end finds it in the record.
            session.save_record();
            driver.journal_ended().await;
            return Ok(());
        }
        if sends_orders && !std::mem::replace(&mut is_noted, true) {
            // Sent after the order: the proxy starts while the disk is written.
            session.save_record();
        }
        if let Some(record) = driver.take_sweep() {
            let receipt = server.sweep(record);
            sweep = Some(remover.sweep(async { receipt.await.ok() }));
        }
        let due = driver.next();
        // Backpressure: bytes left unread delay the proxy, and the proxy delays the agent.
        let listens = driver.core().is_listening() && !driver.is_behind() && !driver.waits_for_lease();
        if !listens {
            driver.pause_health_check();
        }
        // Bytes that were read before come first; then more is read.
        let has_unread = listens && driver.has_unread();
        let writes = driver.has_output();
        let takes_prompts = driver.outbox().len() < BACKLOG && !driver.is_behind() && !driver.core().has_unsent();
        tokio::select! {
            biased;
            Ok(()) = demand.changed() => {
                let wanted = demand.borrow_and_update().clone();
                driver.feed(|core, now| core.set_desired_state(wanted, now));
            }
            Some(command) = urgent.recv() => driver.command(command),
            () = sleep_until(due.unwrap_or_else(|| Instant::now() + FAR_FUTURE)), if due.is_some() => {
                // What is waited for may have come while this thread was not scheduled.
                if listens_to_server {
                    listens_to_server = handle_more_events(&mut words, driver, &mut remover);
                }
                driver.feed(SessionCore::tick);
            }
            result = driver.next_thread_result() => driver.thread_result(result),
            () = server.writable(), if sends_orders && order.is_some() => {}
            Ok(()) = writer.writable(), if writes => {}
            () = ready(()), if has_unread => handled += driver.receive(&mut inbox),
            read = reader.read(inbox.spare()), if listens && !has_unread => handled += handle_read(read, &mut inbox, driver),
            () = history.wait_for_log() => {}
            Some(command) = ordered.recv(), if takes_prompts => driver.command(command),
            word = words.recv(), if listens_to_server => listens_to_server = handle_event(word, driver, &mut remover),
            word = remover.next() => driver.word(Some(word)),
            receipt = swept(&mut sweep) => {
                sweep = None;
                driver.swept(receipt);
            }
        }
        // A flood from the proxy must not delay the fork server's messages, nor the reverse.
        if listens_to_server {
            listens_to_server = handle_more_events(&mut words, driver, &mut remover);
        }
        if handled >= LARGE {
            yield_now().await;
            handled = 0;
        }
        driver.look_at_log();
        driver.report_written();
        let (answers, together) = driver.take_answers();
        if !answers.is_empty() {
            view.mark_unchanged();
            // Answered even if the record is not durable: the stream reports that.
            session.record_then(|_| answers.into_iter().for_each(|answer| answer()));
        } else if view.has_changed().is_ok_and(|changed| changed) && driver.is_to_be_noted() {
            view.mark_unchanged();
            session.save_record();
        }
        drop(together);
        driver.feed(SessionCore::settle);
    }
}

/// Returns the result of a sweep; `None` where it could not be done. Resolves never without one.
async fn swept(sweep: &mut Option<Pin<Box<dyn Future<Output = Option<Receipt>> + Send>>>) -> Option<Receipt> {
    match sweep {
        Some(receipt) => receipt.await,
        None => pending().await,
    }
}

/// Passes on a word of the fork server's. Returns `false` after the last one.
fn handle_event(word: Option<ForkServerEvent>, driver: &mut SessionDriver, remover: &mut ContainerRemover) -> bool {
    let is_last = matches!(word, None | Some(ForkServerEvent::Gone(_) | ForkServerEvent::Forked(Err(_))));
    if word.is_none() {
        // The fork server is dead.
        driver.word(None);
    } else if let Some(word) = remover.intercept(word) {
        driver.word(Some(word));
    }
    !is_last
}

/// Passes on further words of the fork server's, and commits their events. Returns `false` after the last one.
fn handle_more_events(
    words: &mut mpsc::Receiver<ForkServerEvent>,
    driver: &mut SessionDriver,
    remover: &mut ContainerRemover,
) -> bool {
    for _ in 0..LARGE {
        let word = match words.try_recv() {
            Ok(word) => Some(word),
            Err(mpsc::error::TryRecvError::Disconnected) => None,
            Err(mpsc::error::TryRecvError::Empty) => break,
        };
        if !handle_event(word, driver, remover) {
            return false;
        }
    }
    driver.commit();
    true
}

/// Passes on received bytes. Returns the number of messages.
fn handle_read(read: io::Result<usize>, inbox: &mut Inbox, driver: &mut SessionDriver) -> usize {
    match read {
        Ok(len) if len > 0 => {
            inbox.filled(len);
            driver.receive(inbox)
        }
        // A reset means that the connection was closed with data unread; it is an end like any other.
        Ok(_) | Err(_) => {
            driver.feed(SessionCore::closed);
            0
        }
    }
}

/// Writes to the proxy as much as fits without waiting.
fn flush(writer: &WriteHalf<'_>, driver: &mut SessionDriver) {
    while driver.has_output() {
        let outbox = driver.outbox();
        match writer.try_write(outbox.chunk()) {
            Ok(written) => outbox.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // The reading side detects the end of the connection.
                tracing::debug!(%error, "failed to write to the proxy");
                *outbox = Outbox::default();
            }
        }
    }
}

/// Sends orders to the fork server as long as there is room.
fn send_orders(server: &ForkServer, current: &mut Option<OutgoingFrame>, driver: &mut SessionDriver) -> Result<()> {
    loop {
        if current.is_none() {
            let Some(message) = driver.order() else { return Ok(()) };
            // An order replaces work that the proxy did not do; the fork server may have been stopped by somebody too.
            server.continue_if_stopped();
            *current = Some(server.encode(&message, None)?);
        }
        let Some(order) = current else { return Ok(()) };
        match server.try_send(order) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // An error means that the fork server is dead, which the watch reports. The proxy's socket is closed with
            // the order.
            Ok(()) | Err(_) => *current = None,
        }
    }
}
