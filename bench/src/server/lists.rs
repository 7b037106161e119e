//! Lists of many sessions: pages of those of the server, and of all records.

use std::{path::Path, sync::Arc, time::Instant};

use serde_json::json;
use tokio::{sync::Semaphore, task::JoinSet};

use super::{
    Measured, ServerOptions,
    http::ApiConnection,
    served::{MeasuredServer, memory_mib},
};
use crate::{
    error::{Error, Result},
    stats::median,
};

/// Requests at once while sessions are made.
const AT_ONCE: usize = 8;
/// Lists of each kind.
const LISTS: usize = 100;
/// Entries of a page.
const PAGE: usize = 100;
/// Lists before anything is measured.
const WARM_UP: usize = 50;

/// # Errors
/// The server does not start; a session cannot be started or ended.
pub(super) async fn measure(program: &Path, options: &ServerOptions) -> Result<Measured> {
    let server = MeasuredServer::agent_proxy(program)?;
    let live = options.live()?.min(options.sessions);
    make(&server, options.sessions - live, true).await?;
    make(&server, live, false).await?;
    let mut api = ApiConnection::open(&server.api).await?;
    let mut figures = Measured::new();
    for warm_up in [true, false] {
        let before = memory_mib(server.pid())?;
        for (name, path) in [
            ("sessions_ms", "/v1/sessions"),
            ("latest_ms", "/v1/sessions?sort=-startedAt"),
            ("records_ms", "/v1/records"),
        ] {
            let mut times = Vec::new();
            for number in 0..if warm_up { WARM_UP } else { LISTS } {
                let separator = if path.contains('?') { '&' } else { '?' };
                let begin = Instant::now();
                let (text, status) = api.bytes("GET", &format!("{path}{separator}limit={PAGE}"), None).await?;
                times.push(begin.elapsed().as_secs_f64() * 1e3);
                if number == 0 {
                    let count = serde_json::from_slice::<Vec<serde_json::Value>>(&text).map_or(0, |page| page.len());
                    if !status.is_success() || count != PAGE.min(options.sessions) {
                        return Err(Error::answer(path, format!("answers {status} with {count} entries")));
                    }
                }
            }
            figures.extend(median(&times).map(|time| (name.to_owned(), time)));
        }
        figures.insert("lists_grown_mib".into(), memory_mib(server.pid())? - before);
    }
    let last = api.json("GET", "/v1/health", None).await?;
    figures.insert("lists_live".into(), last["sessions"].as_f64().unwrap_or_default());
    figures.insert("lists_memory_mib".into(), memory_mib(server.pid())?);
    Ok(figures)
}

/// Starts sessions; ends them at once where they are of the past.
async fn make(server: &MeasuredServer, count: usize, ends: bool) -> Result<()> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut made = JoinSet::new();
    for number in 0..count {
        let (room, to) = (room.clone(), server.api.clone());
        let cwd = server.directory.path().to_owned();
        made.spawn(async move {
            let _place = room.acquire().await;
            let mut api = ApiConnection::open(&to).await?;
            let id = format!("{}-{number:05}", if ends { "past" } else { "live" });
            let session = json!({ "sessionId": id, "agent": "command", "command": ["cat"], "cwd": cwd });
            api.json("POST", "/v1/sessions", Some(&session)).await?;
            if ends {
                api.json("POST", &format!("/v1/sessions/{id}/kill"), Some(&json!({ "graceMs": 0 }))).await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(one) = made.join_next().await {
        one.map_err(Error::system("joining a start"))??;
    }
    Ok(())
}
