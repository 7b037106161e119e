//! The screens of the real agents with `run --tty`, and with `start --tty` and `attach`, beside those of the bare programs, in tmux:
//! `tests/real-agents/run --screens`.
//!
//! Each agent goes through the same steps three times, with the same home, directory, environment and mock model. A step's screen
//! (text, colours and attributes, cursor, modes, title) has to become that of the bare program.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for whoever runs it")]

mod agents;
mod normal;
mod pane;
mod walk;

use std::{io, path::PathBuf, process::ExitCode};

use agent_proxy_tests::mock_model::MockModel;

use crate::{
    agents::{SCREEN_AGENTS, ScreenAgent},
    walk::{BareShots, Side, StepOutcome, Walk},
};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("screens: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs all that is asked for. Returns true if everything is the same.
fn run() -> io::Result<bool> {
    let variable = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.ok_or_else(|| io::Error::other(format!("{name} is not set: use tests/real-agents/run --screens")))
    };
    let (agents, program) = (variable("AGENT_PROXY_AGENTS")?.join("bin"), variable("AGENT_PROXY_PROGRAM")?);
    let mut chosen = Vec::new();
    let mut shows = false;
    let mut sides = &[Side::Run, Side::Attach][..];
    for word in std::env::args().skip(1) {
        match word.as_str() {
            "--show" => shows = true,
            "--control" => sides = &[Side::Bare],
            id => chosen.push(ScreenAgent::named(id).ok_or_else(|| io::Error::other(format!("no agent {id:?}")))?),
        }
    }
    if chosen.is_empty() {
        chosen.extend(SCREEN_AGENTS);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut all_same = true;
    for agent in chosen {
        let model = runtime.block_on(MockModel::start())?;
        let folder = std::env::temp_dir().join(format!("agent-proxy-screens-{}", std::process::id()));
        let walk = Walk { agent, model: &model, agents: &agents, program: &program, folder: &folder };
        let begin = std::time::Instant::now();
        let same = walk_sides(&walk, shows, sides);
        let _ = std::fs::remove_dir_all(&folder);
        match same {
            Ok(same) => all_same &= same,
            Err(error) => {
                println!("screens: {}: FAIL: {error}", agent.id);
                all_same = false;
            }
        }
        eprintln!("screens: {}: {:.0} s", agent.id, begin.elapsed().as_secs_f64());
    }
    Ok(all_same)
}

fn walk_sides(walk: &Walk<'_>, shows: bool, sides: &[Side]) -> io::Result<bool> {
    let (bare, _) = walk.side(Side::Bare, None)?;
    if shows {
        show(&bare);
    }
    let mut all_same = true;
    let (mut steps, mut differing) = (0, 0);
    for side in sides {
        let (_, outcomes) = walk.side(*side, Some(&bare))?;
        for StepOutcome { name, text, colors, modes, title } in outcomes {
            let word = |difference: &Option<String>| if difference.is_some() { "DIFFERS" } else { "same" };
            println!(
                "screens: {:12} {:7} {name:26} text {:8} colours {:8} modes {:8} title {}",
                walk.agent.id,
                format!("{side:?}").to_lowercase(),
                word(&text),
                word(&colors),
                word(&modes),
                word(&title)
            );
            steps += 1;
            differing += usize::from([&text, &colors, &modes, &title].into_iter().any(Option::is_some));
            for difference in [text, colors, modes, title].into_iter().flatten() {
                all_same = false;
                println!("{difference}");
            }
        }
    }
    println!("screens: {}: {steps} steps, {differing} differ", walk.agent.id);
    Ok(all_same)
}

fn show(shots: &BareShots) {
    for (name, shot) in shots {
        println!("=== {name} ({})\n{}", shot.modes, shot.text.join("\n"));
    }
}
