//! Lending the caller's terminal to the proxy of a session on this machine, so that keys and frames do not pass through this process.

use std::{future::pending, io, os::fd::BorrowedFd, time::Duration};

use ipc_protocol::terminal::{DetachKeys, FromTerminal, LoanSecret, ToTerminal};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::UnixStream,
    time::timeout,
};

use super::{RawTerminal, TerminalViewer};

/// Longest wait for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for the secret of one that has connected: the proxy says it at once.
#[cfg(target_os = "linux")]
const SECRET_TIMEOUT: Duration = Duration::from_secs(1);

/// Answer to an offer.
#[derive(Debug)]
pub(super) enum LoanAnswer {
    /// The proxy has the terminal.
    Accepted(Loan),
    /// The proxy is elsewhere, or of another user.
    Refused,
    /// It closed the connection: it is of a release that knows no loans, or the session is gone.
    Closed,
}

/// Terminal that the proxy has, and the connection on which it says that it has no longer: also while the daemon does not pass anything on.
#[derive(Debug)]
pub(super) struct Loan(Option<UnixStream>);

impl Loan {
    /// Waits until the terminal is given back. Returns true if that is because the keys that detach were typed.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is lost.
    pub(super) async fn returned(&mut self) -> bool {
        let mut said = [0];
        if let Some(stream) = &mut self.0
            && matches!(stream.read(&mut said).await, Ok(1))
        {
            return said[0] == 1;
        }
        // One of a release that says nothing here, or one that is gone: the connection to the session tells.
        self.0 = None;
        pending().await
    }
}

/// Offers the terminal to the proxy at the other end of a new connection.
pub(super) async fn offer<S: AsyncRead + AsyncWrite + Unpin>(
    viewer: &mut TerminalViewer<S>,
    terminal: &RawTerminal,
    detach_keys: Option<DetachKeys>,
    watches: bool,
) -> LoanAnswer {
    let Ok(offer) = Offer::new() else { return LoanAnswer::Refused };
    let message =
        ToTerminal::Lend { socket: offer.name.clone(), secret: LoanSecret::new(offer.secret), detach_keys, watches };
    if viewer.send(&message).await.is_err() {
        return LoanAnswer::Closed;
    }
    let answer = async {
        let mut given = std::pin::pin!(offer.give(terminal.descriptor()));
        let mut loan = None;
        loop {
            tokio::select! {
                stream = &mut given, if loan.is_none() => loan = Some(Loan(stream.ok())),
                message = viewer.next() => return match message {
                    Some(FromTerminal::Lent { accepted: true }) => LoanAnswer::Accepted(loan.unwrap_or(Loan(None))),
                    Some(_) => LoanAnswer::Refused,
                    None => LoanAnswer::Closed,
                },
            }
        }
    };
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(LoanAnswer::Closed)
}

/// Socket where the terminal can be had by who says the secret.
struct Offer {
    name: String,
    secret: [u8; LoanSecret::LEN],
    #[cfg(target_os = "linux")]
    listener: tokio::net::UnixListener,
}

#[cfg(target_os = "linux")]
impl Offer {
    fn new() -> io::Result<Self> {
        use std::os::{linux::net::SocketAddrExt, unix::net};

        let name = format!("agent-proxy-terminal-{}", uuid::Uuid::now_v7());
        let mut secret = [0; LoanSecret::LEN];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        let listener = net::UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { name, secret, listener: tokio::net::UnixListener::from_std(listener)? })
    }

    /// Gives the terminal to the first process of this user that connects and says the secret. Returns the connection.
    async fn give(&self, terminal: BorrowedFd<'_>) -> io::Result<UnixStream> {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

        loop {
            let (mut stream, _) = self.listener.accept().await?;
            let mut said = [0; LoanSecret::LEN];
            let read = timeout(SECRET_TIMEOUT, stream.read_exact(&mut said)).await;
            let is_user = stream.peer_cred()?.uid() == rustix::process::geteuid().as_raw();
            if !is_user || !matches!(read, Ok(Ok(_))) || said != self.secret {
                continue;
            }
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let descriptors = [terminal];
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            sendmsg(&stream, &[io::IoSlice::new(&[0])], &mut ancillary, SendFlags::empty())?;
            return Ok(stream);
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Offer {
    fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn give(&self, _: BorrowedFd<'_>) -> io::Result<UnixStream> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        fs::File,
        os::{fd::AsFd, linux::net::SocketAddrExt, unix::net},
    };

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn connect(offer: &Offer, said: &[u8]) -> UnixStream {
        let address = net::SocketAddr::from_abstract_name(&offer.name).expect("a name");
        let stream = net::UnixStream::connect_addr(&address).expect("it listens");
        stream.set_nonblocking(true).expect("set");
        let mut stream = UnixStream::from_std(stream).expect("taken");
        stream.write_all(said).await.expect("said");
        stream
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_does_not_know_the_secret_gets_no_terminal() {
        let offer = Offer::new().expect("a socket");
        let lent = File::open("/dev/null").expect("opened");
        let mut known = offer.secret;
        known[0] ^= 1;
        // One guesses, one says nothing, and then the proxy comes.
        let mut strangers = [connect(&offer, &known).await, connect(&offer, b"").await];
        let mut proxy = connect(&offer, &offer.secret).await;
        offer.give(lent.as_fd()).await.expect("given");
        for stranger in &mut strangers {
            let read = stranger.read(&mut [0]).await;
            assert!(matches!(read, Ok(0)) || read.is_err(), "{read:?}");
        }
        assert_eq!(proxy.read(&mut [0]).await.expect("the byte that comes with it"), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn who_has_the_terminal_says_that_it_gives_it_back() {
        for (said, detached) in [(b"\x01", true), (b"\x00", false)] {
            let offer = Offer::new().expect("a socket");
            let lent = File::open("/dev/null").expect("opened");
            let mut proxy = connect(&offer, &offer.secret).await;
            let mut loan = Loan(offer.give(lent.as_fd()).await.ok());
            proxy.write_all(said).await.expect("said");
            assert_eq!(loan.returned().await, detached);
        }
    }
}
