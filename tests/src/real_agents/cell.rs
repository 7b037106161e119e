//! One scenario of one agent.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ipc_protocol::ErrorChain;
use proxy_manager::Error;

use super::{Agent, CELL, Stage, scenarios::Scenario, stage::Programs};

/// What a scenario comes to where nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it holds.
    Pass,
    /// The agent itself has not got it, which the scenario has seen; with the reason.
    Lacks(String),
}

/// Why a scenario did not come to its end.
#[derive(Clone, Debug)]
pub enum Failure {
    /// A call said `Unsupported`; what it said.
    Unsupported(String),
    /// Something is wrong.
    Wrong(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Unsupported { .. } => Self::Unsupported(error.to_string()),
            error => Self::Wrong(ErrorChain(&error).to_string()),
        }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

/// What a cell came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it holds.
    Pass,
    /// The agent cannot by itself; with the reason.
    Unsupported(String),
    /// Something is wrong.
    Fail(String),
}

/// A cell that was run.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Catalog id.
    pub agent: &'static str,
    /// The scenario's name.
    pub scenario: &'static str,
    /// What it came to.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// Runs one cell. Whatever it started is gone when this returns.
pub async fn run(agent: &'static Agent, scenario: &'static Scenario, programs: &Programs) -> Cell {
    let begin = Instant::now();
    let outcome = match Stage::set(agent, programs, scenario.change).await {
        Ok(stage) => {
            let stage = Arc::new(stage);
            // A task of its own: a panic is caught there.
            let task = tokio::spawn((scenario.run)(stage.clone()));
            let abort = task.abort_handle();
            let result = match tokio::time::timeout(CELL, task).await {
                Ok(Ok(result)) => result,
                Ok(Err(panic)) => Err(Failure::Wrong(panic_text(panic))),
                Err(_) => {
                    abort.abort();
                    Err(Failure::Wrong(format!("not over after {CELL:?}")))
                }
            };
            judge(agent, scenario.name, result, stage.strike().await)
        }
        Err(error) => Outcome::Fail(format!("no stage: {error}")),
    };
    Cell { agent: agent.id, scenario: scenario.name, outcome, took: begin.elapsed() }
}

/// What a scenario came to, beside what is known of the agent. `left` is what its end found wrong.
fn judge(agent: &Agent, scenario: &'static str, result: Result<Verdict, Failure>, left: Result<(), String>) -> Outcome {
    let outcome = match (result, agent.cannot(scenario)) {
        (Ok(Verdict::Pass), None) => Outcome::Pass,
        (Ok(Verdict::Lacks(reason)), None) => Outcome::Unsupported(reason),
        (Ok(_), Some(reason)) => Outcome::Fail(format!("it can, and is listed as one that cannot: {reason}")),
        (Err(Failure::Unsupported(_)), Some(reason)) => Outcome::Unsupported(reason.to_owned()),
        (Err(Failure::Unsupported(said)), None) => Outcome::Fail(format!("it is said to be unsupported: {said}")),
        (Err(Failure::Wrong(what)), _) => Outcome::Fail(what),
    };
    match (outcome, left) {
        (outcome, Ok(())) => outcome,
        (Outcome::Fail(what), Err(left)) => Outcome::Fail(format!("{what}; and at its end {left}")),
        (_, Err(left)) => Outcome::Fail(format!("at its end {left}")),
    }
}

fn panic_text(error: tokio::task::JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        }
        Err(error) => error.to_string(),
    }
}
