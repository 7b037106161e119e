//! Terminals: their configuration, and the messages between a session's terminal and those who view it.
//!
//! A viewer has a stream socket of its own to the proxy. Messages are framed as between host and proxy ([`crate::codec`]):
//! the viewer sends [`ToTerminal`], the proxy [`FromTerminal`]. A viewer never gets the program's own bytes: it gets
//! *frames*, which paint what has changed on the screen and hold no query.
//!
//! A viewer on the proxy's machine may lend it the terminal that it runs in ([`ToTerminal::Lend`]): what is typed there and what is painted
//! passes through no other process then.
//!
//! A connection that begins with [`ToTerminal::Shell`] is not to the agent's terminal: it starts a program beside the agent,
//! and is its terminal, or its standard streams.

use serde::{Deserialize, Serialize};

pub use crate::detach_keys::{DetachFilter, DetachKeys, InvalidKeys};
use crate::{ExitStatus, WireError};

/// Size of a terminal, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Number of rows: 1 to 500.
    pub rows: u16,
    /// Number of columns: 2 to 1,000.
    pub columns: u16,
}

impl TerminalSize {
    /// Most rows.
    pub const MAX_ROWS: u16 = 500;
    /// Most columns.
    pub const MAX_COLUMNS: u16 = 1000;

    /// Creates a size within the bounds.
    pub fn bounded(rows: u16, columns: u16) -> Self {
        Self { rows: rows.clamp(1, Self::MAX_ROWS), columns: columns.clamp(2, Self::MAX_COLUMNS) }
    }
}

impl Default for TerminalSize {
    /// 24 rows of 80 columns.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

/// What becomes of a session when nobody views its terminal any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OnDetach {
    /// It goes on.
    #[default]
    Keep,
    /// It is ended.
    End,
}

/// Ways in which a session is driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Surface {
    /// By the agent's protocol alone.
    #[default]
    Machine,
    /// On the screen of a program in a terminal alone.
    Terminal,
    /// By both at once: what one does, the other sees.
    Both,
}

/// Terminal of a session: the agent is started in it, as in a terminal window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TerminalConfig {
    /// Size at first. Later it is that of the viewer who came or typed last.
    #[serde(default)]
    pub size: TerminalSize,
    /// Effect of the last viewer's leave, however it left.
    #[serde(default)]
    pub on_detach: OnDetach,
    /// File for a recording (asciicast version 3): an absolute path of a file that does not exist.
    pub record: Option<String>,
    /// Row of the cursor at first, from 0. Rows above belong to whoever uses the terminal window already, and are not
    /// painted until the program does.
    #[serde(default)]
    pub first_row: u16,
    /// Colour of the text, as red, green and blue: the answer to programs that ask for it.
    pub foreground: Option<[u8; 3]>,
    /// Colour of the background.
    pub background: Option<[u8; 3]>,
    /// True if the session has a terminal for this incarnation alone: its user visits the agent's own screen, and the next
    /// incarnation speaks the agent's protocol again.
    #[serde(default)]
    pub visit: bool,
    /// True to have the agent report what happens on its own screen, where it can (Claude Code): prompts, text and tool calls
    /// are events then.
    #[serde(default)]
    pub observed: bool,
    /// Path of the pipe for these reports. The manager fills it in.
    #[doc(hidden)]
    pub reports: Option<String>,
    /// Path of the pipe for commands to a screen that speaks the agent's protocol, whose messages are those reports. The manager
    /// fills it in.
    #[doc(hidden)]
    #[serde(default)]
    pub commands: Option<String>,
}

/// Wish of a viewer for the keyboard. One viewer at a time has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum KeyboardWish {
    /// Only watches.
    Watch,
    /// Types if nobody else does; else when who does leaves.
    #[default]
    Type,
    /// Types from now on. Who did until now watches.
    Take,
}

/// Secret of a terminal that is lent.
#[derive(Clone, derive_more::Debug, PartialEq, Eq, Serialize, Deserialize)]
#[debug("LoanSecret")]
pub struct LoanSecret([u8; Self::LEN]);

impl LoanSecret {
    /// Bytes of a secret.
    pub const LEN: usize = 16;

    /// Creates a secret.
    pub fn new(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes that are said on the socket.
    pub fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

/// Message of a viewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToTerminal {
    /// First message: begins to view. Answered by [`FromTerminal::Attached`] and a frame with the whole screen.
    Attach {
        /// Size of the viewer.
        size: TerminalSize,
        /// Wish for the keyboard.
        keyboard: KeyboardWish,
        /// True if the viewer's screen shows what the terminal's does already: it was there from the beginning.
        in_place: bool,
    },
    /// Types these bytes. Dropped, with a [`FromTerminal::Keyboard`], if another has the keyboard.
    Input(#[serde(with = "bytes")] Vec<u8>),
    /// The viewer's size has changed.
    Resize(TerminalSize),
    /// Asks for the keyboard.
    Take,
    /// Continues a program that is stopped, see [`FromTerminal::Stopped`].
    Continue,
    /// First message: starts a program in the session, with the agent's containment, directory and environment. Answered as
    /// [`ToTerminal::Attach`], or by [`FromTerminal::Refused`]. The program gets SIGHUP when the connection ends.
    Shell {
        /// Program and arguments; empty for the user's shell.
        argv: Vec<String>,
        /// Its terminal; without one it has pipes. Recording and the effect of a leave are not part of it.
        terminal: Option<Box<TerminalConfig>>,
        /// True if the viewer's screen shows what the new terminal's does: nothing below the first row.
        in_place: bool,
    },
    /// Closes the standard input of a program that has pipes.
    EndOfInput,
    /// Before the first message: lends the viewer's own terminal. Answered by [`FromTerminal::Lent`].
    ///
    /// The proxy connects to the socket, says the secret, and gets the terminal's descriptor there. Until the connection ends, or
    /// [`FromTerminal::Returned`] comes, it alone reads what is typed and writes frames; the viewer keeps the terminal's mode and
    /// size. Between [`FromTerminal::Stopped`] and [`ToTerminal::Continue`] it does neither.
    Lend {
        /// Name of a Unix socket in the abstract namespace, where the same user listens. Every process of the machine sees it.
        socket: String,
        /// Says that who connects there is the proxy, and not another process of the user, such as the session's agent.
        secret: LoanSecret,
        /// Keys that end the viewing.
        detach_keys: Option<DetachKeys>,
        /// True if Ctrl-C ends it, too, and nothing that is typed goes to the program.
        watches: bool,
    },
}

/// Message of the terminal to a viewer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromTerminal {
    /// The viewer is attached.
    Attached {
        /// Size of the terminal.
        size: TerminalSize,
        /// True if the viewer has the keyboard.
        types: bool,
    },
    /// Bytes for the viewer's terminal.
    Frame {
        /// The bytes: text and control sequences that paint.
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
        /// True if the alternate screen is shown after it.
        alternate: bool,
    },
    /// The viewer has got the keyboard, or lost it.
    Keyboard {
        /// True if the viewer has the keyboard.
        types: bool,
    },
    /// The program rings the bell. Only the viewer who types gets it.
    Bell,
    /// The program put this text on the clipboard. Only the viewer who types gets it.
    Clipboard(String),
    /// The program has stopped itself, as on Ctrl-Z. It goes on after [`ToTerminal::Continue`].
    Stopped,
    /// The program has ended; nothing follows.
    Ended {
        /// Exit status; `None` if the session ended with the program running.
        exit: Option<ExitStatus>,
        /// True if the cursor is in the middle of a line.
        in_line: bool,
    },
    /// The program of a [`ToTerminal::Shell`] was not started; nothing follows.
    Refused(WireError),
    /// Output of a program that has pipes.
    Output {
        /// True for its standard error.
        is_error: bool,
        /// The bytes, as the program wrote them.
        #[serde(with = "bytes")]
        bytes: Vec<u8>,
    },
    /// Answer to [`ToTerminal::Lend`].
    Lent {
        /// False if the proxy could not get the terminal: all goes over the connection.
        accepted: bool,
    },
    /// The terminal that was lent is the viewer's again; nothing follows.
    Returned {
        /// True if the keys for it were typed; false if the terminal is gone.
        detached: bool,
    },
}

impl FromTerminal {
    /// Appends what the message writes to a viewer's terminal. Returns true if it is a message that writes there.
    pub fn paint(&self, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Frame { bytes, .. } => out.extend_from_slice(bytes),
            Self::Bell => out.push(7),
            Self::Clipboard(text) => {
                use base64::Engine as _;
                let text = base64::engine::general_purpose::STANDARD.encode(text);
                out.extend_from_slice(format!("\x1b]52;c;{text}\x07").as_bytes());
            }
            _ => return false,
        }
        true
    }
}

/// Bytes as one run, not one by one.
mod bytes {
    use std::fmt;

    use serde::{Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl<'de> de::Visitor<'de> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}
