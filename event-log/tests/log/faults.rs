//! What goes wrong with files: each time a defined error, and nothing half done.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    sync::Arc,
};

use event_log::{EventLog, LogError, LogOptions, ReadLimit};
use ipc_protocol::Event;
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::{
    common::{append, batch, batch_of, done, id, not_run, open, read_all},
    immutable::Immutable,
};

fn try_open(path: &Path) -> Result<EventLog, LogError> {
    EventLog::open(path, LogOptions::default())
}

/// Large events: 40 KiB each.
fn large(log: &EventLog, first: u64) -> Result<(), LogError> {
    append(log, batch_of(&id("a"), first, vec![Event::Text { text: "x".repeat(40_000) }]))
}

/// A file system of its own at a directory; unmounted when dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let unmounted = umount2(self.0, MntFlags::MNT_DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking(), "{} stays mounted: {unmounted:?}", self.0.display());
    }
}

/// Mounts a file system of `size` at `dir`, for this thread and those that it starts. `None` where that is not allowed: then
/// the caller has another way.
fn own_tmpfs<'a>(dir: &'a Path, size: &str) -> Option<Mounted<'a>> {
    let none = None::<&str>;
    let size = format!("size={size}");
    unshare(CloneFlags::CLONE_NEWNS).ok()?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).ok()?;
    mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).ok()?;
    Some(Mounted(dir))
}

#[test]
fn a_full_disk_is_told_and_survived() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let mounted = own_tmpfs(dir.path(), "4m");
    let small = mounted.is_some();
    // Without a small disk, a small file: SQLite says the same of both.
    let options = LogOptions { max_pages: (!small).then_some(500), ..LogOptions::default() };
    let log = EventLog::open(&path, options).expect("a log");
    let mut last = 0;
    let error = loop {
        match large(&log, last + 1) {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 1000, "the disk never fills");
    };
    assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
    assert!(error.to_string().ends_with("the disk is full; make room"), "{error}");
    assert!(last > 10, "{last}");
    let metrics = log.metrics();
    assert_eq!(metrics.failures, 1);
    assert!(matches!(metrics.last_error, Some(LogError::DiskFull { .. })));
    // What is there is there, and nothing of the event that failed.
    assert_eq!(read_all(&log, &id("a"), 0).len() as u64, last);
    assert!(matches!(large(&log, last + 2), Err(LogError::DiskFull { .. } | LogError::Order { .. })));
    drop(log);
    let log = EventLog::open(&path, options).expect("it opens though the disk is full");
    assert_eq!(log.head(&id("a")).expect("a stream").last, last);
    if small {
        // Room is made: the same handle goes on.
        mount(None::<&str>, dir.path(), None::<&str>, MsFlags::MS_REMOUNT, Some("size=64m")).expect("a larger disk");
        large(&log, last + 1).expect("appended");
        assert!(log.metrics().last_error.is_none());
        assert_eq!(read_all(&log, &id("a"), 0).len() as u64, last + 1);
    } else {
        not_run(
            "a full disk on which room is made: no file system can be mounted here; a bound on the file is full instead",
        );
    }
}

#[test]
fn what_is_queued_behind_a_failure_fails_too() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = LogOptions { max_pages: Some(40), ..LogOptions::default() };
    let log = EventLog::open(dir.path().join("log.sqlite"), options).expect("a log");
    let (tell, told) = std::sync::mpsc::channel();
    for first in 1..=20 {
        let tell = tell.clone();
        let batch = batch_of(&id("a"), first, vec![Event::Text { text: "x".repeat(30_000) }]);
        log.append(batch, Box::new(move |result| tell.send(result).expect("told"))).expect("room");
    }
    drop(tell);
    let results: Vec<_> = told.iter().collect();
    let good = results.iter().take_while(|result| result.is_ok()).count();
    assert!(results[good..].iter().all(Result::is_err), "{results:?}");
    assert!(results.len() == 20 && good < 20);
    assert_eq!(log.head(&id("a")).map_or(0, |head| head.last), good as u64);
}

/// Runs this test again, as nobody.
#[expect(clippy::disallowed_methods, reason = "no program under test is started by this")]
fn as_nobody(test: &str) {
    const NOBODY: u32 = 65534;
    let exe = std::env::current_exe().expect("its path");
    let mut command = Command::new(exe);
    match command.args(["--exact", test, "--nocapture"]).uid(NOBODY).gid(NOBODY).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && said.contains("1 passed"), "as nobody: {said}\n{errors}");
        }
        Err(error) => not_run(&format!("{test}: no file system can be mounted, and nobody cannot run it: {error}")),
    }
}

#[test]
fn a_read_only_place_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let with_log = |path: &Path| append(&try_open(path).expect("a log"), batch(&id("a"), 1, 1)).expect("appended");
    let own = own_tmpfs(dir.path(), "4m");
    let mounted = own.is_some();
    with_log(&path);
    let mut permissions = fs::metadata(dir.path()).expect("the directory").permissions();
    if mounted {
        mount(None::<&str>, dir.path(), None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY, None::<&str>)
            .expect("a read-only disk");
    } else if nix::unistd::geteuid().is_root() {
        // Nothing is read-only to root but what the kernel makes so.
        return as_nobody("faults::a_read_only_place_is_refused");
    } else {
        permissions.set_readonly(true);
        fs::set_permissions(dir.path(), permissions.clone()).expect("a read-only directory");
        for file in ["log.sqlite", "log.sqlite.lock"] {
            let mut permissions = fs::metadata(dir.path().join(file)).expect("a file").permissions();
            permissions.set_readonly(true);
            fs::set_permissions(dir.path().join(file), permissions).expect("a read-only file");
        }
    }
    let error = try_open(&path).expect_err("refused");
    let new = try_open(&dir.path().join("new.sqlite")).expect_err("refused");
    if !mounted {
        #[expect(clippy::permissions_set_readonly_false, reason = "a directory of the test's own, which is removed")]
        permissions.set_readonly(false);
        fs::set_permissions(dir.path(), permissions).expect("a directory that can be removed");
    }
    for error in [error, new] {
        assert!(matches!(error, LogError::ReadOnly { .. }), "{error}");
        assert!(error.to_string().ends_with("make the file and its directory writable"), "{error}");
    }
}

#[test]
fn a_file_that_becomes_read_only_is_told_and_survived() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    append(&log, batch(&id("a"), 1, 1)).expect("appended");
    let Some(immutable) = Immutable::new(&dir.path().join("log.sqlite-wal")) else {
        return not_run("a log that becomes read-only: no file can be made immutable here");
    };
    for _ in 0..2 {
        let error = append(&log, batch(&id("a"), 2, 1)).expect_err("refused");
        assert!(matches!(error, LogError::ReadOnly { .. }), "{error}");
        assert!(error.to_string().ends_with("make the file and its directory writable"), "{error}");
    }
    assert_eq!(read_all(&log, &id("a"), 0).len(), 1, "it can be read meanwhile");
    drop(immutable);
    append(&log, batch(&id("a"), 2, 1)).expect("appended");
    assert_eq!(read_all(&log, &id("a"), 0).len(), 2);
    assert!(log.metrics().last_error.is_none());
}

#[test]
fn a_second_owner_is_told_who_the_first_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    let log = open(&dir);
    let error = try_open(&path).expect_err("refused");
    assert!(matches!(error, LogError::Locked { by: Some(pid), .. } if pid == std::process::id()), "{error}");
    assert!(error.to_string().contains(&format!("process {} has it open", std::process::id())), "{error}");
    append(&log, batch(&id("a"), 1, 1)).expect("the first is not disturbed");
    drop(log);
    assert_eq!(read_all(&try_open(&path).expect("free again"), &id("a"), 0).len(), 1);
}

#[test]
fn another_program_in_the_file_is_waited_for_and_then_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    append(&log, batch(&id("a"), 1, 1)).expect("appended");
    let other = rusqlite::Connection::open(dir.path().join("log.sqlite")).expect("the file");
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    let error = append(&log, batch(&id("a"), 2, 1)).expect_err("refused");
    assert!(matches!(error, LogError::Locked { by: None, .. }), "{error}");
    assert!(error.to_string().contains("another process has it open; end that first"), "{error}");
    assert_eq!(read_all(&log, &id("a"), 0).len(), 1, "it can be read meanwhile");
    // One that ends soon enough is not noticed.
    let (tell, told) = std::sync::mpsc::channel();
    let next = batch(&id("a"), 2, 1);
    log.append(next, Box::new(move |result| tell.send(result).expect("told"))).expect("room");
    other.execute_batch("COMMIT").expect("free again");
    told.recv().expect("an answer").expect("appended");
    assert_eq!(read_all(&log, &id("a"), 0).len(), 2);
    assert!(log.metrics().last_error.is_none());
}

#[test]
fn a_look_at_a_log_writes_nothing_and_needs_nothing_writable() {
    let dir = tempfile::tempdir().expect("a directory");
    let mounted = own_tmpfs(dir.path(), "4m");
    let path = dir.path().join("a log?#%.sqlite");
    append(&try_open(&path).expect("a log"), batch(&id("a"), 1, 3)).expect("appended");
    let names = || {
        let entries = fs::read_dir(dir.path()).expect("there").map(|entry| entry.expect("an entry").file_name());
        entries.collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    if mounted.is_some() {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, dir.path(), None::<&str>, flags, None::<&str>).expect("read-only");
    } else {
        not_run("a look at a log on a read-only file system: none can be mounted here");
    }
    let found = event_log::check(&path, &|_| Ok(())).expect("looked at");
    assert_eq!((found.events, found.damage.len()), (3, 0));
    assert_eq!(names(), before);
}

#[test]
fn a_missing_directory_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = try_open(&dir.path().join("none/log.sqlite")).expect_err("refused");
    assert!(matches!(error, LogError::Missing { .. }), "{error}");
    assert!(!dir.path().join("none").exists());
}

#[test]
fn a_file_that_is_no_log_is_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let garbage = dir.path().join("garbage");
    fs::write(&garbage, b"# Notes\nNot a database at all.\n".repeat(400)).expect("written");
    let other = dir.path().join("other.sqlite");
    let file = rusqlite::Connection::open(&other).expect("a database");
    file.execute_batch("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')").expect("made");
    drop(file);
    for path in [garbage, other] {
        let before = fs::read(&path).expect("the file");
        let error = try_open(&path).expect_err("refused");
        assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("it is no event log; nothing in it was changed"), "{error}");
        assert!(fs::read(&path).expect("the file") == before, "{} was changed", path.display());
    }
    // An empty file is a log that was never begun.
    let empty = dir.path().join("empty");
    File::create(&empty).expect("a file");
    append(&try_open(&empty).expect("a log"), batch(&id("a"), 1, 1)).expect("appended");
}

#[test]
fn a_header_that_is_damaged_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    append(&open(&dir), batch(&id("a"), 1, 10)).expect("appended");
    let mut bytes = fs::read(&path).expect("the file");
    bytes[100..2000].fill(0xa5);
    fs::write(&path, bytes).expect("damaged");
    let error = try_open(&path).expect_err("refused");
    assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
    assert!(
        error.to_string().contains("log.sqlite") && error.to_string().contains("agent-proxy log salvage"),
        "{error}"
    );
}

/// Overwrites `length` bytes in the middle of the file, from the next text of an event on.
fn damage(path: &Path, at: f64, length: usize) {
    let mut bytes = fs::read(path).expect("the file");
    let middle = (bytes.len() as f64 * at) as usize;
    let text = b"event ";
    let after = bytes[middle..].windows(text.len()).position(|window| window == text);
    let begin = middle + after.expect("there is one behind it");
    bytes[begin..begin + length].iter_mut().for_each(|byte| *byte ^= 0x5a);
    File::create(path).and_then(|mut file| file.write_all(&bytes)).expect("damaged");
}

#[test]
fn what_can_be_read_of_a_damaged_file_is_read() {
    // A bit of a text, and whole pages.
    for (at, length) in [(0.5, 1), (0.45, 3), (0.5, 4096), (0.4, 20_000), (0.6, 8192), (0.7, 12_288)] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log.sqlite");
        let log = open(&dir);
        for first in (1..=20_000).step_by(200) {
            append(&log, batch(&id("a"), first, 200)).expect("appended");
        }
        append(&log, batch(&id("b"), 1, 5)).expect("appended");
        drop(log);
        damage(&path, at, length);
        let log = open(&dir);
        let (mut from, mut read, mut lost) = (0, 0, 0);
        while from < 20_000 {
            match log.read(&id("a"), from, ReadLimit::default()) {
                Ok(page) => {
                    for event in &page.events {
                        from += 1;
                        assert_eq!((event.offset, &event.event), (from, &crate::common::text(from)));
                    }
                    read += page.events.len() as u64;
                    assert!(!page.events.is_empty(), "nothing after {from}, and no error");
                }
                Err(error @ LogError::Corrupt { .. }) => {
                    let LogError::Corrupt { lost: Some(gap), .. } = &error else { panic!("no range: {error}") };
                    assert!(gap.from == from + 1 && gap.to >= gap.from && gap.to <= 20_000, "{gap:?} after {from}");
                    let text = error.to_string();
                    assert!(text.contains("log.sqlite") && text.contains("export what you need"), "{text}");
                    lost += gap.to - gap.from + 1;
                    from = gap.to;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(lost > 0 && lost <= 5000, "at {at}, {length} bytes: {lost} lost of 20000");
        let mut out = Vec::new();
        let exported = log.export(&id("a"), &mut out).expect("exported");
        assert_eq!((exported.events, exported.lost.is_empty()), (read, false));
        // The export can be imported: a gap stands for what was lost.
        let copy = EventLog::memory(event_log::MemoryLimits::default());
        assert_eq!(copy.import(out.as_slice()).expect("imported").last, 20_000);
        assert_eq!(read_all(&log, &id("b"), 0).len(), 5, "another stream is not harmed");
        // Of all together too: a gap stands for a row, and where not even the order can be followed that is said.
        let (mut from, mut next, mut whole) = (0, 1, false);
        while !whole {
            let page = match log.read_all(from, ReadLimit::default()) {
                Ok(page) => page,
                Err(error) => {
                    assert!(matches!(error, LogError::Corrupt { .. }) && length > 100, "{error}");
                    break;
                }
            };
            for (position, event) in &page {
                assert!(*position > from);
                from = *position;
                if *event.session != *id("a") {
                    continue;
                }
                match &event.event {
                    Event::SessionGap(gap) => assert_eq!((gap.from, gap.to), (next, event.offset)),
                    text => assert_eq!((event.offset, text), (next, &crate::common::text(next))),
                }
                next = event.offset + 1;
            }
            whole = page.is_empty();
        }
        assert!(!whole || next == 20_001, "at {at}, {length} bytes: up to {next}");
        assert!(next > 4000, "what is before the damage is read");
        append(&log, batch(&id("b"), 6, 1)).expect("another stream goes on");
    }
}

/// A log with streams of names `s-0`, `s-1`, …, a record of each, and some of them with a cursor.
fn with_streams(path: &Path) {
    let log = try_open(path).expect("a log");
    for n in 0..STREAMS {
        let name = id(&format!("s-{n}"));
        for first in (1..=EVENTS).step_by(20) {
            append(&log, batch(&name, first, 20)).expect("appended");
        }
        done(|done| log.put_session(&name, format!(r#"{{"name":"{name}"}}"#), done)).expect("stored");
        done(|done| log.set_cursor("c", &name, 7, done)).expect("stored");
    }
}

const STREAMS: u64 = 6;
const EVENTS: u64 = 200;

fn is_json(text: &str) -> Result<(), String> {
    serde_json::from_str::<serde_json::Value>(text).map(drop).map_err(|error| error.to_string())
}

/// All that a log has of these streams, and what it lacks.
fn readable(log: &EventLog) -> (u64, u64, usize) {
    let (mut events, mut lost) = (0, 0);
    for (name, head) in log.streams() {
        let mut from = 0;
        while from < head.last {
            match log.read(&name, from, ReadLimit::default()) {
                Ok(page) => {
                    for event in &page.events {
                        match &event.event {
                            Event::SessionGap(gap) => lost += gap.to - gap.from + 1,
                            _ => events += 1,
                        }
                        from = event.offset;
                    }
                    assert!(!page.events.is_empty(), "nothing after {from}, and no error");
                }
                Err(LogError::Corrupt { lost: Some(gap), .. }) => {
                    lost += gap.to - gap.from + 1;
                    from = gap.to;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    (events, lost, log.sessions().expect("read").len())
}

/// What one row, name or record has lost: the rest is there, it is told, and it is left out of what is salvaged.
#[test]
fn a_log_opens_with_what_is_whole_and_tells_what_is_not() {
    let all = STREAMS * EVENTS;
    for (harm, events, lost, records, told) in [
        ("UPDATE sessions SET record = CAST(x'7bff7d' AS TEXT) WHERE id = 's-1'", all, 0, 5, "record"),
        ("UPDATE sessions SET id = 's/1' WHERE id = 's-1'", all, 0, 5, "record"),
        ("UPDATE sessions SET record = x'7b7d' WHERE id = 's-1'", all, 0, 5, "record"),
        ("UPDATE streams SET name = 's/1' WHERE name = 's-1'", all - EVENTS, 0, 6, "stream"),
        ("UPDATE streams SET name = CAST(x'73ff31' AS TEXT) WHERE name = 's-1'", all - EVENTS, 0, 6, "stream"),
        ("UPDATE streams SET last = -1 WHERE name = 's-1'", all, 0, 6, "stream"),
        ("UPDATE streams SET first = 'x', closed = 'y' WHERE name = 's-1'", all, 0, 6, "stream"),
        ("UPDATE batches SET sum = sum + 1 WHERE gid = 3", all - 20, 20, 6, "events"),
        ("UPDATE batches SET body = x'00' || body WHERE gid = 3", all - 20, 20, 6, "events"),
        ("DELETE FROM batches WHERE gid = 3", all - 20, 20, 6, "events"),
        ("UPDATE cursors SET offset = 'far' WHERE stream = 1", all, 0, 6, "other"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log.sqlite");
        with_streams(&path);
        let whole = event_log::check(&path, &is_json).expect("looked at");
        let found = (whole.streams, whole.events, whole.records, whole.damage.len());
        assert_eq!(found, (STREAMS, all, STREAMS, 0), "{:?}", whole.damage);
        let file = rusqlite::Connection::open(&path).expect("the file");
        file.execute_batch(harm).expect("harmed");
        drop(file);
        let before = fs::read(&path).expect("the file");
        let checked = event_log::check(&path, &is_json).expect("looked at");
        let told_of = serde_json::to_value(&checked.damage).expect("JSON");
        assert!(checked.damage.len() == 1 && told_of[0]["part"] == told, "{harm}: {told_of}");
        let new = dir.path().join("new.sqlite");
        let salvaged = event_log::salvage(&path, &new, &is_json).expect("salvaged");
        assert_eq!(salvaged, checked, "{harm}");
        assert!(event_log::salvage(&path, &new, &is_json).is_err(), "never over anything");
        assert!(fs::read(&path).expect("the file") == before, "{harm}: the file was changed");
        // Twice: what is damaged is kept by an owner of the file. Where a stream stands is written by the next append.
        for opened in 1..=2 {
            let log = try_open(&path).unwrap_or_else(|error| panic!("{harm}: {error}"));
            assert_eq!(readable(&log), (events, lost, records), "{harm}");
            if told == "record" || (told == "stream" && (opened == 1 || events < all)) {
                assert_eq!(serde_json::to_value(log.damage()).expect("JSON")[0]["part"], told, "{harm}");
            }
            for (name, head) in log.streams() {
                append(&log, batch(&Arc::new(name), head.last + 1, 0)).expect("it goes on");
            }
            log.flush(crate::common::DEADLINE).expect("flushed");
        }
        let again = event_log::check(&new, &is_json).expect("looked at");
        assert_eq!(again.damage, [], "{harm}");
        let log = try_open(&new).expect("a log");
        // A stream whose name is lost has another.
        assert_eq!(readable(&log), (all - lost, lost, records), "{harm}");
        let named = log.streams().iter().filter(|(name, _)| name.as_str().starts_with("salvaged-")).count();
        assert_eq!(named, usize::from(events == all - EVENTS), "{harm}");
        let last = log.streams()[0].1.last;
        let first = log.streams()[0].0.clone();
        append(&log, batch(&Arc::new(first), last + 1, 3)).expect("it goes on");
    }
}

/// Bits that flip anywhere. SQLite may find nothing left of a file: that is an error that names what to do.
#[test]
fn whatever_bits_flip_what_is_whole_is_read_or_the_way_to_it_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    with_streams(&path);
    let whole = fs::read(&path).expect("the file");
    let mut random = 7_u64;
    let mut opened = 0;
    for _ in 0..FLIPS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Not the first page: with that the file is none.
        let at = 4096 + (random >> 20) as usize % (whole.len() - 4096);
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (random % 8);
        fs::write(&path, &bytes).expect("damaged");
        let names = |error: &LogError| error.to_string().contains("agent-proxy log salvage");
        match try_open(&path) {
            Ok(log) => {
                opened += 1;
                for (name, head) in log.streams() {
                    let mut from = 0;
                    while from < head.last {
                        match log.read(&name, from, ReadLimit::default()) {
                            Ok(page) if page.events.is_empty() => break,
                            Ok(page) => from = page.events.last().map_or(head.last, |event| event.offset),
                            Err(LogError::Corrupt { lost: Some(gap), .. }) => from = gap.to,
                            Err(error) => panic!("{at}: {error}"),
                        }
                    }
                }
                log.sessions().unwrap_or_else(|error| panic!("{at}: {error}"));
            }
            Err(error) => assert!(matches!(error, LogError::Corrupt { .. }) && names(&error), "{at}: {error}"),
        }
        let new = dir.path().join("new.sqlite");
        match event_log::salvage(&path, &new, &is_json) {
            Ok(salvaged) => {
                assert!(salvaged.events + 4 * 20 * 6 >= STREAMS * EVENTS || !salvaged.damage.is_empty(), "{at}");
                let again = event_log::check(&new, &is_json).expect("looked at");
                assert_eq!((again.damage.len(), again.records), (0, salvaged.records), "{at}: {:?}", again.damage);
                try_open(&new).unwrap_or_else(|error| panic!("{at}: {error}"));
            }
            Err(error) => assert!(matches!(error, LogError::Corrupt { .. }), "{at}: {error}"),
        }
        for end in ["log.sqlite-wal", "log.sqlite-shm", "new.sqlite", "new.sqlite-wal", "new.sqlite-shm"] {
            let _ = fs::remove_file(dir.path().join(end));
        }
    }
    assert!(opened * 10 > FLIPS * 9, "{opened} of {FLIPS}");
}

const FLIPS: u64 = 150;

#[test]
fn a_newer_file_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("log.sqlite");
    append(&open(&dir), batch(&id("a"), 1, 3)).expect("appended");
    let file = rusqlite::Connection::open(&path).expect("the file");
    let known_now: i64 = file.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version");
    file.pragma_update(None, "user_version", 99).expect("made newer");
    drop(file);
    let before = fs::read(&path).expect("the file");
    let error = try_open(&path).expect_err("refused");
    assert!(matches!(error, LogError::TooNew { found: 99, known, .. } if known == known_now), "{error}");
    assert!(error.to_string().ends_with("use a newer release"), "{error}");
    assert!(fs::read(&path).expect("the file") == before, "the file was changed");
}

#[test]
fn nobody_else_can_read_a_new_log() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    append(&log, batch(&id("a"), 1, 1)).expect("appended");
    let mode =
        |entry: fs::DirEntry| (entry.file_name(), entry.metadata().expect("a file").permissions().mode() & 0o777);
    let files: Vec<_> = fs::read_dir(dir.path()).expect("files").map(|entry| mode(entry.expect("a file"))).collect();
    assert_eq!(files.len(), 4, "{files:?}");
    assert!(files.iter().all(|(_, mode)| *mode == 0o600), "{files:?}");
}

#[test]
fn an_event_larger_than_any_harms_nobody_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(&dir);
    let huge = Event::Text { text: "x".repeat(65 << 20) };
    let error = append(&log, batch_of(&id("a"), 1, vec![huge])).expect_err("refused");
    assert!(matches!(error, LogError::TooLarge { offset: 1, .. }), "{error}");
    append(&log, batch(&id("a"), 1, 1)).expect("appended");
}
