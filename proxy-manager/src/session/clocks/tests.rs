use ipc_protocol::{Json, PermissionRequest, ResolvedBy, ToolEnd, ToolStart, ToolUpdate};
use proptest::{collection::vec, option::of, prelude::*};

use super::*;

const FIRST: u64 = 30;
const INACTIVITY: u64 = 120;
const TURN: u64 = 300;

fn timeouts() -> Timeouts {
    Timeouts { first_response_ms: Some(FIRST), inactivity_ms: Some(INACTIVITY), turn_ms: Some(TURN), ..Timeouts::NONE }
}

fn text() -> Event {
    Event::Text { text: "x".into() }
}

fn tool_start(id: usize, status: ToolStatus) -> Event {
    Event::ToolStart(Box::new(ToolStart {
        id: id.to_string(),
        name: "shell".into(),
        title: "ls".into(),
        kind: "execute".into(),
        input: Json::null(),
        status,
        parent: None,
    }))
}

fn tool_update(id: usize, status: Option<ToolStatus>) -> Event {
    Event::ToolUpdate(Box::new(ToolUpdate { id: id.to_string(), title: None, status, input: None, output: None }))
}

fn tool_end(id: usize) -> Event {
    Event::ToolEnd(Box::new(ToolEnd { id: id.to_string(), status: ToolStatus::Completed, output: String::new() }))
}

fn asked(id: usize) -> Event {
    Event::PermissionRequested(Box::new(PermissionRequest {
        id: id.to_string(),
        tool_call_id: None,
        title: "may I".into(),
        tool: "shell".into(),
        kind: "execute".into(),
        command: None,
        paths: Vec::new(),
        input: Json::null(),
        options: Vec::new(),
        parent: None,
    }))
}

fn resolved(id: usize) -> Event {
    Event::PermissionResolved { id: id.to_string(), option: None, by: ResolvedBy::Deadline }
}

/// What comes of `events`, each at its millisecond, in `length` milliseconds of a turn: at which one, what.
fn played(timeouts: Timeouts, events: &[(u64, Event)], length: u64) -> Vec<(u64, ClockDue)> {
    let start = Instant::now();
    let mut clocks = SessionClocks::new(timeouts);
    clocks.begin(start);
    let mut all = Vec::new();
    for ms in 0..length {
        let now = start + Duration::from_millis(ms);
        if clocks.next().is_some_and(|next| next <= now) {
            let due = clocks.tick(now);
            assert!(!due.is_empty(), "woken for nothing at {ms}");
            all.extend(due.into_iter().map(|due| (ms, due)));
        }
        assert!(clocks.next().is_none_or(|next| next > now), "due again at once");
        for (_, event) in events.iter().filter(|(at, _)| *at == ms) {
            clocks.record(event, now);
        }
    }
    clocks.end();
    assert_eq!(clocks.next(), None);
    all
}

fn fired(kind: TimeoutKind, ms: u64) -> ClockDue {
    ClockDue::Fired(kind, Duration::from_millis(ms))
}

fn silent(ms: u64) -> ClockDue {
    ClockDue::Silent(Duration::from_millis(ms))
}

#[test]
fn a_turn_without_a_word_runs_out_of_each_clock_once() {
    let expected = [
        (FIRST, fired(TimeoutKind::FirstResponse, FIRST)),
        (INACTIVITY, fired(TimeoutKind::Inactivity, INACTIVITY)),
        (TURN, fired(TimeoutKind::Turn, TURN)),
    ];
    assert_eq!(played(timeouts(), &[], 2000), expected);
    assert_eq!(played(Timeouts::NONE, &[], 2000), []);
}

#[test]
fn signs_of_life_put_off_all_but_the_turn() {
    let words: Vec<_> = (0..20).map(|n| (n * 25, text())).collect();
    assert_eq!(played(timeouts(), &words, 500), [(TURN, fired(TimeoutKind::Turn, TURN))]);
    let late = played(timeouts(), &[(10, text()), (200, text())], 400);
    let inactivity = fired(TimeoutKind::Inactivity, INACTIVITY);
    let expected =
        [(10 + INACTIVITY, inactivity), (TURN, fired(TimeoutKind::Turn, TURN)), (200 + INACTIVITY, inactivity)];
    assert_eq!(late, expected, "once for each silence");
}

#[test]
fn what_processes_do_and_lines_that_mean_nothing_are_no_life() {
    let process = ipc_protocol::ProcessId { pid: 1, start_time: 1 };
    let nothing = [
        Event::ProcessExited { process, command: None, exit: None },
        Event::Harness { agent: "a".into(), payload: b"{}\n".as_slice().into() },
        Event::Log { stream: "stderr".into(), text: "hm\n".into() },
    ];
    let events: Vec<_> = (0..).zip(nothing).map(|(at, event)| (at * 9, event)).collect();
    assert_eq!(played(timeouts(), &events, 40), [(FIRST, fired(TimeoutKind::FirstResponse, FIRST))]);
}

/// What the agent says of itself, or of a request that failed, is life, and no answer.
#[test]
fn only_an_answer_stops_the_clock_of_the_first_response() {
    let status = |status: &str| Event::SessionStatus { status: status.into(), detail: String::new() };
    let no_answers = [
        status("warning"),
        Event::retry("500", "no", Some(1), Some(100)),
        Event::context_window(1, 2),
        Event::Usage(Box::default()),
        status("title"),
    ];
    let events: Vec<_> = (0..).zip(no_answers).map(|(at, event)| (at * 5, event)).collect();
    let expected = [
        (FIRST, fired(TimeoutKind::FirstResponse, FIRST)),
        (20 + INACTIVITY, fired(TimeoutKind::Inactivity, INACTIVITY)),
    ];
    assert_eq!(played(timeouts(), &events, TURN), expected);
    for answer in [text(), status("compaction"), tool_start(1, ToolStatus::Completed)] {
        assert_eq!(played(timeouts(), &[(5, answer)], 60), []);
    }
}

#[test]
fn the_clocks_stand_still_for_tools_and_permissions() {
    // Two tools and a request, one within the other: 5 to 1000 do not count.
    let events = [
        (5, tool_start(1, ToolStatus::InProgress)),
        (10, tool_start(2, ToolStatus::Pending)),
        (20, asked(1)),
        (400, tool_end(1)),
        (600, resolved(1)),
        (1000, tool_update(2, Some(ToolStatus::Failed))),
    ];
    let expected =
        [(1000 + INACTIVITY, fired(TimeoutKind::Inactivity, INACTIVITY)), (995 + TURN, fired(TimeoutKind::Turn, TURN))];
    assert_eq!(played(timeouts(), &events, 2000), expected);
    // One that is over when it is told never ran; one whose end never comes runs to the end of the turn.
    let over = [(5, tool_start(1, ToolStatus::Completed))];
    assert_eq!(played(timeouts(), &over, 200), [(5 + INACTIVITY, fired(TimeoutKind::Inactivity, INACTIVITY))]);
    assert_eq!(played(timeouts(), &[(5, tool_start(1, ToolStatus::InProgress))], 2000), []);
}

#[test]
fn silence_is_told_again_and_again_but_not_while_a_permission_is_asked_for() {
    let timeouts = Timeouts { silence_ms: Some(3), silence_repeat_ms: Some(5), ..Timeouts::NONE };
    let expected = [(3, silent(3)), (8, silent(8)), (13, silent(3)), (18, silent(8)), (30, silent(3))];
    // The tool's silence counts, the user's does not.
    let events = [(10, tool_start(1, ToolStatus::InProgress)), (20, asked(1)), (27, resolved(1))];
    assert_eq!(played(timeouts, &events, 32), expected);
    let once = Timeouts { silence_repeat_ms: None, ..timeouts };
    assert_eq!(played(once, &[], 100), [(3, silent(3))]);
}

/// The same, counted millisecond by millisecond.
fn counted(timeouts: Timeouts, events: &[(u64, Event)], length: u64) -> Vec<(u64, ClockDue)> {
    let (mut tools, mut asked) = (BTreeSet::new(), BTreeSet::new());
    let (mut ran, mut idle, mut quiet) = (0, 0, 0);
    let (mut answered, mut told) = (false, None);
    let mut done = BTreeSet::new();
    let mut all = Vec::new();
    for ms in 0..length {
        if ms > 0 {
            let runs = tools.is_empty() && asked.is_empty();
            (ran, idle, quiet) = (ran + u64::from(runs), idle + u64::from(runs), quiet + 1);
            let silence = told.map_or(timeouts.silence_ms, |told: u64| Some(told + timeouts.silence_repeat_ms?));
            if asked.is_empty() && silence == Some(quiet) {
                all.push((ms, silent(quiet)));
                told = Some(quiet);
            }
            let mut fire = |kind, set: Option<u64>, shown: u64| {
                if let Some(set) = set
                    && runs
                    && shown == set
                    && done.insert(kind)
                {
                    all.push((ms, fired(kind, set)));
                }
            };
            if !answered {
                fire(TimeoutKind::FirstResponse, timeouts.first_response_ms, ran);
            }
            fire(TimeoutKind::Inactivity, timeouts.inactivity_ms, idle);
            fire(TimeoutKind::Turn, timeouts.turn_ms, ran);
        }
        for (_, event) in events.iter().filter(|(at, _)| *at == ms) {
            match event {
                Event::ToolStart(tool) => _ = tools.insert(tool.id.clone()),
                Event::ToolEnd(tool) => _ = tools.remove(&tool.id),
                Event::PermissionRequested(request) => _ = asked.insert(request.id.clone()),
                Event::PermissionResolved { id, .. } => _ = asked.remove(id),
                Event::Text { .. } | Event::Error { .. } => {}
                _ => continue,
            }
            (idle, quiet, told) = (0, 0, None);
            answered |= !matches!(event, Event::Error { .. });
            done.remove(&TimeoutKind::Inactivity);
        }
    }
    all
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        3 => Just(text()),
        2 => (0..3usize).prop_map(|id| tool_start(id, ToolStatus::InProgress)),
        3 => (0..3usize).prop_map(tool_end),
        1 => (0..3usize).prop_map(asked),
        2 => (0..3usize).prop_map(resolved),
        2 => Just(Event::Log { stream: "stderr".into(), text: "hm\n".into() }),
        1 => Just(Event::retry("500", "no", None, None)),
    ];
    vec((0..200u64, event), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_clocks_show_what_is_counted(
        events in events(), clocks in any::<[Option<u8>; 3]>(), silence in of(1..40u64), again in of(1..40u64),
    ) {
        let [first, inactivity, turn] = clocks.map(|clock| clock.map(|ms| u64::from(ms) + 1));
        let timeouts = Timeouts {
            first_response_ms: first,
            inactivity_ms: inactivity,
            turn_ms: turn,
            silence_ms: silence,
            silence_repeat_ms: again,
            ..Timeouts::NONE
        };
        let mut played = played(timeouts, &events, 300);
        let mut counted = counted(timeouts, &events, 300);
        let order = |(ms, due): &(u64, ClockDue)| (*ms, format!("{due:?}"));
        played.sort_by_key(order);
        counted.sort_by_key(order);
        prop_assert_eq!(played, counted);
    }
}

#[test]
fn a_tool_call_of_which_nothing_is_heard_has_a_clock_of_its_own() {
    let timeouts = Timeouts { tool_ms: Some(60), turn_ms: Some(500), ..Timeouts::NONE };
    let events = [
        (10, tool_start(1, ToolStatus::InProgress)),
        (69, tool_update(1, None)),
        // While a permission is asked for it is not the tool that is silent.
        (100, asked(7)),
        (200, resolved(7)),
        (400, tool_end(1)),
    ];
    // Once for each silence.
    assert_eq!(played(timeouts, &events, 600), [(260, fired(TimeoutKind::Tool, 60))]);
    assert_eq!(played(timeouts, &events[..1], 600), [(70, fired(TimeoutKind::Tool, 60))]);
}
