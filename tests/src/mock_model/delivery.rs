//! How answers travel: in pieces, with pauses, and not always to the end.

use std::{io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use http_body_util::channel::{Channel, Sender};

use super::{Outcome, Server};

/// Events that wait for the client.
const QUEUE: usize = 16;
/// Before a cut, for what was sent to leave.
const BEFORE_CUT: Duration = Duration::from_millis(50);

/// Server-sent events, each as it comes.
pub(super) fn stream(
    mut events: Vec<String>,
    pause: Option<Duration>,
    cut: bool,
    server: Arc<Server>,
    number: usize,
) -> Response {
    if cut {
        events.truncate(events.len() / 2);
    }
    deliver("text/event-stream", events, pause, cut, server, number)
}

/// A value in one piece; if it is cut, its first half.
pub(super) fn whole(mut value: String, cut: bool, server: Arc<Server>, number: usize) -> Response {
    if cut {
        value.truncate(value.floor_char_boundary(value.len() / 2));
    }
    deliver("application/json", vec![value], None, cut, server, number)
}

fn deliver(
    kind: &'static str,
    pieces: Vec<String>,
    pause: Option<Duration>,
    cut: bool,
    server: Arc<Server>,
    number: usize,
) -> Response {
    let (sender, body) = Channel::<Bytes, io::Error>::new(QUEUE);
    tokio::spawn(async move {
        let mut ended = server.ended.clone();
        let outcome = tokio::select! {
            outcome = send(sender, pieces, pause, cut) => outcome,
            // The sender is gone before it was done: that cuts the connection.
            _ = ended.changed() => Outcome::Cut,
        };
        server.end(number, outcome);
    });
    ([(header::CONTENT_TYPE, kind)], Body::new(body)).into_response()
}

async fn send(
    mut sender: Sender<Bytes, io::Error>,
    pieces: Vec<String>,
    pause: Option<Duration>,
    cut: bool,
) -> Outcome {
    for piece in pieces {
        if sender.send_data(piece.into()).await.is_err() {
            return Outcome::Dropped;
        }
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
    if cut {
        tokio::time::sleep(BEFORE_CUT).await;
        sender.abort(io::Error::other("cut by the script"));
        return Outcome::Cut;
    }
    Outcome::Answered
}
