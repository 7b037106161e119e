//! Every real agent through every scenario, through [`ProxyManager`](proxy_manager::ProxyManager) alone.
//!
//! A *cell* is one scenario of one agent. It has a mock model, a manager, a state directory and a working directory of its own,
//! and a key that is nowhere else, so that cells can run in any order and side by side. The agents are those of the built-in
//! catalog; a model configuration points them at the mock, and each session has a home of its own.

mod agents;
mod cell;
mod logs;
mod recorder;
mod session;
mod stage;
mod start;
mod table;
mod user_home;

pub mod scenarios;

pub use self::{
    agents::{AGENTS, Agent},
    cell::{Cell, Failure, Outcome, Verdict, run},
    logs::keep_logs,
    scenarios::SCENARIOS,
    session::{Session, Told},
    stage::{Programs, Stage, remove},
    start::{Starts, Way, measure, measure_warm},
    table::{json, markdown, plain, unlike_page},
};

/// How long one step of a scenario may take: an agent's start, its answer, a tool of it.
pub const STEP: std::time::Duration = std::time::Duration::from_secs(90);
/// How long a whole cell may take.
pub const CELL: std::time::Duration = std::time::Duration::from_secs(240);
