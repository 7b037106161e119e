//! Terminal of a session over a WebSocket, for browsers: binary messages are bytes for, and from, a terminal emulator such as xterm.js;
//! texts are JSON, for the rest.

use std::{num::NonZeroU16, time::Duration};

use futures_util::StreamExt as _;
use proxy_manager::{
    ExitStatus,
    terminal::{FromTerminal, KeyboardWish, TerminalConfig, TerminalSize, TerminalViewer, ToTerminal},
};
use serde::{Deserialize, Serialize};
use tokio::time::interval;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    ProblemDetails,
    websocket::{WebSocket, WebSocketSender, send},
};

/// Longest message of a client, in bytes: what is pasted.
pub(crate) const LONGEST_INPUT: usize = 1024 * 1024;

/// Pause between signs of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Query of a terminal.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TerminalQuery {
    /// Number of rows of a WebSocket's client; 24 by default.
    rows: Option<u16>,
    /// Number of columns of a WebSocket's client; 80 by default.
    columns: Option<u16>,
    /// Wish of a WebSocket's client for the keyboard: `type` by default.
    keyboard: KeyboardWish,
    /// Number of frames, from 1, that a WebSocket's client gets before it has painted the first of them; unbounded by default.
    window: Option<NonZeroU16>,
}

impl TerminalQuery {
    fn size(self) -> TerminalSize {
        let usual = TerminalSize::default();
        TerminalSize::bounded(self.rows.unwrap_or(usual.rows), self.columns.unwrap_or(usual.columns))
    }

    /// Returns the bound on frames that are not painted yet.
    pub(crate) fn window(self) -> FrameWindow {
        FrameWindow { size: self.window.map(|frames| frames.get().into()), unpainted: 0 }
    }

    /// Returns the first message of a viewer of the agent's terminal.
    pub(crate) fn attach(self) -> ToTerminal {
        ToTerminal::Attach { size: self.size(), keyboard: self.keyboard, in_place: false }
    }

    /// Returns the first message of a viewer of a new shell.
    pub(crate) fn shell(self) -> ToTerminal {
        let terminal = TerminalConfig { size: self.size(), ..TerminalConfig::default() };
        ToTerminal::Shell { argv: Vec::new(), terminal: Some(Box::new(terminal)), in_place: false }
    }
}

/// Frames that a client has got and not painted yet. While there are too many the terminal paints none for it: what was on the screen
/// in the meantime is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameWindow {
    size: Option<u64>,
    unpainted: u64,
}

impl FrameWindow {
    fn is_open(self) -> bool {
        self.size.is_none_or(|size| self.unpainted < size)
    }

    fn sent(&mut self) {
        self.unpainted += 1;
    }

    fn painted(&mut self, frames: u16) {
        self.unpainted = self.unpainted.saturating_sub(frames.into());
    }
}

/// JSON message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
enum ClientMessage {
    /// Types a text.
    Input { text: String },
    /// The client's size has changed.
    Resize { rows: u16, columns: u16 },
    /// This number of frames is painted.
    Painted { frames: u16 },
    /// Asks for the keyboard.
    Take {},
    /// Continues a program that is stopped.
    Continue {},
    /// Leaves; as does the end of the connection.
    Detach {},
}

/// JSON message to a client.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum ServerMessage {
    Attached {
        rows: u16,
        columns: u16,
        types: bool,
    },
    Keyboard {
        types: bool,
    },
    Clipboard {
        text: String,
    },
    Stopped {},
    Ended {
        exit: Option<ExitStatus>,
    },
    Refused {
        problem: ProblemDetails,
    },
    /// The client's message makes no sense; nothing was done.
    Invalid {
        problem: ProblemDetails,
    },
}

/// Shows a terminal to a client until one of them ends.
pub(crate) async fn serve(socket: WebSocket, mut viewer: TerminalViewer, first: ToTerminal, mut window: FrameWindow) {
    let (mut sink, mut messages) = socket.split();
    if viewer.send(&first).await.is_err() {
        let gone = ProblemDetails::failed("the terminal is gone: list the session to see how it is");
        send_json(&mut sink, &ServerMessage::Refused { problem: gone }).await;
        return;
    }
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let goes_on = tokio::select! {
            message = messages.next() => match message {
                Some(Ok(message)) => receive(message, &mut viewer, &mut sink, &mut window).await,
                Some(Err(_)) | None => false,
            },
            // The terminal waits with its next frame until this one is sent.
            painted = viewer.next(), if window.is_open() => match painted {
                Some(painted) => show(painted, &mut sink, &mut window).await,
                None => {
                    show(FromTerminal::Ended { exit: None, in_line: false }, &mut sink, &mut window).await;
                    false
                }
            },
            _ = heartbeat.tick() => send(&mut sink, Message::Ping(Vec::new().into())).await,
        };
        if !goes_on {
            break;
        }
    }
    // It fails for a client that has left.
    send(&mut sink, Message::Close(None)).await;
}

/// Handles a message of the client. Returns false if one of the two has left.
async fn receive(
    message: Message,
    viewer: &mut TerminalViewer,
    sink: &mut WebSocketSender,
    window: &mut FrameWindow,
) -> bool {
    let to_terminal = match message {
        Message::Binary(typed) => ToTerminal::Input(typed.into()),
        Message::Text(text) => match serde_json::from_str(&text) {
            Ok(ClientMessage::Input { text }) => ToTerminal::Input(text.into_bytes()),
            Ok(ClientMessage::Resize { rows, columns }) => ToTerminal::Resize(TerminalSize::bounded(rows, columns)),
            Ok(ClientMessage::Painted { frames }) => {
                window.painted(frames);
                return true;
            }
            Ok(ClientMessage::Take {}) => ToTerminal::Take,
            Ok(ClientMessage::Continue {}) => ToTerminal::Continue,
            Ok(ClientMessage::Detach {}) => return false,
            Err(error) => {
                let problem = ProblemDetails::usage(format!("the message does not fit: {error}"));
                return send_json(sink, &ServerMessage::Invalid { problem }).await;
            }
        },
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return true,
        Message::Close(_) => return false,
    };
    viewer.send(&to_terminal).await.is_ok()
}

/// Shows a message of the terminal. Returns false if it was the last, or the client has left.
async fn show(message: FromTerminal, sink: &mut WebSocketSender, window: &mut FrameWindow) -> bool {
    let json = match message {
        FromTerminal::Frame { bytes, .. } | FromTerminal::Output { bytes, .. } => {
            window.sent();
            return send(sink, Message::Binary(bytes.into())).await;
        }
        FromTerminal::Bell => {
            window.sent();
            return send(sink, Message::Binary(b"\x07".as_slice().into())).await;
        }
        FromTerminal::Attached { size: TerminalSize { rows, columns }, types } => {
            ServerMessage::Attached { rows, columns, types }
        }
        FromTerminal::Keyboard { types } => ServerMessage::Keyboard { types },
        FromTerminal::Clipboard(text) => ServerMessage::Clipboard { text },
        FromTerminal::Stopped => ServerMessage::Stopped {},
        // It lends nothing.
        FromTerminal::Lent { .. } | FromTerminal::Returned { .. } => return true,
        FromTerminal::Ended { exit, .. } => {
            send_json(sink, &ServerMessage::Ended { exit }).await;
            return false;
        }
        FromTerminal::Refused(error) => {
            let problem = ProblemDetails::failed(error.to_string());
            send_json(sink, &ServerMessage::Refused { problem }).await;
            return false;
        }
    };
    send_json(sink, &json).await
}

async fn send_json(sink: &mut WebSocketSender, message: &ServerMessage) -> bool {
    let text = serde_json::to_string(message).unwrap_or_default();
    send(sink, Message::Text(text.into())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_clients() {
        let parse = |text: &str| serde_json::from_str::<ClientMessage>(text).map_err(|error| error.to_string());
        assert_eq!(
            parse(r#"{"type":"resize","rows":3,"columns":4}"#),
            Ok(ClientMessage::Resize { rows: 3, columns: 4 })
        );
        assert_eq!(parse(r#"{"type":"input","text":"ls\r"}"#), Ok(ClientMessage::Input { text: "ls\r".into() }));
        assert_eq!(parse(r#"{"type":"take"}"#), Ok(ClientMessage::Take {}));
        assert_eq!(parse(r#"{"type":"painted","frames":2}"#), Ok(ClientMessage::Painted { frames: 2 }));
        for wrong in ["", "{}", r#"{"type":"dance"}"#, r#"{"type":"resize","rows":-1,"columns":4}"#] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_window_is_open_while_few_frames_are_unpainted() {
        let query = |window| TerminalQuery { window, ..TerminalQuery::default() };
        let mut window = query(NonZeroU16::new(2)).window();
        window.sent();
        assert!(window.is_open());
        window.sent();
        assert!(!window.is_open());
        window.painted(1);
        assert!(window.is_open());
        // A client that says more than there was gains nothing.
        window.painted(9);
        window.sent();
        window.sent();
        assert!(!window.is_open());
        let mut unbounded = query(None).window();
        (0..1000).for_each(|_| unbounded.sent());
        assert!(unbounded.is_open());
    }

    #[test]
    fn messages_to_clients() {
        let json = |message: &ServerMessage| serde_json::to_string(message).expect("JSON");
        assert_eq!(
            json(&ServerMessage::Attached { rows: 24, columns: 80, types: true }),
            r#"{"type":"attached","rows":24,"columns":80,"types":true}"#
        );
        assert_eq!(
            json(&ServerMessage::Ended { exit: Some(ExitStatus::Code(0)) }),
            r#"{"type":"ended","exit":{"code":0}}"#
        );
    }
}
