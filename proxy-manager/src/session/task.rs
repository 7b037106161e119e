//! The task that owns a session: it moves bytes and time, [`Core`] decides.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    sync::Arc,
    time::Duration,
};

use ipc_protocol::{
    Enclosure, KillOptions, ProcessId,
    codec::Inbox,
    message::{FromProxy, ToForkServer},
};
use tokio::{
    io::AsyncReadExt,
    net::{UnixStream, unix::WriteHalf},
    sync::{mpsc, oneshot},
    task::yield_now,
    time::{Instant, sleep_until},
};
use tracing::Instrument;

use super::{Inlets, Session, core::Core};
use crate::{
    Error, Result,
    directory::Directory,
    fork_server::{ForkServer, Order, Word},
    history::Writer,
    launch::Launch,
};

/// Bytes that may wait for the proxy before further prompts are left in their channel.
const BACKLOG: usize = 2 * ipc_protocol::codec::MAX_MESSAGE;
/// A chunk of so many events is followed by a turn for others: readers must not fall behind on one thread.
const LARGE: usize = 128;
/// When nothing is due.
const FAR: Duration = Duration::from_secs(24 * 3600);

/// What a task needs to get its proxy.
#[derive(Debug)]
pub(crate) struct Fork {
    pub(crate) server: Arc<ForkServer>,
    /// The proxy's end of the session's socket.
    pub(crate) socket: OwnedFd,
}

/// A session's task, before it runs.
pub(crate) struct Task {
    session: Arc<Session>,
    core: Core,
    inlets: Inlets,
    stream: UnixStream,
    enclosure: Enclosure,
}

impl Task {
    /// How a session that could not start is ended.
    pub(crate) const FAILED: KillOptions = KillOptions::grace(Duration::from_millis(500));

    /// A task for `session`, whose end of the socket is `socket`, and what tells that the agent is ready.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if the configuration is too long to be sent; [`Error::System`].
    pub(crate) fn new(
        session: Arc<Session>,
        inlets: Inlets,
        log: Writer,
        launch: Launch,
        socket: OwnedFd,
        host: ProcessId,
    ) -> Result<(Self, oneshot::Receiver<Result<()>>)> {
        let stream = UnixStream::from_std(StdUnixStream::from(socket))
            .map_err(|error| Error::system("watching a proxy's socket", &error))?;
        let enclosure = launch.enclosure.clone();
        let (core, ready) = Core::new(session.clone(), log, launch, host, Instant::now())?;
        Ok((Self { session, core, inlets, stream, enclosure }, ready))
    }

    /// Runs the session to its end.
    pub(crate) async fn run(self, directory: Arc<Directory>, serial: u64, fork: Fork) {
        let span = tracing::info_span!("session", id = %self.session.id(), agent = self.session.labels().agent);
        async {
            if let Err(error) = self.drive(fork).await {
                tracing::error!(%error, "the session's task failed");
            }
            directory.ended(serial);
        }
        .instrument(span)
        .await;
    }

    async fn drive(self, Fork { server, socket }: Fork) -> Result<()> {
        let Self { session, mut core, inlets, mut stream, enclosure } = self;
        let Inlets { mut demand, mut control, mut say } = inlets;
        let mut words = server.watch(session.id());
        let mut listens_to_server = true;
        let mut order =
            Some(Order::new(&ToForkServer::Fork { session: session.id().clone(), enclosure }, Some(socket))?);
        let (mut reader, writer) = stream.split();
        let mut inbox = Inbox::default();
        core.write_journal();
        loop {
            send_orders(&server, &mut order, &mut core)?;
            flush(&writer, &mut core);
            if core.is_over() {
                return Ok(());
            }
            let due = core.next();
            let listens = core.listens();
            let writes = !core.outbox().is_empty();
            let takes_prompts = core.outbox().len() < BACKLOG;
            let mut large = false;
            tokio::select! {
                biased;
                Ok(()) = demand.changed() => {
                    let wanted = demand.borrow_and_update().clone();
                    core.demand(wanted, Instant::now());
                }
                Some(command) = control.recv() => core.control(command, Instant::now()),
                () = sleep_until(due.unwrap_or_else(|| Instant::now() + FAR)), if due.is_some() => {
                    core.tick(Instant::now());
                }
                () = server.writable(), if order.is_some() => {}
                Ok(()) = writer.writable(), if writes => {}
                read = reader.read(inbox.spare()), if listens => {
                    large = take(read, &mut inbox, &mut core);
                }
                Some(command) = say.recv(), if takes_prompts => core.say(command),
                word = words.recv(), if listens_to_server => listens_to_server = hear(word, &mut core),
            }
            // Neither a flood from the proxy nor one from the fork server holds up the other.
            if listens_to_server {
                listens_to_server = hear_more(&mut words, &mut core);
            }
            core.settle(Instant::now());
            if large {
                yield_now().await;
            }
        }
    }
}

/// Gives the core a word of the fork server's. `false` after the last.
fn hear(word: Option<Word>, core: &mut Core) -> bool {
    let is_last = matches!(word, None | Some(Word::Gone(_) | Word::Forked(Err(_))));
    match word {
        Some(word) => core.word(word, Instant::now()),
        None => core.guard_died(Instant::now()),
    }
    !is_last
}

/// What else the fork server has said, and shows it. `false` after the last.
fn hear_more(words: &mut mpsc::Receiver<Word>, core: &mut Core) -> bool {
    for _ in 0..LARGE {
        let word = match words.try_recv() {
            Ok(word) => Some(word),
            Err(mpsc::error::TryRecvError::Disconnected) => None,
            Err(mpsc::error::TryRecvError::Empty) => break,
        };
        if !hear(word, core) {
            return false;
        }
    }
    core.commit();
    true
}

/// Gives the core what was read. `true` if it was much.
fn take(read: io::Result<usize>, inbox: &mut Inbox, core: &mut Core) -> bool {
    let len = match read {
        Ok(len) if len > 0 => len,
        // Reset means closed with something unread: as much an end as any.
        Ok(_) | Err(_) => {
            core.closed(Instant::now());
            return false;
        }
    };
    inbox.filled(len);
    let now = Instant::now();
    let mut messages = 0;
    while core.listens() {
        match inbox.next_message::<FromProxy>() {
            Ok(Some(message)) => core.message(message, now),
            Ok(None) => break,
            Err(error) => core.broken(error.to_string(), now),
        }
        messages += 1;
    }
    core.commit();
    messages >= LARGE
}

/// Writes what can be written without a wait.
fn flush(writer: &WriteHalf<'_>, core: &mut Core) {
    let outbox = core.outbox();
    while !outbox.is_empty() {
        match writer.try_write(outbox.chunk()) {
            Ok(written) => outbox.advance(written),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                // The end of the connection is seen where it is read.
                tracing::debug!(%error, "the proxy does not read any more");
                *outbox = ipc_protocol::codec::Outbox::default();
            }
        }
    }
}

/// Sends what the fork server is to do, as far as there is room.
fn send_orders(server: &ForkServer, current: &mut Option<Order>, core: &mut Core) -> Result<()> {
    loop {
        if current.is_none() {
            let Some(message) = core.order() else { return Ok(()) };
            *current = Some(Order::new(&message, None)?);
        }
        let Some(order) = current else { return Ok(()) };
        match server.try_send(order) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            // An error means that it is dead, which the watch tells. The proxy's socket is closed with the order.
            Ok(()) | Err(_) => *current = None,
        }
    }
}
