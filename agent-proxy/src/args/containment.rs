//! Arguments for containment, limits and hardening of a session.

use std::{str::FromStr, time::Duration};

use agents::ProfileLimits;
use clap::{
    Args, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ipc_protocol::{AgentSessionConfig, Containment, Hardening, LimitAction, LimitKind};

use api_types::ProblemDetails;

/// Units of memory and file sizes, with their bytes.
const SIZES: [(&str, u64); 9] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// `--containment` alone.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ContainmentArgs {
    /// Layers of containment; a layer that this machine lacks is an error
    ///
    /// auto: a cgroup where one can be had, else the baseline. baseline: process group, subreaper, a kill loop to a proof.
    /// cgroup: the baseline and a cgroup (version 2) of the session's own. strict: PID and mount namespaces too, so that
    /// the kernel ends everything with the proxy. `agent-proxy doctor` says which can be had here.
    #[arg(long, value_name = "LAYER", value_parser = containment())]
    pub(crate) containment: Option<Containment>,
}

fn containment() -> impl TypedValueParser<Value = Containment> {
    PossibleValuesParser::new(Containment::ALL.map(|(_, name)| name)).try_map(|name| name.parse::<Containment>())
}

fn action() -> impl TypedValueParser<Value = LimitAction> {
    PossibleValuesParser::new(LimitAction::ALL.map(|(_, name)| name)).try_map(|name| name.parse::<LimitAction>())
}

/// Limits of a session.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Containment and limits")]
pub(crate) struct LimitArgs {
    /// Limit of the session, as in memory=2GiB; repeatable
    ///
    /// memory=2GiB and pids=200 of all its processes together; cpu-time=30s in all; cpu=150% of one core; open-files=256
    /// of each process; file-size=100MiB of each file; wall-clock=10m since its start.
    #[arg(long = "limit", value_name = "KIND=VALUE")]
    pub(crate) limits: Vec<LimitArg>,
    /// Action when a limit is passed [default: kill_session]
    ///
    /// warn: an event only. kill_process: the process that takes most is ended; the wall clock, which no process takes, ends
    /// the session. kill_session: the session is ended.
    #[arg(long, value_name = "ACTION", value_parser = action())]
    pub(crate) on_limit: Option<LimitAction>,
    /// Let a crash leave a core file
    #[arg(long)]
    pub(crate) core_dumps: bool,
}

impl LimitArgs {
    /// Sets the given limits in `limits`.
    ///
    /// # Errors
    /// `usage` for a limit that is given twice.
    pub(crate) fn apply_to(self, limits: &mut ProfileLimits) -> Result<(), ProblemDetails> {
        let mut seen = Vec::new();
        for LimitArg { kind, value } in self.limits {
            if seen.contains(&kind) {
                return Err(ProblemDetails::usage(format!("--limit {kind} is given twice: which one is meant?")));
            }
            seen.push(kind);
            let field = match kind {
                LimitKind::Memory => &mut limits.memory_bytes,
                LimitKind::Processes => &mut limits.processes,
                LimitKind::CpuTime => &mut limits.cpu_time_ms,
                LimitKind::CpuPercent => &mut limits.cpu_percent,
                LimitKind::OpenFiles => &mut limits.open_files,
                LimitKind::FileSize => &mut limits.file_size_bytes,
                LimitKind::WallClock => &mut limits.wall_clock_ms,
            };
            *field = Some(value);
        }
        limits.on_limit = self.on_limit.or(limits.on_limit);
        limits.core_dumps = self.core_dumps.then_some(true).or(limits.core_dumps);
        Ok(())
    }
}

/// Arguments for containment and hardening.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Containment and limits")]
pub(crate) struct MeasureArgs {
    /// Layers of containment.
    #[command(flatten)]
    pub(crate) containment: ContainmentArgs,
    /// Keep the agent from signalling and tracing anything outside its session
    ///
    /// auto: on for root, where the kernel can. For other users it takes no_new_privs, which disables sudo.
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = LandlockArg::Auto)]
    pub(crate) landlock: LandlockArg,
    /// Let processes of your user trace the session's proxy and read its memory (for debugging)
    #[arg(long)]
    pub(crate) dumpable: bool,
}

impl MeasureArgs {
    /// Applies the arguments to a session's configuration.
    pub(crate) fn apply(self, config: &mut AgentSessionConfig) {
        config.containment = self.containment.containment;
        config.hardening = Hardening { undumpable: !self.dumpable, landlock: self.landlock.into() };
    }
}

/// Value of `--landlock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LandlockArg {
    /// Always; a session that cannot have it is refused
    On,
    /// Never applied
    Off,
    /// On for root, where the kernel can
    Auto,
}

impl From<LandlockArg> for Option<bool> {
    fn from(when: LandlockArg) -> Self {
        match when {
            LandlockArg::On => Some(true),
            LandlockArg::Off => Some(false),
            LandlockArg::Auto => None,
        }
    }
}

/// Value of `--limit`, in the unit of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitArg {
    kind: LimitKind,
    value: u64,
}

impl FromStr for LimitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("write KIND=VALUE; {}", kinds()))?;
        let known = LimitKind::ALL.iter().find(|(_, known)| *known == name);
        let (kind, _) = known.ok_or_else(|| format!("unknown limit {name:?}; {}", kinds()))?;
        let value = match kind {
            LimitKind::Memory | LimitKind::FileSize => size(value)?,
            LimitKind::Processes | LimitKind::OpenFiles => number(value, "a whole number")?,
            LimitKind::CpuPercent => {
                let percent =
                    value.strip_suffix('%').ok_or("write percent of one core, as in 150% for one and a half")?;
                number(percent, "a whole number before the %")?
            }
            LimitKind::CpuTime | LimitKind::WallClock => milliseconds(value)?,
        };
        if value == 0 {
            return Err(format!("a limit of nothing lets no agent run: leave {name} out for none"));
        }
        Ok(Self { kind: *kind, value })
    }
}

/// Lists the limits, each with an example.
fn kinds() -> String {
    let example = |kind| match kind {
        LimitKind::Memory => "2GiB",
        LimitKind::Processes => "200",
        LimitKind::CpuTime => "30s",
        LimitKind::CpuPercent => "150%",
        LimitKind::OpenFiles => "256",
        LimitKind::FileSize => "100MiB",
        LimitKind::WallClock => "10m",
    };
    let all: Vec<String> = LimitKind::ALL.iter().map(|(kind, name)| format!("{name}={}", example(*kind))).collect();
    format!("there are {}", all.join(", "))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}

pub(super) fn milliseconds(text: &str) -> Result<u64, String> {
    let duration: Duration =
        humantime::parse_duration(text).map_err(|error| format!("{error}; units are ms, s, m, h, as in 30s or 10m"))?;
    u64::try_from(duration.as_millis()).map_err(|_| format!("{text} is longer than can be counted"))
}

/// Parses a size in bytes from a whole number and one of the units.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit = SIZES.iter().find(|(name, _)| *name == unit);
    let (Ok(number), Some((_, bytes))) = (number.parse::<u64>(), unit) else {
        let names: Vec<&str> = SIZES.iter().map(|(name, _)| *name).collect();
        return Err(format!("{text:?} is not a whole number and one of the units {}", names.join(" ")));
    };
    number.checked_mul(*bytes).ok_or_else(|| format!("{text} is more than can be counted"))
}

#[cfg(test)]
mod tests {
    use agents::Profile;

    use super::*;

    fn value(text: &str) -> Result<u64, String> {
        text.parse::<LimitArg>().map(|limit| limit.value)
    }

    #[test]
    fn amounts_in_the_units_of_their_kind() {
        for (text, expected) in [
            ("memory=2GiB", 2 << 30),
            ("memory=250KB", 250_000),
            ("file-size=100MiB", 100 << 20),
            ("pids=200", 200),
            ("open-files=256", 256),
            ("cpu-time=30s", 30_000),
            ("cpu=150%", 150),
            ("wall-clock=1m 500ms", 60_500),
        ] {
            assert_eq!(value(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_says_what_would() {
        for (text, part) in [
            ("memory", "memory=2GiB"),
            ("ram=2GiB", "cpu-time=30s, cpu=150%"),
            ("memory=2", "KiB MiB GiB"),
            ("memory=2G", "KiB MiB GiB"),
            ("memory=GiB", "whole number"),
            ("memory=1.5GiB", "whole number"),
            ("memory=99999999TiB", "counted"),
            ("pids=many", "whole number"),
            ("pids=-1", "whole number"),
            ("pids=0", "leave pids out"),
            ("cpu=2", "150%"),
            ("cpu=1.5%", "whole number"),
            ("cpu-time=30", "30s"),
            ("wall-clock=soon", "10m"),
        ] {
            let error = value(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn every_limit_has_its_field() {
        let all = ["memory=1B", "pids=2", "cpu-time=3ms", "cpu=4%", "open-files=5", "file-size=6B", "wall-clock=7ms"];
        let given: Vec<LimitArg> = all.iter().map(|text| text.parse().expect("valid")).collect();
        let onto = |limits: Vec<LimitArg>| {
            let mut profile = Profile { agent: "x".into(), ..Profile::default() };
            let args = LimitArgs { limits, on_limit: Some(LimitAction::Warn), core_dumps: true };
            args.apply_to(&mut profile.limits).map(|()| profile)
        };
        let mut config = AgentSessionConfig::new("x");
        onto(given.clone()).expect("each once").apply(&mut config).expect("its agent");
        let set: Vec<(LimitKind, u64)> = config.limits.iter_set().collect();
        assert_eq!(set.len(), LimitKind::ALL.len());
        assert!(given.iter().all(|limit| set.contains(&(limit.kind, limit.value))), "{set:?}");
        assert!(config.limits.core_dumps && config.limits.on_limit == LimitAction::Warn);
        assert!(onto(vec![given[0], given[0]]).expect_err("twice").detail.contains("memory"));
    }
}
