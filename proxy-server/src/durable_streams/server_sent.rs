//! Reading by server-sent events.

use std::time::Duration;

use axum::{body::Bytes, response::Response};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use proxy_manager::is_json;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use super::{
    headers::{self, DATA_ENCODING},
    messages, page,
    source::{StreamReader, StreamSource},
    unknown,
};
use crate::{
    requests::RouteResult,
    stream::{EVENT_STREAM, response},
};

/// Time after which the answer ends, and the client comes back.
const CONNECTION: Duration = Duration::from_secs(60);
/// Time that a slow client has to take the rest.
const GRACE: Duration = Duration::from_secs(30);

/// Form of a stream's content in events.
#[derive(Clone, Copy)]
enum DataForm {
    Messages,
    Text,
    Base64,
}

/// Answers with the content after `from`, as it comes.
pub(super) fn stream(path: &str, stream: StreamSource, from: u64, cursor: Option<String>) -> RouteResult<Response> {
    let state = stream.state().ok_or_else(|| unknown(path))?;
    let is_text = state.content_type.trim_start().get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case("text/"));
    let form = match is_text {
        _ if is_json(&state.content_type) => DataForm::Messages,
        true => DataForm::Text,
        false => DataForm::Base64,
    };
    let reader = stream.reader(from)?;
    let (sender, mut response) = response(EVENT_STREAM);
    headers::insert(&mut response, [("cache-control", "no-cache".to_owned())]);
    if matches!(form, DataForm::Base64) {
        headers::insert(&mut response, [(DATA_ENCODING, "base64".to_owned())]);
    }
    tokio::spawn(async move {
        let until = Instant::now() + CONNECTION;
        // A client that takes nothing holds what was read for it no longer than this.
        _ = timeout_at(until + GRACE, send(sender, stream, reader, from, cursor, form, until)).await;
    });
    Ok(response)
}

async fn send(
    sender: mpsc::Sender<Bytes>,
    stream: StreamSource,
    mut reader: StreamReader,
    mut from: u64,
    cursor: Option<String>,
    form: DataForm,
    until: Instant,
) {
    let mut is_told = false;
    loop {
        // A stream that is gone has no more to tell.
        let Some(state) = stream.state() else { return };
        let mut text = Vec::new();
        let is_last = from >= state.tail;
        if is_last && (!is_told || state.is_closed) {
            push_control(&mut text, from, cursor.as_deref(), true, state.is_closed);
            is_told = true;
        }
        if !text.is_empty() && sender.send(text.into()).await.is_err() || is_last && state.is_closed {
            return;
        }
        let next = tokio::select! {
            next = timeout_at(until, reader.next(from, state.tail)) => next,
            () = sender.closed() => return,
        };
        let Ok(Ok(next)) = next else { return };
        let mut text = Vec::new();
        match next {
            Some((content, next)) if next > from => {
                from = next;
                let Some(state) = stream.state() else { return };
                let is_last = from >= state.tail;
                push_data(&mut text, content, form);
                push_control(&mut text, from, cursor.as_deref(), is_last, is_last && state.is_closed);
                is_told = is_last;
                if sender.send(text.into()).await.is_err() || is_last && state.is_closed {
                    return;
                }
            }
            Some(_) => {}
            None if stream.may_go_on() => {
                tokio::select! {
                    () = tokio::time::sleep_until(until) => {}
                    () = sender.closed() => {}
                }
                return;
            }
            None => {
                push_control(&mut text, from, cursor.as_deref(), true, true);
                _ = sender.send(text.into()).await;
                return;
            }
        }
    }
}

/// Adds an event with content. Its lines may end in any way that server-sent events know.
fn push_data(text: &mut Vec<u8>, content: Vec<u8>, form: DataForm) {
    let data = match form {
        DataForm::Messages => messages::array(content),
        DataForm::Text => String::from_utf8_lossy(&content).replace("\r\n", "\n").replace('\r', "\n").into_bytes(),
        DataForm::Base64 => STANDARD.encode(content).into_bytes(),
    };
    text.extend_from_slice(b"event: data\n");
    for line in data.split(|byte| *byte == b'\n') {
        text.extend_from_slice(b"data:");
        // The reader takes one space away.
        if line.first() == Some(&b' ') {
            text.push(b' ');
        }
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.push(b'\n');
}

/// Adds an event that says where the client is.
fn push_control(text: &mut Vec<u8>, next: u64, cursor: Option<&str>, is_last: bool, is_closed: bool) {
    let mut control = json!({ "streamNextOffset": headers::offset(next) });
    if is_closed {
        control["streamClosed"] = true.into();
    } else {
        control["streamCursor"] = page::cursor(cursor).to_string().into();
    }
    if is_last {
        control["upToDate"] = true.into();
    }
    text.extend_from_slice(format!("event: control\ndata:{control}\n\n").as_bytes());
}
