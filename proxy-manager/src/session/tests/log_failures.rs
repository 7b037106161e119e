//! Sessions whose event log fails while they run, otherwise than for want of room: its file becomes read-only, another program
//! has it, a page of it is damaged.

use std::{
    any::Any,
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::Path,
};

use event_log::{LogError, LogOptions};
use ipc_protocol::Envelope;
use rusqlite::Connection;

use super::{
    immutable::Immutable,
    kept::{Place, degraded, external, nothing_is_missing, number, text},
    *,
};
use crate::history::{LogFailure, Subscription};

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    ReadOnly,
    Locked,
    Damaged,
}

impl Fault {
    /// It goes wrong, until what comes back is dropped. `None` where this cannot be had.
    fn begin(self, log: &Path) -> Option<Box<dyn Any>> {
        match self {
            Self::ReadOnly => {
                // What is appended is written there.
                let immutable = Immutable::new(&log.with_file_name("log.sqlite-wal"));
                if immutable.is_none() {
                    // Lost only with the terminal itself.
                    let _ = writeln!(std::io::stdout(), "NOT RUN: a read-only log: no file can be made immutable here");
                }
                Some(Box::new(immutable?))
            }
            Self::Locked => {
                let other = Connection::open(log).expect("the file");
                other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
                Some(Box::new(other))
            }
            // Whatever is looked for among the events begins there.
            Self::Damaged => {
                Some(Box::new(Damage::new(log, "SELECT rootpage FROM sqlite_schema WHERE name = 'batches'")))
            }
        }
    }

    fn is(self, error: &LogError) -> bool {
        match self {
            Self::ReadOnly => matches!(error, LogError::ReadOnly { .. }),
            Self::Locked => matches!(error, LogError::Locked { by: None, .. }),
            Self::Damaged => matches!(error, LogError::Corrupt { .. }),
        }
    }

    /// What is said of it, with what to do.
    fn words(self) -> &'static str {
        match self {
            Self::ReadOnly => "it is read-only; make the file and its directory writable",
            Self::Locked => "another process has it open; end that first",
            Self::Damaged => "`agent-proxy log salvage` writes what can be read to a new file; then move the file away",
        }
    }
}

/// A page of the log that is none.
struct Damage {
    /// Its close takes the locks with it that SQLite has on the file in this process. Nobody else is there to need them.
    file: File,
    at: u64,
    page: Vec<u8>,
}

impl Damage {
    /// Of the page whose number `which` finds.
    fn new(log: &Path, which: &str) -> Self {
        let other = Connection::open(log).expect("the file");
        let number =
            |sql: &str| other.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number").cast_unsigned();
        // All is in the file then, and nobody goes by what was read of it before.
        assert_eq!(number("PRAGMA wal_checkpoint(TRUNCATE)"), 0);
        let (page, size) = (number(which), number("PRAGMA page_size"));
        let file = OpenOptions::new().read(true).write(true).open(log).expect("the file");
        let mut damage = Self { file, at: (page - 1) * size, page: vec![0; usize::try_from(size).expect("small")] };
        damage.file.read_exact_at(&mut damage.page, damage.at).expect("read");
        damage.file.write_all_at(&vec![0xa5; damage.page.len()], damage.at).expect("damaged");
        damage
    }
}

impl Drop for Damage {
    fn drop(&mut self) {
        self.file.write_all_at(&self.page, self.at).expect("mended");
    }
}

/// Nothing is in memory for long: who reads from the beginning reads from the log.
fn place(log_failure: LogFailure) -> Place {
    let options = LogOptions { write_deadline: Duration::from_millis(50), ..LogOptions::default() };
    let mut place = Place::new(options, log_failure);
    place.streams.limits.events = 4;
    place
}

/// The events up to the one that `is_last`, behind those that are there. None was missed.
async fn live(events: &mut Subscription, all: &mut Vec<Arc<Envelope>>, is_last: impl Fn(&Event) -> bool) {
    loop {
        let event = soon(events.next()).await.expect("an event");
        assert_eq!(event.offset, all.len() as u64 + 1, "{event:?}");
        let is_last = is_last(&event.event);
        all.push(event);
        if is_last {
            return;
        }
    }
}

/// Who reads all of it now finds each event as it was, or a gap in its place. How many are there.
async fn there_or_a_gap(handle: &SessionHandle, all: &[Arc<Envelope>]) -> usize {
    let (mut events, mut reached, mut found) = (handle.subscribe_from(0), 0, 0);
    while reached < all.len() as u64 {
        let event = soon(events.next()).await.expect("an event");
        match &event.event {
            Event::SessionGap(gap) => assert!(gap.from <= reached + 1 && gap.to == event.offset, "{event:?}"),
            _ => assert_eq!(event.offset, reached + 1),
        }
        if let Some(shown) = all.get(event.offset as usize - 1)
            && shown.event == event.event
        {
            found += 1;
        } else {
            assert!(matches!(event.event, Event::SessionGap(_)), "{event:?}");
        }
        assert!(event.offset > reached, "{event:?}");
        reached = event.offset;
    }
    found
}

/// Says these texts, each of which is heard before the next.
async fn say(
    proxy: &mut FakeProxy,
    events: &mut Subscription,
    all: &mut Vec<Arc<Envelope>>,
    texts: std::ops::Range<u64>,
) {
    for n in texts {
        proxy.send(FromProxy::Event { turn: 0, event: text(n) }).await;
        live(events, all, |event| number(event) == Some(n)).await;
    }
}

async fn goes_on(fault: Fault) {
    let place = place(LogFailure::Degrade);
    let Running { handle, mut proxy, fork_server: _guard } = place.running().await;
    let (mut events, mut all) = (handle.subscribe_from(0), Vec::new());
    say(&mut proxy, &mut events, &mut all, 0..20).await;
    let Some(broken) = fault.begin(&place.path()) else { return };
    say(&mut proxy, &mut events, &mut all, 20..21).await;
    live(&mut events, &mut all, |event| matches!(event, Event::SessionDegraded { .. })).await;
    say(&mut proxy, &mut events, &mut all, 21..24).await;
    assert_eq!(degraded(&all).len(), 1, "{all:?}");
    assert!(degraded(&all)[0].contains(fault.words()), "{all:?}");
    // Turns go on, and end.
    let (turn, number) = tokio::join!(handle.prompt("go on", PromptMode::Refuse), proxy.take_prompt("go on"));
    proxy.end_turn(number).await;
    soon(turn.expect("taken").wait()).await.expect("ended");
    live(&mut events, &mut all, |event| matches!(event, Event::SessionIdle { .. })).await;
    // What is not durable is no success, though it can be read.
    let error = soon(handle.session().append(external())).await.expect_err("not durable");
    assert!(matches!(&error, Error::Log(error) if fault.is(error)), "{error}");
    live(&mut events, &mut all, |event| *event == external()).await;
    assert!(there_or_a_gap(&handle, &all).await < all.len());
    drop(broken);
    soon(async {
        while let Err(error) = handle.session().append(external()).await {
            assert!(matches!(&error, Error::Log(error) if fault.is(error)), "{error}");
        }
    })
    .await;
    say(&mut proxy, &mut events, &mut all, 24..30).await;
    assert!(all.iter().filter_map(|event| super::kept::number(&event.event)).eq(0..30), "{all:?}");
    assert_eq!(degraded(&all).len(), 1, "{all:?}");
    nothing_is_missing(&place, handle.id(), &all);
    assert!(there_or_a_gap(&handle, &all).await > 20);
    assert_eq!(handle.info().state, SessionState::Idle);
    // It is as before: another failure is told again.
    let _broken = fault.begin(&place.path()).expect("as before");
    say(&mut proxy, &mut events, &mut all, 30..31).await;
    live(&mut events, &mut all, |event| matches!(event, Event::SessionDegraded { .. })).await;
}

async fn ends(fault: Fault) {
    let place = place(LogFailure::End);
    let Running { handle, mut proxy, fork_server } = place.running().await;
    let (mut events, mut all) = (handle.subscribe_from(0), Vec::new());
    say(&mut proxy, &mut events, &mut all, 0..20).await;
    let Some(broken) = fault.begin(&place.path()) else { return };
    proxy.send(FromProxy::Event { turn: 0, event: text(20) }).await;
    let reason = end(proxy, fork_server, handle.id()).await;
    let EndReason::Failed(why) = &reason else { panic!("{reason}") };
    assert!(why.contains(fault.words()), "{why}");
    // It is over though the log cannot be written still.
    live(&mut events, &mut all, |event| matches!(event, Event::SessionEnded { .. })).await;
    assert!(soon(events.next()).await.is_none());
    assert!(all.iter().filter_map(|event| number(&event.event)).eq(0..21), "{all:?}");
    assert_eq!(degraded(&all), [why], "{all:?}");
    let Event::SessionEnded { reason: told, .. } = &all.last().expect("some").event else { panic!("{all:?}") };
    assert_eq!(told, &reason);
    assert!(matches!(handle.info().state, SessionState::Ended { reason: EndReason::Failed(_), .. }));
    there_or_a_gap(&handle, &all).await;
    drop(broken);
    assert!(there_or_a_gap(&handle, &all).await > 20);
}

#[tokio::test]
async fn a_session_goes_on_while_its_log_is_read_only() {
    goes_on(Fault::ReadOnly).await;
}

#[tokio::test]
async fn a_session_goes_on_while_another_program_has_its_log() {
    goes_on(Fault::Locked).await;
}

#[tokio::test]
async fn a_session_goes_on_while_its_log_is_damaged() {
    goes_on(Fault::Damaged).await;
}

#[tokio::test]
async fn a_session_whose_log_is_read_only_ends_where_that_is_wanted() {
    ends(Fault::ReadOnly).await;
}

#[tokio::test]
async fn a_session_whose_log_another_program_has_ends_where_that_is_wanted() {
    ends(Fault::Locked).await;
}

#[tokio::test]
async fn a_session_whose_log_is_damaged_ends_where_that_is_wanted() {
    ends(Fault::Damaged).await;
}

#[tokio::test]
async fn what_is_damaged_of_the_past_is_a_gap_and_the_session_is_not_harmed() {
    let place = place(LogFailure::End);
    let Running { handle, mut proxy, fork_server: _guard } = place.running().await;
    let (mut events, mut all) = (handle.subscribe_from(0), Vec::new());
    say(&mut proxy, &mut events, &mut all, 0..60).await;
    let leaf = "SELECT pageno FROM dbstat WHERE name = 'batches' AND pagetype = 'leaf' ORDER BY path LIMIT 1 OFFSET 5";
    let damage = Damage::new(&place.path(), leaf);
    let found = there_or_a_gap(&handle, &all).await;
    assert!((40..all.len()).contains(&found), "{found} of {}", all.len());
    say(&mut proxy, &mut events, &mut all, 60..70).await;
    soon(handle.session().append(external())).await.expect("durable");
    assert!(degraded(&all).is_empty(), "{all:?}");
    drop(damage);
    say(&mut proxy, &mut events, &mut all, 70..80).await;
    assert_eq!(there_or_a_gap(&handle, &all).await, all.len());
    assert_eq!(handle.info().state, SessionState::Idle);
}
