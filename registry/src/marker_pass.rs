//! Pass over the processes of the machine, for the markers of several sessions.
//!
//! The look for a session's marker costs what the machine runs. So one pass serves every session that ends meanwhile, a slice at
//! a time: it counts for whoever asked before it began. A young session costs less: its processes have pids that were given
//! out after its proxy's, and these alone are tried. A privileged process can choose its pid (`clone3` with `set_tid`) and be
//! passed over; it can as well drop the marker.

use std::{
    collections::BTreeMap,
    io,
    time::{Duration, Instant},
};

use ipc_protocol::{Pid, ProcessId};

use crate::{
    proc,
    process_table::{look_for_marker_of, newest_pid, pids_are_unique_since},
    procfs,
};

/// Pids tried one by one at most; beyond that the list of all processes is read.
const SPAN: Pid = 1024;
/// Processes between two looks at the clock.
const AT_ONCE: usize = 16;

/// A session whose processes are looked for.
#[derive(Clone, Debug)]
pub struct MarkerQuery {
    /// Marker of the session; never empty.
    pub marker: String,
    /// Proxy of the session: no process with the marker is older.
    pub proxy: ProcessId,
    /// [`forks_since_boot`](crate::forks_since_boot) before its proxy was forked; `None` where nobody looked.
    pub forks: Option<u64>,
}

/// A pass under way.
#[derive(Debug)]
pub struct MarkerPass {
    found: BTreeMap<String, Vec<ProcessId>>,
    queries: BTreeMap<String, MarkerQuery>,
    /// The start time of the oldest proxy.
    not_before: u64,
    todo: PassRange,
}

#[derive(Debug)]
enum PassRange {
    /// Range of pids, and those that are given out meanwhile.
    Span { next: Pid, newest: Pid },
    /// All processes.
    Listed(std::vec::IntoIter<Pid>),
}

impl MarkerPass {
    /// Begins a pass.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn begin(queries: impl IntoIterator<Item = MarkerQuery>) -> io::Result<Self> {
        let queries: BTreeMap<_, _> = queries.into_iter().map(|query| (query.marker.clone(), query)).collect();
        let todo = match span(queries.values()) {
            Some((next, newest)) => PassRange::Span { next, newest },
            None => PassRange::Listed(procfs::numbers_in_proc(".", usize::MAX)?.into_iter()),
        };
        let not_before = queries.values().map(|query| query.proxy.start_time).min().unwrap_or(0);
        Ok(Self { found: BTreeMap::new(), queries, not_before, todo })
    }

    /// Goes on for about `slice`; says whether the pass is complete.
    ///
    /// # Errors
    /// When the pass is not whole (for want of descriptors or memory, say): it proves nothing then.
    pub fn step(&mut self, slice: Duration) -> io::Result<bool> {
        let began = Instant::now();
        while began.elapsed() < slice {
            for _ in 0..AT_ONCE {
                let Some(pid) = self.next()? else { return Ok(true) };
                self.look(pid)?;
            }
        }
        Ok(false)
    }

    /// Returns whether the pass looks for this marker.
    pub fn has(&self, marker: &str) -> bool {
        self.queries.contains_key(marker)
    }

    /// Takes the processes that carry this marker, of a complete pass.
    pub fn take(&mut self, marker: &str) -> Vec<ProcessId> {
        self.found.remove(marker).unwrap_or_default()
    }

    fn next(&mut self) -> io::Result<Option<Pid>> {
        loop {
            match &mut self.todo {
                PassRange::Span { next, newest } if *next <= *newest => {
                    *next += 1;
                    return Ok(Some(*next - 1));
                }
                PassRange::Span { next, newest } => match newest_pid() {
                    Some(now) if now == *newest => return Ok(None),
                    // Few were forked meanwhile: these too.
                    Some(now) if now > *newest && now - *newest <= SPAN => (*next, *newest) = (*newest + 1, now),
                    _ => self.todo = PassRange::Listed(procfs::numbers_in_proc(".", usize::MAX)?.into_iter()),
                },
                PassRange::Listed(entries) => {
                    return Ok(entries.next());
                }
            }
        }
    }

    fn look(&mut self, pid: Pid) -> io::Result<()> {
        let Some((seen, Some(marker))) = look_for_marker_of(pid, self.not_before)? else { return Ok(()) };
        let Some(query) = self.queries.get(&marker) else { return Ok(()) };
        // A thread has a directory too, though it is not listed.
        if seen.id.start_time >= query.proxy.start_time && proc::is_leader(pid)? {
            self.found.entry(marker).or_default().push(seen.id);
        }
        Ok(())
    }
}

/// The pids that were given out since the first of these proxies was forked, if they are few and no older process can have one.
fn span<'a>(queries: impl Iterator<Item = &'a MarkerQuery> + Clone) -> Option<(Pid, Pid)> {
    let newest = newest_pid()?;
    let is_near = |pid: Pid| newest.checked_sub(pid).is_some_and(|span| span <= SPAN);
    let oldest = queries.clone().map(|query| query.proxy.pid).min().filter(|pid| is_near(*pid))?;
    if !queries.clone().all(|query| is_near(query.proxy.pid)) {
        return None;
    }
    let forks = queries.map(|query| query.forks).min().flatten()?;
    pids_are_unique_since(forks).then_some((oldest, newest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PidFd, SpawnInput, SpawnRequest, forks_since_boot};

    const SLICE: Duration = Duration::from_millis(5);

    /// A process with this marker, which has begun to run.
    fn marked(marker: &str) -> PidFd {
        let env = vec![(ipc_protocol::MARKER.into(), marker.into())];
        let cat = SpawnRequest {
            env,
            stdin: SpawnInput::Null,
            argv: vec!["sleep".into(), "300".into()],
            ..SpawnRequest::new("/bin/sleep")
        };
        let process = crate::spawn(cat).expect("started").process;
        while crate::find_process_with_marker(process.id().pid)
            .expect("a look")
            .is_none_or(|(_, marker)| marker.is_none())
        {
            std::thread::yield_now();
        }
        process
    }

    fn pass(queries: &[MarkerQuery]) -> MarkerPass {
        let mut pass = MarkerPass::begin(queries.iter().cloned()).expect("begun");
        while !pass.step(SLICE).expect("a whole pass") {}
        pass
    }

    /// By the span of a young session, and by the list for one whose beginning is not known.
    #[test]
    fn each_marker_s_processes_are_found_in_one_pass() {
        let own = proc::identify(std::process::id()).expect("alive");
        let forks = forks_since_boot();
        assert!(forks.is_some_and(|forks| forks > 0));
        let names = ["one", "other"].map(|name| format!("{name}-{}", own.pid));
        let processes = names.each_ref().map(|name| marked(name));
        let proxy = processes[0].id();
        for forks in [forks, None] {
            let queries = names.each_ref().map(|name| MarkerQuery { marker: name.clone(), proxy, forks });
            let mut pass = pass(&queries);
            for (name, process) in names.iter().zip(&processes) {
                assert!(pass.has(name));
                assert_eq!(pass.take(name), [process.id()], "{forks:?}");
            }
        }
        let younger = ProcessId { start_time: proxy.start_time + 1_000_000, ..proxy };
        let query = MarkerQuery { marker: names[0].clone(), proxy: younger, forks: None };
        assert!(pass(&[query]).take(&names[0]).is_empty(), "it is older than the session");
        for process in &processes {
            process.signal(ipc_protocol::Signal::Kill).expect("ours");
            while process.try_reap().expect("ours").is_none() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn few_pids_are_tried_only_where_they_cannot_have_come_round() {
        let own = proc::identify(std::process::id()).expect("alive");
        let newest = newest_pid().expect("known");
        let query = |pid, forks| MarkerQuery { marker: "m".into(), proxy: ProcessId { pid, ..own }, forks };
        let now = forks_since_boot();
        assert!(span([query(newest, None)].iter()).is_none(), "nobody counted");
        assert!(span([query(newest, Some(0))].iter()).is_none() || now < Some(20_000), "it may be an older one's");
        assert!(span([query(newest + 2 * SPAN, now)].iter()).is_none(), "they begin anew");
        // Other tests fork too.
        assert!((0..1000).any(|_| newest_pid().is_some_and(|newest| {
            span([query(newest, forks_since_boot())].iter()).is_some_and(|(from, _)| from == newest)
        })));
    }
}
