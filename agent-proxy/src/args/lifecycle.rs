//! Arguments for the lifecycle of a session beyond its processes.

use std::{str::FromStr, time::Duration};

use clap::Args;
use ipc_protocol::{Lifecycle, Restart, ResumeFallback};

/// First pause before a crashed session is restarted, in milliseconds. The pause doubles.
const FIRST_PAUSE_MS: u64 = 1_000;
/// Crashes allowed within ten minutes, if not given.
const MOST_CRASHES: u32 = 5;

/// Arguments for a session that outlives its agent's process.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Lifecycle")]
pub(crate) struct LifecycleArgs {
    /// Name the conversation: `start` with a known key goes on with it, as it runs or resumed, also after the daemon's end
    #[arg(long)]
    key: Option<String>,
    /// A name for people
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// A label to find it by; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Suspend it when it has been idle for so long, as in 5m, or never [default: what `serve --idle-suspend` says]
    #[arg(long, value_name = "DURATION|never")]
    idle_suspend: Option<IdleSuspend>,
    /// Start it again with its conversation when its agent or proxy dies: never, on-crash, or on-crash:N for at most N crashes
    /// within ten minutes [default: never; on-crash is on-crash:5]
    #[arg(long, value_name = "WHEN")]
    restart: Option<RestartArg>,
    /// Refuse a prompt while it is suspended, instead of resuming it
    #[arg(long)]
    no_resume_on_prompt: bool,
    /// Run a shell command before the session's first start, and start the agent only if it exits with 0. It may make the working
    /// directory; see AGENT_PROXY_OF_SESSION and AGENT_PROXY_OF_CWD in its environment
    #[arg(long, value_name = "COMMAND")]
    before_start: Option<String>,
    /// Run a shell command when the session has ended and nothing of it is left, also after a failed start or a crash; AGENT_PROXY_OF_END
    /// has the reason
    #[arg(long, value_name = "COMMAND")]
    after_end: Option<String>,
}

impl LifecycleArgs {
    /// Refuses what has no effect on a session that ends with its command: `run` or `ask`, with a prompt or (`run` alone) without one.
    ///
    /// # Errors
    /// `usage` with the flags.
    #[cfg(feature = "engine")]
    pub(crate) fn check_foreground(&self, has_prompt: bool) -> Result<(), api_types::ProblemDetails> {
        use api_types::ProblemDetails;

        let named =
            [("--key", self.key.is_some()), ("--title", self.title.is_some()), ("--tag", !self.tags.is_empty())];
        let later = [
            ("--idle-suspend", self.idle_suspend.is_some()),
            ("--restart", self.restart.is_some()),
            ("--no-resume-on-prompt", self.no_resume_on_prompt),
        ];
        let refuse = |flags: &[(&str, bool)], why: &str| {
            let given: Vec<_> = flags.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| *flag).collect();
            if given.is_empty() { Ok(()) } else { Err(ProblemDetails::usage(format!("{}: {why}", given.join(", ")))) }
        };
        refuse(
            &named,
            "the session ends with this command, and nothing finds it by that later; `start` has sessions that last",
        )?;
        if has_prompt {
            refuse(&later, "the session ends with its one turn; leave the prompt out to type several, or use `start`")?;
        }
        Ok(())
    }

    /// Returns true if the conversation has a name.
    pub(crate) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Converts to the library's form.
    pub(crate) fn lifecycle(self, on_missing: ResumeFallback) -> Lifecycle {
        Lifecycle {
            key: self.key,
            title: self.title,
            tags: self.tags,
            idle_suspend_ms: self.idle_suspend.map(IdleSuspend::milliseconds),
            resume_on_prompt: !self.no_resume_on_prompt,
            restart: self.restart.map_or(Restart::Never, |RestartArg(restart)| restart),
            replace: false,
            on_missing,
            before_start: self.before_start,
            after_end: self.after_end,
        }
    }
}

/// Value of `--idle-suspend`: `5m` or `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleSuspend(pub(crate) Option<Duration>);

impl IdleSuspend {
    /// Converts to the library's form: 0 for never.
    fn milliseconds(self) -> u64 {
        self.0.map_or(0, |after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX))
    }
}

impl FromStr for IdleSuspend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        match super::containment::milliseconds(text)? {
            0 => Err("it would be suspended at once: write `never` for not at all".to_owned()),
            ms => Ok(Self(Some(Duration::from_millis(ms)))),
        }
    }
}

/// Value of `--restart`: `never`, `on-crash` or `on-crash:3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartArg(Restart);

impl FromStr for RestartArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let max = match text.split_once(':') {
            None if text == "never" => return Ok(Self(Restart::Never)),
            None if text == "on-crash" => MOST_CRASHES,
            Some(("on-crash", max)) => match max.parse() {
                Ok(0) | Err(_) => return Err(format!("{max:?} is no number of crashes, as in on-crash:3")),
                Ok(max) => max,
            },
            _ => return Err("there are never, on-crash and on-crash:N".to_owned()),
        };
        Ok(Self(Restart::OnCrash { max, backoff_ms: FIRST_PAUSE_MS }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{CliCommand, parse};

    fn lifecycle(flags: &str) -> Lifecycle {
        let line = format!("agent-proxy start --agent command {flags} -- cat");
        match parse(line.split_whitespace()).expect("parses").command {
            CliCommand::Start(args) => args.start.lifecycle.lifecycle(ResumeFallback::Fail),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_said_is_as_in_the_library() {
        assert_eq!(lifecycle(""), Lifecycle::default());
    }

    #[test]
    fn all_of_it() {
        let flags =
            "--key chat-1 --title Red --tag a --tag b --idle-suspend 5m --restart on-crash:3 --no-resume-on-prompt";
        let expected = Lifecycle {
            key: Some("chat-1".into()),
            title: Some("Red".into()),
            tags: vec!["a".into(), "b".into()],
            idle_suspend_ms: Some(300_000),
            resume_on_prompt: false,
            restart: Restart::OnCrash { max: 3, backoff_ms: FIRST_PAUSE_MS },
            ..Lifecycle::default()
        };
        assert_eq!(lifecycle(flags), expected);
        assert_eq!(lifecycle("--idle-suspend never").idle_suspend_ms, Some(0));
    }

    #[cfg(feature = "engine")]
    #[test]
    fn what_has_no_effect_in_the_foreground_is_refused() {
        let refused = |flags: &str, prompt: &str| {
            let line = format!("agent-proxy run --agent pi {flags} {prompt}");
            match parse(line.split_whitespace()).expect("parses").command {
                CliCommand::Engine(crate::args::EngineCommand::Run(args)) => {
                    args.start.lifecycle.check_foreground(args.prompt.is_some()).map_err(|p| p.detail)
                }
                other => panic!("{other:?}"),
            }
        };
        for prompt in ["", "hello"] {
            let error = refused("--key k --tag a", prompt).expect_err("nothing finds it later");
            assert!(error.starts_with("--key, --tag: ") && error.contains("`start`"), "{error}");
            assert_eq!(refused("--model m", prompt), Ok(()));
        }
        let lasting = "--restart on-crash --idle-suspend 5m";
        assert_eq!(refused(lasting, ""), Ok(()), "several turns");
        let error = refused(lasting, "hello").expect_err("one turn");
        assert!(error.starts_with("--idle-suspend, --restart: "), "{error}");
    }

    #[test]
    fn restarts_and_idle_times() {
        let restart = |text: &str| text.parse::<RestartArg>().map(|RestartArg(restart)| restart);
        assert_eq!(restart("never"), Ok(Restart::Never));
        assert_eq!(restart("on-crash"), Ok(Restart::OnCrash { max: MOST_CRASHES, backoff_ms: FIRST_PAUSE_MS }));
        for text in ["", "always", "on-crash:", "on-crash:0", "on-crash:many", "never:1", "on-crash:-1"] {
            assert!(restart(text).is_err(), "{text:?}");
        }
        assert!("0s".parse::<IdleSuspend>().expect_err("at once").contains("never"));
        assert!("soon".parse::<IdleSuspend>().is_err());
    }
}
