//! The product, through `ProxyManager` only, as an embedder uses it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use clap::ValueEnum;
use proxy_child::ChildToken;
use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Containment, EnvVars, Envelope, Event, KillOptions, PromptMode,
    ProxyManager, Subscription,
};
use tokio::runtime;

use crate::{
    contestant::{self, MeasureRequest, MeasuredFigures},
    error::{Error, Result},
    flood,
    kill::session,
    programs,
    stats::{mean_pss_kib, median},
    text::NumberedTexts,
};

/// Longest time for the events of one measurement.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runtime of the host.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum RuntimeFlavor {
    /// A single thread for host, session and subscriber.
    #[default]
    CurrentThread,
    /// A thread per processor.
    MultiThread,
}

impl RuntimeFlavor {
    /// Returns the runtime's name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Answers requests until the input ends.
///
/// # Errors
/// Same as [`contestant::serve`]; when no manager can be built.
pub(crate) fn serve(token: ChildToken, flavour: RuntimeFlavor) -> Result<()> {
    let runtime = match flavour {
        RuntimeFlavor::CurrentThread => runtime::Builder::new_current_thread().enable_all().build(),
        RuntimeFlavor::MultiThread => runtime::Builder::new_multi_thread().enable_all().build(),
    };
    let runtime = runtime.map_err(Error::system("making a runtime"))?;
    let manager = runtime.block_on(manager(token))?;
    let served = contestant::serve(|request| measure(&runtime, &manager, request));
    runtime.block_on(manager.shutdown());
    served
}

async fn manager(token: ChildToken) -> Result<ProxyManager> {
    let path = std::env::var("PATH").unwrap_or_default();
    let argv = programs::lines_argv(flood::LINE)?;
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let builder = ProxyManager::builder(ChildProgram::Current(token))
        .base_env([("PATH", path)].into_iter().collect::<EnvVars>())
        .agent(AgentSpec::new(flood::PROTOCOL, flood::PROTOCOL, &argv));
    Ok(builder.build().await?)
}

fn measure(runtime: &runtime::Runtime, manager: &ProxyManager, request: MeasureRequest) -> Result<MeasuredFigures> {
    let one = |name: &str, figure| MeasuredFigures::from([(name.to_owned(), figure)]);
    Ok(match request {
        MeasureRequest::Start { count } => MeasuredFigures::from([
            // The floor and the peer have no cgroup either.
            ("start_ms".to_owned(), runtime.block_on(start(manager, Containment::Baseline, count))?),
            ("start_default_ms".to_owned(), runtime.block_on(start(manager, Containment::Auto, count))?),
        ]),
        MeasureRequest::Idle { count, settle_ms } => {
            runtime.block_on(idle(manager, count, Duration::from_millis(settle_ms)))?
        }
        MeasureRequest::Kill { method, count } => runtime.block_on(session::measure(manager, method, count))?,
        MeasureRequest::Rtt { count, warm_up } => one("rtt_us", runtime.block_on(rtt(manager, count, warm_up))?),
        MeasureRequest::Events { count, warm_up, .. } => {
            let config = AgentSessionConfig::new(flood::PROTOCOL);
            one("events_per_s_proxy", runtime.block_on(rate(manager, config, NumberedTexts::plain(), count, warm_up))?)
        }
        MeasureRequest::Stdout { count, warm_up, length, program } => {
            let config = AgentSessionConfig { command: program, ..AgentSessionConfig::new("command") };
            one(
                "events_per_s_stdout",
                runtime.block_on(rate(manager, config, NumberedTexts::lines(length), count, warm_up))?,
            )
        }
    })
}

/// Configures a session of `cat`, with the same path as the floor uses.
pub(crate) fn cat() -> Result<AgentSessionConfig> {
    let path = programs::find("cat")?.display().to_string();
    Ok(AgentSessionConfig { command: vec![path], ..AgentSessionConfig::new("command") })
}

/// Times `start_session` until its answer, when the agent's exec is confirmed.
async fn start(manager: &ProxyManager, containment: Containment, count: u32) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..count {
        let config = AgentSessionConfig { containment: Some(containment), ..cat()? };
        let begin = Instant::now();
        let session = manager.start_session(config).await?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        session.kill(KillOptions::NOW).await?;
    }
    median(&times).ok_or_else(|| Error::answer("the request", "asks for no start"))
}

/// Measures the proxies of idle sessions, and the fork server at the same time.
async fn idle(manager: &ProxyManager, count: u32, settle: Duration) -> Result<MeasuredFigures> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(manager.start_session(cat()?).await?);
    }
    tokio::time::sleep(settle).await;
    let proxies: Vec<_> =
        sessions.iter().filter_map(|session| session.info().processes.proxy).map(|proxy| proxy.pid).collect();
    if proxies.len() != sessions.len() {
        return Err(Error::answer("a session", "has no proxy"));
    }
    let proxy = mean_pss_kib(&proxies)?;
    let fork_server = mean_pss_kib(&[manager.fork_server().pid])?;
    for session in &sessions {
        session.kill(KillOptions::NOW).await?;
    }
    Ok(MeasuredFigures::from([("idle_pss_kib".to_owned(), proxy), ("fork_server_pss_kib".to_owned(), fork_server)]))
}

/// Times pings of an idle session, one after the other.
async fn rtt(manager: &ProxyManager, count: u32, warm_up: u32) -> Result<f64> {
    let session = manager.start_session(cat()?).await?;
    for _ in 0..warm_up {
        session.ping().await?;
    }
    let begin = Instant::now();
    for _ in 0..count {
        session.ping().await?;
    }
    let micros = begin.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    session.kill(KillOptions::NOW).await?;
    Ok(micros)
}

/// Measures texts a second, from the prompt that asks for them to the last one at the subscriber.
async fn rate(
    manager: &ProxyManager,
    config: AgentSessionConfig,
    expected: NumberedTexts,
    count: u64,
    warm_up: u64,
) -> Result<f64> {
    let session = manager.start_session(config).await?;
    let mut subscription = session.subscribe();
    let mut seconds = 0.0;
    for count in [warm_up, count] {
        let begin = Instant::now();
        let prompt = async { session.prompt(count.to_string(), PromptMode::Refuse).await.map_err(Error::from) };
        // Concurrent: events come before the prompt's own answer is processed.
        let both = async { tokio::try_join!(prompt, receive(&mut subscription, expected.clone(), count, |_, _| {})) };
        tokio::time::timeout(PATIENCE, both)
            .await
            .map_err(|_| Error::Deadline { operation: format!("receiving {count} events"), after: PATIENCE })??;
        seconds = begin.elapsed().as_secs_f64();
    }
    session.kill(KillOptions::NOW).await?;
    Ok(count as f64 / seconds)
}

/// Receives `count` texts, each the expected one. Calls `seen` with each, and with the number received so far.
///
/// # Errors
/// When an unexpected text comes, or the session ends.
pub(crate) async fn receive(
    subscription: &mut Subscription,
    mut expected: NumberedTexts,
    count: u64,
    mut seen: impl FnMut(&Envelope, u64),
) -> Result<()> {
    let mut batch: Vec<Arc<Envelope>> = Vec::new();
    while expected.taken() < count {
        if !subscription.next_batch(&mut batch).await {
            return Err(Error::answer("the session", "ended before its last event"));
        }
        for envelope in batch.drain(..) {
            match &envelope.event {
                Event::Text { text } => {
                    expected.check(text.as_bytes())?;
                    seen(&envelope, expected.taken());
                }
                Event::SessionGap(gap) => {
                    let expected = expected.taken();
                    return Err(Error::Lost { expected, came: format!("session:gap {}..{}", gap.from, gap.to) });
                }
                Event::Log { text, .. } => return Err(Error::answer("the agent", format!("says {text:?}"))),
                _ => {}
            }
        }
    }
    Ok(())
}
