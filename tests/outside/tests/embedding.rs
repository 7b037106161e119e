//! Tests of an outside crate: a manager and the fake agent in three lines, a linked adapter, streams.

use agent_proxy_sdk::{Envelope, Event, catalog::AgentSpec, test_child, testing};
use futures_util::{FutureExt as _, StreamExt};

test_child!(outside::adapters());

#[tokio::test]
async fn the_fake_agent_answers() {
    let manager = testing::manager().await;
    let (reply, receipt) = outside::ask_once(&manager, testing::fake(), "say hello").await.unwrap();
    assert_eq!((reply.as_str(), receipt.is_empty()), ("hello\n", true));
}

#[tokio::test]
async fn a_linked_adapter_answers() {
    let manager = testing::builder().agent(AgentSpec::new("echo", "echo", &["/bin/cat"])).build().await.unwrap();
    let config = agent_proxy_sdk::AgentSessionConfig::new("echo");
    assert_eq!(outside::ask_once(&manager, config, "hello").await.unwrap().0, "hello\n");
}

#[tokio::test]
async fn a_subscription_is_a_stream_and_an_envelope_is_json() {
    let manager = testing::manager().await;
    let session = manager.start_session(testing::fake()).await.unwrap();
    let mut events = session.subscribe();
    // A poll that finds nothing leaves a fill behind, which the next call of either kind goes on with.
    while StreamExt::next(&mut events).now_or_never().is_some() {}
    session.ask("say hello").await.unwrap();
    session.kill(Default::default()).await.unwrap();
    let first = events.next().await.unwrap();
    let rest: Vec<_> = events.collect().await;
    let offsets: Vec<_> = std::iter::once(&first).chain(&rest).map(|envelope| envelope.offset).collect();
    assert!(offsets.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{offsets:?}");
    assert!(matches!(rest.last().unwrap().event, Event::SessionEnded { .. }));
    for envelope in rest {
        let json = serde_json::to_value(&*envelope).unwrap();
        assert_eq!(json["type"], *envelope.event.kind());
        assert_eq!(serde_json::from_value::<Envelope>(json).unwrap(), *envelope);
    }
}

#[tokio::test]
async fn a_state_directory_is_kept_with_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    testing::builder().state_dir(folder.path().to_owned()).build().await.unwrap().shutdown().await;
    assert!(folder.path().join("log.sqlite").exists());
}

/// What calls of the SDK take and return has a name in the SDK: parts of configurations, and errors of parsing.
#[test]
fn types_of_signatures_have_names() {
    use agent_proxy_sdk::{catalog, config, events, host, isolation, limits, processes, sessions, terminal, workspace};
    fn named<T>() -> &'static str {
        std::any::type_name::<T>()
    }
    let names = [
        named::<catalog::ContainerMount>(),
        named::<catalog::PerPlatform>(),
        named::<catalog::ProcessMarks>(),
        named::<catalog::ProfileContainer>(),
        named::<catalog::ProfileLimits>(),
        named::<catalog::ProfilePermissions>(),
        named::<catalog::ProfileRule>(),
        named::<catalog::ProfileSandbox>(),
        named::<catalog::ProfileTimeouts>(),
        named::<catalog::ResourceLimits>(),
        named::<config::InvalidHomePart>(),
        named::<events::EnvelopeError>(),
        named::<events::EventShape>(),
        named::<host::ErrorCause>(),
        named::<host::LogMetrics>(),
        named::<isolation::UnknownContainment>(),
        named::<isolation::UnknownEngine>(),
        named::<isolation::UnknownSandbox>(),
        named::<limits::InvalidUsd>(),
        named::<limits::UnknownAction>(),
        named::<processes::UnknownSignal>(),
        named::<sessions::InvalidId>(),
        named::<terminal::Surface>(),
        named::<terminal::TerminalConfig>(),
        named::<terminal::TerminalViewer>(),
        named::<workspace::UnknownWorkspace>(),
    ];
    assert!(names.iter().all(|name| name.contains("::")));
    let profile = catalog::Profile { limits: catalog::ProfileLimits::default(), ..catalog::Profile::default() };
    assert_eq!(profile, catalog::Profile::default());
}
