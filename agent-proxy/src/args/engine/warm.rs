//! Arguments for the sessions that a daemon starts ahead.

use std::{path::Path, str::FromStr, time::Duration};

use clap::Args;
use proxy_manager::{AgentSessionConfig, ManagerBuilder, WarmTarget};
use proxy_server::{LoadedConfiguration, Policy, ProblemDetails};

/// Arguments for warm sessions.
#[derive(Clone, Debug, Args)]
pub(crate) struct WarmArgs {
    /// Keep N agents of a profile started, so that `start` has one at once. Repeatable
    ///
    /// They work in the daemon's directory, or in DIR (absolute): a start has one if it is in that directory, and its settings are those of
    /// the profile. Any other start takes its time.
    #[arg(long, value_name = "PROFILE=N[@DIR]", help_heading = "Supervision")]
    warm: Vec<WarmArg>,
    /// Age at which such an agent is ended, and another one started
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration, default_value = "10m", help_heading = "Supervision")]
    warm_age: Duration,
}

/// A value of `--warm`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WarmArg {
    profile: String,
    sessions: usize,
    directory: Option<String>,
}

impl FromStr for WarmArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "it has the form PROFILE=N or PROFILE=N@DIR";
        let (profile, rest) = text.split_once('=').filter(|(profile, _)| !profile.is_empty()).ok_or(form)?;
        let (number, directory) = rest.split_once('@').map_or((rest, None), |(number, dir)| (number, Some(dir)));
        let sessions = number.parse().ok().filter(|sessions| (1..=1000).contains(sessions));
        let sessions = sessions.ok_or_else(|| format!("{number:?} is no number from 1 to 1000: {form}"))?;
        if let Some(relative) = directory.filter(|directory| !Path::new(directory).is_absolute()) {
            return Err(format!("the directory {relative:?} is not absolute"));
        }
        Ok(Self { profile: profile.to_owned(), sessions, directory: directory.map(str::to_owned) })
    }
}

impl WarmArgs {
    /// Applies the arguments to a manager's builder.
    ///
    /// # Errors
    /// `unknown-profile`; `refused` for a profile that the policy forbids.
    pub(crate) fn apply_to(
        &self,
        builder: ManagerBuilder,
        configuration: &LoadedConfiguration,
        policy: Option<&Policy>,
    ) -> Result<ManagerBuilder, ProblemDetails> {
        let mut targets = Vec::new();
        for WarmArg { profile, sessions, directory } in &self.warm {
            let agent = configuration.profiles.get(profile)?.agent.clone();
            let mut config = AgentSessionConfig {
                profile: Some(profile.clone()),
                cwd: directory.clone(),
                ..AgentSessionConfig::new(agent)
            };
            policy.map_or(Ok(()), |policy| policy.apply_general_limits(&mut config, &configuration.profiles))?;
            targets.push(WarmTarget { config, sessions: *sessions });
        }
        Ok(builder.warm(targets).warm_age(self.warm_age))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_flag() {
        let parse = |text: &str| text.parse::<WarmArg>();
        let arg = |directory: Option<&str>| WarmArg {
            profile: "review".into(),
            sessions: 2,
            directory: directory.map(str::to_owned),
        };
        assert_eq!(parse("review=2"), Ok(arg(None)));
        assert_eq!(parse("review=2@/src/a@b=c"), Ok(arg(Some("/src/a@b=c"))));
        for (text, part) in [
            ("review", "PROFILE=N"),
            ("=2", "PROFILE=N"),
            ("a=0", "1 to 1000"),
            ("a=x", "\"x\""),
            ("a=2@b", "absolute"),
        ] {
            assert!(parse(text).is_err_and(|reason| reason.contains(part)), "{text}");
        }
    }
}
