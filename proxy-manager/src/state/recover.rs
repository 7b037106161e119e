//! Ends the processes that a dead manager's sessions left, as named in their journals.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};

use ipc_protocol::{EnvVars, ProcessId, Receipt, SessionId};
use registry::PidFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    StateDir,
    record::{JournalContainer, JournalRecord},
    sweep::{SessionSweep, SweptSession},
};

/// Remains of a session whose supervisors had all died before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveredSession {
    /// Id of the session; `None` if the remains do not name it.
    pub session_id: Option<SessionId>,
    /// Path of its journal, or of its cgroup's directory.
    pub found: PathBuf,
    /// Outcome of the recovery.
    pub outcome: RecoveryOutcome,
    /// Supervisors that were ended too: the session's proxy and its manager's fork server, if these still lived
    /// (stopped, say), and processes below that fork server that belong to no known session.
    pub supervisors: Vec<ProcessId>,
    /// Number of malformed lines in the journal, which were skipped.
    pub damaged_lines: usize,
}

/// Outcome of a session's recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryOutcome {
    /// The processes were ended, or were gone. A receipt that is not empty names those that could not be ended; the
    /// journal then stays for the next manager.
    Ended(Box<Receipt>),
    /// The cgroup of a dead manager's sessions for which no journal was found.
    Swept {
        /// Processes in the group that were ended, with the command lines that could be read.
        ended: Vec<(ProcessId, Option<String>)>,
        /// Processes that are still in the group.
        left: Vec<ProcessId>,
        /// Description of a failure; `None` if the group was emptied and removed.
        failure: Option<String>,
    },
    /// Nothing was to be ended.
    Dropped {
        /// Reason for dropping it.
        reason: String,
    },
}

impl RecoveredSession {
    /// Returns true if nothing is left.
    pub fn is_empty(&self) -> bool {
        match &self.outcome {
            RecoveryOutcome::Ended(receipt) => receipt.is_empty(),
            RecoveryOutcome::Swept { left, failure, .. } => left.is_empty() && failure.is_none(),
            RecoveryOutcome::Dropped { .. } => true,
        }
    }
}

/// Time until nothing is alive, and further time for a proof of that: with tens of thousands of
/// processes a look takes seconds.
const DEADLINE: Duration = Duration::from_secs(10);
/// The same for sessions of this manager, for whose end somebody may wait.
const OWN_DEADLINE: Duration = Duration::from_secs(4);
/// Time for supervisors that outlived their host to end their sessions themselves, in order.
const IN_ORDER: Duration = Duration::from_secs(2);
/// Time between a journal's last write and the death of its writer, in which something may have been forked.
const LAST_NOTE: Duration = Duration::from_secs(1);
/// Between looks.
const INTERVAL: Duration = Duration::from_millis(2);
/// Time to wait for a process of unknown origin to go.
const DOUBTS: Duration = Duration::from_secs(1);
/// So many looks without one leave no doubt.
const CLEAR: u32 = 4;
/// Time for stopping processes before they are killed all the same.
const STILL: Duration = Duration::from_secs(1);

/// Ends what the journals of `state` tell of, and removes those of which nothing is left. Blocks for as long as that takes,
/// twice [`DEADLINE`] at most.
/// Their containers are removed by engines with the environment `engine_env`.
/// Those that are `spared` (name and content are asked for) are left alone; it can take from the others what is not theirs.
pub(crate) fn recover(
    state: &StateDir,
    engine_env: &EnvVars,
    spared: &mut dyn FnMut(&str, &mut JournalRecord) -> bool,
) -> Vec<RecoveredSession> {
    let mut done = Vec::new();
    let mut found = Vec::new();
    let names = state.sessions.journals().unwrap_or_else(|error| {
        tracing::warn!(directory = ?state.path, %error, "failed to list the journals");
        Vec::new()
    });
    for name in names {
        match read(state, &name) {
            Ok(mut record) => {
                if !spared(&name, &mut record) {
                    found.push((name, record));
                }
            }
            Err(dropped) => done.push(*dropped),
        }
    }
    if found.is_empty() {
        return done;
    }
    let began = Instant::now();
    let containers: Vec<_> = found.iter().map(|(_, record)| record.header.container.clone()).collect();
    let (names, mut records): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let in_order = await_supervisors(&records, began + IN_ORDER);
    for record in &mut records {
        // It has ended them itself: it watched to the end.
        if record.fork_server.is_some_and(|server| in_order.contains(&server)) {
            record.unwatched_since = u64::MAX;
        }
    }
    let swept = sweep(SessionSweep::new(records), began, DEADLINE);
    for ((name, container), mut ended) in names.into_iter().zip(containers).zip(swept) {
        if let Some(JournalContainer { name, program }) = container {
            ended.receipt.container = Some(registry::remove_container(&program, engine_env, &name));
        }
        let has_container = ended.receipt.container.as_ref().is_some_and(|container| !container.is_removed);
        // What nobody saw come another look does not tell from strangers' either.
        if ended.receipt.is_empty() || (ended.is_searched && !has_container) {
            discard(state, &name);
        }
        done.push(RecoveredSession {
            session_id: Some(ended.receipt.session_id.clone()),
            found: state.journal_path(&name),
            outcome: RecoveryOutcome::Ended(Box::new(ended.receipt)),
            supervisors: ended.supervisors,
            damaged_lines: ended.damaged_lines,
        });
    }
    done
}

/// Ends what is left of this manager's own sessions whose fork server is dead. Their receipts, in the same order. Blocks for twice
/// [`OWN_DEADLINE`] at most.
pub(crate) fn sweep_own(records: Vec<JournalRecord>) -> Vec<Receipt> {
    let ended = sweep(SessionSweep::of_own(records), Instant::now(), OWN_DEADLINE);
    ended.into_iter().map(|ended| ended.receipt).collect()
}

/// Stops all that is found, then kills it, until it is proven gone or `deadline` has passed. Where only the proof is missing then, it
/// is tried for as long again.
fn sweep(mut sweep: SessionSweep, began: Instant, deadline: Duration) -> Vec<SweptSession> {
    // What is killed gives its children away, and what is then below nobody of ours may not be found again. So all stand
    // still first, until a look finds nothing new.
    let still_by = Instant::now() + STILL;
    while sweep.look_and_stop() && Instant::now() < still_by {
        sleep(INTERVAL);
    }
    let until = |sweep: &SessionSweep| if sweep.is_quiet() { 2 * deadline } else { deadline };
    while sweep.look_and_kill() && began.elapsed() < until(&sweep) {
        sleep(INTERVAL);
    }
    // Others' processes come and go: only what stays, or is followed by another, leaves a doubt. In the moment in which one follows
    // another neither may be seen.
    let (doubts_by, mut clear) = (Instant::now() + DOUBTS, 0);
    while sweep.has_gaps() && clear < CLEAR {
        if sweep.note_doubts() {
            clear = 0;
            if Instant::now() >= doubts_by {
                return sweep.finish(began);
            }
        } else {
            clear += 1;
        }
        sleep(5 * INTERVAL);
        sweep.look_and_kill();
    }
    sweep.drop_doubts();
    sweep.finish(began)
}

/// Reads one journal; what it comes to where there is nothing to be ended by it.
fn read(state: &StateDir, name: &str) -> Result<JournalRecord, Box<RecoveredSession>> {
    let dropped = |session_id, damaged_lines, reason| {
        Box::new(RecoveredSession {
            session_id,
            found: state.journal_path(name),
            outcome: RecoveryOutcome::Dropped { reason },
            supervisors: Vec::new(),
            damaged_lines,
        })
    };
    let bytes = match state.sessions.read(name) {
        Ok(bytes) => bytes,
        Err(error) => return Err(dropped(None, 0, format!("it cannot be read: {error}"))),
    };
    let Some(mut record) = JournalRecord::read(&bytes) else {
        if let Err(error) = state.sessions.set_aside(name) {
            tracing::warn!(name, %error, "failed to set aside a file that is no journal");
        }
        let reason = "it does not begin as a journal does, and was set aside as .damaged: it names nothing to be ended";
        return Err(dropped(None, bytes.iter().filter(|b| **b == b'\n').count(), reason.to_owned()));
    };
    // Until it was written last somebody watched.
    if let Ok(age) = state.sessions.age(name) {
        record.unwatched_since = registry::ticks_ago(age + LAST_NOTE).max(record.header.since);
    }
    let (there, here) = (&record.header.place, &state.place);
    if there.boot != here.boot {
        discard(state, name);
        let reason = "the machine was started again since, and nothing outlives that".to_owned();
        return Err(dropped(Some(record.header.session), record.damaged, reason));
    }
    if there.pid_namespace != here.pid_namespace {
        // Its pids mean other processes here. Marker and cgroup mean the same everywhere.
        record.forget_pids();
    }
    Ok(record)
}

fn discard(state: &StateDir, name: &str) {
    if let Err(error) = state.sessions.remove(name) {
        tracing::warn!(name, %error, "failed to remove a journal");
    }
}

/// Fork servers and proxies whose host has just died are about to end their sessions, with a grace. One that is stopped never
/// will. Those that have ended by themselves.
fn await_supervisors(records: &[JournalRecord], until: Instant) -> BTreeSet<ProcessId> {
    let mut ended = BTreeSet::new();
    let supervisors = records.iter().flat_map(|record| [record.fork_server, record.proxy]).flatten();
    for supervisor in supervisors.collect::<BTreeSet<_>>() {
        let Ok(process) = PidFd::open(supervisor) else { continue };
        let (mut is_there, mut was_there) = (true, false);
        while is_there {
            match registry::find_process(supervisor.pid) {
                Ok(Some(seen)) if seen.id == supervisor && !seen.is_stopped => was_there = true,
                Ok(Some(seen)) if seen.id == supervisor => break,
                Err(_) => break,
                Ok(_) => {
                    is_there = false;
                    continue;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // It may be stopped meanwhile, so it is looked at again periodically.
            let pause = Timespec::try_from(left.min(Duration::from_millis(50))).unwrap_or_default();
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&pause));
        }
        // One that was dead already, and not reaped, may have been killed.
        if was_there && !is_there {
            ended.insert(supervisor);
        }
    }
    ended
}
