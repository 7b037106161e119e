//! Connection with an editor: JSON-RPC, one message a line.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt, io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ipc_protocol::ErrorChain;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::{ProblemDetails, requests::MAX_BODY};

/// Messages that wait for an editor that does not read. Behind them the events of its sessions wait.
const OUTGOING: usize = 256;

/// Longest message of an editor, in bytes: a prompt with its pictures, and what JSON adds to it.
const LONGEST: usize = MAX_BODY;

/// Bytes of a message that is too long in which its id is looked for.
const LOOKED_AT: usize = 64 * 1024;

/// Message of the editor.
pub(super) enum IncomingMessage {
    /// Wants an answer.
    Request {
        /// As the editor wrote it.
        id: Value,
        method: String,
        params: Value,
    },
    /// Wants none.
    Notification { method: String, params: Value },
}

/// Error that an editor is told.
#[derive(Debug)]
pub(super) struct AcpError {
    code: i64,
    message: String,
    data: Value,
}

impl AcpError {
    /// For parameters that make no sense.
    pub(super) fn invalid(message: String) -> Self {
        Self { code: -32602, message, data: Value::Null }
    }

    /// For a method that there is not.
    pub(super) fn unknown_method(method: &str) -> Self {
        Self { code: -32601, message: format!("there is no method {method:?} here"), data: Value::Null }
    }

    /// For a turn that failed.
    pub(super) fn failed(message: String) -> Self {
        Self { code: -32603, message, data: Value::Null }
    }

    fn to_json(&self) -> Value {
        match &self.data {
            Value::Null => json!({ "code": self.code, "message": self.message }),
            data => json!({ "code": self.code, "message": self.message, "data": data }),
        }
    }
}

impl From<ProblemDetails> for AcpError {
    fn from(problem: ProblemDetails) -> Self {
        // What the caller can mend is its own error; the rest is ours.
        let code = if (400..500).contains(&problem.status) { -32602 } else { -32603 };
        let data = serde_json::to_value(&problem).unwrap_or_default();
        Self { code, message: problem.detail, data }
    }
}

/// Requests that the editor has not answered, by their ids.
type OpenRequests = HashMap<u64, oneshot::Sender<Result<Value, String>>>;

/// Editor's end of the connection, as those that answer it have it.
#[derive(Clone)]
pub(super) struct AcpConnection {
    out: mpsc::Sender<String>,
    waiting: Arc<Mutex<OpenRequests>>,
    last: Arc<AtomicU64>,
}

impl AcpConnection {
    /// Reads and writes in tasks of their own, which end with the streams. The writer says why it ended.
    pub(super) fn start(
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
        received: mpsc::Sender<IncomingMessage>,
    ) -> (Self, JoinSet<Result<(), ProblemDetails>>) {
        let (out, outgoing) = mpsc::channel(OUTGOING);
        let connection = Self { out, waiting: Arc::default(), last: Arc::default() };
        let mut ends = JoinSet::new();
        ends.spawn(write(output, outgoing));
        let reader = connection.clone();
        tokio::spawn(async move {
            if let Err(problem) = reader.read(input, received).await {
                tracing::warn!(why = problem.detail, "the editor is not read any more");
            }
            // Nobody will answer.
            reader.waiting().clear();
        });
        (connection, ends)
    }

    /// Tells the editor something.
    pub(super) async fn notify(&self, method: &str, params: Value) {
        self.send(json!({ "jsonrpc": "2.0", "method": method, "params": params })).await;
    }

    /// Asks the editor. `None` if it is gone; null if it says that it cannot.
    pub(super) async fn request(&self, method: &str, params: Value) -> Option<Value> {
        let id = self.last.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        self.waiting().insert(id, answer);
        let _forget = ForgetOnDrop { connection: self, id };
        self.send(json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await;
        match answered.await {
            Ok(Ok(result)) => Some(result),
            Ok(Err(why)) => {
                tracing::info!(why, method, "the editor refused a request");
                Some(Value::Null)
            }
            Err(_) => None,
        }
    }

    /// Answers a request.
    pub(super) async fn reply(&self, id: Value, answer: Result<Value, AcpError>) {
        self.send(match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error.to_json() }),
        })
        .await;
    }

    async fn send(&self, message: Value) {
        // An editor that is gone misses nothing.
        let _ = self.out.send(format!("{message}\n")).await;
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, OpenRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(
        &self,
        input: impl AsyncRead + Unpin,
        received: mpsc::Sender<IncomingMessage>,
    ) -> Result<(), ProblemDetails> {
        let failed = |why: String| ProblemDetails::new("protocol-violation", why);
        let mut input = BufReader::new(input);
        loop {
            let line = next_line(&mut input, LONGEST).await;
            let line =
                line.map_err(|error| failed(format!("reading from the editor failed: {}", ErrorChain(&error))))?;
            let line = match line {
                InputLine::Whole(line) => line,
                InputLine::TooLong(begin) => {
                    self.refuse_long(&begin).await;
                    continue;
                }
                InputLine::End => return Ok(()),
            };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(message) => match self.sort(message) {
                    Ok(Some(message)) => {
                        if received.send(message).await.is_err() {
                            return Ok(());
                        }
                    }
                    Ok(None) => {}
                    Err(error) => self.reply(Value::Null, Err(error)).await,
                },
                Err(error) => {
                    let message = format!("a line is no JSON: {error}");
                    self.reply(Value::Null, Err(AcpError { code: -32700, message, data: Value::Null })).await;
                }
            }
        }
    }

    /// Refuses a message that is too long, of which this is the beginning.
    async fn refuse_long(&self, begin: &[u8]) {
        let message =
            format!("a message has at most {LONGEST} bytes, and this one has more: leave out what it can do without");
        let found = MessageHead::of(begin);
        if found.has_method {
            let error = AcpError { code: -32600, message, data: Value::Null };
            return self.reply(found.id, Err(error)).await;
        }
        match found.id.as_u64().and_then(|id| self.waiting().remove(&id)) {
            // Nobody waits any more where it fails.
            Some(answer) => _ = answer.send(Err(message)),
            None => self.reply(Value::Null, Err(AcpError { code: -32600, message, data: Value::Null })).await,
        }
    }

    /// Gives an answer to whoever waits for it, and returns anything else.
    fn sort(&self, message: Value) -> Result<Option<IncomingMessage>, AcpError> {
        let invalid = |message: &str| AcpError { code: -32600, message: message.to_owned(), data: Value::Null };
        let Value::Object(mut message) = message else {
            return Err(invalid("a message is an object"));
        };
        let id = message.remove("id").unwrap_or_default();
        if let Some(Value::String(method)) = message.remove("method") {
            let params = message.remove("params").unwrap_or_default();
            return Ok(Some(match id {
                Value::Null => IncomingMessage::Notification { method, params },
                id => IncomingMessage::Request { id, method, params },
            }));
        }
        let Some(id) = id.as_u64() else {
            return Err(invalid("a message has a method, or the id of a request"));
        };
        // One that nobody waits for came too late.
        if let Some(answer) = self.waiting().remove(&id) {
            let result = match message.remove("error") {
                Some(error) => Err(error.to_string()),
                None => Ok(message.remove("result").unwrap_or_default()),
            };
            let _ = answer.send(result);
        }
        Ok(None)
    }
}

/// Line of the editor.
#[derive(Debug, PartialEq, Eq)]
enum InputLine {
    Whole(Vec<u8>),
    /// Its beginning. The rest was skipped.
    TooLong(Vec<u8>),
    End,
}

/// Reads a line of at most `longest` bytes.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin), longest: usize) -> io::Result<InputLine> {
    let mut line = Vec::new();
    let most = u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(1);
    (&mut *input).take(most).read_until(b'\n', &mut line).await?;
    if line.len() <= longest || line.ends_with(b"\n") {
        return Ok(if line.is_empty() { InputLine::End } else { InputLine::Whole(line) });
    }
    line.truncate(LOOKED_AT);
    line.shrink_to_fit();
    loop {
        let more = input.fill_buf().await?;
        let end = more.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
        let (skipped, is_last) = (end.unwrap_or(more.len()), end.is_some() || more.is_empty());
        input.consume(skipped);
        if is_last {
            return Ok(InputLine::TooLong(line));
        }
    }
}

/// What the beginning of a message tells of it.
#[derive(Debug, Default)]
struct MessageHead {
    id: Value,
    has_method: bool,
}

impl MessageHead {
    fn of(begin: &[u8]) -> Self {
        let mut head = Self::default();
        // The message breaks off.
        let _ = serde_json::Deserializer::from_slice(begin).deserialize_map(&mut head);
        head
    }
}

impl<'de> Visitor<'de> for &mut MessageHead {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            match &*name {
                "id" => self.id = members.next_value()?,
                name => {
                    self.has_method |= name == "method";
                    members.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Forgets a request that is not waited for any more.
struct ForgetOnDrop<'a> {
    connection: &'a AcpConnection,
    id: u64,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.connection.waiting().remove(&self.id);
    }
}

async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<String>,
) -> Result<(), ProblemDetails> {
    while let Some(message) = outgoing.recv().await {
        let written = async {
            output.write_all(message.as_bytes()).await?;
            output.flush().await
        };
        written.await.map_err(|error| {
            ProblemDetails::new("protocol-violation", format!("writing to the editor failed: {}", ErrorChain(&error)))
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_that_are_no_messages_are_answered_and_the_next_is_read() {
        let (received, mut messages) = mpsc::channel(1);
        let (mut out, output) = tokio::io::duplex(4096);
        let lines: &[u8] = b"[1]\n\"a\"\nnull\n{}\n{\"id\":1}\n{\n{\"id\":[],\"method\":\"a\"}\n";
        let (connection, _ends) = AcpConnection::start(lines, output, received);
        let message = messages.recv().await;
        assert!(
            matches!(message, Some(IncomingMessage::Request { id: Value::Array(_), params: Value::Null, .. })),
            "a request with an id of its own"
        );
        connection.reply(json!(1), Ok(Value::Null)).await;
        let mut answers = BufReader::new(&mut out).lines();
        for wanted in [-32600, -32600, -32600, -32600, -32700] {
            let answer: Value =
                serde_json::from_str(&answers.next_line().await.expect("read").expect("a line")).expect("JSON");
            assert_eq!(answer["error"]["code"], wanted, "{answer}");
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_refused_and_the_next_is_read() {
        let (received, mut messages) = mpsc::channel(1);
        let (mut out, output) = tokio::io::duplex(4096);
        let (mut editor, input) = tokio::io::duplex(64 * 1024);
        let (_connection, _ends) = AcpConnection::start(input, output, received);
        let writes = tokio::spawn(async move {
            let filler = vec![b'x'; LONGEST];
            for begin in [r#"{"jsonrpc":"2.0","id":"p-1","method":"session/prompt","params":""#, r#"{"params":""#] {
                editor.write_all(begin.as_bytes()).await.expect("written");
                editor.write_all(&filler).await.expect("written");
                editor.write_all(b"\"}\n").await.expect("written");
            }
            editor.write_all(b"{\"id\":2,\"method\":\"next\"}\n").await.expect("written");
            editor
        });
        let mut answers = BufReader::new(&mut out).lines();
        for id in [json!("p-1"), Value::Null] {
            let answer = answers.next_line().await.expect("read").expect("a line");
            let answer: Value = serde_json::from_str(&answer).expect("JSON");
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&id, &json!(-32600)), "{answer}");
        }
        let message = messages.recv().await;
        assert!(matches!(message, Some(IncomingMessage::Request { method, .. }) if method == "next"));
        writes.await.expect("written");
    }

    #[tokio::test]
    async fn lines_are_bounded() {
        let mut input = BufReader::new(&b"123\n1234\n12345\n\n12"[..]);
        let mut lines = Vec::new();
        loop {
            match next_line(&mut input, 4).await.expect("read") {
                InputLine::End => break,
                line => lines.push(line),
            }
        }
        let whole = |text: &str| InputLine::Whole(text.as_bytes().to_vec());
        let long = InputLine::TooLong(b"12345".to_vec());
        assert_eq!(lines, [whole("123\n"), whole("1234\n"), long, whole("\n"), whole("12")]);
        let mut input = BufReader::new(&b"123456"[..]);
        assert_eq!(next_line(&mut input, 4).await.expect("read"), InputLine::TooLong(b"12345".to_vec()));
    }

    #[test]
    fn a_message_that_breaks_off_has_a_head() {
        for (begin, id, has_method) in [
            (r#"{"jsonrpc":"2.0","id":7,"method":"a","params":{"x":["#, json!(7), true),
            (r#"{"method":"a","params":{"id":8"#, Value::Null, true),
            (r#"{"id":9,"result":{"#, json!(9), false),
            (r#"["id""#, Value::Null, false),
        ] {
            let head = MessageHead::of(begin.as_bytes());
            assert_eq!((head.id, head.has_method), (id, has_method), "{begin}");
        }
    }
}
