//! Validation of a session's configuration.

use agents::AgentSpec;
use ipc_protocol::{AgentSessionConfig, Budget, Containment, EnvVars, LimitKind, Restart, Timeouts, Usd};

use super::invalid;
use crate::error::{Error, Result};

/// Validates the parts that do not depend on the agent.
///
/// # Errors
/// [`Error::InvalidConfig`] with the field; [`Error::TooDeep`].
pub(super) fn config(config: &AgentSessionConfig, max_depth: u32) -> Result<()> {
    let depth = config.depth.saturating_add(1);
    if depth > max_depth {
        return Err(Error::TooDeep { depth, max: max_depth });
    }
    if let Some((kind, _)) = config.limits.iter_set().find(|(_, value)| *value == 0) {
        return Err(invalid(limit_field(kind), format!("a limit of 0 on {kind} leaves nothing: leave it out")));
    }
    // A start clock of 0 is refused; null means the manager's own.
    for (field, clock) in clocks(&config.timeouts) {
        if clock == Some(0) {
            return Err(invalid(field, "no time at all: null stops a clock".to_owned()));
        }
    }
    if config.max_prompts == Some(0) {
        return Err(invalid("maxPrompts", "a session that takes no prompt can do nothing: leave this out".to_owned()));
    }
    if let Some(field) = empty_budget(&config.budget) {
        return Err(invalid(field, "a budget of 0 is used up before the first turn: leave this out".to_owned()));
    }
    agents::permission::check(&config.permissions).map_err(|error| invalid("permissions", error.to_string()))
}

/// Validates the restart policy of a session without a conversation to go on with.
///
/// # Errors
/// [`Error::InvalidConfig`] if a crash would restart it.
pub(super) fn restart(config: &AgentSessionConfig, spec: &AgentSpec) -> Result<()> {
    if config.lifecycle.restart == Restart::Never {
        return Ok(());
    }
    let why = match spec.cannot_resume() {
        Some(field) => {
            format!("the row of agent {:?} says that its conversations end with its process (`{field}`)", spec.id)
        }
        None if spec.has_conversations() => "an ephemeral session keeps no conversation".to_owned(),
        None => format!("agent {:?} has no conversation", spec.id),
    };
    Err(invalid(
        "lifecycle.restart",
        format!("{why}, so there is nothing to go on with after a crash: leave `lifecycle.restart` out"),
    ))
}

/// Validates what concerns turns, for an agent that has none: what is asked for is not dropped in silence.
///
/// # Errors
/// [`Error::Unsupported`].
pub(super) fn turns(config: &AgentSessionConfig, spec: &AgentSpec) -> Result<()> {
    if spec.has_conversations() {
        return Ok(());
    }
    let (given, default) = (clocks(&config.timeouts), clocks(&Timeouts::default()));
    let has_clock = given.iter().zip(&default).any(|(given, default)| given.1.is_some() && given != default);
    let Budget { input_tokens, output_tokens, total_tokens, cost_usd, .. } = config.budget;
    let has_budget = [input_tokens, output_tokens, total_tokens].iter().any(Option::is_some) || cost_usd.is_some();
    let what = match () {
        () if has_clock => "have clocks of turns, since it has no turns: `limits.wallClockMs` ends it after a time",
        () if config.max_turns.is_some() => "be limited to a number of turns, since it has none",
        () if has_budget => "have a budget, since it reports no tokens",
        () => return Ok(()),
    };
    Err(Error::Unsupported { agent: spec.id.clone(), operation: what.to_owned() })
}

/// Validates a session that works in an overlay.
pub(super) fn overlay(config: &AgentSessionConfig, is_in_container: bool) -> Result<()> {
    if is_in_container {
        let reason =
            "an overlay is mounted in the session's own mounts, and a container has others: use `copy` or `worktree`";
        return Err(invalid("workspace", reason.to_owned()));
    }
    match config.containment {
        Some(containment @ (Containment::Baseline | Containment::Cgroup)) => Err(invalid(
            "workspace",
            format!(
                "an overlay needs the containment strict, and {containment} was asked for: leave it out, or use `copy`"
            ),
        )),
        _ => Ok(()),
    }
}

/// Validates a working directory.
pub(super) fn cwd(cwd: &str) -> Result<()> {
    if cwd.starts_with('/') && !cwd.contains('\0') {
        return Ok(());
    }
    Err(invalid("cwd", format!("{cwd:?} is no absolute path")))
}

/// Validates a program's arguments and environment.
pub(super) fn program(argv: &[String], env: &EnvVars) -> Result<()> {
    if argv.iter().any(|arg| arg.contains('\0')) {
        return Err(invalid("command", "an argument holds a NUL byte".to_owned()));
    }
    let unfit =
        |(name, value): &(&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    match env.0.iter().find(unfit) {
        Some((name, _)) => {
            Err(invalid("env", format!("variable {name:?}: no name is empty or holds '=', nothing holds NUL")))
        }
        None => Ok(()),
    }
}

fn clocks(timeouts: &Timeouts) -> [(&'static str, Option<u64>); 6] {
    let Timeouts { first_response_ms, inactivity_ms, turn_ms, tool_ms, silence_ms, silence_repeat_ms, .. } = *timeouts;
    [
        ("timeouts.firstResponseMs", first_response_ms),
        ("timeouts.inactivityMs", inactivity_ms),
        ("timeouts.turnMs", turn_ms),
        ("timeouts.toolMs", tool_ms),
        ("timeouts.silenceMs", silence_ms),
        ("timeouts.silenceRepeatMs", silence_repeat_ms),
    ]
}

/// Name of the configuration field of a budget of 0, if there is one.
fn empty_budget(budget: &Budget) -> Option<&'static str> {
    let Budget { input_tokens, output_tokens, total_tokens, cost_usd, .. } = *budget;
    let fields = [
        ("budget.inputTokens", input_tokens),
        ("budget.outputTokens", output_tokens),
        ("budget.totalTokens", total_tokens),
        ("budget.costUsd", cost_usd.map(Usd::millionths)),
    ];
    fields.into_iter().find(|(_, amount)| *amount == Some(0)).map(|(field, _)| field)
}

/// Name of the configuration field of a limit.
fn limit_field(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Memory => "limits.memoryBytes",
        LimitKind::Processes => "limits.processes",
        LimitKind::CpuTime => "limits.cpuTimeMs",
        LimitKind::CpuPercent => "limits.cpuPercent",
        LimitKind::OpenFiles => "limits.openFiles",
        LimitKind::FileSize => "limits.fileSizeBytes",
        LimitKind::WallClock => "limits.wallClockMs",
    }
}
