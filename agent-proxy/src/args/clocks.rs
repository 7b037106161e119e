//! Arguments for a session's clocks.

use std::{str::FromStr, time::Duration};

use agents::ProfileTimeouts;
use ipc_protocol::TimeoutAction;

use super::containment::milliseconds;

/// Value of `--timeout`: `first=30s,inactivity=off,action=warn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeoutArg(pub(crate) ProfileTimeouts);

const ACTIONS: [(TimeoutAction, &str); 3] =
    [(TimeoutAction::Warn, "warn"), (TimeoutAction::AbortTurn, "abort"), (TimeoutAction::KillSession, "kill")];

impl FromStr for TimeoutArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut timeouts = ProfileTimeouts::default();
        for part in text.split(',') {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is no CLOCK=DURATION; {}", usage()))?;
            let name = name.trim();
            let clock = match name {
                "action" => {
                    let known = ACTIONS.iter().find(|(_, known)| *known == value.trim());
                    let (action, _) =
                        known.ok_or_else(|| format!("unknown action {value:?}: use warn, abort or kill"))?;
                    if timeouts.action.replace(*action).is_some() {
                        return Err("action is given twice".to_owned());
                    }
                    continue;
                }
                "start" => &mut timeouts.start_ms,
                "first" => &mut timeouts.first_response_ms,
                "inactivity" => &mut timeouts.inactivity_ms,
                "turn" => &mut timeouts.turn_ms,
                "tool" => &mut timeouts.tool_ms,
                "silence" => &mut timeouts.silence_ms,
                "repeat" => &mut timeouts.silence_repeat_ms,
                _ => return Err(format!("unknown clock {name:?}; {}", usage())),
            };
            let ms = match value.trim() {
                "off" => 0,
                value => milliseconds(value)?,
            };
            if ms == 0 && value.trim() != "off" {
                return Err(format!("{name} of nothing has passed already: write {name}=off for none"));
            }
            if clock.replace(ms).is_some() {
                return Err(format!("{name} is given twice"));
            }
        }
        Ok(Self(timeouts))
    }
}

fn usage() -> &'static str {
    "there are start, first, inactivity, turn, tool, silence and repeat, each a duration or `off`, and action=warn|abort|kill"
}

/// Value of `--permission-timeout`: `60s` or `60s,allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermissionTimeout {
    /// Longest wait of a request.
    pub(crate) after: Duration,
    /// True to allow the request then.
    pub(crate) allow: bool,
}

impl FromStr for PermissionTimeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (duration, allow) = match text.split_once(',') {
            None => (text, false),
            Some((duration, "deny")) => (duration, false),
            Some((duration, "allow")) => (duration, true),
            Some((_, what)) => return Err(format!("{what:?} is neither allow nor deny")),
        };
        let ms = milliseconds(duration)?;
        if ms == 0 {
            return Err("nobody answers in no time: leave it out to wait for ever, or use --permission".to_owned());
        }
        Ok(Self { after: Duration::from_millis(ms), allow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_as_they_are_written() {
        let parsed: TimeoutArg = "first=30s,inactivity=2m, turn=off,action=kill".parse().expect("parses");
        let expected = ProfileTimeouts {
            first_response_ms: Some(30_000),
            inactivity_ms: Some(120_000),
            turn_ms: Some(0),
            action: Some(TimeoutAction::KillSession),
            ..ProfileTimeouts::default()
        };
        assert_eq!(parsed.0, expected);
        for (text, part) in [
            ("", "no CLOCK=DURATION"),
            ("30s", "no CLOCK=DURATION"),
            ("last=3s", "there are start, first"),
            ("first=soon", "30s"),
            ("first=0s", "first=off"),
            ("first=1s,first=2s", "twice"),
            ("action=cry", "warn, abort or kill"),
        ] {
            let error = text.parse::<TimeoutArg>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn how_long_a_request_waits() {
        let parsed = |text: &str| text.parse::<PermissionTimeout>().map(|given| (given.after.as_secs(), given.allow));
        assert_eq!(parsed("60s"), Ok((60, false)));
        assert_eq!(parsed("2m,allow"), Ok((120, true)));
        assert!(parsed("60s,perhaps").is_err() && parsed("0s").is_err() && parsed("soon").is_err());
    }
}
