//! The agent's own bytes.

use std::sync::Arc;

use proxy_manager::KillOptions;

use super::{Ran, ensure};
use crate::real_agents::{Failure, Stage, Verdict, recorder::Recorder, session::within};

pub(super) async fn verbatim(stage: Arc<Stage>) -> Ran {
    let io = |error: std::io::Error| Failure::Wrong(format!("recording: {error}"));
    let recorder = Recorder::start(&stage.work()).await.map_err(io)?;
    let is_server = stage.agent.row()?.is_server();
    let mut session = stage.start(if is_server { stage.on_the_machines_network() } else { stage.config() }).await?;
    session.ask("think: cheese \u{2028} ü").await?;
    session.ask("shell: expr 40 + 2").await?;
    session.ask("status: 400").await?;
    // What a stream brought up to here was read to the end of the turn; what comes during the kill may be lost with it.
    let before = recorder.streams();
    within("the kill", session.handle.kill(KillOptions::default())).await??;
    session.drain().await?;
    // Answers have no line's end, and come in between.
    let (told, mut answers): (Vec<_>, Vec<_>) =
        session.verbatim().into_iter().partition(|told| !is_server || told.ends_with(b"\n"));
    let told = told.concat();
    let wrote = recorder.stdout().map_err(io)?;
    let (of_stdout, of_streams) = told.split_at(wrote.len().min(told.len()));
    alike("standard output", &wrote, of_stdout)?;
    let streams = recorder.streams();
    alike("streams", &before, &of_streams[..before.len().min(of_streams.len())])?;
    alike("streams to the end", &streams[..of_streams.len().min(streams.len())], of_streams)?;
    // Two that are under way at once come in either order.
    let mut answered = recorder.answers();
    answered.sort();
    answers.sort();
    alike("answers", &answered.concat(), &answers.concat())?;
    ensure!(!is_server || answers.len() > 1, "it answered only {} times", answers.len());
    ensure!(told.len() > 500, "it wrote only {} bytes", told.len());
    Ok(Verdict::Pass)
}

/// Whether the events have just the bytes that were recorded.
fn alike(what: &str, wrote: &[u8], told: &[u8]) -> Result<(), Failure> {
    let same = wrote.iter().zip(told).take_while(|(a, b)| a == b).count();
    ensure!(
        wrote == told,
        "{what}: {} bytes were written, the events have {}; alike up to {same}: {:?} and {:?}",
        wrote.len(),
        told.len(),
        excerpt(wrote, same),
        excerpt(told, same)
    );
    Ok(())
}

fn excerpt(bytes: &[u8], at: usize) -> String {
    String::from_utf8_lossy(&bytes[at.saturating_sub(40)..(at + 120).min(bytes.len())]).into_owned()
}
