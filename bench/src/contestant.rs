//! Contestant: a separate process that measures one implementation. The floor, Node and the product are one each,
//! so that each has a clean process, and waits while the others are measured.
//!
//! A request is one line of JSON on its standard input, the answer one line on its standard output.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    kill::method::KillMethod,
    programs,
};

/// Longest time for one measurement.
const DEADLINE: Duration = Duration::from_secs(30);

/// Measurement to take.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasureRequest {
    /// Time from nothing to a running agent, `count` times one after the other; answers `start_ms`, the median.
    Start { count: u32 },
    /// Memory of `count` idle ones at once, `settle_ms` after the last was ready; answers `idle_pss_kib`, the mean.
    Idle { count: u32, settle_ms: u64 },
    /// Round trips, one after the other; answers `rtt_us`, the mean.
    Rtt { count: u32, warm_up: u32 },
    /// Texts of `length` bytes from the session's process to the host; answers `events_per_s_proxy`.
    Events { count: u64, warm_up: u64, length: usize },
    /// A kill of a tree; answers `kill_ms` and `left`.
    Kill { method: KillMethod, count: u32 },
    /// Lines of `length` bytes from the agent, which is `program`, to the host; answers `events_per_s_stdout`.
    Stdout { count: u64, warm_up: u64, length: usize, program: Vec<String> },
}

/// Figures by name.
pub(crate) type MeasuredFigures = BTreeMap<String, f64>;

/// Result of a measurement.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MeasureResponse {
    /// The measurement succeeded.
    Figures(MeasuredFigures),
    /// The measurement failed.
    Error(String),
}

/// Runs the contestant's side: answers each request with `measure` until its input ends.
///
/// # Errors
/// When a request cannot be parsed, or nobody reads the answers.
pub(crate) fn serve(mut measure: impl FnMut(MeasureRequest) -> Result<MeasuredFigures>) -> Result<()> {
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Error::system("reading a request"))?;
        let request = serde_json::from_str(&line).map_err(Error::system("understanding a request"))?;
        let answer =
            measure(request).map_or_else(|error| MeasureResponse::Error(error.to_string()), MeasureResponse::Figures);
        let answer = serde_json::to_string(&answer).map_err(Error::system("writing an answer"))?;
        writeln!(io::stdout().lock(), "{answer}").map_err(Error::system("writing an answer"))?;
    }
    Ok(())
}

/// Contestant as seen by the bench that asks it.
#[derive(Debug)]
pub(crate) struct Contestant {
    name: &'static str,
    child: Child,
    requests: Option<ChildStdin>,
    answers: Receiver<io::Result<String>>,
}

impl Contestant {
    /// Starts a contestant. `Ok(None)` if its program is missing.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start(name: &'static str, program: &OsStr, args: &[OsString]) -> Result<Option<Self>> {
        let mut child = match programs::start(program, args) {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::system(format!("starting {}", program.display()))(error)),
        };
        let requests = child.stdin.take();
        // One answer per request: the thread never waits for room.
        let (send, answers) = sync_channel(1);
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || BufReader::new(stdout).lines().try_for_each(|line| send.send(line)));
        }
        Ok(Some(Self { name, child, requests, answers }))
    }

    /// Returns the contestant's name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Requests a measurement.
    ///
    /// # Errors
    /// The contestant's own; when it ends or takes too long.
    pub(crate) fn ask(&mut self, request: &MeasureRequest) -> Result<MeasuredFigures> {
        let mut line = serde_json::to_vec(request).map_err(Error::system("writing a request"))?;
        line.push(b'\n');
        let Some(requests) = &mut self.requests else { return Err(Error::answer(self.name, "takes no requests")) };
        requests.write_all(&line).map_err(Error::system(format!("asking {}", self.name)))?;
        let answer = match self.answers.recv_timeout(DEADLINE) {
            Ok(answer) => answer.map_err(Error::system(format!("reading what {} answers", self.name)))?,
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::Deadline { operation: format!("{}: {request:?}", self.name), after: DEADLINE });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::answer(self.name, format!("ended instead of answering {request:?}")));
            }
        };
        match serde_json::from_str(&answer) {
            Ok(MeasureResponse::Figures(figures)) => Ok(figures),
            Ok(MeasureResponse::Error(reason)) => {
                Err(Error::answer(self.name, format!("failed at {request:?}: {reason}")))
            }
            Err(_) => Err(Error::answer(self.name, format!("answered {answer:?} to {request:?}"))),
        }
    }
}

impl Drop for Contestant {
    /// Closes the contestant's input, which ends it; kills it if it does not end within [`programs::PATIENCE`].
    fn drop(&mut self) {
        self.requests = None;
        let begin = Instant::now();
        while begin.elapsed() < programs::PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // Its own children end when they lose it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
