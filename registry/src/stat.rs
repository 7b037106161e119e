//! Parser of `/proc/PID/stat`, on the hot path: runs once for each process of a pass, and once for each that is reaped.

use std::{
    fs::File,
    io::{self, Read},
};

/// Maximum length of a line: 52 numbers and a name of at most 64 bytes.
const LONGEST: usize = 2048;

/// Fields of `/proc/PID/stat` in use, under the names of proc(5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcStat {
    pub(crate) state: char,
    pub(crate) ppid: i32,
    pub(crate) pgrp: i32,
    pub(crate) session: i32,
    /// Device number of the controlling terminal; 0 for none.
    pub(crate) tty_nr: i32,
    pub(crate) flags: u32,
    pub(crate) utime: u64,
    pub(crate) stime: u64,
    pub(crate) cutime: i64,
    pub(crate) cstime: i64,
    pub(crate) num_threads: i64,
    pub(crate) starttime: u64,
    /// 0 if it may not be seen.
    pub(crate) arg_start: u64,
    pub(crate) arg_end: u64,
    /// Exit status in the encoding of `wait`.
    pub(crate) exit_code: i32,
}

impl ProcStat {
    /// Reads an open `stat` file.
    ///
    /// # Errors
    /// An error of the system call: `ESRCH` when the process is gone meanwhile; `InvalidData` for any other file.
    pub(crate) fn read(mut file: File) -> io::Result<Self> {
        let mut line = [0; LONGEST];
        let mut length = 0;
        loop {
            match file.read(&mut line[length..])? {
                0 => break,
                // The kernel delivers the line whole.
                read => length += read,
            }
            if line[..length].ends_with(b"\n") {
                break;
            }
        }
        Self::parse(&line[..length]).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no stat of a process"))
    }

    fn parse(line: &[u8]) -> Option<Self> {
        // The name may contain anything, parentheses too.
        let name_end = line.iter().rposition(|byte| *byte == b')')?;
        let mut words = std::str::from_utf8(line.get(name_end + 1..)?).ok()?.split_ascii_whitespace();
        let mut stat = Self { state: words.next()?.chars().next()?, ..Self::default() };
        // Numbered as in proc(5); the state is 3.
        for (number, word) in (4..).zip(words) {
            match number {
                4 => stat.ppid = word.parse().ok()?,
                5 => stat.pgrp = word.parse().ok()?,
                6 => stat.session = word.parse().ok()?,
                7 => stat.tty_nr = word.parse().ok()?,
                9 => stat.flags = word.parse().ok()?,
                14 => stat.utime = word.parse().ok()?,
                15 => stat.stime = word.parse().ok()?,
                16 => stat.cutime = word.parse().ok()?,
                17 => stat.cstime = word.parse().ok()?,
                20 => stat.num_threads = word.parse().ok()?,
                22 => stat.starttime = word.parse().ok()?,
                48 => stat.arg_start = word.parse().ok()?,
                49 => stat.arg_end = word.parse().ok()?,
                52 => {
                    stat.exit_code = word.parse().ok()?;
                    return Some(stat);
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_whatever_the_name_holds() {
        let numbers: Vec<String> = (4..=52).map(|number: u64| number.to_string()).collect();
        let line = format!("7 (a) S 1 (\u{fffd} )) Z {}\n", numbers.join(" "));
        let stat = ProcStat::parse(line.as_bytes()).expect("a stat");
        assert_eq!((stat.state, stat.ppid, stat.pgrp, stat.session, stat.tty_nr, stat.flags), ('Z', 4, 5, 6, 7, 9));
        assert_eq!((stat.utime, stat.stime, stat.cutime, stat.cstime), (14, 15, 16, 17));
        assert_eq!((stat.num_threads, stat.starttime, stat.exit_code), (20, 22, 52));
        assert_eq!((stat.arg_start, stat.arg_end), (48, 49));
    }

    #[test]
    fn what_is_no_stat_is_none() {
        for line in ["", "7", "7 (sh)", "7 (sh) ", "7 (sh) S", "7 (sh) S 1 2 3", "7 (sh) S one 2 3", ")"] {
            assert_eq!(ProcStat::parse(line.as_bytes()), None, "{line:?}");
        }
    }

    #[test]
    fn this_process_is_read() {
        let stat = ProcStat::read(File::open("/proc/self/stat").expect("readable")).expect("a stat");
        assert_eq!(stat.ppid.unsigned_abs(), std::os::unix::process::parent_id());
        assert!(stat.num_threads >= 1 && stat.starttime > 0 && stat.arg_start < stat.arg_end, "{stat:?}");
    }
}
