//! Commands on several sessions: each is done, each is reported, and the exit code is that of the worst.

use std::future::Future;

use api_types::{ProblemDetails, ProgramExit};
use ipc_protocol::SessionId;
use serde_json::Value;

use crate::{args::SeveralArgs, client::DaemonClient, command_failure::CommandFailure, term};

/// Number of sessions that are worked on concurrently.
const CONCURRENT: usize = 16;

/// Sessions of a command.
#[derive(Debug)]
pub(super) struct SelectedSessions {
    /// Ids, in the order of the command line or of the daemon's list.
    pub(super) ids: Vec<SessionId>,
    /// True for more than the one session of old: each is named in the output.
    pub(super) several: bool,
}

impl SelectedSessions {
    /// Returns the named sessions; with `--all` those of the list at `path` for which `wanted` is true.
    ///
    /// # Errors
    /// The daemon's.
    pub(super) async fn find(
        client: &DaemonClient,
        args: &SeveralArgs,
        path: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Result<Self, ProblemDetails> {
        if !args.all {
            let mut ids = Vec::new();
            // One that is named twice is meant once.
            args.ids.iter().for_each(|id| {
                if !ids.contains(id) {
                    ids.push(id.clone())
                }
            });
            return Ok(Self { several: ids.len() > 1, ids });
        }
        let listed: Vec<Value> = client.get_list(path).await?;
        let ids: Vec<SessionId> = listed
            .iter()
            .filter(|session| wanted(session))
            .filter_map(|session| session["sessionId"].as_str()?.parse().ok())
            .collect();
        if ids.is_empty() {
            term::error_line("nothing to do: no session is in such a state");
        }
        Ok(Self { ids, several: true })
    }

    /// Does `act` with each session, some at once, and gives `report` each result, in order. A problem that it returns
    /// is printed. Nobody who stops reading keeps the rest from being done.
    ///
    /// # Errors
    /// The worst problem, as an exit code where it is printed already.
    pub(super) async fn each<T, F>(
        self,
        client: &DaemonClient,
        as_json: bool,
        act: impl Fn(DaemonClient, SessionId) -> F,
        mut report: impl FnMut(&SessionId, Result<T, ProblemDetails>) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ProblemDetails>> + Send + 'static,
    {
        let (mut worst, mut is_closed) = (ProgramExit::Done, false);
        for ids in self.ids.chunks(CONCURRENT) {
            let running: Vec<_> = ids.iter().map(|id| tokio::spawn(act(client.clone(), id.clone()))).collect();
            for (id, done) in ids.iter().zip(running) {
                let done = done.await.unwrap_or_else(|error| Err(ProblemDetails::failed(format!("{id}: {error}"))));
                match report(id, done) {
                    Ok(()) => {}
                    Err(CommandFailure::Problem(problem)) if self.several && problem.kind != "no-daemon" => {
                        term::problem(&problem, as_json);
                        worst = worst.worse(problem.exit());
                    }
                    Err(CommandFailure::Closed) => is_closed = true,
                    Err(failure) => return Err(failure),
                }
            }
        }
        match worst {
            ProgramExit::Done if is_closed => Err(CommandFailure::Closed),
            ProgramExit::Done => Ok(()),
            worst => Err(CommandFailure::Exit(worst)),
        }
    }
}

/// Returns true for a session of the daemon's list with running processes.
pub(super) fn is_running(session: &Value) -> bool {
    let state = &session["state"];
    state == "starting" || state == "idle" || state.get("busy").is_some()
}

/// Returns true for a record of a session that has ended.
pub(super) fn has_ended(record: &Value) -> bool {
    record["status"] == "terminated" || record["status"] == "ended"
}
