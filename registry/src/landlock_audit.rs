//! Files that a Landlock domain has refused, as the kernel's audit tells them.
//!
//! Linux 6.15 tells them where audit is switched on, to whoever has CAP_AUDIT_READ in the first user namespace. Of one refusal there are
//! several records with one serial number: what was refused (of a domain's first one also which process made the domain), the system call
//! with its process, and an end.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use ipc_protocol::{FileRefusal, Pid};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SocketFlags, SocketType, bind,
        netlink::{self, SocketAddrNetlink},
        recv, socket_with,
    },
};

use crate::identify;

/// Constants of `linux/audit.h`: the multicast group of readers, and kinds of records.
const READERS: u32 = 1;
const SYSCALL: u16 = 1300;
const END: u16 = 1320;
const LANDLOCK_ACCESS: u16 = 1423;
const LANDLOCK_DOMAIN: u16 = 1424;
/// Length of a netlink header.
const HEADER: usize = 16;
/// Longest record.
const RECORD: usize = 9216;
/// Most records read at once.
const BATCH: usize = 64;
/// Most refusals of one system call.
const MAX_PENDING: usize = 16;

/// Reader of the refusals of one domain, that of a program.
#[derive(Debug)]
pub struct LandlockAudit {
    socket: OwnedFd,
    parser: RefusalParser,
    /// True if the kernel has dropped records since [`LandlockAudit::take_overrun`].
    is_overrun: bool,
}

impl LandlockAudit {
    /// Begins to listen. To be called before the program is started: the kernel says once which process made a domain.
    ///
    /// # Errors
    /// Where this process may not, or the kernel has no audit.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::AUDIT))?;
        bind(&socket, &SocketAddrNetlink::new(0, READERS))?;
        Ok(Self { socket, parser: RefusalParser::default(), is_overrun: false })
    }

    /// Sets the program, by the pid that it was started with.
    pub fn watch(&mut self, program: Pid) {
        self.parser.program = program;
    }

    /// Reads what has come. Records that were lost are skipped, see [`LandlockAudit::take_overrun`].
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is nothing.
    pub fn read(&mut self) -> io::Result<Vec<FileRefusal>> {
        let (mut refusals, mut record) = (Vec::new(), [0; RECORD]);
        for count in 0..BATCH {
            let length = match recv(&self.socket, &mut record, RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => {
                    self.is_overrun = true;
                    continue;
                }
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            let record = &record[..length.min(RECORD)];
            if let (Some(kind), Some(text)) = (record.get(4..6), record.get(HEADER..)) {
                let kind = u16::from_ne_bytes([kind[0], kind[1]]);
                refusals.extend(self.parser.take(kind, &String::from_utf8_lossy(text)));
            }
        }
        Ok(refusals)
    }

    /// Returns whether the kernel has dropped records since the last call: nobody read them in time.
    pub fn take_overrun(&mut self) -> bool {
        std::mem::take(&mut self.is_overrun)
    }
}

impl AsRawFd for LandlockAudit {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsFd for LandlockAudit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Records of one serial number, put together.
#[derive(Debug, Default)]
struct RefusalParser {
    program: Pid,
    /// Domains that the program has made.
    domains: BTreeSet<String>,
    serial: String,
    /// Refusals of the serial number, each with its domain.
    pending: Vec<(String, FileRefusal)>,
}

impl RefusalParser {
    /// Takes a record. At the end of a serial number these are the refusals of the program's domains.
    fn take(&mut self, kind: u16, text: &str) -> Vec<FileRefusal> {
        let serial = text.split_once(')').map_or("", |(serial, _)| serial);
        if serial != self.serial {
            self.pending.clear();
            serial.clone_into(&mut self.serial);
        }
        match kind {
            LANDLOCK_ACCESS => self.add(text),
            LANDLOCK_DOMAIN if number(text, "pid") == Some(self.program) => {
                self.domains.extend(field(text, "domain").map(str::to_owned));
            }
            SYSCALL => {
                let process = number(text, "pid").and_then(|pid| identify(pid).ok());
                let command = field(text, "comm").map(decode);
                for (_, refusal) in &mut self.pending {
                    (refusal.process, refusal.command) = (process, command.clone());
                }
            }
            END => {
                let pending = std::mem::take(&mut self.pending).into_iter();
                return pending
                    .filter(|(domain, _)| self.domains.contains(domain))
                    .map(|(_, refusal)| refusal)
                    .collect();
            }
            _ => {}
        }
        Vec::new()
    }

    fn add(&mut self, text: &str) {
        let (Some(domain), Some(blockers), Some(path)) =
            (field(text, "domain"), field(text, "blockers"), field(text, "path"))
        else {
            return;
        };
        let access: Vec<String> =
            blockers.split(',').filter_map(|right| Some(right.strip_prefix("fs.")?.to_owned())).collect();
        if !access.is_empty() && self.pending.len() < MAX_PENDING {
            let refusal = FileRefusal { path: decode(path), access, process: None, command: None };
            self.pending.push((domain.to_owned(), refusal));
        }
    }
}

/// Value of a field of a record, with its quotes.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let words = text.match_indices(name).filter(|(at, _)| *at == 0 || text.as_bytes()[at - 1] == b' ');
    let rest = words.filter_map(|(at, _)| text[at + name.len()..].strip_prefix('=')).next()?;
    let end = match rest.strip_prefix('"') {
        Some(quoted) => quoted.find('"')? + 2,
        None => rest.find([' ', '\0', '\n']).unwrap_or(rest.len()),
    };
    Some(&rest[..end])
}

fn number(text: &str, name: &str) -> Option<Pid> {
    field(text, name)?.parse().ok()
}

/// Text of a value: in quotes, or each byte as two digits where it has some that quotes do not take.
fn decode(value: &str) -> String {
    if let Some(text) = value.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        return text.to_owned();
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = value.as_bytes().chunks(2).map(byte).collect();
    bytes.map_or_else(|| value.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of Linux 6.18.
    const RECORDS: [(u16, &str); 12] = [
        (
            1423,
            r#"audit(1795822609.123:2): domain=1cff4f51d blockers=fs.read_file path="/etc/hostname" dev="vda" ino=611"#,
        ),
        (
            1424,
            r#"audit(1795822609.123:2): domain=1cff4f51d status=allocated mode=enforcing pid=21788 uid=0 exe="/usr/bin/cat" comm="cat""#,
        ),
        (
            1300,
            r#"audit(1795822609.123:2): arch=c000003e syscall=257 success=no exit=-13 a0=ffffff9c ppid=21731 pid=4194305 auid=4294967295 tty=(none) comm="cat" exe="/usr/bin/cat" key=(null)"#,
        ),
        (1327, "audit(1795822609.123:2): proctitle=2F726F6F74"),
        (1320, "audit(1795822609.123:2): "),
        (
            1423,
            "audit(1795822609.123:3): domain=1cff4f51d blockers=fs.make_reg,fs.refer path=2F746D702F6120621F dev=\"vda\" ino=1",
        ),
        (1320, "audit(1795822609.123:3): "),
        (1423, r#"audit(1795822609.123:4): domain=2 blockers=fs.read_file path="/others" dev="vda" ino=1"#),
        (1320, "audit(1795822609.123:4): "),
        (1423, r#"audit(1795822609.123:5): domain=1cff4f51d blockers=scope.signal opid=1 ocomm="init""#),
        (1320, "audit(1795822609.123:5): "),
        (1424, "audit(1795822609.167:6): domain=1cff4f51d status=deallocated denials=3"),
    ];

    #[test]
    fn refusals_of_the_program_s_domain_are_put_together() {
        let mut parser = RefusalParser { program: 21788, ..RefusalParser::default() };
        let refusals: Vec<_> = RECORDS.into_iter().flat_map(|(kind, text)| parser.take(kind, text)).collect();
        let refusal = |path: &str, access: &[&str], command: Option<&str>| FileRefusal {
            path: path.into(),
            access: access.iter().map(|right| (*right).to_owned()).collect(),
            process: None,
            command: command.map(str::to_owned),
        };
        let expected = [
            refusal("/etc/hostname", &["read_file"], Some("cat")),
            refusal("/tmp/a b\u{1f}", &["make_reg", "refer"], None),
        ];
        assert_eq!(refusals, expected);
    }

    #[test]
    fn damaged_records_are_skipped() {
        let mut parser = RefusalParser::default();
        for text in [
            "",
            "audit(",
            "domain=",
            "audit(1:1): domain=1 blockers= path=",
            "audit(1:1): path=\"",
            "x domain=1 path=ü",
        ] {
            for kind in [SYSCALL, END, LANDLOCK_ACCESS, LANDLOCK_DOMAIN] {
                assert_eq!(parser.take(kind, text), []);
            }
        }
    }
}
