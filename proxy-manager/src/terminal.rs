//! Terminals of sessions: viewing one, and the configuration.
//!
//! ```no_run
//! # async fn example(session: proxy_manager::SessionHandle) -> Result<(), Box<dyn std::error::Error>> {
//! use proxy_manager::terminal::{FromTerminal, KeyboardWish, TerminalSize, ToTerminal};
//!
//! let mut viewer = session.view_terminal().await?;
//! let size = TerminalSize::bounded(24, 80);
//! viewer.send(&ToTerminal::Attach { size, keyboard: KeyboardWish::Type, in_place: false }).await?;
//! viewer.send(&ToTerminal::Input(b"ls\r".to_vec())).await?;
//! while let Some(message) = viewer.next().await {
//!     match message {
//!         FromTerminal::Frame { bytes, .. } => println!("{} bytes to paint", bytes.len()),
//!         FromTerminal::Ended { exit, .. } => println!("ended: {exit:?}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::io;

#[doc(inline)]
pub use api_types::TerminalViewer;
use ipc_protocol::message::ToForkServer;
pub use ipc_protocol::{
    WireError,
    terminal::{FromTerminal, KeyboardWish, OnDetach, Surface, TerminalConfig, TerminalSize, ToTerminal},
};
use tokio::time::timeout;

use crate::{Error, Result, SessionHandle, session::sockets, session_store::RecordState};

impl SessionHandle {
    /// Connects to the session's terminal, or to the agent's screen beside its protocol ([`Surface::Both`]), which is started if it
    /// does not run: a screen that cannot be is reported by a [`FromTerminal::Refused`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a session without a terminal; [`Error::Ended`] and the like for one that does not run;
    /// [`Error::Deadline`].
    ///
    /// # Cancel safety
    /// Cancel safe: a viewer that is not attached is none.
    pub async fn view_terminal(&self) -> Result<TerminalViewer> {
        if !self.session().has_terminal() {
            let operation = "be viewed: the session was started without a terminal".to_owned();
            return Err(Error::Unsupported { agent: self.info().metadata.agent, operation });
        }
        self.connect_viewer().await
    }

    /// Connects to start a shell, or any command, beside the agent: in its containment, working directory and environment,
    /// and under the session's limits. It is a process of the session, and ends with it.
    ///
    /// The first message to send is [`ToTerminal::Shell`]. The program gets SIGHUP when the viewer is dropped. A session has 8
    /// at most.
    ///
    /// # Errors
    /// [`Error::Ended`] and the like for a session that does not run; [`Error::Deadline`]. What the proxy refuses comes as a
    /// [`FromTerminal::Refused`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is started before that message.
    pub async fn shell(&self) -> Result<TerminalViewer> {
        self.connect_viewer().await
    }

    async fn connect_viewer(&self) -> Result<TerminalViewer> {
        let session = self.session();
        let ended = |reason: &str| Error::Ended { session: session.id().clone(), reason: reason.to_owned() };
        if !RecordState::from(&self.info().state).status().is_live() {
            // An incarnation that another one follows is over, whatever has become of the session.
            return Err(if session.is_latest() { session.ended_error() } else { ended("it does not run now") });
        }
        let server = session.fork_server().ok_or_else(|| ended("it does not run"))?;
        let (ours, theirs) = sockets()?;
        let message = ToForkServer::View { session: session.id().clone() };
        let mut order = server.encode(&message, Some(theirs))?;
        let after = session.deadlines().shutdown;
        let sent = timeout(after, async {
            loop {
                match server.try_send(&mut order) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => server.writable().await,
                    result => return result,
                }
            }
        });
        let late = |_| Error::Deadline { operation: "asking for a viewer's connection".to_owned(), after };
        sent.await.map_err(late)?.map_err(|_| Error::ForkServerDied)?;
        Ok(TerminalViewer::over(ours))
    }
}
