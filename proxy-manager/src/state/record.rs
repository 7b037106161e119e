//! Format of a journal as text: one header line, then one line for each process that started or ended. No I/O.
//!
//! ```text
//! agent-proxy-journal 1 session=s-1 marker=0198… boot=6f1c… pidns=pid:[4026531836] since=99132 strict=0 host=70@99001 fork-server=71@99002 cgroup=/sys/fs/cgroup/…/s-1
//! proxy 80@99120
//! +81@99133
//! -81@99133
//! sid 81 99133 500321
//! reaper 1@1
//! host-cgroup /user.slice/…
//! container agent-proxy-0198… /usr/bin/podman
//! ```
//!
//! Releases that do not know one of the last four pass over it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    str::FromStr,
};

use ipc_protocol::{Pid, ProcessId, SessionId};

/// First word of a header, and the version of the format.
const MAGIC: &str = "agent-proxy-journal 1 ";

/// Facts about a session before it has a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalHeader {
    pub(crate) session: SessionId,
    /// Value of [`ipc_protocol::MARKER`] in the environment of its processes.
    pub(crate) marker: String,
    pub(crate) place: BootNamespace,
    /// Lower bound of start times: earlier processes are not of this session.
    pub(crate) since: u64,
    pub(crate) strict: bool,
    pub(crate) host: ProcessId,
    pub(crate) fork_server: ProcessId,
    /// Directory of its cgroup.
    pub(crate) cgroup: Option<String>,
    /// Container of its agent. It stands in a line of its own.
    pub(crate) container: Option<JournalContainer>,
}

/// Container of a session's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalContainer {
    /// Name of the container.
    pub(crate) name: String,
    /// Path of its engine's program.
    pub(crate) program: String,
}

/// Scope of pids and start times: one boot of one machine, and one PID namespace of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BootNamespace {
    pub(crate) boot: String,
    pub(crate) pid_namespace: String,
}

impl BootNamespace {
    /// Scope of this process.
    pub(crate) fn here() -> std::io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let pid_namespace = std::fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned();
        Ok(Self { boot, pid_namespace })
    }
}

/// A POSIX session of the session's. Its number stays its own for as long as a process is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PosixSession {
    pub(crate) sid: Pid,
    /// Start time of a process that was in it.
    pub(crate) since: u64,
    /// Forks on the machine from its boot until it was seen.
    pub(crate) forks: u64,
}

/// A line after the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalLine {
    Proxy(ProcessId),
    Spawned(ProcessId),
    Exited(ProcessId),
    /// POSIX session that a process of the session is in.
    Posix(PosixSession),
    /// An ancestor of the host: it may adopt what the supervisors leave.
    Reaper(ProcessId),
    /// The cgroup of the host, which processes of the baseline share.
    HostCgroup(String),
    /// The container of its agent.
    Container(JournalContainer),
}

impl JournalHeader {
    /// Formats the header line. Omits a cgroup whose name contains a line break.
    pub(crate) fn line(&self) -> String {
        let Self {
            session,
            marker,
            place: BootNamespace { boot, pid_namespace },
            since,
            strict,
            host,
            fork_server,
            cgroup,
            container: _,
        } = self;
        let strict = u8::from(*strict);
        let cgroup = cgroup.as_deref().filter(|path| !path.contains('\n')).unwrap_or_default();
        format!(
            "{MAGIC}session={session} marker={marker} boot={boot} pidns={pid_namespace} since={since} strict={strict} \
             host={host} fork-server={fork_server} cgroup={cgroup}\n"
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut rest = line.strip_prefix(MAGIC)?;
        let mut field = |name: &str| {
            let after = rest.strip_prefix(name)?.strip_prefix('=')?;
            let (value, more) = after.split_once(' ')?;
            rest = more;
            Some(value)
        };
        Some(Self {
            session: field("session")?.parse().ok()?,
            marker: field("marker").filter(|marker| !marker.is_empty())?.to_owned(),
            place: BootNamespace { boot: field("boot")?.to_owned(), pid_namespace: field("pidns")?.to_owned() },
            since: number(field("since")?)?,
            strict: field("strict")? == "1",
            host: process(field("host")?)?,
            fork_server: process(field("fork-server")?)?,
            cgroup: rest.strip_prefix("cgroup=").map(|path| (!path.is_empty()).then(|| path.to_owned()))?,
            container: None,
        })
    }
}

impl JournalLine {
    /// Appends the line.
    pub(crate) fn write(&self, out: &mut String) {
        // A String takes all.
        let _ = match self {
            Self::Proxy(id) => writeln!(out, "proxy {id}"),
            Self::Spawned(id) => writeln!(out, "+{id}"),
            Self::Exited(id) => writeln!(out, "-{id}"),
            Self::Posix(PosixSession { sid, since, forks }) => writeln!(out, "sid {sid} {since} {forks}"),
            Self::Reaper(id) => writeln!(out, "reaper {id}"),
            Self::HostCgroup(path) if path.contains('\n') => Ok(()),
            Self::HostCgroup(path) => writeln!(out, "host-cgroup {path}"),
            Self::Container(JournalContainer { program, .. }) if program.contains('\n') => Ok(()),
            Self::Container(JournalContainer { name, program }) => writeln!(out, "container {name} {program}"),
        };
    }

    fn parse(line: &str) -> Option<Self> {
        if let Some(id) = line.strip_prefix("proxy ") {
            return process(id).map(Self::Proxy);
        }
        if let Some(id) = line.strip_prefix("reaper ") {
            return process(id).map(Self::Reaper);
        }
        if let Some(path) = line.strip_prefix("host-cgroup ") {
            return Some(Self::HostCgroup(path.to_owned()));
        }
        if let Some(container) = line.strip_prefix("container ") {
            let (name, program) =
                container.split_once(' ').filter(|(name, program)| !name.is_empty() && program.starts_with('/'))?;
            return Some(Self::Container(JournalContainer { name: name.to_owned(), program: program.to_owned() }));
        }
        if let Some(numbers) = line.strip_prefix("sid ") {
            let mut numbers = numbers.split(' ');
            let mut next = || numbers.next();
            let posix = PosixSession { sid: number(next()?)?, since: number(next()?)?, forks: number(next()?)? };
            return next().is_none().then_some(Self::Posix(posix));
        }
        match line.split_at_checked(1)? {
            ("+", id) => process(id).map(Self::Spawned),
            ("-", id) => process(id).map(Self::Exited),
            _ => None,
        }
    }
}

/// Parses a number as it is written: no sign, no leading zero.
fn number<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

fn process(text: &str) -> Option<ProcessId> {
    let (pid, start_time) = text.split_once('@')?;
    Some(ProcessId { pid: number(pid)?, start_time: number(start_time)? })
}

/// A journal that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalRecord {
    pub(crate) header: JournalHeader,
    /// `None` if its pid is invalid in this namespace.
    pub(crate) fork_server: Option<ProcessId>,
    pub(crate) proxy: Option<ProcessId>,
    /// Processes that started and were not seen to end.
    pub(crate) living: BTreeSet<ProcessId>,
    /// The POSIX sessions that they were in.
    pub(crate) posix: BTreeMap<Pid, PosixSession>,
    /// Processes that may have adopted the orphans, and the cgroup of these.
    pub(crate) reapers: Vec<ProcessId>,
    pub(crate) host_cgroup: Option<String>,
    /// Start time from which forked processes may have been seen by nobody.
    pub(crate) unwatched_since: u64,
    /// Lines that make no sense.
    pub(crate) damaged: usize,
}

impl JournalRecord {
    /// Of a session without a process.
    pub(crate) fn new(header: JournalHeader, fork_server: Option<ProcessId>) -> Self {
        Self {
            unwatched_since: header.since,
            header,
            fork_server,
            proxy: None,
            living: BTreeSet::new(),
            posix: BTreeMap::new(),
            reapers: Vec::new(),
            host_cgroup: None,
            damaged: 0,
        }
    }

    /// Reads a journal. Lines that make no sense are counted and passed over; so is a last one without its line break,
    /// which may be the beginning of another. `None` without a header: nothing else means anything then.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split_inclusive(|b| *b == b'\n');
        let whole = |line: &[u8]| String::from_utf8(line.strip_suffix(b"\n")?.to_vec()).ok();
        let header = JournalHeader::parse(&lines.next().and_then(whole)?)?;
        let fork_server = Some(header.fork_server);
        let mut record = Self::new(header, fork_server);
        for line in lines {
            match whole(line).and_then(|line| JournalLine::parse(&line)) {
                // A process older than the session is not part of it.
                Some(JournalLine::Spawned(id)) if id.start_time >= record.header.since => _ = record.living.insert(id),
                Some(JournalLine::Exited(id)) => _ = record.living.remove(&id),
                Some(JournalLine::Proxy(id)) => record.proxy = Some(id),
                Some(JournalLine::Posix(posix)) if posix.since >= record.header.since => {
                    record.posix.insert(posix.sid, posix);
                }
                Some(JournalLine::Posix(_)) => record.damaged += 1,
                Some(JournalLine::Reaper(id)) => record.reapers.push(id),
                Some(JournalLine::HostCgroup(path)) => record.host_cgroup = Some(path),
                Some(JournalLine::Container(container)) => record.header.container = Some(container),
                Some(JournalLine::Spawned(_)) | None => record.damaged += 1,
            }
        }
        Some(record)
    }

    /// Drops all pids, which are of another PID namespace.
    pub(crate) fn forget_pids(&mut self) {
        (self.fork_server, self.proxy) = (None, None);
        self.living.clear();
        self.posix.clear();
        self.reapers.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(pid: u32, start_time: u64) -> ProcessId {
        ProcessId { pid, start_time }
    }

    fn header() -> JournalHeader {
        JournalHeader {
            session: "s-1".parse().expect("valid"),
            marker: "m".into(),
            place: BootNamespace { boot: "b".into(), pid_namespace: "pid:[1]".into() },
            since: 100,
            strict: true,
            host: id(1, 2),
            fork_server: id(3, 4),
            cgroup: Some("/with a space/s-1".into()),
            container: None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for header in [header(), JournalHeader { cgroup: None, strict: false, ..header() }] {
            let mut text = header.line();
            let container = JournalContainer { name: "agent-proxy-m".into(), program: "/a b/podman".into() };
            let header = JournalHeader { container: Some(container.clone()), ..header };
            let posix = PosixSession { sid: 6, since: 100, forks: 7 };
            for line in [
                JournalLine::Proxy(id(5, 50)),
                JournalLine::Spawned(id(6, 100)),
                JournalLine::Spawned(id(7, 101)),
                JournalLine::Exited(id(6, 100)),
                JournalLine::Posix(posix),
                JournalLine::Reaper(id(1, 0)),
                JournalLine::HostCgroup("/a b".into()),
                JournalLine::Container(container),
            ] {
                line.write(&mut text);
            }
            let record = JournalRecord::read(text.as_bytes()).expect("a header");
            let (fork_server, proxy) = (Some(id(3, 4)), Some(id(5, 50)));
            let (posix, reapers, host_cgroup) = ([(6, posix)].into(), vec![id(1, 0)], Some("/a b".to_owned()));
            let living = [id(7, 101)].into();
            let expected =
                JournalRecord { proxy, living, posix, reapers, host_cgroup, ..JournalRecord::new(header, fork_server) };
            assert_eq!(record, expected);
        }
    }

    #[test]
    fn what_makes_no_sense_is_counted_and_passed_over() {
        let lines = "+6@100\n\nhello\n+7\n+-7@100\n+07@100\n+7@100x\n*7@100\n+9@99\n\u{e4}7@100\n-8@100\n+99999999999@100\nsid 7 99 1\nsid 7 100\nsid 7 100 1 1\n+10@1";
        let record = JournalRecord::read((header().line() + lines).as_bytes()).expect("a header");
        assert_eq!((record.living, record.damaged), ([id(6, 100)].into(), 14));
        let bytes = [header().line().as_bytes(), b"\xff\n+6@100\n\0\0\0\n"].concat();
        let record = JournalRecord::read(&bytes).expect("a header");
        assert_eq!((record.living, record.damaged), ([id(6, 100)].into(), 2));
    }

    #[test]
    fn without_its_header_a_journal_says_nothing() {
        let line = header().line();
        for cut in 0..line.len() {
            assert_eq!(JournalRecord::read(&line.as_bytes()[..cut]), None);
        }
        assert_eq!(JournalRecord::read(b"+6@100\n"), None);
        assert_eq!(JournalRecord::read(line.replace("journal 1", "journal 2").as_bytes()), None);
        assert_eq!(
            JournalRecord::read(line.replace("marker=m", "marker=").as_bytes()),
            None,
            "it would match everything"
        );
    }

    proptest! {
        #[test]
        fn garbage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = JournalRecord::read(&bytes);
            let _ = JournalRecord::read(&[header().line().as_bytes(), &bytes].concat());
        }
    }
}
