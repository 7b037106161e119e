use proptest::prelude::*;

use super::*;

fn session() -> Arc<SessionId> {
    Arc::new("s-1".parse().expect("an id"))
}

fn public(line: &str) -> Result<Value, serde_json::Error> {
    let mut out = Vec::new();
    PublicLines::new(&session()).write(&mut out, line.as_bytes(), 7, 5000)?;
    serde_json::from_slice(&out)
}

#[test]
fn a_line_is_short() {
    let event = Event::Text { text: "hi\n".into() };
    let mut envelope =
        Envelope { offset: 7, created_at: time(5000), session: session(), turn: Some(3), metadata: None, event };
    let mut out = Vec::new();
    write(&mut out, &envelope, 5000).expect("written");
    envelope.turn = None;
    write(&mut out, &envelope, 4999).expect("written");
    envelope.event = Event::External { kind: "x".into(), version: 2, payload: Json::null() };
    write(&mut out, &envelope, 5000).expect("written");
    let expected = r#"{"t":3,"e":{"stream:text":{"text":"hi\n"}}}
{"d":1,"e":{"stream:text":{"text":"hi\n"}}}
{"v":2,"e":{"external":{"kind":"x","version":2,"payload":null}}}
"#;
    assert_eq!(String::from_utf8(out).expect("text"), expected);
}

#[test]
fn an_event_of_another_release_is_kept_as_it_is() {
    for (line, kind, version, payload) in [
        (r#"{"t":1,"v":2,"e":{"stream:text":{"words":["a"]}}}"#, "stream:text", 2, r#"{"words":["a"]}"#),
        (r#"{"t":1,"e":{"stream:smell":{"of":"tar"}}}"#, "stream:smell", 1, r#"{"of":"tar"}"#),
    ] {
        let envelope = read(line.as_bytes(), &session(), 7, 5000).expect("an event");
        let payload = Json::new(payload).expect("JSON");
        assert_eq!(envelope.event, Event::External { kind: kind.into(), version, payload });
        assert_eq!(envelope.turn, Some(1));
        assert_eq!(public(line).expect("public"), envelope.to_json().expect("JSON"));
    }
}

#[test]
fn lines_of_another_order_take_the_slow_way() {
    let line = r#"{"e": {"stream:text": {"text": "hi"}}, "t": 1}"#;
    assert!(split_line(line).is_none());
    let envelope = read(line.as_bytes(), &session(), 7, 5000).expect("an event");
    assert_eq!(public(line).expect("public"), envelope.to_json().expect("JSON"));
}

#[test]
fn what_is_nested_too_deep_is_refused() {
    let deep = format!(r#"{{"e":{{"x":{}{}}}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    read(deep.as_bytes(), &session(), 1, 0).expect_err("refused");
}

proptest! {
    #[test]
    fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60), tail in "[\\\\\"{}:,te0-9]{0,30}") {
        let lines = [bytes, tail.clone().into_bytes(), format!(r#"{{"e":{{"{tail}"#).into_bytes(),
            format!(r#"{{"e":{{"external":{{"kind":"{tail}}}}}"#).into_bytes()];
        for line in lines {
            let _ = read(&line, &session(), 1, 0);
            let mut out = Vec::new();
            let _ = PublicLines::new(&session()).write(&mut out, &line, 1, i64::MAX);
        }
    }
}
