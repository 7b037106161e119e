//! Command `demo`: a session from prompt to proven kill.

mod demo_output;
mod demo_processes;
mod would_be_survivors;

use std::time::{Duration, Instant};

use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, ContainmentStatus, Error, Event, KillOptions, ProcessInfo,
    ProcessStatus, PromptMode, ProxyManager, Receipt, SessionHandle, TurnStep, TurnStream,
};
use proxy_server::{ProblemDetails, ProgramExit};
use serde_json::json;

use self::{demo_output::DemoOutput, demo_processes::DemoProcesses, would_be_survivors::WouldBeSurvivors};
use crate::commands::engine::interrupts::InterruptStream;
use crate::{command_failure::CommandFailure, environment, render};

/// Time between SIGTERM and SIGKILL: long enough for a process that obeys, short enough to watch.
const GRACE: Duration = Duration::from_millis(500);

/// Longest time for the whole demo.
const DEADLINE: Duration = Duration::from_secs(60);

/// Shows a session from prompt to proven kill.
pub(super) async fn run(child: ChildProgram, as_json: bool) -> Result<(), CommandFailure> {
    let mut interrupts = InterruptStream::new()?;
    let argv = crate::engine::fake_agent_argv()?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let manager = ProxyManager::builder(child)
        .base_env(environment::base())
        .agent(AgentSpec::new(crate::engine::FAKE_AGENT, "acp", &argv))
        .build()
        .await?;
    let done = tokio::select! {
        done = tokio::time::timeout(DEADLINE, run_demo(&manager, as_json)) => done.unwrap_or_else(|_| {
            Err(ProblemDetails::new("deadline", format!("the demo was not done within {DEADLINE:?}")).into())
        }),
        _ = interrupts.next() => Err(CommandFailure::Exit(ProgramExit::Interrupted)),
    };
    // End everything, whatever happened above.
    let left = manager.shutdown().await;
    match left.into_iter().find(|receipt| !receipt.is_empty()) {
        Some(receipt) => Err(Error::Survivors(Box::new(receipt)).into()),
        None => done,
    }
}

async fn run_demo(manager: &ProxyManager, as_json: bool) -> Result<(), CommandFailure> {
    let stage = DemoOutput::new(as_json);
    stage.title("agent-proxy: a session from prompt to proven kill")?;

    stage.heading(1, "Start an agent in a session of its own")?;
    let begin = Instant::now();
    let session = manager.start_session(AgentSessionConfig::new(crate::engine::FAKE_AGENT)).await?;
    let ready = render::duration(begin.elapsed());
    stage.paragraph(&format!("ready in {ready}; it speaks ACP, and follows a script instead of a model"))?;
    stage.aside(&line_of_descent(manager, &session))?;
    let measures = measures(&session).await?;
    stage.aside(&format!(
        "held by {}; {} sees its processes",
        render::receipt::layers(&measures.layers),
        render::event::observer(measures.observer)
    ))?;

    stage.heading(2, "Prompt it: it starts what agents' tools start")?;
    let kinds = turn(&session, &stage).await?;

    stage.heading(3, "The turn is over. This is what still runs")?;
    let processes = live_processes(&session).await?;
    stage.block(&render::tree::render(&processes, stage.style(), Some(demo_output::ROOM)))?;

    stage.heading(4, "What other kills would have left (counted in that tree, not done)")?;
    let spared = WouldBeSurvivors::count(&processes)?;
    stage.block(&spared.render(&kinds, stage.style()))?;

    stage.heading(5, "Kill the session: SIGTERM, after 500 ms SIGKILL, until none is left")?;
    let receipt = session.kill(KillOptions::grace(GRACE)).await?;
    stage
        .block(&render::receipt::render_named(&receipt, stage.style(), Some(demo_output::ROOM), |pid| kinds.of(pid)))?;
    judge(&processes, &kinds, &receipt)?;
    stage.verdict(&format!("checked once more, one by one: all {} are gone", processes.len()))?;
    if as_json {
        crate::term::json(
            &json!({ "measures": measures, "processes": processes, "spared": spared, "receipt": receipt }),
        )?;
    }
    Ok(())
}

/// Lists the processes from this program down to the agent.
fn line_of_descent(manager: &ProxyManager, session: &SessionHandle) -> String {
    let info = session.info();
    let pid = |process: Option<proxy_manager::ProcessId>| process.map_or(0, |process| process.pid);
    format!(
        "this program {} > fork server {} > proxy {} > agent {}",
        std::process::id(),
        manager.fork_server().pid,
        pid(info.processes.proxy),
        pid(info.processes.agent_process)
    )
}

/// Reads the measures in force from the session's events.
async fn measures(session: &SessionHandle) -> Result<ContainmentStatus, CommandFailure> {
    let mut events = session.subscribe();
    while let Some(envelope) = events.next().await {
        if let Event::SessionStarted { measures, .. } = &envelope.event {
            return Ok((**measures).clone());
        }
    }
    Err(ProblemDetails::failed("the session ended before it said what holds it").into())
}

/// Runs the turn, prints its output, and parses the kinds of the started processes from it.
async fn turn(session: &SessionHandle, stage: &DemoOutput) -> Result<DemoProcesses, CommandFailure> {
    for line in demo_processes::PROMPT.lines() {
        stage.aside(&format!("> {line}"))?;
    }
    let mut turn =
        TurnStream::follow(session.clone(), session.prompt(demo_processes::PROMPT, PromptMode::Refuse)).await?;
    let mut answer = String::new();
    while let Some(step) = turn.next().await {
        match step {
            TurnStep::Event(envelope) => {
                if let Event::Text { text } = &envelope.event {
                    stage.stream(&answer, text)?;
                    answer.push_str(text);
                }
            }
            TurnStep::End(end) => {
                if let Some(error) = end?.error {
                    return Err(ProblemDetails::failed(format!("the turn failed: {error}")).into());
                }
            }
        }
    }
    Ok(DemoProcesses::from_answer(&answer)?)
}

async fn live_processes(session: &SessionHandle) -> Result<Vec<ProcessInfo>, CommandFailure> {
    let mut processes = session.processes().await?;
    processes.retain(|process| process.status == ProcessStatus::Running);
    Ok(processes)
}

/// Checks the demo's promise: every live process is in the receipt, and none is alive any more.
fn judge(processes: &[ProcessInfo], kinds: &DemoProcesses, receipt: &Receipt) -> Result<(), CommandFailure> {
    if !receipt.is_empty() {
        return Err(Error::Survivors(Box::new(receipt.clone())).into());
    }
    for (pid, what) in kinds.iter() {
        if !processes.iter().any(|process| process.id.pid == pid) {
            return Err(
                ProblemDetails::failed(format!("{what} ({pid}) was not in the listing of live processes")).into()
            );
        }
    }
    for process in processes {
        let id = process.id;
        if !receipt.processes.iter().any(|entry| entry.id == id) {
            return Err(ProblemDetails::failed(format!("process {id} is not in the receipt")).into());
        }
        // Ask the kernel directly, instead of trusting the receipt.
        if registry::identify(id.pid).is_ok_and(|now| now == id) {
            return Err(ProblemDetails::new(
                "survivors",
                format!("process {id} is alive, and the receipt says it is not"),
            )
            .into());
        }
    }
    Ok(())
}
