//! Managers, sessions and events, as the tests want them.

use std::{future::Future, sync::Arc};

use proxy_manager::{
    AgentSessionConfig, AgentSpec, ChildProgram, Envelope, Event, ManagerBuilder, ProxyManager, SessionHandle,
    Subscription,
};

use crate::system::{DEADLINE, unique_seconds};

/// The fake agent's row in the catalog.
pub const FAKE: &str = "fake";

/// A manager with the fake agent in its catalog. `child` and `fake` are the test package's binaries.
pub fn builder(child: &str, fake: &str) -> ManagerBuilder {
    ProxyManager::builder(ChildProgram::Path(child.into()))
        .base_env([("PATH", "/usr/bin:/bin")].into_iter().collect())
        .agent(AgentSpec {
            protocol_config: serde_json::json!({ "steerByPrompt": true }),
            ..AgentSpec::new(FAKE, "acp", &[fake])
        })
}

/// A session of the fake agent.
pub fn fake() -> AgentSessionConfig {
    AgentSessionConfig { cwd: Some("/".into()), ..AgentSessionConfig::new(FAKE) }
}

/// A session that runs a shell script, without turns.
pub fn shell(script: &str) -> AgentSessionConfig {
    AgentSessionConfig {
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        ..AgentSessionConfig::new("command")
    }
}

/// What `future` comes to; panics when it takes longer than [`DEADLINE`].
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {DEADLINE:?}: {what}"),
    }
}

/// The next event that `wanted` wants; others are passed over.
pub async fn event<T>(events: &mut Subscription, what: &str, mut wanted: impl FnMut(&Envelope) -> Option<T>) -> T {
    soon(what, async {
        loop {
            match events.next().await {
                Some(envelope) => {
                    if let Some(found) = wanted(&envelope) {
                        return found;
                    }
                }
                None => panic!("the stream ended before: {what}"),
            }
        }
    })
    .await
}

/// Everything up to the end of the session.
pub async fn all(events: &mut Subscription) -> Vec<Arc<Envelope>> {
    let mut all = Vec::new();
    soon("the session's last event", async {
        while let Some(envelope) = events.next().await {
            all.push(envelope);
        }
    })
    .await;
    all
}

/// The text that begins with `prefix`, without it.
pub async fn said(events: &mut Subscription, prefix: &str) -> String {
    event(events, &format!("text {prefix:?}"), |envelope| match &envelope.event {
        Event::Text { text } => text.strip_prefix(prefix).map(str::to_owned),
        _ => None,
    })
    .await
}

/// A plain child, one in another session, a daemon, and one that ignores SIGTERM, all of a session of the fake agent.
pub struct Family {
    /// What they sleep for: names them.
    pub seconds: String,
    /// Their pids, in the order above (for the last, of its shell).
    pub pids: Vec<u32>,
}

/// Has the fake agent start a [`Family`] and waits until all sleep.
pub async fn family(session: &SessionHandle) -> Family {
    let seconds = unique_seconds();
    let mut events = session.subscribe();
    let script = format!(
        "spawn exec sleep {seconds}\nsetsid exec sleep {seconds}\ndaemon exec sleep {seconds}\nignore-term sleep {seconds}"
    );
    let turn = session.prompt(script, proxy_manager::PromptMode::Refuse).await.expect("prompted");
    let mut pids = Vec::new();
    for kind in ["spawn ", "setsid ", "daemon ", "ignore-term "] {
        let text = said(&mut events, kind).await;
        pids.push(text.trim().parse().expect("a pid"));
    }
    soon("the turn's end", turn.wait()).await.expect("ended");
    let count = || crate::system::sleeping(&seconds).len();
    crate::system::until("the family sleeps", || (count() == 4).then_some(()));
    Family { seconds, pids }
}
