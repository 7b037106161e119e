use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use super::*;
use crate::terminal::Surface;

fn envelope(event: Event) -> Envelope {
    Envelope {
        offset: 7,
        created_at: UNIX_EPOCH + Duration::from_millis(1_767_323_045_678),
        session: Arc::new("s-1".parse().expect("a valid id")),
        turn: Some(1),
        metadata: None,
        event,
    }
}

#[test]
fn the_envelope_is_what_its_doc_shows() {
    let json = envelope(Event::Text { text: "hi".into() }).to_json().expect("serializes");
    assert_eq!(
        json,
        json!({"offset": "00000000000000000007", "type": "stream:text", "version": 1,
               "createdAt": "2026-01-02T03:04:05.678Z", "eventStreamId": "s-1",
               "payload": {"text": "hi"}, "metadata": {"turn": 1}})
    );
}

#[test]
fn what_happened_on_the_screen_says_so() {
    let mut envelope = envelope(Event::Text { text: "hi".into() });
    assert_eq!(envelope.surface(), None);
    (envelope.turn, envelope.metadata) = (None, Some(Envelope::metadata_of(Surface::Terminal)));
    let json = envelope.to_json().expect("serializes");
    assert_eq!(json["metadata"], json!({ "surface": "terminal" }));
    assert_eq!(Envelope::from_json(json).expect("understood").surface(), Some(Surface::Terminal));
}

#[test]
fn a_context_window_has_its_share_in_percent() {
    for (used, size, percent) in [(15_000, 200_000, 7.5), (1, 3, 33.33), (2, 3, 66.67), (5, 0, 0.0), (3, 2, 150.0)] {
        let json = envelope(Event::context_window(used, size)).to_json().expect("serializes");
        assert_eq!(json["payload"]["contextEfficiency"], json!(percent), "{used} of {size}");
    }
    // As a release before this one wrote it.
    let older = json!({"offset": "00000000000000000007", "type": "stream:context_window", "version": 1,
                       "createdAt": "2026-01-02T03:04:05.678Z", "eventStreamId": "s-1",
                       "payload": {"used": 1, "size": 2, "remaining": 1}, "metadata": {}});
    let older = Envelope::from_json(older).expect("understood").event;
    assert!(matches!(older, Event::ContextWindow { used: 1, context_efficiency: 0.0, .. }), "{older:?}");
}

#[test]
fn envelopes_come_back_from_json() {
    let receipt = Receipt::begin("s-1".parse().expect("a valid id"), crate::KillCause::KillSession);
    for event in [
        Event::SessionIdle {},
        Event::SessionGap(OffsetGap { from: 3, to: u64::MAX }),
        Event::SessionEnded {
            reason: EndReason::AgentExited(Some(ExitStatus::Code(3))),
            receipt: Some(Box::new(receipt)),
        },
        Event::Complete { stop_reason: StopReason::Other("odd".into()), usage: Some(Box::default()) },
        Event::ToolStart(Box::new(ToolStart {
            id: "1".into(),
            name: "shell".into(),
            title: "ls".into(),
            kind: "execute".into(),
            input: Json::new(r#"{"command":["ls"]}"#).expect("valid JSON"),
            status: ToolStatus::Pending,
            parent: None,
        })),
        Event::Harness { agent: "claude-code".into(), payload: b"{\"a\": 1}\r\n".as_slice().into() },
        Event::External {
            kind: "slack:webhook-received".into(),
            version: 2,
            payload: Json::new(r#"{"text":"hi"}"#).expect("valid JSON"),
        },
        Event::Harness { agent: "a:b".into(), payload: b"\xff\n".as_slice().into() },
    ] {
        let sent = envelope(event);
        let json = sent.to_json().expect("serializes");
        assert_eq!(Envelope::from_json(json.clone()).expect("parses"), sent, "{json}");
        assert_eq!(json["type"], *sent.event.kind());
        assert_eq!(serde_json::to_value(&sent).expect("serializes"), json);
        assert_eq!(serde_json::from_value::<Envelope>(json).expect("parses"), sent);
    }
}

#[test]
fn what_is_no_envelope_says_which_field() {
    let good = envelope(Event::SessionIdle {}).to_json().expect("serializes");
    for field in ["offset", "createdAt", "eventStreamId", "type"] {
        let mut bad = good.clone();
        bad[field] = json!(-1);
        let error = Envelope::from_json(bad).expect_err("a broken field");
        assert!(error.to_string().contains(field), "{error}");
    }
    let mut bad = good;
    bad["type"] = json!("stream:text");
    assert!(Envelope::from_json(bad).is_err(), "its payload has no text");
}

#[test]
fn an_event_stays_small() {
    assert!(size_of::<Event>() <= 96, "{}", size_of::<Event>());
}

#[test]
fn one_of_ours_in_another_shape_is_read_as_it_is() {
    let json = json!({"offset": "00000000000000000007", "type": "stream:text", "version": 2,
        "createdAt": "2026-01-02T03:04:05.678Z", "eventStreamId": "s-1", "payload": {"words": ["hi"]}});
    let envelope = Envelope::from_json(json.clone()).expect("an envelope");
    assert!(matches!(&envelope.event, Event::External { kind, version: 2, .. } if &**kind == "stream:text"));
    assert_eq!(envelope.to_json().expect("JSON"), json);
}
