//! Surface of a session: whether its agent's screen and its protocol go together.

use ipc_protocol::{
    AgentSessionConfig,
    terminal::{OnDetach, Surface, TerminalConfig},
};

use super::{ProvisionError, Result};
use crate::AgentSpec;

/// Decides on the surface of a session, in its configuration. One that asks for `both` and has a terminal gets `both` if its agent
/// can, else the terminal. One that asks for nothing gets `both` where that changes nothing else.
///
/// # Errors
/// [`ProvisionError::Unsupported`] if the session asks for `both` alone, and its agent cannot.
pub fn settle_surface(spec: &AgentSpec, config: &mut AgentSessionConfig) -> Result<()> {
    let has_companion = !spec.companion_cmd.is_empty() && config.endpoint.is_none();
    let screen_speaks = speaks_on_screen(spec);
    match (config.surface, &config.terminal) {
        (Some(Surface::Both), None) if screen_speaks => config.terminal = Some(TerminalConfig::default()),
        (Some(Surface::Both), Some(terminal)) if screen_speaks && !terminal.visit => {}
        (Some(Surface::Both), None) if !has_companion => {
            let operation = "be driven on its own screen and by its protocol at once";
            return Err(ProvisionError::unsupported(spec, operation));
        }
        (Some(Surface::Both), Some(terminal)) => {
            // A recording, and an end with the last viewer, are of the terminal that the agent itself runs in.
            let is_plain = terminal.record.is_none() && terminal.on_detach == OnDetach::Keep && !terminal.visit;
            match has_companion && is_plain {
                true => config.terminal = None,
                false => config.surface = None,
            }
        }
        (None, None) if has_companion && !needs_server(spec) => config.surface = Some(Surface::Both),
        _ => {}
    }
    Ok(())
}

/// Returns whether the agent's own screen speaks its protocol too, by an extension of ours.
fn speaks_on_screen(spec: &AgentSpec) -> bool {
    spec.family() == Some("pi") && spec.protocol == "pi" && !spec.terminal_cmd.is_empty()
}

/// Returns whether the agent has to be started as a server for its screen, and is none by itself.
fn needs_server(spec: &AgentSpec) -> bool {
    !spec.is_server() && spec.companion_cmd.iter().any(|word| word.contains("{endpoint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn screen_and_protocol_go_together_where_the_agent_can() {
        let alone = AgentSpec::new("alone", "acp", &["alone"]);
        let companion_cmd = vec!["screen".to_owned()];
        let shown = AgentSpec { companion_cmd, ..alone.clone() };
        let settled = |spec: &AgentSpec, surface, terminal: Option<TerminalConfig>| {
            let mut config = AgentSessionConfig { surface, terminal, ..AgentSessionConfig::new("x") };
            settle_surface(spec, &mut config).map(|()| (config.driving_surface(), config.terminal.is_some()))
        };
        let both = Some(Surface::Both);
        let plain = || Some(TerminalConfig::default());
        let recorded = Some(TerminalConfig { record: Some("/r".into()), ..TerminalConfig::default() });
        assert_eq!(settled(&shown, both, None), Ok((Surface::Both, false)));
        assert_eq!(settled(&shown, both, plain()), Ok((Surface::Both, false)));
        assert_eq!(settled(&shown, both, recorded), Ok((Surface::Terminal, true)));
        assert_eq!(settled(&shown, None, None), Ok((Surface::Both, false)));
        assert_eq!(settled(&shown, None, plain()), Ok((Surface::Terminal, true)));
        assert_eq!(settled(&shown, Some(Surface::Machine), None), Ok((Surface::Machine, false)));
        let companion_cmd = vec!["screen".to_owned(), "{endpoint}".to_owned()];
        let served = AgentSpec { companion_cmd, ..alone.clone() };
        assert_eq!(settled(&served, both, plain()), Ok((Surface::Both, false)));
        assert_eq!(settled(&served, None, None), Ok((Surface::Machine, false)));
        assert_eq!(settled(&alone, both, plain()), Ok((Surface::Terminal, true)));
        assert_eq!(settled(&alone, None, None), Ok((Surface::Machine, false)));
        assert!(settled(&alone, both, None).is_err());
        let mut speaking = AgentSpec { terminal_cmd: vec!["pi".to_owned()], ..AgentSpec::new("pi", "pi", &["pi"]) };
        speaking.protocol_config = serde_json::json!({ "config": "pi" });
        assert_eq!(settled(&speaking, both, None), Ok((Surface::Both, true)));
        assert_eq!(settled(&speaking, both, plain()), Ok((Surface::Both, true)));
        assert_eq!(settled(&speaking, None, plain()), Ok((Surface::Terminal, true)));
        assert_eq!(settled(&speaking, None, None), Ok((Surface::Machine, false)));
    }
}
