//! Every event comes back as it went in: typed, as a public line, and through an export.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use event_log::{EventBatch, EventLog, MemoryLimits, ReadLimit};
use ipc_protocol::*;
use proptest::{collection::vec, option::of, prelude::*, sample::select};

use crate::common::{append, batch_of, id, open, read_all};

fn text() -> BoxedStrategy<String> {
    prop_oneof![4 => "\\PC{0,12}", 1 => "(?s).{0,40}", 1 => Just("\"},\\\n{\"t\":1,\u{0}\u{2028}".to_owned())].boxed()
}

fn json() -> impl Strategy<Value = Json> {
    let document = prop_oneof![
        Just(serde_json::Value::Null),
        text().prop_map(serde_json::Value::from),
        any::<i64>().prop_map(serde_json::Value::from),
        (text(), text()).prop_map(|(key, value)| serde_json::json!({ key: { "nested": [value, null, 1.5] } })),
    ];
    document.prop_map(|value| Json::from(&value))
}

fn process() -> impl Strategy<Value = ProcessId> {
    (any::<u32>(), any::<u64>()).prop_map(|(pid, start_time)| ProcessId { pid, start_time })
}

fn exit() -> impl Strategy<Value = ExitStatus> {
    prop_oneof![any::<i32>().prop_map(ExitStatus::Code), any::<i32>().prop_map(ExitStatus::Signal)]
}

fn end() -> impl Strategy<Value = EndReason> {
    prop_oneof![
        Just(EndReason::Killed),
        of(exit()).prop_map(EndReason::AgentExited),
        text().prop_map(EndReason::Failed),
        of(exit()).prop_map(EndReason::ProxyDied),
        select(LimitKind::ALL.to_vec()).prop_map(|(kind, _)| EndReason::LimitExceeded(kind)),
        Just(EndReason::TimedOut(TimeoutKind::Turn)),
    ]
}

fn receipt() -> impl Strategy<Value = Option<Box<Receipt>>> {
    let entry = |(id, command, status)| ReceiptEntry {
        id,
        ppid: 1,
        pgid: 2,
        sid: 3,
        command,
        outcome: ProcessOutcome::Ended(status),
        reaped_by: Some(ReapedBy::Proxy),
    };
    let entries = vec((process(), of(text()), exit()).prop_map(entry), 0..4);
    let receipt = (entries, vec(process(), 0..2), any::<u64>()).prop_map(|(processes, survivors, duration_us)| {
        let begun = Receipt::begin("s-1".parse().expect("an id"), KillCause::Recovery);
        Box::new(Receipt { processes, survivors, duration_us, proof: Proof::QuietRounds(3), ..begun })
    });
    of(receipt)
}

fn process_info() -> impl Strategy<Value = Box<ProcessInfo>> {
    (process(), of(text()), vec(text(), 0..3), any::<u32>(), of(exit())).prop_map(|(id, command, args, at, exit)| {
        Box::new(ProcessInfo {
            id,
            ppid: 1,
            pgid: 2,
            sid: 3,
            session_id: "s-1".parse().expect("an id"),
            command,
            args,
            cwd: None,
            started_at: UNIX_EPOCH + Duration::from_millis(at.into()),
            status: ProcessStatus::of_exit(exit),
            exit,
            error: None,
            cpu_percent: Some(1.25),
            rss_bytes: Some(u64::MAX),
            tracked: true,
        })
    })
}

fn usage() -> impl Strategy<Value = Box<Usage>> {
    (of(any::<u64>()), of(any::<f64>().prop_filter("a number", |n| n.is_finite()))).prop_map(
        |(input_tokens, cost_usd)| {
            Box::new({
                let cost_source = cost_usd.map(|_| CostSource::Prices);
                Usage { input_tokens, cost_usd, cost_source, ..Usage::default() }
            })
        },
    )
}

fn permission() -> impl Strategy<Value = Box<PermissionRequest>> {
    let option =
        (text(), text()).prop_map(|(id, name)| PermissionOption { id, name, kind: PermissionOptionKind::Other });
    ((text(), of(text()), text(), text()), json(), vec(option, 0..3), vec(text(), 0..3)).prop_map(
        |((id, command, title, tool), input, options, paths)| {
            let kind = "other".into();
            let request = (id, command, title, tool, kind, paths, input, options);
            let (id, command, title, tool, kind, paths, input, options) = request;
            let (tool_call_id, parent) = (None, Some(title.clone()));
            Box::new(PermissionRequest { id, tool_call_id, title, tool, kind, command, paths, input, options, parent })
        },
    )
}

/// Events of every kind, each with the type that it has in public.
fn kinds() -> Vec<BoxedStrategy<Event>> {
    let entry =
        (text(), text()).prop_map(|(content, status)| PlanEntry { content, status, priority: Some("low".into()) });
    let start = (text(), text(), json(), of(text())).prop_map(|(id, name, input, parent)| {
        let (title, kind, status) = (name.clone(), "execute".into(), ToolStatus::Pending);
        Event::ToolStart(Box::new(ToolStart { id, name, title, kind, input, status, parent }))
    });
    // In JSON an input of `null` is none.
    let input = of(json().prop_filter("a document", |json| json.as_str() != "null"));
    let update = (text(), of(text()), input).prop_map(|(id, output, input)| {
        let status = Some(ToolStatus::InProgress);
        Event::ToolUpdate(Box::new(ToolUpdate { id, title: None, status, input, output }))
    });
    let limit =
        (select(LimitKind::ALL.to_vec()), any::<u64>(), of(process())).prop_map(|((limit, _), value, process)| {
            let (form, action) = (LimitForm::Clock, LimitAction::Warn);
            Event::LimitExceeded(Box::new(LimitExceeded { limit, value, measured: value, form, action, process }))
        });
    vec![
        (text(), process(), of(text()))
            .prop_map(|(agent, process, native_session_id)| Event::SessionStarted {
                agent,
                process,
                proxy: process,
                native_session_id,
                measures: Box::default(),
                surface: ipc_protocol::terminal::Surface::Machine,
            })
            .boxed(),
        Just(Event::SessionIdle {}).boxed(),
        Just(Event::SessionBusy {}).boxed(),
        (text(), text()).prop_map(|(status, detail)| Event::SessionStatus { status, detail }).boxed(),
        (end(), receipt()).prop_map(|(reason, receipt)| Event::SessionEnded { reason, receipt }).boxed(),
        (end(), receipt()).prop_map(|(reason, receipt)| Event::SessionSuspended { reason, receipt }).boxed(),
        any::<(u64, u64)>().prop_map(|(from, to)| Event::SessionGap(OffsetGap { from, to })).boxed(),
        text().prop_map(|reason| Event::SessionDegraded { reason }).boxed(),
        (text(), text()).prop_map(|(by, detail)| Event::SessionResumed { by, detail }).boxed(),
        text().prop_map(|reason| Event::SessionLossy { reason }).boxed(),
        (text(), vec(text(), 0..3))
            .prop_map(|(prompt, attachments)| Event::TurnStarted { prompt, attachments })
            .boxed(),
        text().prop_map(|text| Event::Text { text }).boxed(),
        text().prop_map(|text| Event::Thinking { text }).boxed(),
        start.boxed(),
        update.boxed(),
        (text(), text())
            .prop_map(|(id, output)| Event::ToolEnd(Box::new(ToolEnd { id, status: ToolStatus::Failed, output })))
            .boxed(),
        vec(entry, 0..3).prop_map(|entries| Event::Plan { entries }).boxed(),
        usage().prop_map(Event::Usage).boxed(),
        any::<(u64, u64)>().prop_map(|(used, size)| Event::context_window(used, size)).boxed(),
        (text(), of(usage()))
            .prop_map(|(other, usage)| Event::Complete { stop_reason: StopReason::Other(other), usage })
            .boxed(),
        (text(), text(), of(any::<u32>()))
            .prop_map(|(code, message, attempt)| Event::Error {
                code,
                message,
                retryable: true,
                attempt,
                delay_ms: None,
            })
            .boxed(),
        permission().prop_map(Event::PermissionRequested).boxed(),
        (text(), of(text()), of(text()))
            .prop_map(|(id, option, name)| Event::PermissionResolved { id, option, by: ResolvedBy::User { name } })
            .boxed(),
        any::<u64>()
            .prop_map(|after_ms| Event::TimeoutFired {
                clock: TimeoutKind::Inactivity,
                after_ms,
                action: TimeoutAction::Warn,
                last_words: None,
            })
            .boxed(),
        any::<u64>().prop_map(|for_ms| Event::SessionSilent { for_ms }).boxed(),
        process_info().prop_map(Event::ProcessSpawned).boxed(),
        (process(), of(text()), of(exit()))
            .prop_map(|(process, command, exit)| Event::ProcessExited { process, command, exit })
            .boxed(),
        limit.boxed(),
        (text(), text()).prop_map(|(action, error)| Event::ActionFailed { action, error }).boxed(),
        (text(), text()).prop_map(|(stream, text)| Event::Log { stream, text }).boxed(),
        (text(), vec(any::<u8>(), 0..40))
            .prop_map(|(agent, line)| Event::Harness { agent: agent.into(), payload: line.as_slice().into() })
            .boxed(),
        (text(), text())
            .prop_map(|(agent, line)| Event::Harness { agent: agent.into(), payload: line.as_bytes().into() })
            .boxed(),
        (text(), any::<u32>(), json())
            .prop_map(|(kind, version, payload)| Event::External { kind: format!("x:{kind}").into(), version, payload })
            .boxed(),
    ]
}

/// One event of every kind, in one batch, made at different times.
fn all_kinds() -> impl Strategy<Value = Vec<(Event, Option<u64>, u32)>> {
    kinds().into_iter().map(|event| (event, of(any::<u64>()), any::<u32>())).collect::<Vec<_>>()
}

fn batch(events: Vec<(Event, Option<u64>, u32)>) -> EventBatch {
    let mut batch = batch_of(&id("s"), 1, Vec::new());
    let envelope = |(offset, (event, turn, at)): (u64, (Event, Option<u64>, u32))| {
        let created_at = UNIX_EPOCH + Duration::from_millis(at.into());
        Arc::new(Envelope { offset, created_at, session: Arc::clone(&batch.session), turn, metadata: None, event })
    };
    let events = (1..).zip(events).map(envelope).collect();
    batch.events = events;
    batch
}

/// The public lines of a whole stream.
fn lines(log: &EventLog) -> Vec<serde_json::Value> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let lines = log.read_lines(&id("s"), from, ReadLimit { events: 5, bytes: 1000 }).expect("lines");
        let before = all.len();
        for line in lines.bytes.split_inclusive(|byte| *byte == b'\n') {
            assert!(line.ends_with(b"\n"));
            all.push(serde_json::from_slice(line).expect("JSON"));
        }
        assert_eq!(all.len() - before, lines.events);
        if lines.events == 0 {
            return all;
        }
        from = lines.next;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_event_comes_back(events in all_kinds()) {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, memory) = (open(&dir), EventLog::memory(MemoryLimits::default()));
        let batch = batch(events);
        let expected = batch.events.clone();
        append(&log, batch.clone()).expect("appended");
        append(&memory, batch).expect("appended");
        prop_assert_eq!(&read_all(&log, &id("s"), 0), &expected);
        let public: Vec<_> = expected.iter().map(|event| event.to_json().expect("JSON")).collect();
        let types: BTreeSet<_> = public.iter().filter_map(|line| line["type"].as_str()).collect();
        prop_assert!(types.len() >= 30, "{:?}", types);
        prop_assert_eq!(&lines(&log), &public);
        prop_assert_eq!(&lines(&memory), &public);

        let mut exported = Vec::new();
        prop_assert_eq!(log.export(&id("s"), &mut exported).expect("exported").events, public.len() as u64);
        let other = tempfile::tempdir().expect("a directory");
        let copy = open(&other);
        let imported = copy.import(exported.as_slice()).expect("imported");
        prop_assert_eq!((imported.first, imported.last), (1, public.len() as u64));
        prop_assert_eq!(&read_all(&copy, &id("s"), 0), &expected);
        let mut again = Vec::new();
        copy.export(&id("s"), &mut again).expect("exported");
        prop_assert_eq!(again, exported);
    }
}

#[test]
fn documents_may_be_as_deep_as_json_lets_them_be() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let deep = |depth| Json::new("[".repeat(depth) + &"]".repeat(depth)).expect("a document");
    let payload = (1..200).rev().map(deep).find(|json| !json.value().is_null()).expect("one that is not too deep");
    let external = Event::External { kind: "x:deep".into(), version: 1, payload: payload.clone() };
    let (name, title, kind, status) = ("n".to_owned(), "t".to_owned(), "k".to_owned(), ToolStatus::Pending);
    let tool = ToolStart { id: "1".into(), name, title, kind, input: payload, status, parent: None };
    let batch = batch_of(&id("s"), 1, vec![external, Event::ToolStart(Box::new(tool))]);
    append(&log, batch.clone()).expect("appended");
    assert_eq!(read_all(&log, &id("s"), 0), batch.events);
}

#[test]
fn times_are_kept_to_the_millisecond_and_within_four_digits_of_a_year() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let second = Duration::from_secs(1);
    let times = [
        (UNIX_EPOCH + Duration::from_micros(1_234_567), UNIX_EPOCH + Duration::from_millis(1234)),
        (UNIX_EPOCH - second, UNIX_EPOCH),
        (UNIX_EPOCH + second * 300_000_000 * 1000, UNIX_EPOCH + Duration::from_millis(253_402_300_799_999)),
    ];
    for (n, (at, _)) in (1..).zip(times) {
        let mut batch = batch_of(&id("s"), n, vec![Event::SessionIdle {}]);
        let envelope = Envelope { created_at: at, ..(*batch.events[0]).clone() };
        (batch.created_at, batch.events) = (SystemTime::now(), vec![Arc::new(envelope)]);
        append(&log, batch).expect("appended");
    }
    let kept = read_all(&log, &id("s"), 0);
    assert_eq!(kept.iter().map(|event| event.created_at).collect::<Vec<_>>(), times.map(|(_, kept)| kept));
    assert_eq!(lines(&log).len(), 3);
}
