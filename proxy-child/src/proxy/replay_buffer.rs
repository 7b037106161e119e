//! Replay buffer of a session that can be detached: the messages that no host has acknowledged, in memory while there is a host, and in
//! a file (the spool) while there is none.
//!
//! A record of the file is a length (`u32`, little-endian) and a message as encoded by `ipc_protocol::codec::encode`.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::PathBuf,
};

use ipc_protocol::{
    Event,
    codec::{CodecError, encode},
    message::{DetachSpec, FromProxy},
};
use rustix::fs::{Mode, OFlags};

/// Most bytes in memory that wait for an acknowledgement. Beyond it the agent's output is left in its pipes; with neither a host nor
/// a file, further messages are lost.
const MAX_MEMORY_BYTES: usize = 4 << 20;
/// Room in the file, beyond its bound, for messages that must not be lost.
const RESERVE: u64 = 64 << 20;
/// Most bytes of one read from the file.
const CHUNK: usize = 256 * 1024;
/// Most bytes gathered before they are written to the file.
const BATCH: usize = 64 * 1024;
const LENGTH: usize = 4;

/// Open spool file.
#[derive(Debug)]
struct SpoolFile {
    file: File,
    /// Number of its first message.
    first: u64,
    /// Number of its messages.
    count: u64,
    /// Length of the file, including the gathered bytes.
    len: u64,
    /// Gathered bytes, to be written at the end.
    batch: Vec<u8>,
}

/// Position of a replay.
#[derive(Debug)]
struct SpoolReplay {
    /// Offset in the file.
    position: u64,
    /// Number of the next message in the file.
    next: u64,
    /// Messages up to this number are skipped.
    after: u64,
    /// Bytes that were read and not yet replayed.
    buffer: Vec<u8>,
}

/// Replay buffer.
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    path: PathBuf,
    max_spool_bytes: u64,
    /// Number of the next message.
    next: u64,
    /// Number of the last message that the host has acknowledged.
    acked: u64,
    /// Messages after those in the file, one after the other; `lengths` has their lengths.
    bytes: Vec<u8>,
    start: usize,
    lengths: VecDeque<usize>,
    spool: Option<SpoolFile>,
    replay: Option<SpoolReplay>,
    /// True without a host: new messages go to the file.
    detached: bool,
    /// Number of messages lost since the last one that found room.
    lost: u64,
    /// Ends of turns in the buffer: number of the message and of the turn.
    turn_ends: VecDeque<(u64, u64)>,
    /// Number of the message that reports the agent's readiness.
    started_seq: Option<u64>,
}

impl ReplayBuffer {
    pub(crate) fn new(path: PathBuf, detach: &DetachSpec) -> Self {
        Self {
            path,
            max_spool_bytes: detach.spool_bytes,
            next: 1,
            acked: 0,
            bytes: Vec::new(),
            start: 0,
            lengths: VecDeque::new(),
            spool: None,
            replay: None,
            detached: false,
            lost: 0,
            turn_ends: VecDeque::new(),
            started_seq: None,
        }
    }

    /// Returns the number of the next message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of the last message that the host has.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Returns whether the host has every message.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acked + 1 == self.next && self.lost == 0
    }

    /// Returns whether so much waits for the host that the agent has to wait too.
    pub(crate) fn is_full(&self) -> bool {
        !self.detached && (self.replay.is_some() || self.bytes.len() - self.start > MAX_MEMORY_BYTES)
    }

    /// Returns whether earlier messages are still to be replayed to this host.
    pub(crate) fn is_behind(&self) -> bool {
        self.replay.is_some()
    }

    /// Returns the turn that was in progress at the messages after `after`; `now` is the current turn.
    pub(crate) fn turn_after(&self, after: u64, now: Option<u64>) -> Option<u64> {
        self.turn_ends.iter().find(|(seq, _)| *seq > after).map(|(_, turn)| *turn).or(now)
    }

    /// Returns whether a host that has the messages up to `after` does not know yet that the agent is ready.
    pub(crate) fn is_start_after(&self, after: u64) -> bool {
        self.started_seq.is_none_or(|seq| seq > after)
    }

    /// Adds a numbered message. Returns its frames if the message is to be sent now.
    ///
    /// # Errors
    /// The message cannot be encoded, or is too long: nothing is added then.
    pub(crate) fn retain(&mut self, message: &FromProxy) -> Result<Option<&[u8]>, CodecError> {
        let spools = self.detached || self.replay.is_some();
        let from = self.bytes.len();
        encode(message, &mut self.bytes)?;
        if spools {
            let frames = self.bytes.split_off(from);
            let may_be_lost = self.detached && matches!(message, FromProxy::Event { .. });
            self.spool(&frames, may_be_lost, message);
            return Ok(None);
        }
        self.lengths.push_back(self.bytes.len() - from);
        self.assign_number(message);
        Ok(Some(&self.bytes[from..]))
    }

    /// Assigns the message its number.
    fn assign_number(&mut self, message: &FromProxy) {
        match message {
            FromProxy::TurnEnded { turn } => self.turn_ends.push_back((self.next, *turn)),
            FromProxy::Started { .. } => self.started_seq = Some(self.next),
            _ => {}
        }
        self.next += 1;
    }

    fn spool(&mut self, frames: &[u8], may_be_lost: bool, message: &FromProxy) {
        if may_be_lost && (self.lost > 0 || !self.has_room(frames.len(), 0)) {
            // After the first loss all further losable messages are lost up to the marker: one marker covers them all.
            self.lost += 1;
            return;
        }
        self.emit_loss_marker();
        if self.has_room(frames.len(), if may_be_lost { 0 } else { RESERVE }) && self.store(frames, may_be_lost) {
            self.assign_number(message);
        } else {
            self.lost += 1;
        }
    }

    fn has_room(&self, len: usize, reserve: u64) -> bool {
        match &self.spool {
            Some(spool) if self.lengths.is_empty() => {
                spool.len + (len + LENGTH) as u64 <= self.max_spool_bytes.saturating_add(reserve)
            }
            _ => self.bytes.len() - self.start + len <= MAX_MEMORY_BYTES + usize::try_from(reserve).unwrap_or(0),
        }
    }

    /// Adds the marker of lost messages in their place.
    fn emit_loss_marker(&mut self) {
        let lost = std::mem::take(&mut self.lost);
        if lost == 0 {
            return;
        }
        let reason = format!("there was no host for a while, and no room for {lost} events: they are lost");
        let marker = FromProxy::Event { turn: 0, event: Event::SessionLossy { reason } };
        let mut frames = Vec::new();
        // The marker is short.
        if encode(&marker, &mut frames).is_ok() && self.store(&frames, false) {
            self.assign_number(&marker);
        } else {
            self.lost = lost;
        }
    }

    /// Appends a message.
    fn store(&mut self, frames: &[u8], may_be_lost: bool) -> bool {
        let spools = self.detached || self.replay.is_some();
        match &mut self.spool {
            // Messages that found no room in the file when the host went are in memory, so new ones have to follow them there.
            Some(spool) if spools && self.lengths.is_empty() => spool.append(frames, may_be_lost).is_ok(),
            _ => {
                self.bytes.extend_from_slice(frames);
                self.lengths.push_back(frames.len());
                true
            }
        }
    }

    /// Removes the messages up to `seq`, since the host has them.
    pub(crate) fn acknowledge(&mut self, seq: u64) {
        let seq = seq.min(self.next - 1);
        if seq <= self.acked {
            return;
        }
        self.acked = seq;
        while self.turn_ends.front().is_some_and(|(end, _)| *end <= seq) {
            self.turn_ends.pop_front();
        }
        if self.replay.is_none() && self.spool.as_ref().is_some_and(|spool| spool.first + spool.count <= seq + 1) {
            self.remove_spool();
        }
        let mut oldest = self.next - self.lengths.len() as u64;
        while oldest <= seq
            && let Some(len) = self.lengths.pop_front()
        {
            self.start += len;
            oldest += 1;
        }
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(BATCH);
            self.start = 0;
        } else if self.start > self.bytes.len() / 2 && self.start > BATCH {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Switches to the file, since there is no host any more: waiting and new messages go to it. Without a file they stay in memory;
    /// the error is the reason.
    pub(crate) fn detach(&mut self) -> io::Result<()> {
        (self.detached, self.replay) = (true, None);
        if self.spool.is_none() {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = File::from(rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o600))?);
            let first = self.next - self.lengths.len() as u64;
            self.spool = Some(SpoolFile { file, first, count: 0, len: 0, batch: Vec::new() });
        }
        let Some(spool) = &mut self.spool else { return Ok(()) };
        let mut at = self.start;
        while let Some(len) = self.lengths.front() {
            // Messages that cannot be written stay in memory.
            spool.append(&self.bytes[at..at + len], true)?;
            at += len;
            self.start = at;
            self.lengths.pop_front();
        }
        (self.bytes, self.start) = (Vec::new(), 0);
        spool.flush()
    }

    /// Writes the gathered bytes.
    pub(crate) fn flush(&mut self) {
        if let Some(spool) = &mut self.spool {
            // The next message finds no room after a failure, and reports it.
            let _ = spool.flush();
        }
    }

    /// Starts the replay for a new host, which has the messages up to `after`. [`ReplayBuffer::replay_chunk`] returns the others.
    pub(crate) fn attach(&mut self, after: u64) {
        self.emit_loss_marker();
        self.flush();
        self.acknowledge(after);
        self.detached = false;
        let (at, next) = (0, self.spool.as_ref().map_or(1, |spool| spool.first));
        self.replay = Some(SpoolReplay { position: at, next, after: self.acked, buffer: Vec::new() });
    }

    /// Returns the most messages that are still to be replayed.
    pub(crate) fn pending_count(&self) -> u64 {
        self.next - 1 - self.acked
    }

    /// Replays one chunk of messages, as number and frames. Returns `false` at the end: new messages are then sent directly.
    ///
    /// # Errors
    /// The file cannot be read and has to be given up.
    pub(crate) fn replay_chunk(&mut self, mut out: impl FnMut(u64, &[u8])) -> io::Result<bool> {
        let Some(replay) = &mut self.replay else { return Ok(false) };
        if let Some(spool) = &mut self.spool {
            // Bytes that cannot be written (the disk may be full) are replayed from memory.
            let _ = spool.flush();
            if replay.position < spool.len {
                replay.read(spool, &mut out)?;
                return Ok(true);
            }
        }
        let after = replay.after;
        self.replay = None;
        self.emit_loss_marker();
        // Messages from a time without a file, or without room in it.
        let mut at = self.start;
        for (seq, len) in (self.next - self.lengths.len() as u64..).zip(&self.lengths) {
            if seq > after {
                out(seq, &self.bytes[at..at + len]);
            }
            at += len;
        }
        if self.spool.as_ref().is_some_and(|spool| spool.first + spool.count <= self.acked + 1) {
            self.remove_spool();
        }
        Ok(false)
    }

    /// Drops the file, which cannot be read. Returns the number of lost messages. The host counts the messages that it receives: the next
    /// one has the number of the first lost one.
    pub(crate) fn abandon_spool(&mut self) -> u64 {
        let Some((replay, spool)) = self.replay.as_ref().zip(self.spool.as_ref()) else { return 0 };
        let (first, end) = (replay.next.max(replay.after + 1), spool.first + spool.count);
        let lost = end.saturating_sub(first);
        let moved = |seq: u64| (seq < first || seq >= end).then(|| if seq < first { seq } else { seq - lost });
        self.turn_ends = self.turn_ends.iter().filter_map(|(seq, turn)| Some((moved(*seq)?, *turn))).collect();
        self.started_seq = self.started_seq.and_then(moved);
        self.next -= lost;
        self.remove_spool();
        lost
    }

    /// Removes the file, since nothing is kept any more.
    pub(crate) fn remove_spool(&mut self) {
        if self.spool.take().is_some() {
            // The next manager would remove it otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl SpoolFile {
    /// Appends a message. A message that must not be lost waits in memory if it cannot be written.
    fn append(&mut self, frames: &[u8], may_be_lost: bool) -> io::Result<()> {
        let length = u32::try_from(frames.len()).map_err(io::Error::other)?;
        let gathered = self.batch.len() + LENGTH + frames.len();
        if gathered > BATCH
            && let Err(error) = self.flush()
            && (may_be_lost || gathered as u64 > RESERVE)
        {
            return Err(error);
        }
        self.batch.extend_from_slice(&length.to_le_bytes());
        self.batch.extend_from_slice(frames);
        self.len += (LENGTH + frames.len()) as u64;
        self.count += 1;
        Ok(())
    }

    /// Returns the offset in the file at which the gathered bytes start.
    fn written_len(&self) -> u64 {
        self.len - self.batch.len() as u64
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(self.written_len()))?;
        self.file.write_all(&self.batch)?;
        self.batch.clear();
        Ok(())
    }

    /// Reads the bytes at `at`: up to `wanted` of the written ones, or all gathered ones.
    fn read(&mut self, at: u64, wanted: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        let written = self.written_len();
        if let Some(from) = at.checked_sub(written) {
            buffer.extend_from_slice(self.batch.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or_default());
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(at))?;
        let expected = wanted.min(written - at);
        if (&mut self.file).take(expected).read_to_end(buffer)? as u64 == expected {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the spool is shorter than it was written"))
    }
}

impl SpoolReplay {
    /// Replays one chunk of the file, at least one message.
    fn read(&mut self, spool: &mut SpoolFile, out: &mut impl FnMut(u64, &[u8])) -> io::Result<()> {
        let mut wanted = CHUNK;
        loop {
            let asked = wanted;
            spool.read(self.position, asked as u64, &mut self.buffer)?;
            let (had, mut rest) = (self.buffer.len(), &self.buffer[..]);
            while let Some((length, after)) = rest.split_first_chunk::<LENGTH>() {
                let length = u32::from_le_bytes(*length) as usize;
                let Some((frames, after)) = after.split_at_checked(length) else {
                    wanted = wanted.max(LENGTH + length);
                    break;
                };
                if self.next > self.after {
                    out(self.next, frames);
                }
                self.next += 1;
                self.position += (LENGTH + length) as u64;
                rest = after;
            }
            if rest.len() < had {
                return Ok(());
            }
            if had < asked || wanted <= asked {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the spool ends in the middle of a message"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::codec::decode_frames;
    use proptest::prelude::*;

    use super::*;

    /// Path for a spool, private to a test.
    struct Place(PathBuf);

    impl Place {
        fn new() -> Self {
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let name = format!("agent-proxy-kept-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            Self(std::env::temp_dir().join(name))
        }

        fn kept(&self, spool_bytes: u64) -> ReplayBuffer {
            let detach = DetachSpec { directory: String::new(), fetch_within_ms: 0, spool_bytes };
            ReplayBuffer::new(self.0.clone(), &detach)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn text(number: u64, len: usize) -> FromProxy {
        FromProxy::Event { turn: number, event: Event::Text { text: ".".repeat(len) } }
    }

    fn number(frames: &[u8]) -> u64 {
        match decode_frames(frames).expect("a message") {
            FromProxy::Event { turn, .. } => turn,
            other => panic!("{other:?}"),
        }
    }

    /// Returns everything that a host receives which reads all.
    fn drain(kept: &mut ReplayBuffer, heard: &mut Vec<u64>) {
        let mut more = true;
        while more {
            let next = |seq: u64, frames: &[u8]| {
                assert_eq!(number(frames), seq);
                heard.push(seq);
            };
            more = kept.replay_chunk(next).expect("readable");
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Say(usize),
        /// The host keeps this many more of the received messages, and acknowledges them.
        Keep(usize),
        /// Same, but the host dies before it acknowledges them.
        Die(usize),
        /// A new host comes, and the replay gets this far.
        Come(usize),
        Drain,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..3000_usize).prop_map(Step::Say),
            1 => Just(Step::Say(200_000)),
            2 => (0..20_usize).prop_map(Step::Keep),
            1 => (0..20_usize).prop_map(Step::Die),
            1 => (0..3_usize).prop_map(Step::Come),
            1 => Just(Step::Drain),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        /// With any sequence of dying and new hosts each message is received, in order, and none is repeated that a host has kept.
        #[test]
        fn nothing_is_lost_or_doubled(steps in proptest::collection::vec(step(), 1..80)) {
            let place = Place::new();
            let mut kept = place.kept(u64::MAX);
            // Messages that all hosts together have kept, and messages that the last host has received beyond them.
            let (mut has, mut heard, mut host) = (0_usize, Vec::new(), true);
            for step in steps {
                match step {
                    Step::Say(len) => {
                        let seq = kept.next();
                        let now = kept.retain(&text(seq, len)).expect("short enough").map(number);
                        if host && let Some(now) = now {
                            prop_assert_eq!(now, seq);
                            heard.push(now);
                        }
                    }
                    Step::Keep(more) if host => {
                        has += more.min(heard.len() - has);
                        kept.acknowledge(has as u64);
                    }
                    Step::Die(more) if host => {
                        has += more.min(heard.len() - has);
                        host = false;
                        kept.detach().expect("writable");
                    }
                    Step::Come(chunks) if !host => {
                        host = true;
                        heard.truncate(has);
                        kept.attach(has as u64);
                        for _ in 0..chunks {
                            let mut more = |seq: u64, _: &[u8]| heard.push(seq);
                            kept.replay_chunk(&mut more).expect("readable");
                        }
                    }
                    Step::Drain if host => drain(&mut kept, &mut heard),
                    Step::Keep(_) | Step::Die(_) | Step::Come(_) | Step::Drain => {}
                }
                prop_assert!(heard.iter().copied().eq(1..=heard.len() as u64), "{heard:?}");
            }
            if !host {
                heard.truncate(has);
                kept.attach(has as u64);
            }
            drain(&mut kept, &mut heard);
            prop_assert!(heard.iter().copied().eq(1..kept.next()), "{} of {}", heard.len(), kept.next() - 1);
            kept.acknowledge(heard.len() as u64);
            prop_assert!(kept.is_acknowledged() && !place.0.exists());
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_what_must_not_be_lost_is_not() {
        let place = Place::new();
        let mut kept = place.kept(1000);
        kept.detach().expect("writable");
        for seq in 1..=100 {
            kept.retain(&text(seq, 50)).expect("short");
        }
        kept.retain(&FromProxy::TurnEnded { turn: 7 }).expect("short");
        kept.retain(&text(0, 50)).expect("short");
        kept.attach(0);
        let mut told = Vec::new();
        while kept.replay_chunk(|_, frames| told.push(decode_frames(frames).expect("a message"))).expect("readable") {}
        let lossy = |message: &FromProxy| match message {
            FromProxy::Event { event: Event::SessionLossy { reason }, .. } => Some(reason.clone()),
            _ => None,
        };
        let first = told.iter().filter(|message| matches!(message, FromProxy::Event { turn: 1.., .. })).count();
        assert!((1..100).contains(&first), "{first}");
        assert!(lossy(&told[first]).expect("a marker").contains(&format!("for {} events", 100 - first)), "{told:?}");
        assert_eq!(told[first + 1], FromProxy::TurnEnded { turn: 7 });
        assert!(lossy(told.last().expect("something")).expect("a marker").contains("for 1 events"), "{told:?}");
        assert_eq!(kept.turn_after(0, None), Some(7));
    }

    #[test]
    fn with_a_host_the_agent_waits_and_without_one_it_does_not() {
        let place = Place::new();
        let mut kept = place.kept(u64::MAX);
        while !kept.is_full() {
            kept.retain(&text(1, 100_000)).expect("short enough");
        }
        let said = kept.next() - 1;
        assert!(said > 20);
        kept.acknowledge(said);
        assert!(!kept.is_full() && kept.is_acknowledged());
        kept.detach().expect("writable");
        for _ in 0..2 * said {
            kept.retain(&text(1, 100_000)).expect("short enough");
        }
        assert!(!kept.is_full());
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&place.0).expect("a file"));
        assert_eq!(mode & 0o777, 0o600, "nobody else reads it");
        kept.attach(0);
        assert!(kept.is_full(), "until it has caught up");
        assert_eq!(kept.pending_count(), 2 * said);
    }

    #[test]
    fn where_no_file_is_to_be_had_memory_serves() {
        let place = Place(PathBuf::from("/nonexistent/spool"));
        let mut kept = place.kept(u64::MAX);
        kept.retain(&text(1, 10)).expect("short");
        assert!(kept.detach().is_err());
        kept.retain(&text(2, 10)).expect("short");
        kept.attach(0);
        let mut heard = Vec::new();
        drain(&mut kept, &mut heard);
        assert_eq!(heard, [1, 2]);
    }

    impl Place {
        /// Returns the spool as a file that can be read and not written.
        fn unwritable(&self) -> File {
            File::open(&self.0).expect("there")
        }

        fn writable(&self) -> File {
            File::options().read(true).write(true).open(&self.0).expect("there")
        }
    }

    fn set_file(kept: &mut ReplayBuffer, file: File) {
        kept.spool.as_mut().expect("a spool").file = file;
    }

    fn is_settled(mut kept: ReplayBuffer, heard: &[u64]) -> bool {
        assert!(heard.iter().copied().eq(1..kept.next()), "{heard:?} of {}", kept.next() - 1);
        kept.acknowledge(heard.len() as u64);
        kept.is_acknowledged() && !kept.is_full()
    }

    #[test]
    fn what_a_full_disk_does_not_take_is_given_out_from_memory() {
        let place = Place::new();
        let mut kept = place.kept(u64::MAX);
        kept.detach().expect("writable");
        for seq in 1..=5 {
            kept.retain(&text(seq, 30_000)).expect("short enough");
        }
        kept.flush();
        set_file(&mut kept, place.unwritable());
        kept.retain(&text(6, 30_000)).expect("short enough");
        kept.retain(&text(7, 30_000)).expect("short enough");
        // This message is counted as lost; messages that must not be lost are not.
        kept.retain(&text(0, 30_000)).expect("short enough");
        kept.retain(&FromProxy::TurnEnded { turn: 8 }).expect("short");
        kept.attach(0);
        let mut told = Vec::new();
        while kept
            .replay_chunk(|seq, frames| told.push((seq, decode_frames(frames).expect("a message"))))
            .expect("readable")
        {}
        let heard: Vec<u64> = told.iter().map(|(seq, _)| *seq).collect();
        assert!(told[..7].iter().all(|(seq, said)| *said == text(*seq, 30_000)), "{heard:?}");
        assert!(
            matches!(&told[7].1, FromProxy::Event { event: Event::SessionLossy { reason }, .. } if reason.contains("for 1 "))
        );
        assert_eq!(told[8].1, FromProxy::TurnEnded { turn: 8 });
        assert!(is_settled(kept, &heard));
    }

    #[test]
    fn what_waits_when_the_host_goes_stays_in_order_on_a_full_disk() {
        let place = Place::new();
        let mut kept = place.kept(u64::MAX);
        let (mut heard, mut said) = (Vec::new(), 0);
        let mut say = |kept: &mut ReplayBuffer, times: u64| {
            for _ in 0..times {
                said += 1;
                kept.retain(&text(said, 30_000)).expect("short enough");
            }
        };
        kept.detach().expect("writable");
        kept.attach(0);
        drain(&mut kept, &mut heard);
        say(&mut kept, 10);
        std::fs::write(&place.0, "").expect("written");
        kept.spool = Some(SpoolFile { file: place.unwritable(), first: 1, count: 0, len: 0, batch: Vec::new() });
        assert!(kept.detach().is_err());
        say(&mut kept, 3);
        // There is room again.
        set_file(&mut kept, place.writable());
        say(&mut kept, 3);
        kept.attach(0);
        say(&mut kept, 1);
        drain(&mut kept, &mut heard);
        say(&mut kept, 1);
        heard.push(said);
        assert_eq!(said, 18);
        assert!(is_settled(kept, &heard));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_given_up_and_both_sides_count_on() {
        for after in [0, 2] {
            let place = Place::new();
            let mut kept = place.kept(u64::MAX);
            kept.detach().expect("writable");
            for seq in 1..=20 {
                kept.retain(&text(seq, 30_000)).expect("short enough");
            }
            kept.retain(&FromProxy::TurnEnded { turn: 7 }).expect("short");
            kept.flush();
            place.writable().set_len(30_000 * 12).expect("cut");
            kept.attach(after);
            let mut heard: Vec<u64> = (1..=after).collect();
            while kept.replay_chunk(|seq, _| heard.push(seq)).is_ok() {}
            let (there, lost) = (heard.len() as u64, kept.abandon_spool());
            assert!(there >= after && there + lost == 21, "{heard:?}, {lost} lost");
            assert_eq!((kept.next(), kept.turn_after(after, None)), (there + 1, None));
            kept.retain(&FromProxy::TurnEnded { turn: 8 }).expect("short");
            while kept.replay_chunk(|seq, _| heard.push(seq)).expect("no file") {}
            assert_eq!(kept.turn_after(after, None), Some(8));
            assert!(is_settled(kept, &heard) && !place.0.exists());
        }
    }
}
