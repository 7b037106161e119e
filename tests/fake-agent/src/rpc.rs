//! Messages in and out.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use agent_client_protocol_schema::v1::{
    Error, JsonRpcMessage, Notification, Request, RequestId, Response, SessionId, SessionNotification, SessionUpdate,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Messages that may wait while a turn does not look.
const MAX_WAITING: usize = 1024;

/// One message of the client's.
#[derive(Debug, Deserialize)]
pub(crate) struct Incoming {
    pub(crate) id: Option<RequestId>,
    pub(crate) method: Option<String>,
    #[serde(default)]
    pub(crate) params: Value,
    #[serde(default)]
    pub(crate) result: Value,
}

/// What the reader hands over: a message, what it could not read, or nothing more (the channel is closed).
pub(crate) type Input = Result<Incoming, serde_json::Error>;

/// Reads messages in a thread of its own, so that a running turn sees a cancel.
pub(crate) fn read(input: impl Read + Send + 'static) -> Receiver<Input> {
    let (sender, receiver) = sync_channel(MAX_WAITING);
    std::thread::spawn(move || read_all(input, &sender));
    receiver
}

fn read_all(input: impl Read, sender: &SyncSender<Input>) {
    for line in BufReader::new(input).split(b'\n') {
        let Ok(line) = line else { return };
        if sender.send(serde_json::from_slice(&line)).is_err() {
            return;
        }
    }
}

/// The way to the client.
#[derive(Debug)]
pub(crate) struct Wire<W: Write> {
    out: BufWriter<W>,
    session: SessionId,
}

impl<W: Write> Wire<W> {
    pub(crate) fn new(out: W, session: SessionId) -> Self {
        Self { out: BufWriter::with_capacity(64 * 1024, out), session }
    }

    fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, message)?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    /// The conversation that everything from now on is of.
    pub(crate) fn set_session(&mut self, session: SessionId) {
        self.session = session;
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session.clone()
    }

    /// A line as it stands.
    pub(crate) fn raw(&mut self, line: &str) -> io::Result<()> {
        self.out.write_all(line.as_bytes())?;
        self.out.write_all(b"\n")?;
        self.out.flush()
    }

    pub(crate) fn request(&mut self, id: i64, method: &str, params: impl Serialize) -> io::Result<()> {
        let request = Request { id: id.into(), method: method.into(), params: Some(params) };
        self.send(&JsonRpcMessage::wrap(request))
    }

    pub(crate) fn answer(&mut self, id: RequestId, result: Result<impl Serialize, Error>) -> io::Result<()> {
        self.send(&JsonRpcMessage::wrap(Response::new(id, result)))
    }

    /// An update in the form that it has on the wire.
    pub(crate) fn raw_update(&mut self, update: Value) -> io::Result<()> {
        let params = json!({ "sessionId": self.session, "update": update });
        self.send(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
    }

    pub(crate) fn update(&mut self, update: SessionUpdate) -> io::Result<()> {
        let message = self.notification(update);
        self.send(&message)
    }

    fn notification(&self, update: SessionUpdate) -> JsonRpcMessage<Notification<SessionNotification>> {
        let params = SessionNotification::new(self.session.clone(), update);
        JsonRpcMessage::wrap(Notification { method: "session/update".into(), params: Some(params) })
    }

    /// `count` text chunks of `size` bytes, each beginning with its number (or as many of its last digits as fit), as
    /// fast as they can be written. `go_on` is asked now and then.
    pub(crate) fn flood(
        &mut self,
        count: u64,
        size: usize,
        mut go_on: impl FnMut() -> bool,
        text: impl Fn(String) -> SessionUpdate,
    ) -> io::Result<()> {
        const DIGITS: usize = 10;
        let digits = DIGITS.min(size);
        let chunk = "0".repeat(digits) + &".".repeat(size - digits);
        let marker = "@the text@";
        let line = serde_json::to_string(&self.notification(text(marker.to_owned())))?;
        let at = line.find(marker).unwrap_or(0);
        let mut line = (line.replace(marker, &chunk) + "\n").into_bytes();
        for number in 0..count {
            let mut rest = number;
            for digit in line[at..at + digits].iter_mut().rev() {
                *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
                rest /= 10;
            }
            self.out.write_all(&line)?;
            if number % 4096 == 4095 && !go_on() {
                break;
            }
        }
        self.out.flush()
    }
}
