//! Arguments for the number of sessions of a daemon.

use std::time::Duration;

use clap::Args;
use proxy_manager::{Deadlines, HealthPolicy, ManagerBuilder};

/// Arguments for the number and health of sessions.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Supervision")]
pub(crate) struct SupervisionArgs {
    /// Sessions that may be there at once; a start beyond that waits in the queue, or is refused (exit code 8)
    #[arg(long, value_name = "N")]
    max_sessions: Option<usize>,
    /// Of these, sessions of one `start --user`; in a fleet those of all nodes count
    #[arg(long, value_name = "N")]
    pub(crate) max_per_user: Option<usize>,
    /// Of these, sessions of one agent
    #[arg(long, value_name = "N")]
    max_per_agent: Option<usize>,
    /// Starts that may wait for a place; users take turns
    #[arg(long, value_name = "N", default_value_t = 0)]
    queue: usize,
    /// Time that a start may wait
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "60s")]
    queue_wait: Duration,
    /// Silence after which a session's proxy is pinged, and after which the answer counts as missed; 0s: never
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "30s")]
    ping_interval: Duration,
    /// After so many missed answers in a row a session is unresponsive, and an event says so
    #[arg(long, value_name = "N", default_value_t = 3)]
    missed_pings: u32,
    /// End sessions that are unresponsive
    #[arg(long)]
    end_unresponsive: bool,
    /// Time for running turns to finish after SIGTERM, while nothing new begins; then, or at a second signal, all is ended
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "30s")]
    pub(crate) drain: Duration,
}

impl SupervisionArgs {
    /// Bounds the number of sessions, where no other bound is given.
    pub(crate) fn or_max_sessions(&self, sessions: Option<usize>) -> Self {
        Self { max_sessions: self.max_sessions.or(sessions), ..self.clone() }
    }

    /// Applies the arguments to a manager's builder.
    pub(crate) fn apply_to(&self, mut builder: ManagerBuilder) -> ManagerBuilder {
        if let Some(sessions) = self.max_sessions {
            builder = builder.max_sessions(sessions);
        }
        if let Some(sessions) = self.max_per_user {
            builder = builder.max_sessions_per_user(sessions);
        }
        if let Some(sessions) = self.max_per_agent {
            builder = builder.max_sessions_per_agent(sessions);
        }
        let health =
            HealthPolicy { interval: self.ping_interval, misses: self.missed_pings, ends: self.end_unresponsive };
        let deadlines = Deadlines { health: Some(health), ..Deadlines::default() };
        builder.queue(self.queue, self.queue_wait).deadlines(deadlines)
    }
}
