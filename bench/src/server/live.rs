//! Live streams: many readers of one session, and one that stalls meanwhile.

use std::{
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use memchr::memmem;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    Measured, ServerOptions,
    http::{ApiConnection, ServerSentEvents},
    served::{MeasuredServer, memory_mib, processor_seconds},
};
use crate::{
    error::{Error, Result},
    programs,
};

/// Time before anything is measured: all memory that a busy session takes is allocated then.
const WARM_UP: Duration = Duration::from_secs(10);
/// Pause between two samples of memory.
const LOOK: Duration = Duration::from_millis(250);
/// Longest time for a reader to get the rest, after the session's end.
const REST: Duration = Duration::from_secs(30);
/// Stream of the readers.
const EVENTS: &str = "/v1/sessions/live/events?type=stream:*&from=latest";

/// What one reader was sent.
#[derive(Debug, Default)]
struct ReaderTally {
    first: Option<u64>,
    last: u64,
    count: u64,
    doubled: u64,
    gaps: u64,
    /// Microseconds from the agent's writing to the reading, of each event.
    latencies: Vec<u32>,
}

impl ReaderTally {
    fn take(&mut self, data: &[u8]) {
        if memmem::find(data, br#""type":"session:gap""#).is_some() {
            self.gaps += 1;
            return;
        }
        let Some((number, at)) = tick(data) else { return };
        self.count += 1;
        if self.first.is_some() && number <= self.last {
            self.doubled += 1;
            return;
        }
        self.first.get_or_insert(number);
        self.last = number;
        self.latencies.push(u32::try_from(now().saturating_sub(at).as_micros()).unwrap_or(u32::MAX));
    }

    /// Events between the first and the last of the session that it was not sent.
    fn lost(&self, last: u64) -> u64 {
        let Some(first) = self.first else { return last };
        (last + 1 - first).saturating_sub(self.count - self.doubled)
    }
}

/// Parses number and time of a line of the agent.
fn tick(data: &[u8]) -> Option<(u64, Duration)> {
    const TEXT: &[u8] = br#""text":""#;
    let text = &data[memmem::find(data, TEXT)? + TEXT.len()..];
    let text = std::str::from_utf8(&text[..memchr::memchr(b'\\', text)?]).ok()?;
    let (number, at) = text.split_once(' ')?;
    Some((number.parse().ok()?, Duration::from_micros(at.parse().ok()?)))
}

/// # Errors
/// The server does not start; a stream breaks off.
pub(super) async fn measure(program: &Path, options: &ServerOptions) -> Result<Measured> {
    let server = MeasuredServer::agent_proxy(program)?;
    let session = json!({
        "sessionId": "live", "agent": "command", "command": programs::ticks_argv(options.rate)?, "verbatim": false,
        "cwd": server.directory.path(), "timeouts": { "silenceMs": null },
    });
    ApiConnection::open(&server.api).await?.json("POST", "/v1/sessions", Some(&session)).await?;

    let mut readers = JoinSet::new();
    for _ in 0..options.subscribers {
        let mut events = ServerSentEvents::open(&server.api, EVENTS).await?;
        readers.spawn(async move {
            let mut tally = ReaderTally::default();
            while events.next(|data| tally.take(data)).await? {}
            Ok::<_, Error>(tally)
        });
    }
    let mut stalled = ServerSentEvents::open(&server.api, EVENTS).await?;
    let mut late = ReaderTally::default();
    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm && stalled.next(|data| late.take(data)).await? {}

    let supervisors = server.supervisors(|process| process.argv.iter().any(|word| word == "ticks"))?;
    let (before, used) = (memory_mib(server.pid())?, processor_seconds(&[server.pid()])?);
    let all_used = processor_seconds(&supervisors)?;
    let (begin, mut peak) = (Instant::now(), before);
    let end = begin + Duration::from_secs(options.seconds);
    while Instant::now() < end {
        sleep_until((Instant::now() + LOOK).min(end)).await;
        peak = peak.max(memory_mib(server.pid())?);
    }
    let seconds = begin.elapsed().as_secs_f64();
    let used = (processor_seconds(&[server.pid()])? - used) / seconds;
    let all_used = (processor_seconds(&supervisors)? - all_used) / seconds;

    // The server has closed a connection that was idle for so long.
    let mut api = ApiConnection::open(&server.api).await?;
    api.json("POST", "/v1/sessions/live/kill", Some(&json!({ "graceMs": 0 }))).await?;
    let late_rest = async {
        while stalled.next(|data| late.take(data)).await? {}
        Ok::<_, Error>(())
    };
    let over = |_| Error::Deadline { operation: "the rest of a stream".into(), after: REST };
    timeout(REST, late_rest).await.map_err(over)??;
    let mut tallies = Vec::new();
    while let Some(tally) = timeout(REST, readers.join_next()).await.map_err(over)? {
        tallies.push(tally.map_err(Error::system("joining a reader"))??);
    }
    // Time for the server to have dropped what it held for them.
    sleep(LOOK).await;
    let last = tallies.iter().map(|tally| tally.last).max().unwrap_or_default();
    let mut latencies: Vec<u32> = tallies.iter_mut().flat_map(|tally| std::mem::take(&mut tally.latencies)).collect();
    latencies.sort_unstable();
    let at = |part: f64| {
        let at = ((latencies.len() as f64 - 1.0) * part) as usize;
        f64::from(latencies.get(at).copied().unwrap_or(u32::MAX)) / 1e3
    };
    let sent: u64 = tallies.iter().map(|tally| tally.count).sum();
    let whole = seconds + WARM_UP.as_secs_f64();
    Ok([
        ("live_per_s", sent as f64 / whole / tallies.len().max(1) as f64),
        ("live_lost", tallies.iter().map(|tally| tally.lost(last)).sum::<u64>() as f64),
        ("live_doubled", tallies.iter().map(|tally| tally.doubled + tally.gaps).sum::<u64>() as f64),
        ("live_cores", used),
        ("live_all_cores", all_used),
        ("live_p50_ms", at(0.5)),
        ("live_p99_ms", at(0.99)),
        ("stalled_grown_mib", peak - before),
        // One gap stands for all that is missing.
        ("stalled_lost", if late.gaps == 1 { 0.0 } else { late.lost(last) as f64 }),
        ("stalled_doubled", late.doubled as f64),
        ("stalled_gaps", late.gaps as f64),
        ("live_memory_mib", peak),
    ]
    .map(|(name, figure)| (name.to_owned(), figure))
    .into())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Vec<u8> {
        format!(r#"{{"offset":"9","payload":{{"text":"{number} 1764094292123456\n"}},"type":"stream:text"}}"#).into()
    }

    #[test]
    fn a_reader_notices_what_is_lost_and_what_comes_twice() {
        let mut tally = ReaderTally::default();
        [3, 4, 4, 6].iter().for_each(|number| tally.take(&event(*number)));
        assert_eq!((tally.first, tally.last, tally.doubled, tally.latencies.len()), (Some(3), 6, 1, 3));
        assert_eq!((tally.lost(6), tally.lost(9)), (1, 4));
        tally.take(br#"{"payload":{"from":"7","to":"9"},"type":"session:gap"}"#);
        assert_eq!((tally.gaps, tally.count), (1, 4));
        assert_eq!(ReaderTally::default().lost(7), 7);
    }
}
