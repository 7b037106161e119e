//! Subscriptions of one connection.

use std::collections::HashMap;

use axum::body::Body;
use futures_util::StreamExt as _;
use tokio::{sync::mpsc, task::AbortHandle};
use tokio_tungstenite::tungstenite::Message;

use super::send_text;
use crate::{ProblemDetails, stream::is_problem_line};

/// Most subscriptions of a connection.
const MOST: usize = 256;

/// Bytes of events in one message, unless one is longer.
const MESSAGE: usize = 256 * 1024;

/// Subscriptions by number. Those that have ended by themselves are forgotten now and then.
pub(super) struct SocketSubscriptions {
    out: mpsc::Sender<Message>,
    last: u64,
    running: HashMap<u64, AbortHandle>,
}

impl SocketSubscriptions {
    pub(super) fn new(out: mpsc::Sender<Message>) -> Self {
        Self { out, last: 0, running: HashMap::new() }
    }

    /// Checks that there may be one more.
    ///
    /// # Errors
    /// `overloaded`.
    pub(super) fn check_room(&mut self) -> Result<(), ProblemDetails> {
        self.running.retain(|_, task| !task.is_finished());
        if self.running.len() < MOST {
            return Ok(());
        }
        let detail = format!("a connection has at most {MOST} subscriptions: end one, or connect again");
        Err(ProblemDetails::new("overloaded", detail))
    }

    /// Returns the number of the next one.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sends the lines of `body` as events of this subscription.
    pub(super) fn begin(&mut self, number: u64, body: Body) {
        let task = tokio::spawn(pass_on(number, body, self.out.clone()));
        self.running.insert(number, task.abort_handle());
    }

    /// Ends one. Returns false if there is none of this number.
    pub(super) fn end(&mut self, number: u64) -> bool {
        let Some(task) = self.running.remove(&number) else { return false };
        task.abort();
        true
    }
}

impl Drop for SocketSubscriptions {
    fn drop(&mut self) {
        self.running.values().for_each(AbortHandle::abort);
    }
}

/// Sends events as they come, and then that there are no more.
async fn pass_on(number: u64, body: Body, out: mpsc::Sender<Message>) {
    let mut chunks = body.into_data_stream();
    let (mut rest, mut problem): (Vec<u8>, Option<Vec<u8>>) = (Vec::new(), None);
    while let Some(Ok(chunk)) = chunks.next().await {
        rest.extend_from_slice(&chunk);
        let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') else { continue };
        let lines: Vec<u8> = rest.drain(..=end).collect();
        for message in messages(number, &lines, &mut problem) {
            if !send_text(&out, message).await {
                return;
            }
        }
    }
    let ended = match problem {
        None => format!("{{\"subscription\":{number},\"ended\":true}}").into_bytes(),
        Some(problem) => {
            [format!("{{\"subscription\":{number},\"ended\":true,\"problem\":").as_bytes(), &problem, b"}"].concat()
        }
    };
    send_text(&out, ended).await;
}

/// Puts lines into messages; a line that is a problem, the last of its stream, is set aside.
fn messages(number: u64, lines: &[u8], problem: &mut Option<Vec<u8>>) -> Vec<Vec<u8>> {
    let head = format!("{{\"subscription\":{number},\"events\":[");
    let (mut messages, mut text) = (Vec::new(), Vec::new());
    for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if is_problem_line(line) {
            *problem = Some(line.to_vec());
            continue;
        }
        if text.len() + line.len() > MESSAGE && !text.is_empty() {
            messages.push(finish(std::mem::take(&mut text)));
        }
        text.extend_from_slice(if text.is_empty() { head.as_bytes() } else { b"," });
        text.extend_from_slice(line);
    }
    if !text.is_empty() {
        messages.push(finish(text));
    }
    messages
}

fn finish(mut text: Vec<u8>) -> Vec<u8> {
    text.extend_from_slice(b"]}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &str, problem: &mut Option<Vec<u8>>) -> Vec<String> {
        let messages = messages(3, lines.as_bytes(), problem);
        messages.into_iter().map(|text| String::from_utf8(text).expect("UTF-8")).collect()
    }

    #[test]
    fn lines_are_put_together_and_long_ones_apart() {
        let mut problem = None;
        assert_eq!(texts("{\"a\":1}\n{\"b\":2}\n", &mut problem), [r#"{"subscription":3,"events":[{"a":1},{"b":2}]}"#]);
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MESSAGE));
        assert_eq!(texts(&format!("{{}}\n{long}\n{{}}\n"), &mut problem).len(), 3);
        assert_eq!((texts("", &mut problem), problem), (Vec::new(), None));
    }

    #[test]
    fn a_problem_is_no_event() {
        let line = serde_json::to_string(&ProblemDetails::usage("no")).expect("JSON");
        let mut problem = None;
        assert_eq!(texts(&format!("{{}}\n{line}\n"), &mut problem), [r#"{"subscription":3,"events":[{}]}"#]);
        assert_eq!(problem, Some(line.into_bytes()));
    }
}
