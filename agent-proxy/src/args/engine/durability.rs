//! Arguments for the durability of the daemon's sessions.

use std::{fs, path::Path, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use proxy_manager::{ActionRule, LogFailure, ManagerBuilder, Retention};
use serde_json::Value;

use crate::args::{containment, lifecycle::IdleSuspend};
use proxy_server::ProblemDetails;

/// Arguments for what outlives the daemon.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Durability")]
pub(crate) struct DurabilityArgs {
    /// Suspend sessions that have been idle for so long: their processes end, their conversation is kept, and the next prompt
    /// goes on with it [default: 300s with --state-dir, else never]
    #[arg(long, value_name = "DURATION|never")]
    idle_suspend: Option<IdleSuspend>,
    /// Delete events that are older than this, as in 30days; with --state-dir
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, requires = "state_dir")]
    retention_age: Option<Duration>,
    /// Keep about so many events of each session, the newest; with --state-dir
    #[arg(long, value_name = "N", requires = "state_dir")]
    retention_events: Option<u64>,
    /// Keep about so much of each session's events, as in 64MiB; with --state-dir
    #[arg(long, value_name = "SIZE", value_parser = containment::size, requires = "state_dir")]
    retention_bytes: Option<u64>,
    /// Keep about so many events of all sessions together, the newest; with --state-dir
    #[arg(long, value_name = "N", requires = "state_dir")]
    retention_total_events: Option<u64>,
    /// Keep about so much of all sessions' events, as in 2GiB; with --state-dir
    #[arg(long, value_name = "SIZE", value_parser = containment::size, requires = "state_dir")]
    retention_total: Option<u64>,
    /// Action for a session whose events cannot be written, as on a full disk; with --state-dir [default: degrade]
    #[arg(long, value_name = "WHAT", value_enum, requires = "state_dir")]
    on_log_failure: Option<OnLogFailure>,
    /// Rules by which events that others append become actions: a JSON array
    ///
    /// As in [{"on":"slack:*","action":"prompt","payload":{"content":"{user} says {text}","mode":"queue"}}]. `*` stands for any
    /// text, {a.b} for what the event's payload has there. Actions are prompt, send-user-message, abort, steer,
    /// permission-respond, session-create and session-destroy.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
}

impl DurabilityArgs {
    /// Applies the arguments to a manager's builder.
    ///
    /// # Errors
    /// `invalid-config` for an invalid file of rules, with the rule.
    pub(crate) fn apply_to(&self, mut builder: ManagerBuilder) -> Result<ManagerBuilder, ProblemDetails> {
        if let Some(IdleSuspend(after)) = self.idle_suspend {
            builder = builder.idle_suspend(after.unwrap_or(Duration::ZERO));
        }
        if let Some(path) = &self.rules {
            builder = builder.rules(rules(path)?);
        }
        let retention = Retention {
            max_age: self.retention_age,
            max_events_per_session: self.retention_events,
            max_bytes_per_session: self.retention_bytes,
            max_events_total: self.retention_total_events,
            max_bytes_total: self.retention_total,
        };
        Ok(builder.retention(retention).log_failure(self.on_log_failure.map_or(LogFailure::Degrade, Into::into)))
    }
}

/// Value of `--on-log-failure`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLogFailure {
    /// Let it run with its events in memory only, and emit session:degraded
    Degrade,
    /// End it
    End,
}

impl From<OnLogFailure> for LogFailure {
    fn from(what: OnLogFailure) -> Self {
        match what {
            OnLogFailure::Degrade => Self::Degrade,
            OnLogFailure::End => Self::End,
        }
    }
}

/// Reads the rules of a file.
fn rules(path: &Path) -> Result<Vec<ActionRule>, ProblemDetails> {
    let invalid = |what: String| ProblemDetails::new("invalid-config", format!("--rules {}: {what}", path.display()));
    let text = fs::read_to_string(path).map_err(|error| invalid(format!("reading it failed: {error}")))?;
    let rules: Vec<Value> =
        serde_json::from_str(&text).map_err(|error| invalid(format!("it is no JSON array of rules: {error}")))?;
    let rule = |(at, rule): (usize, Value)| {
        let invalid = |error: String| invalid(format!("rule {}: {error}", at + 1));
        let rule: ActionRule = serde_json::from_value(rule).map_err(|error| invalid(error.to_string()))?;
        rule.check().map_err(|error| invalid(error.to_string()))?;
        Ok(rule)
    };
    rules.into_iter().enumerate().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CliCommand, EngineCommand, parse};

    fn durability(flags: &str) -> Option<DurabilityArgs> {
        match parse(format!("agent-proxy serve {flags}").split_whitespace()).ok()?.command {
            CliCommand::Engine(EngineCommand::Serve(args)) => Some(args.durability),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_kept_needs_a_place() {
        for flag in [
            "--retention-age 30days",
            "--retention-events 1000",
            "--retention-bytes 64MiB",
            "--retention-total 2GiB",
            "--retention-total-events 1000000",
            "--on-log-failure end",
        ] {
            assert!(durability(flag).is_none(), "{flag}");
            assert!(durability(&format!("--state-dir /x {flag}")).is_some(), "{flag}");
        }
        assert!(durability("--state-dir /x --retention-bytes 64").is_none(), "of what?");
    }

    #[test]
    fn a_rule_that_is_wrong_is_named_with_its_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("rules.json");
        let read = |text: &str| {
            fs::write(&path, text).expect("written");
            rules(&path).map_err(|problem| problem.detail)
        };
        let good = r#"{"on":"slack:*","action":"prompt","payload":{"content":"{text}"}}"#;
        assert_eq!(read(&format!("[{good},{good}]")).expect("rules").len(), 2);
        for (text, part) in [
            ("{", "no JSON array"),
            ("{}", "no JSON array"),
            (&format!(r#"[{good},{{"on":"x"}}]"#), "rule 2: missing field `action`"),
            (r#"[{"on":"x","action":"dance"}]"#, "rule 1: invalid rule: nobody knows the action \"dance\""),
            (r#"[{"on":"x","action":"abort","unless":1}]"#, "rule 1: unknown field `unless`"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains("rules.json: ") && error.contains(part), "{text}: {error}");
        }
        assert!(rules(Path::new("/no/such/file")).expect_err("none").detail.contains("/no/such/file"));
    }
}
