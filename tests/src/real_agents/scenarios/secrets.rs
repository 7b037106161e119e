//! Where the key is not.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use proxy_manager::KillOptions;

use super::{Ran, ensure, killing::Naps};
use crate::{
    real_agents::{
        Stage, Verdict,
        logs::{MOST, logged},
        session::within,
    },
    system::{sleeping, with_marker},
};

/// Where the key came with the environment, tools would see it, and OpenCode's server's password too.
pub(super) async fn trap_tools_see_the_api_key(stage: Arc<Stage>) -> Ran {
    let config = stage.config();
    let shown = format!("{config:?}");
    let mut session = stage.start(config).await?;
    session.ask("good morning").await?;
    session.ask("shell: env").await?;
    // While a tool runs.
    let mut naps = Naps::new(&stage)?;
    let seconds = naps.nap();
    session.begin(format!("shell: ./nap {seconds}")).await?;
    naps.all_sleep().await?;
    let mut found = Vec::new();
    let mut look = |place: String, text: &[u8]| {
        if contains(text, stage.key.as_bytes()) {
            found.push(place);
        }
    };
    for pid in pids() {
        look(format!("the command line of {pid}"), &fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default());
    }
    look("the list of ps".into(), &ps().map_err(|error| error.to_string())?);
    for pid in sleeping(&seconds) {
        look("the environment of a tool".into(), &fs::read(format!("/proc/{pid}/environ")).unwrap_or_default());
    }
    look("Debug of the configuration".into(), shown.as_bytes());
    look("Debug of the manager's parts".into(), stage.shown.as_bytes());
    look("Debug of the manager".into(), format!("{:?} {:?}", stage.manager, session.handle).as_bytes());
    let info = serde_json::to_vec(&session.handle.info()).map_err(|error| error.to_string())?;
    look("the session's info".into(), &info);
    let processes = within("the processes", session.handle.processes()).await??;
    look("the list of processes".into(), format!("{processes:?}").as_bytes());
    ensure!(!with_marker(session.handle.id().as_str()).is_empty(), "nothing carries the marker");
    let receipt = within("the kill", session.handle.kill(KillOptions::default())).await??;
    session.drain().await?;
    look("the receipt".into(), &serde_json::to_vec(&receipt).map_err(|error| error.to_string())?);
    for envelope in &session.seen {
        let json = envelope.to_json().map_err(|error| error.to_string())?.to_string();
        look(format!("an event: {}", json.chars().take(300).collect::<String>()), json.as_bytes());
        look("Debug of an event".into(), format!("{envelope:?}").as_bytes());
    }
    let logged = logged();
    ensure!(!logged.is_empty() && logged.len() < MOST, "{} bytes of logs were kept", logged.len());
    look("the logs".into(), &logged);
    let mut files = Vec::new();
    walk(stage.folder(), &stage.state().join("homes"), &mut files).map_err(|error| error.to_string())?;
    for file in files {
        look(file.display().to_string(), &fs::read(&file).unwrap_or_default());
    }
    ensure!(found.is_empty(), "the key is in: {found:?}");
    let told = |json: &str| json.contains("OPENCODE_SERVER_PASSWORD=");
    let mut envelopes = session.seen.iter().filter_map(|envelope| envelope.to_json().ok());
    ensure!(!envelopes.any(|json| told(&json.to_string())), "a tool had the password of the agent's server");
    // It was the key that the model was given.
    let requests = stage.model.requests();
    let given = |key: &Option<String>| key.as_ref().is_some_and(|key| key.ends_with(&stage.key));
    let without = requests.iter().find(|request| !given(&request.authorization));
    ensure!(without.is_none() && !requests.is_empty(), "a request without the key: {without:?}");
    Ok(Verdict::Pass)
}

fn contains(text: &[u8], key: &[u8]) -> bool {
    text.windows(key.len()).any(|window| window == key)
}

/// What `ps` shows of every process.
#[expect(clippy::disallowed_methods, reason = "ps is no part of a session")]
fn ps() -> std::io::Result<Vec<u8>> {
    let output = std::process::Command::new("ps").args(["-e", "-o", "pid,args"]).output()?;
    if output.status.success() { Ok(output.stdout) } else { Err(std::io::Error::other("ps failed")) }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The files below `directory`, but for those below `homes`. What goes meanwhile is not there.
fn walk(directory: &Path, homes: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if entry.path() != homes {
                walk(&entry.path(), homes, files)?;
            }
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}
