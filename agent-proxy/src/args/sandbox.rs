//! Arguments for the files that a session may use.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use agents::ProfileSandbox;
use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use ipc_protocol::{InvalidNetworkRule, NetworkAccess, SandboxMode};

use api_types::ProblemDetails;

/// Sandbox of a session.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Containment and limits")]
pub(crate) struct SandboxArgs {
    /// Files that the session may use [default: off]; what cannot be enforced here is an error
    ///
    /// workspace: it reads the system without your keys, and writes the working directory, the agent's own places and a private
    /// /tmp. read-only: the same without the working directory. off: it may use whatever you may.
    #[arg(long, value_name = "MODE", value_parser = mode())]
    pub(crate) sandbox: Option<SandboxMode>,
    /// Let a session with a sandbox read this, although it is hidden; repeatable
    #[arg(long, value_name = "PATH")]
    pub(crate) read: Vec<PathBuf>,
    /// Let a session with a sandbox write this too; repeatable
    #[arg(long, value_name = "PATH")]
    pub(crate) write: Vec<PathBuf>,
    /// Hosts that a session with a sandbox may reach: host, off, or allow=HOST,… [default: host]; repeatable
    ///
    /// host: whatever you may. off: nothing but the session's own services. allow=api.example.com,*.example.org: these
    /// too; a host without a port is allowed at 80 and 443.
    #[arg(long, value_name = "WHICH")]
    pub(crate) network: Vec<NetworkArg>,
}

/// Value of `--network`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkArg(NetworkAccess);

impl FromStr for NetworkArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rules = match (text, text.strip_prefix("allow=")) {
            ("host", _) => return Ok(Self(NetworkAccess::Host)),
            ("off", _) => return Ok(Self(NetworkAccess::Off)),
            (_, Some(rules)) => rules,
            _ => return Err("use host, off, or allow=HOST,…".to_owned()),
        };
        let rules = rules.split(',').map(|rule| rule.parse().map_err(|error: InvalidNetworkRule| error.to_string()));
        rules.collect::<Result<_, _>>().map(|rules| Self(NetworkAccess::Allow(rules)))
    }
}

/// Joins values of `--network`: further hosts are allowed too.
fn joined(values: Vec<NetworkArg>) -> Result<Option<NetworkAccess>, ProblemDetails> {
    let mut joined = None;
    for NetworkArg(value) in values {
        joined = match (joined, value) {
            (None, value) => Some(value),
            (Some(NetworkAccess::Allow(rules)), NetworkAccess::Allow(more)) => {
                Some(NetworkAccess::Allow([rules, more].concat()))
            }
            (Some(one), other) if one == other => Some(one),
            (Some(one), other) => {
                return Err(ProblemDetails::usage(format!("--network {one} and {other}: which one is meant?")));
            }
        };
    }
    Ok(joined)
}

fn mode() -> impl TypedValueParser<Value = SandboxMode> {
    PossibleValuesParser::new(SandboxMode::ALL.map(|(_, name)| name)).try_map(|name| name.parse::<SandboxMode>())
}

impl SandboxArgs {
    /// Sets the given values in `sandbox`, with paths that are relative to the current directory made absolute.
    ///
    /// # Errors
    /// `usage` for a path that is not there.
    pub(crate) fn apply_to(self, sandbox: &mut ProfileSandbox) -> Result<(), ProblemDetails> {
        sandbox.mode = self.sandbox.or(sandbox.mode);
        sandbox.network = joined(self.network)?.or(sandbox.network.take());
        sandbox.read.extend(absolute("--read", &self.read)?);
        sandbox.write.extend(absolute("--write", &self.write)?);
        Ok(())
    }
}

fn absolute(flag: &str, paths: &[PathBuf]) -> Result<Vec<String>, ProblemDetails> {
    let absolute = |path: &PathBuf| {
        let real = Path::canonicalize(path).map_err(|error| error.to_string());
        let text = real.and_then(|real| real.into_os_string().into_string().map_err(|_| "it is not UTF-8".to_owned()));
        text.map_err(|error| ProblemDetails::usage(format!("{flag} {}: {error}", path.display())))
    };
    paths.iter().map(absolute).collect()
}
