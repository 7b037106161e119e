//! The mock model as a program, to try real agents by hand: `mock-model [PORT [LOG]]`.
//!
//! It prints its base URL (without `/v1`) as one line, and lives until its standard input closes. PORT 0, or none, is any
//! that is free. LOG is a file to which each request is added as a line of JSON, when it is done.

use std::{
    fs::{File, OpenOptions},
    io::Write,
};

use agent_proxy_tests::mock_model::{MockModel, Outcome, Request};
use serde_json::json;
use tokio::sync::oneshot;

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the URL is for whoever started it")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let port = args.next().map_or(0, |port| port.parse().expect("usage: mock-model [PORT [LOG]]"));
    let log = args.next().map(|path| OpenOptions::new().create(true).append(true).open(path).expect("the log"));
    let model = MockModel::start_on(port).await.expect("a port of 127.0.0.1");
    println!("{}", model.root_url());
    let (closed, close) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An error ends it, as the end does.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(closed);
    });
    tokio::select! {
        _ = close => {}
        () = keep(&model, log) => {}
    }
}

/// Writes each request to the log, in the order in which they came.
async fn keep(model: &MockModel, log: Option<File>) {
    let Some(mut log) = log else { return std::future::pending().await };
    for done in 0.. {
        let ended = |request: &Request| request.outcome != Outcome::Open;
        let requests = model.until(|requests| requests.get(done).is_some_and(ended)).await;
        let request = &requests[done];
        let line = json!({
            "path": request.path, "authorization": request.authorization, "outcome": format!("{:?}", request.outcome),
            "body": request.body,
        });
        writeln!(log, "{line}").expect("the log");
    }
}
