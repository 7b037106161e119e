//! Appends to Durable Streams over HTTP, beside other servers of the protocol: `bench/streams` starts them.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    str::FromStr,
    time::{Duration, Instant},
};

use clap::Args;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    error::{Error, Result},
    facts,
    stats::median,
};

/// Appends in a second that ours has to reach.
const LEAST_RATE: f64 = 15_000.0;
/// Times the best of the others that ours has to reach.
const LEAST_TIMES: f64 = 3.0;
/// Longest time for an answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// Server that is measured: `NAME=ADDRESS:PORT/PATH`, and `#TOKEN` behind it.
#[derive(Clone, Debug)]
struct StreamServer {
    name: String,
    address: SocketAddr,
    root: String,
    token: Option<String>,
}

impl FromStr for StreamServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no server: give NAME=ADDRESS:PORT/PATH[#TOKEN]");
        let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (rest, token) = rest.split_once('#').map_or((rest, None), |(rest, token)| (rest, Some(token.to_owned())));
        let (address, root) = rest.split_once('/').ok_or_else(wrong)?;
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Self { name: name.to_owned(), address, root: format!("/{root}"), token })
    }
}

/// Settings of a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct StreamsOptions {
    /// Servers, ours first
    #[arg(required = true)]
    servers: Vec<StreamServer>,
    /// Connections, each with a stream of its own
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a message
    #[arg(long, default_value_t = 200)]
    bytes: usize,
    /// Time of a measurement
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Alternations of the servers; the figures are medians
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Connection that carries one request after the other.
struct StreamConnection {
    socket: TcpStream,
    head: String,
    read: Vec<u8>,
}

impl StreamConnection {
    async fn open(server: &StreamServer) -> Result<Self> {
        let socket = TcpStream::connect(server.address)
            .await
            .map_err(Error::system(format!("connecting to {}", server.name)))?;
        socket.set_nodelay(true).map_err(Error::system("configuring a connection"))?;
        let token =
            server.token.as_ref().map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let head = format!("host: {}\r\n{token}content-type: application/json\r\n", server.address);
        Ok(Self { socket, head, read: Vec::with_capacity(4096) })
    }

    /// Sends a request, and returns the status and the body of the answer.
    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        let request = format!("{method} {path} HTTP/1.1\r\n{}content-length: {}\r\n\r\n{body}", self.head, body.len());
        let what = || format!("{method} {path}");
        let answer = async {
            self.socket.write_all(request.as_bytes()).await?;
            self.read.clear();
            loop {
                if let Some(answer) = parse(&self.read) {
                    return Ok(answer);
                }
                if self.socket.read_buf(&mut self.read).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
        };
        let late = |_| Error::Deadline { operation: what(), after: ANSWER_TIME };
        timeout(ANSWER_TIME, answer).await.map_err(late)?.map_err(Error::system(what()))
    }
}

/// Takes an answer apart once all of it is there.
fn parse(read: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = read.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = str::from_utf8(&read[..end]).ok()?;
    let status = head.get(9..12)?.parse().ok()?;
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let header =
        |wanted: &str| lines.clone().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.trim());
    let body = &read[end + 4..];
    if status == 204 {
        return Some((status, Vec::new()));
    }
    if header("transfer-encoding").is_some() {
        return body.ends_with(b"0\r\n\r\n").then(|| (status, body.to_vec()));
    }
    let length: usize = lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?.1.trim().parse().ok()?;
    (body.len() >= length).then(|| (status, body.to_vec()))
}

/// Appends for a time on one connection. The reference server, while it writes, does not always find a stream. Returns the times of the
/// answers, in milliseconds, and the number of these failures.
async fn append(server: StreamServer, path: String, message: String, until: Instant) -> Result<(Vec<f64>, usize)> {
    let mut connection = StreamConnection::open(&server).await?;
    let (mut times, mut failures) = (Vec::new(), 0);
    while Instant::now() < until {
        let begin = Instant::now();
        let (status, body) = connection.ask("POST", &path, &message).await?;
        if status == 404 {
            failures += 1;
            continue;
        }
        if !matches!(status, 200 | 204) {
            return Err(Error::answer(server.name, format!("answers {status}: {}", String::from_utf8_lossy(&body))));
        }
        times.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok((times, failures))
}

/// Measures one server once: appends in a second, and the 99th percentile of their times in milliseconds. What it acknowledged has to be
/// in the first stream, neither more nor less; of what it said to have failed there may be some.
async fn measure(server: &StreamServer, options: &StreamsOptions, round: u32) -> Result<(f64, f64)> {
    let path = |index: usize| format!("{}/bench-{round}-{index}", server.root);
    let mut connection = StreamConnection::open(server).await?;
    for index in 0..options.connections {
        let (status, body) = connection.ask("PUT", &path(index), "").await?;
        if status != 201 {
            return Err(Error::answer(
                &server.name,
                format!("answers a PUT with {status}: {}", String::from_utf8_lossy(&body)),
            ));
        }
    }
    let filler = "x".repeat(options.bytes.saturating_sub(r#"{"text":""}"#.len()));
    let message = format!(r#"{{"text":"{filler}"}}"#);
    let begin = Instant::now();
    let until = begin + Duration::from_secs(options.seconds);
    let tasks: Vec<_> = (0..options.connections)
        .map(|index| tokio::spawn(append(server.clone(), path(index), message.clone(), until)))
        .collect();
    let (mut times, mut first) = (Vec::new(), None);
    for task in tasks {
        let (own, failures) = task.await.map_err(|error| Error::answer("a connection", error.to_string()))??;
        first.get_or_insert(own.len()..=own.len() + failures);
        times.extend(own);
    }
    let first = first.unwrap_or(0..=0);
    let rate = times.len() as f64 / begin.elapsed().as_secs_f64();
    let (mut found, mut offset) = (0, "-1".to_owned());
    while found < *first.start() {
        let mut reader = StreamConnection::open(server).await?;
        reader.head.push_str("connection: close\r\n");
        let (status, body) = reader.ask("GET", &format!("{}?offset={offset}", path(0)), "").await?;
        let here = memchr::memmem::find_iter(&body, br#"{"text""#).count();
        let head = String::from_utf8_lossy(&reader.read).to_lowercase();
        let next =
            head.lines().find_map(|line| line.strip_prefix("stream-next-offset:")).map(|next| next.trim().to_owned());
        let (true, Some(next)) = (status == 200 && here > 0, next) else {
            return Err(Error::answer(&server.name, format!("acknowledged {first:?} appends, and has {found}")));
        };
        (found, offset) = (found + here, next);
    }
    if !first.contains(&found) {
        return Err(Error::answer(&server.name, format!("acknowledged {first:?} appends, and has {found}")));
    }
    times.sort_by(f64::total_cmp);
    Ok((rate, times.get(times.len() * 99 / 100).copied().unwrap_or_default()))
}

/// Measures the servers in turn, and prints the result.
///
/// # Errors
/// A server refuses an append, or lacks one that it acknowledged.
pub(crate) fn run(as_json: bool, check: bool, options: &StreamsOptions) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::system("making a runtime"))?;
    let mut samples: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for round in 0..options.rounds {
        for server in &options.servers {
            let (rate, late) = runtime.block_on(measure(server, options, round))?;
            let (rates, lates) = samples.entry(&server.name).or_default();
            rates.push(rate);
            lates.push(late);
        }
    }
    let figure = |name: &str| {
        let (rates, lates) = &samples[name];
        (median(rates).unwrap_or_default(), median(lates).unwrap_or_default())
    };
    let ours = figure(&options.servers[0].name).0;
    let best = options.servers[1..].iter().map(|server| figure(&server.name).0).fold(0.0, f64::max);
    let reached = ours >= LEAST_RATE && ours >= LEAST_TIMES * best;
    let mut out = io::stdout().lock();
    let written = if as_json {
        let rows = options.servers.iter().map(|server| {
            let (rate, late) = figure(&server.name);
            json!({ "server": server.name, "appendsPerSecond": rate.round(), "p99Ms": late })
        });
        writeln!(out, "{}", json!({ "streams": rows.collect::<Vec<_>>(), "reached": reached }))
    } else {
        let mut lines = options.servers.iter().map(|server| {
            let (rate, late) = figure(&server.name);
            format!("{:<28} {rate:>12.0} {late:>10.1}", server.name)
        });
        writeln!(out, "{:<28} {:>12} {:>10}", "", "appends/s", "p99, ms")
            .and_then(|()| lines.try_for_each(|line| writeln!(out, "{line}")))
            .and_then(|()| {
                let StreamsOptions { connections, bytes, seconds, rounds, .. } = options;
                let verdict = if reached { "reached" } else { "MISSED" };
                writeln!(
                    out,
                    "\n{connections} connections and streams, {bytes} B, {rounds} alternations of {seconds} s; bar: {LEAST_RATE:.0}/s and \
                     {LEAST_TIMES} times the best other, is {:.1} times: {verdict}",
                    ours / best
                )
            })
            .and_then(|()| writeln!(out, "{}", facts::line()))
    };
    written.map_err(Error::system("printing"))?;
    Ok(if check && !reached { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
