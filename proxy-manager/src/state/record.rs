//! What is written of a session while it runs, as text: one header line, then one line for each process that came or went.
//! No I/O.
//!
//! ```text
//! agent-proxy-journal 1 session=s-1 marker=0198… boot=6f1c… pidns=pid:[4026531836] since=99132 strict=0 host=70@99001 fork-server=71@99002 cgroup=/sys/fs/cgroup/…/s-1
//! proxy 80@99120
//! +81@99133
//! -81@99133
//! ```

use std::{collections::BTreeSet, fmt::Write as _, str::FromStr};

use ipc_protocol::{ProcessId, SessionId};

/// First word of a header, and the version of the format.
const MAGIC: &str = "agent-proxy-journal 1 ";

/// What is known of a session before it has a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) session: SessionId,
    /// In the environment of its processes.
    pub(crate) marker: String,
    pub(crate) place: Place,
    /// Start time below which no process is of this session.
    pub(crate) since: u64,
    pub(crate) strict: bool,
    pub(crate) host: ProcessId,
    pub(crate) fork_server: ProcessId,
    /// Directory of its cgroup.
    pub(crate) cgroup: Option<String>,
}

/// Where pids and start times mean something: one boot of one machine, and one PID namespace of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) boot: String,
    pub(crate) pid_namespace: String,
}

impl Place {
    /// Of this process.
    pub(crate) fn here() -> std::io::Result<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        let pid_namespace = std::fs::read_link("/proc/self/ns/pid")?.to_string_lossy().into_owned();
        Ok(Self { boot, pid_namespace })
    }
}

/// A line after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Proxy(ProcessId),
    Spawned(ProcessId),
    Exited(ProcessId),
}

impl Header {
    /// The header's line. A cgroup whose name holds a line break is left out.
    pub(crate) fn line(&self) -> String {
        let Self { session, marker, place: Place { boot, pid_namespace }, since, strict, host, fork_server, cgroup } =
            self;
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
            place: Place { boot: field("boot")?.to_owned(), pid_namespace: field("pidns")?.to_owned() },
            since: number(field("since")?)?,
            strict: field("strict")? == "1",
            host: process(field("host")?)?,
            fork_server: process(field("fork-server")?)?,
            cgroup: rest.strip_prefix("cgroup=").map(|path| (!path.is_empty()).then(|| path.to_owned()))?,
        })
    }
}

impl Line {
    /// Appends the line.
    pub(crate) fn write(self, out: &mut String) {
        let (kind, id) = match self {
            Self::Proxy(id) => ("proxy ", id),
            Self::Spawned(id) => ("+", id),
            Self::Exited(id) => ("-", id),
        };
        // A String takes all.
        let _ = writeln!(out, "{kind}{id}");
    }

    fn parse(line: &str) -> Option<Self> {
        if let Some(id) = line.strip_prefix("proxy ") {
            return process(id).map(Self::Proxy);
        }
        match line.split_at_checked(1)? {
            ("+", id) => process(id).map(Self::Spawned),
            ("-", id) => process(id).map(Self::Exited),
            _ => None,
        }
    }
}

/// A number as it is written: no sign, no leading zero.
fn number<N: FromStr + ToString>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number: &N| number.to_string() == text)
}

fn process(text: &str) -> Option<ProcessId> {
    let (pid, start_time) = text.split_once('@')?;
    Some(ProcessId { pid: number(pid)?, start_time: number(start_time)? })
}

/// A journal that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: Header,
    /// `None` where its pid means nothing here.
    pub(crate) fork_server: Option<ProcessId>,
    pub(crate) proxy: Option<ProcessId>,
    /// What was seen to come and not to go.
    pub(crate) living: BTreeSet<ProcessId>,
    /// Lines that make no sense.
    pub(crate) damaged: usize,
}

impl Record {
    /// Reads a journal. Lines that make no sense are counted and passed over; so is a last one without its line break,
    /// which may be the beginning of another. `None` without a header: nothing else means anything then.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split_inclusive(|b| *b == b'\n');
        let whole = |line: &[u8]| String::from_utf8(line.strip_suffix(b"\n")?.to_vec()).ok();
        let header = Header::parse(&lines.next().and_then(whole)?)?;
        let fork_server = Some(header.fork_server);
        let mut record = Self { header, fork_server, proxy: None, living: BTreeSet::new(), damaged: 0 };
        for line in lines {
            match whole(line).and_then(|line| Line::parse(&line)) {
                // What is older than the session is none of it.
                Some(Line::Spawned(id)) if id.start_time >= record.header.since => _ = record.living.insert(id),
                Some(Line::Exited(id)) => _ = record.living.remove(&id),
                Some(Line::Proxy(id)) => record.proxy = Some(id),
                Some(Line::Spawned(_)) | None => record.damaged += 1,
            }
        }
        Some(record)
    }

    /// Its pids are of another PID namespace.
    pub(crate) fn forget_pids(&mut self) {
        (self.fork_server, self.proxy) = (None, None);
        self.living.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(pid: u32, start_time: u64) -> ProcessId {
        ProcessId { pid, start_time }
    }

    fn header() -> Header {
        Header {
            session: "s-1".parse().expect("valid"),
            marker: "m".into(),
            place: Place { boot: "b".into(), pid_namespace: "pid:[1]".into() },
            since: 100,
            strict: true,
            host: id(1, 2),
            fork_server: id(3, 4),
            cgroup: Some("/with a space/s-1".into()),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for header in [header(), Header { cgroup: None, strict: false, ..header() }] {
            let mut text = header.line();
            for line in
                [Line::Proxy(id(5, 50)), Line::Spawned(id(6, 100)), Line::Spawned(id(7, 101)), Line::Exited(id(6, 100))]
            {
                line.write(&mut text);
            }
            let record = Record::read(text.as_bytes()).expect("a header");
            let (fork_server, proxy) = (Some(id(3, 4)), Some(id(5, 50)));
            assert_eq!(record, Record { header, fork_server, proxy, living: [id(7, 101)].into(), damaged: 0 });
        }
    }

    #[test]
    fn what_makes_no_sense_is_counted_and_passed_over() {
        let lines = "+6@100\n\nhello\n+7\n+-7@100\n+07@100\n+7@100x\n*7@100\n+9@99\n\u{e4}7@100\n-8@100\n+99999999999@100\n+10@1";
        let record = Record::read((header().line() + lines).as_bytes()).expect("a header");
        assert_eq!((record.living, record.damaged), ([id(6, 100)].into(), 11));
        let bytes = [header().line().as_bytes(), b"\xff\n+6@100\n\0\0\0\n"].concat();
        let record = Record::read(&bytes).expect("a header");
        assert_eq!((record.living, record.damaged), ([id(6, 100)].into(), 2));
    }

    #[test]
    fn without_its_header_a_journal_says_nothing() {
        let line = header().line();
        for cut in 0..line.len() {
            assert_eq!(Record::read(&line.as_bytes()[..cut]), None);
        }
        assert_eq!(Record::read(b"+6@100\n"), None);
        assert_eq!(Record::read(line.replace("journal 1", "journal 2").as_bytes()), None);
        assert_eq!(Record::read(line.replace("marker=m", "marker=").as_bytes()), None, "it would match everything");
    }

    proptest! {
        #[test]
        fn garbage_is_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Record::read(&bytes);
            let _ = Record::read(&[header().line().as_bytes(), &bytes].concat());
        }
    }
}
