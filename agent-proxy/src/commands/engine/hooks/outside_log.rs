//! Streams of what agents do outside our sessions: a file for each conversation, an envelope a line.
//!
//! Many processes append to a stream, one for each report of a hook, under a lock of the agent's folder. A stream has a bound: when it is
//! reached, its older half is replaced by a marker.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use proxy_manager::{Envelope, Event, OffsetGap, SessionId};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

/// Status of a stream's first event; its detail is the conversation's directory.
const DIRECTORY: &str = "directory";
/// Most bytes of a stream.
const MAX_STREAM: u64 = 16 << 20;
/// Most bytes of a text in an event. What is more is left out, and said so.
const MAX_TEXT: usize = 32 << 10;
/// Most bytes of a line: a text, each byte escaped, and what is around it.
const MAX_LINE: u64 = 256 << 10;
/// Longest wait for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);
/// Time between two tries to get the lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(1);
const STREAM_END: &str = "jsonl";
/// Reports that were lost, a byte each.
const LOST_END: &str = "lost";

/// Streams of an agent.
#[derive(Clone, Debug)]
pub(super) struct OutsideLog {
    folder: PathBuf,
    max_stream: u64,
}

/// What is known of a stream without reading all of it.
#[derive(Debug)]
pub(super) struct StreamSummary {
    pub(super) id: String,
    pub(super) directory: Option<String>,
    pub(super) began: Option<SystemTime>,
    pub(super) last: Option<SystemTime>,
    /// Offset of the last event.
    pub(super) events: u64,
}

impl OutsideLog {
    /// Finds the streams of an agent in the user's state directory; `None` without a home.
    pub(super) fn of_user(agent: &str) -> Option<Self> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
        Some(Self { folder: state.join("agent-proxy/outside").join(agent), max_stream: MAX_STREAM })
    }

    fn stream(&self, id: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{id}.{end}"))
    }

    /// Appends events to a conversation's stream, which begins with its directory.
    ///
    /// # Errors
    /// The system's, and that the lock was not to be had in time; then the loss is counted.
    pub(super) fn append(&self, id: &SessionId, directory: Option<&str>, events: Vec<Event>) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut options = OpenOptions::new();
        options.mode(0o600).create(true);
        let lock = options.clone().write(true).open(self.folder.join(".lock"))?;
        if let Err(error) = wait_for_lock(&lock) {
            let mut lost = options.append(true).open(self.stream(id.as_str(), LOST_END))?;
            lost.write_all(b".")?;
            return Err(error);
        }
        let path = self.stream(id.as_str(), STREAM_END);
        let mut file = options.read(true).write(true).truncate(false).open(&path)?;
        let (mut offset, length) = last_offset(&mut file)?;
        let mut text = String::new();
        let session = Arc::new(id.clone());
        let mut push = |event: Event| {
            offset += 1;
            let envelope = Envelope {
                offset,
                created_at: SystemTime::now(),
                session: session.clone(),
                turn: None,
                metadata: None,
                event,
            };
            let line = envelope.to_json().map_err(io::Error::other)?.to_string();
            text.push_str(&line);
            text.push('\n');
            Ok::<_, io::Error>(())
        };
        if length == 0
            && let Some(directory) = directory
        {
            push(Event::SessionStatus { status: DIRECTORY.to_owned(), detail: bounded(directory.to_owned()) })?;
        }
        if let Some(lost) = self.take_lost(id) {
            let reason =
                format!("{lost} reports of the agent's hooks were not recorded: the lock was not to be had in time");
            push(Event::SessionLossy { reason })?;
        }
        for event in events {
            push(bounded_event(event))?;
        }
        // What a writer that died has left of a line is overwritten.
        file.set_len(length)?;
        file.write_all_at(text.as_bytes(), length)?;
        if length + text.len() as u64 > self.max_stream {
            self.shorten(&path, &mut file, &session)?;
        }
        Ok(())
    }

    /// Returns the number of reports that were lost, and forgets it.
    fn take_lost(&self, id: &SessionId) -> Option<u64> {
        let path = self.stream(id.as_str(), LOST_END);
        let lost = fs::metadata(&path).ok()?.len();
        fs::remove_file(path).ok()?;
        Some(lost)
    }

    /// Puts a marker in place of a stream's older half.
    fn shorten(&self, path: &Path, file: &mut File, session: &Arc<SessionId>) -> io::Result<()> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(self.max_stream + 2 * MAX_LINE).read_to_end(&mut bytes)?;
        let Some(first) = bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1) else { return Ok(()) };
        let middle = bytes.len() / 2;
        let Some(from) = bytes[middle..].iter().position(|byte| *byte == b'\n').map(|end| middle + end + 1) else {
            return Ok(());
        };
        let envelope =
            |line: &[u8]| serde_json::from_slice::<Value>(line).ok().and_then(|json| Envelope::from_json(json).ok());
        let next = bytes[from..].split(|byte| *byte == b'\n').next().and_then(envelope);
        let head = envelope(&bytes[..first]);
        let (Some(next), Some(head)) = (next, head) else { return Ok(()) };
        let to = next.offset - 1;
        let event = Event::SessionGap(OffsetGap { from: head.offset + 1, to });
        let gap = Envelope {
            offset: to,
            created_at: SystemTime::now(),
            session: session.clone(),
            turn: None,
            metadata: None,
            event,
        };
        let gap = format!("{}\n", gap.to_json().map_err(io::Error::other)?);
        let mut shorter = tempfile::NamedTempFile::new_in(&self.folder)?;
        for part in [&bytes[..first], gap.as_bytes(), &bytes[from..]] {
            shorter.write_all(part)?;
        }
        shorter.persist(path).map_err(|error| error.error)?;
        Ok(())
    }

    /// Lists the streams, the latest first.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn list(&self) -> io::Result<Vec<StreamSummary>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut streams = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let id = path.file_stem().and_then(|name| name.to_str()).filter(|id| id.parse::<SessionId>().is_ok());
            if path.extension().is_none_or(|end| end != STREAM_END) {
                continue;
            }
            // One that goes away meanwhile is no error.
            if let (Some(id), Ok(mut file)) = (id, File::open(&path)) {
                streams.push(summary(id.to_owned(), &mut file)?);
            }
        }
        streams.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.id.cmp(&b.id)));
        Ok(streams)
    }

    /// Opens a stream for reading.
    pub(super) fn reader(&self, id: &str) -> StreamReader {
        StreamReader { path: self.stream(id, STREAM_END), file: None, position: 0, last: 0 }
    }
}

/// Reader of a stream that may grow, and be shortened.
#[derive(Debug)]
pub(super) struct StreamReader {
    path: PathBuf,
    file: Option<File>,
    position: u64,
    /// Offset of the last envelope that was read.
    last: u64,
}

impl StreamReader {
    /// Reads the envelopes that are new, as JSON.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read(&mut self) -> io::Result<Vec<Value>> {
        use std::os::unix::fs::MetadataExt;
        let newest = File::open(&self.path)?;
        let is_same = match &self.file {
            Some(file) => file.metadata()?.ino() == newest.metadata()?.ino(),
            None => false,
        };
        if !is_same {
            self.file = Some(newest);
            self.position = 0;
        }
        let Some(file) = &mut self.file else { return Ok(Vec::new()) };
        file.seek(SeekFrom::Start(self.position))?;
        let mut bytes = Vec::new();
        file.take(MAX_STREAM + 2 * MAX_LINE).read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.position += whole as u64;
        let lines =
            bytes[..whole].split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        let offset = |value: &Value| value["offset"].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let new: Vec<Value> = lines.filter(|value| offset(value) > self.last).collect();
        self.last = new.last().map_or(self.last, offset);
        Ok(new)
    }
}

fn wait_for_lock(lock: &File) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(error) if begin.elapsed() > LOCK_TIMEOUT => return Err(error.into()),
            Err(_) => std::thread::sleep(LOCK_INTERVAL),
        }
    }
}

/// Returns the offset of the last whole line, and where it ends.
fn last_offset(file: &mut File) -> io::Result<(u64, u64)> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(2 * MAX_LINE);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    file.take(2 * MAX_LINE).read_to_end(&mut tail)?;
    let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else { return Ok((0, 0)) };
    let begin = tail[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1);
    let last: Value = serde_json::from_slice(&tail[begin..end]).unwrap_or_default();
    let offset = last["offset"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
    Ok((offset, from + end as u64 + 1))
}

fn summary(id: String, file: &mut File) -> io::Result<StreamSummary> {
    let mut head = Vec::new();
    Read::by_ref(file).take(MAX_LINE).read_to_end(&mut head)?;
    let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = serde_json::from_slice::<Value>(first).ok().and_then(|json| Envelope::from_json(json).ok());
    let (events, _) = last_offset(file)?;
    let last = file.metadata()?.modified().ok();
    let began = first.as_ref().map(|envelope| envelope.created_at);
    let directory = first.and_then(|envelope| match envelope.event {
        Event::SessionStatus { status, detail } if status == DIRECTORY => Some(detail),
        _ => None,
    });
    Ok(StreamSummary { id, directory, began, last, events })
}

/// Cuts a text to the bound, and says how much is left out.
fn bounded(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let mut end = MAX_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let left_out = text.len() - end;
        text.truncate(end);
        text.push_str(&format!("… ({left_out} bytes left out)"));
    }
    text
}

fn bounded_event(event: Event) -> Event {
    match event {
        Event::TerminalPrompted { text } => Event::TerminalPrompted { text: bounded(text) },
        Event::Text { text } => Event::Text { text: bounded(text) },
        Event::ToolStart(mut tool) => {
            tool.title = bounded(tool.title);
            let input = tool.input.as_str().to_owned();
            if input.len() > MAX_TEXT {
                tool.input = (&Value::String(bounded(input))).into();
            }
            Event::ToolStart(tool)
        }
        Event::ToolEnd(mut tool) => {
            tool.output = bounded(tool.output);
            Event::ToolEnd(tool)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(max_stream: u64) -> (tempfile::TempDir, OutsideLog, SessionId) {
        let folder = tempfile::tempdir().expect("a directory");
        let log = OutsideLog { folder: folder.path().join("a/b"), max_stream };
        (folder, log, "c-1".parse().expect("an id"))
    }

    fn text(text: &str) -> Vec<Event> {
        vec![Event::Text { text: text.to_owned() }]
    }

    fn offsets(values: &[Value]) -> Vec<u64> {
        values.iter().map(|value| value["offset"].as_str().expect("text").parse().expect("a number")).collect()
    }

    #[test]
    fn events_are_appended_one_after_the_other() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, log, id) = log(MAX_STREAM);
        log.append(&id, Some("/src"), text("one")).expect("appended");
        let mut reader = log.reader("c-1");
        assert_eq!(offsets(&reader.read().expect("read")), [1, 2]);
        // Half a line of a writer that died.
        let path = log.stream("c-1", STREAM_END);
        let mut torn = OpenOptions::new().append(true).open(&path).expect("opened");
        torn.write_all(b"{\"offset\":\"0000").expect("written");
        log.append(&id, Some("/src"), text("two")).expect("appended");
        assert_eq!(offsets(&reader.read().expect("read")), [3]);
        assert!(reader.read().expect("read").is_empty());
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&log.folder)), (0o600, 0o700));
        let [stream] = &log.list().expect("listed")[..] else { panic!("one stream") };
        assert_eq!((&*stream.id, stream.directory.as_deref(), stream.events), ("c-1", Some("/src"), 3));
    }

    #[test]
    fn a_full_stream_loses_its_older_half_and_says_so() {
        let (_folder, log, id) = log(20_000);
        let mut reader = log.reader("c-1");
        for number in 0..400 {
            log.append(&id, Some("/src"), text(&format!("number {number}"))).expect("appended");
        }
        let values = reader.read().expect("read");
        let size = fs::metadata(log.stream("c-1", STREAM_END)).expect("there").len();
        assert!(size <= 20_500, "{size}");
        assert_eq!(values[0]["payload"]["detail"], "/src");
        assert_eq!(values[1]["type"], "session:gap");
        let offsets = offsets(&values);
        assert_eq!(offsets.last(), Some(&401));
        assert!(offsets[1..].windows(2).all(|pair| pair[1] == pair[0] + 1), "{offsets:?}");
    }

    #[test]
    fn long_texts_are_cut_and_lost_reports_counted() {
        let (_folder, log, id) = log(MAX_STREAM);
        log.append(&id, None, text(&"é".repeat(MAX_TEXT))).expect("appended");
        fs::write(log.stream("c-1", LOST_END), "..").expect("written");
        log.append(&id, None, text("next")).expect("appended");
        let values = log.reader("c-1").read().expect("read");
        let cut = values[0]["payload"]["text"].as_str().expect("text");
        assert!(cut.ends_with(&format!("… ({MAX_TEXT} bytes left out)")), "{}", &cut[cut.len() - 50..]);
        assert_eq!(values[1]["type"], "session:lossy");
        assert!(!log.stream("c-1", LOST_END).exists());
    }
}
