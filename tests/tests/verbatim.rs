//! The agent's own lines, byte for byte.

use agent_proxy_tests::sessions::{self, all, fake, shell, soon};
use proxy_manager::{AgentSessionConfig, EndReason, Envelope, Event, KillOptions, PromptMode, ProxyManager};

async fn manager() -> ProxyManager {
    let builder = sessions::builder(env!("CARGO_BIN_EXE_proxy-child"), env!("CARGO_BIN_EXE_fake-agent"));
    builder.build().await.expect("built")
}

/// The agent's lines that were told.
fn lines<'a>(events: impl IntoIterator<Item = &'a Envelope>) -> Vec<Vec<u8>> {
    let line = |envelope: &Envelope| match &envelope.event {
        Event::Harness { payload, .. } => Some(payload.as_bytes().to_vec()),
        _ => None,
    };
    events.into_iter().filter_map(line).collect()
}

/// What `script` writes, as it was told, and how its session ended.
async fn written(script: &str) -> (Vec<Vec<u8>>, EndReason) {
    let manager = manager().await;
    let config = AgentSessionConfig { verbatim: Some(true), ..shell(script) };
    let session = manager.start_session(config).await.expect("started");
    let events = all(&mut session.subscribe()).await;
    let reason = events.iter().find_map(|envelope| match &envelope.event {
        Event::SessionEnded { reason, .. } => Some(reason.clone()),
        _ => None,
    });
    manager.shutdown().await;
    (lines(events.iter().map(|envelope| &**envelope)), reason.expect("it ended"))
}

#[tokio::test]
async fn whatever_is_written_is_told_as_it_is() {
    let (lines, _) = written(r"printf 'one\n\n\377\376 two\r\nthree'").await;
    assert_eq!(lines, [&b"one\n"[..], b"\n", b"\xff\xfe two\r\n", b"three"]);
}

#[tokio::test]
async fn an_agent_that_dies_has_said_what_it_said() {
    let (lines, reason) = written(r"printf 'a line\nand a half'; kill -9 $$").await;
    assert_eq!(lines, [&b"a line\n"[..], b"and a half"]);
    assert!(matches!(reason, EndReason::AgentExited(_)), "{reason}");
}

#[tokio::test]
async fn an_endless_line_comes_in_pieces() {
    let (lines, _) = written("head -c 3000000 /dev/zero; printf '\\nend\\n'").await;
    assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [1 << 20, 1 << 20, 3_000_001 - (2 << 20), 4]);
}

#[tokio::test]
async fn an_agent_with_turns_is_told_by_default_and_a_line_before_its_events() {
    let manager = manager().await;
    for (verbatim, told) in [(None, true), (Some(true), true), (Some(false), false)] {
        let session = manager.start_session(AgentSessionConfig { verbatim, ..fake() }).await.expect("started");
        let turn = session.prompt("say hello", PromptMode::Refuse).await.expect("prompted");
        soon("the turn's end", turn.wait()).await.expect("ended");
        let mut events = session.subscribe();
        session.kill(KillOptions::NOW).await.expect("killed");
        let events = all(&mut events).await;
        let lines = lines(events.iter().map(|envelope| &**envelope));
        // The answers to initialize, session/new and the prompt, and what it said.
        assert_eq!(lines.len(), if told { 4 } else { 0 }, "{verbatim:?}");
        if told {
            let at = |wanted: &dyn Fn(&Event) -> bool| events.iter().position(|envelope| wanted(&envelope.event));
            let line = at(
                &|event| matches!(event, Event::Harness { payload, .. } if payload.as_bytes().windows(5).any(|w| w == b"hello")),
            );
            let text = at(&|event| matches!(event, Event::Text { .. }));
            assert!(line.is_some() && line < text, "{line:?} {text:?}");
        }
    }
    let session = manager.start_session(shell("echo hello")).await.expect("started");
    let events = all(&mut session.subscribe()).await;
    assert!(lines(events.iter().map(|envelope| &**envelope)).is_empty(), "a plain command's output is its text");
    manager.shutdown().await;
}
