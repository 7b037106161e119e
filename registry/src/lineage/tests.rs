use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
/// Proxies of the two sessions, and a stranger.
const PROXIES: [Pid; 2] = [100, 200];
const STRANGER: Pid = 300;

/// A `/proc` that says what it is told to.
#[derive(Clone, Debug, Default)]
struct Fake(BTreeMap<Pid, (ProcessSight, String, Vec<Pid>)>);

impl Fake {
    fn put(&mut self, pid: Pid, parent: Pid, start_time: u64, line: &str) {
        let sight = ProcessSight {
            parent,
            pgid: pid,
            sid: pid,
            start_time,
            has_execed: !line.is_empty(),
            is_runnable: false,
            cpu_time: Duration::ZERO,
            leader_is_dead: false,
            is_dead: false,
        };
        self.0.insert(pid, (sight, line.to_owned(), Vec::new()));
    }

    /// A process that has forked and not executed anything: it has its parent's command line. It wants to run, and has for so
    /// many milliseconds.
    fn put_runnable(&mut self, pid: Pid, parent: Pid, start_time: u64, milliseconds: u64) {
        self.put(pid, parent, start_time, "forked");
        let sight = &mut self.0.get_mut(&pid).expect("just put").0;
        (sight.has_execed, sight.is_runnable) = (false, true);
        sight.cpu_time = Duration::from_millis(milliseconds);
    }

    fn sleeps(&mut self, pid: Pid) {
        self.0.get_mut(&pid).expect("it lives").0.is_runnable = false;
    }
}

impl ProcLookup for Fake {
    fn lookup(&mut self, pid: Pid) -> io::Result<ProcessSight> {
        self.0.get(&pid).map(|(sight, ..)| *sight).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn command_line(&mut self, pid: Pid) -> Vec<String> {
        let line = self.0.get(&pid).map(|(_, line, _)| line.as_str()).unwrap_or_default();
        line.split_ascii_whitespace().map(str::to_owned).collect()
    }

    fn cwd(&mut self, pid: Pid) -> Option<String> {
        self.0.get(&pid).map(|_| "/work".to_owned())
    }

    fn children(&mut self, pid: Pid) -> Vec<Pid> {
        self.0.iter().filter(|(_, (sight, ..))| sight.parent == pid).map(|(pid, _)| *pid).collect()
    }

    fn threads(&mut self, pid: Pid) -> Vec<Pid> {
        self.0.get(&pid).map(|(.., threads)| threads.clone()).unwrap_or_default()
    }
}

/// A lineage, its `/proc`, and what it has told, one line each.
struct Bench {
    lineage: Lineage,
    proc: Fake,
    roots: Vec<LineageRoot>,
    lines: Vec<String>,
}

impl Bench {
    /// Two sessions, `a` and `b`, without an agent.
    fn empty() -> Self {
        let mut lineage = Lineage { ticks_per_second: 100, ..Lineage::default() };
        let roots = ["a", "b"].iter().zip(PROXIES).map(|(id, proxy)| {
            let id = id.parse().expect("an id");
            lineage.add(id, proxy, 0)
        });
        let roots = roots.collect();
        Self { lineage, proc: Fake::default(), roots, lines: Vec::new() }
    }

    /// With agents 101 and 201.
    fn new() -> Self {
        let mut bench = Self::empty();
        for proxy in PROXIES {
            bench.proc.put(proxy + 1, proxy, 0, "agent");
            bench.fork(proxy, proxy + 1, 1);
            bench.apply(ProcEvent::Exec { pid: proxy + 1, at: 2 });
        }
        bench.lines.clear();
        bench
    }

    fn apply(&mut self, event: ProcEvent) {
        let mut told = LineageEvent::new();
        self.lineage.apply(event, &mut self.proc, &mut told);
        self.take(told);
    }

    fn take(&mut self, told: LineageEvent) {
        for (root, event) in told {
            let session = self.lineage.session(root).map_or_else(|| "gone".to_owned(), ToString::to_string);
            self.lines.push(match event {
                Event::ProcessSpawned(info) => {
                    format!("{session}: {} > {} {}", info.ppid, info.id.pid, info.command_line())
                }
                Event::ProcessExited { process, exit, .. } => {
                    let exit = exit.map_or_else(|| "unseen".to_owned(), |exit| exit.to_string());
                    format!("{session}: {} {exit}", process.pid)
                }
                other => panic!("{other:?}"),
            });
        }
    }

    fn fork(&mut self, parent: Pid, child: Pid, at: u64) {
        self.apply(ProcEvent::Fork { parent, child, at });
    }

    fn exec(&mut self, pid: Pid, at: u64, line: &str) {
        let (parent, start) =
            self.lineage.processes.get(&pid).map_or((0, 0), |process| (process.parent, process.start));
        self.proc.put(pid, parent, start, line);
        self.apply(ProcEvent::Exec { pid, at });
    }

    fn exit(&mut self, pid: Pid, code: i32, at: u64) {
        self.proc.0.remove(&pid);
        self.apply(ProcEvent::LeaderExited { pid, exit: ExitStatus::Code(code), at });
    }

    fn thread(&mut self, process: Pid, thread: Pid, at: u64) {
        self.apply(ProcEvent::ThreadStarted { process, thread, at });
    }

    fn thread_exit(&mut self, process: Pid, thread: Pid, code: i32, at: u64) {
        self.apply(ProcEvent::ThreadExited { process, thread, exit: ExitStatus::Code(code), at });
    }

    fn tick(&mut self, now: u64) {
        let mut told = LineageEvent::new();
        self.lineage.tick(now, &mut self.proc, &mut told);
        self.take(told);
    }

    fn resynchronize(&mut self) {
        for root in self.roots.clone() {
            let mut told = LineageEvent::new();
            self.lineage.resynchronize(root, &mut self.proc, &mut told);
            self.take(told);
        }
    }

    #[track_caller]
    fn told(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.lines), expected);
    }
}

#[test]
fn a_process_is_told_of_at_its_exec_and_at_its_end() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.told(&[]);
    bench.exec(500, 11 * MS, "make -j4");
    bench.told(&["a: 101 > 500 make -j4"]);
    bench.exec(500, 12 * MS, "something else");
    bench.exit(500, 3, 13 * MS);
    bench.told(&["a: 500 exit code 3"]);
    assert!(bench.lineage.due().is_none());
}

#[test]
fn one_that_never_executes_anything_is_told_of_all_the_same() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.exit(500, 7, 11 * MS);
    bench.told(&["a: 101 > 500 [unreadable]", "a: 500 exit code 7"]);
    bench.proc.put(501, 101, 2, "");
    bench.fork(101, 501, 20 * MS);
    let due = bench.lineage.due().expect("it waits");
    assert_eq!(due, 70 * MS);
    bench.tick(due - 1);
    bench.told(&[]);
    bench.tick(due);
    bench.told(&["a: 101 > 501 [unreadable]"]);
    bench.exec(501, 100 * MS, "late");
    bench.exit(501, 0, 101 * MS);
    bench.told(&["a: 501 exit code 0"]);
}

#[test]
fn one_that_has_not_run_yet_is_told_of_with_what_it_executes() {
    let mut bench = Bench::new();
    bench.proc.put_runnable(500, 101, 1, 0);
    bench.fork(101, 500, 10 * MS);
    for now in [60, 110, 160, 3000] {
        bench.tick(now * MS);
        let due = bench.lineage.due().expect("it waits");
        assert!(due > now * MS && due <= (now + 50) * MS, "{due}");
    }
    bench.told(&[]);
    bench.exec(500, 3010 * MS, "late");
    bench.told(&["a: 101 > 500 late"]);
    bench.tick(9000 * MS);
    bench.exit(500, 3, 9001 * MS);
    bench.told(&["a: 500 exit code 3"]);
    assert!(bench.lineage.due().is_none());
}

#[test]
fn one_that_runs_is_told_of_when_it_has_run_for_long_enough() {
    let mut bench = Bench::new();
    bench.proc.put_runnable(500, 101, 1, 40);
    bench.fork(101, 500, 10 * MS);
    bench.tick(1000 * MS);
    bench.told(&[]);
    bench.proc.put_runnable(500, 101, 1, 50);
    bench.tick(1050 * MS);
    bench.told(&["a: 101 > 500 forked"]);
    bench.exit(500, 0, 1060 * MS);
    bench.told(&["a: 500 exit code 0"]);
}

#[test]
fn one_that_never_gets_to_run_is_told_of_at_last() {
    let mut bench = Bench::new();
    bench.proc.put_runnable(500, 101, 1, 0);
    bench.fork(101, 500, 10 * MS);
    let mut now = 0;
    while bench.lines.is_empty() {
        now = bench.lineage.due().expect("it waits");
        bench.tick(now);
    }
    assert_eq!(now, 5010 * MS);
    bench.told(&["a: 101 > 500 forked"]);
    assert!(bench.lineage.due().is_none());
}

#[test]
fn one_that_sleeps_has_had_its_time() {
    let mut bench = Bench::new();
    for pid in [500, 501] {
        bench.proc.put_runnable(pid, 101, 1, 0);
        bench.fork(101, pid, 10 * MS);
    }
    bench.proc.sleeps(500);
    bench.tick(60 * MS);
    bench.told(&["a: 101 > 500 forked"]);
    // It was not its turn, and then it sleeps.
    bench.proc.sleeps(501);
    bench.tick(110 * MS);
    bench.told(&["a: 101 > 501 forked"]);
}

#[test]
fn of_one_that_ends_before_its_time_both_is_told() {
    let mut bench = Bench::new();
    bench.proc.put_runnable(500, 101, 1, 0);
    bench.fork(101, 500, 10 * MS);
    bench.tick(60 * MS);
    bench.exit(500, 9, 70 * MS);
    bench.told(&["a: 101 > 500 [unreadable]", "a: 500 exit code 9"]);
    bench.tick(110 * MS);
    bench.told(&[]);
    assert!(bench.lineage.due().is_none());
}

#[test]
fn a_parent_is_told_of_before_its_child() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.fork(500, 501, 11 * MS);
    bench.fork(501, 502, 12 * MS);
    bench.exec(502, 13 * MS, "leaf");
    bench.told(&["a: 101 > 500 [unreadable]", "a: 500 > 501 [unreadable]", "a: 501 > 502 leaf"]);
}

#[test]
fn a_daemon_stays_with_its_session_also_without_its_proxy() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.fork(500, 501, 11 * MS);
    bench.exit(500, 0, 12 * MS);
    bench.exec(501, 13 * MS, "daemon");
    bench.exit(100, 0, 14 * MS);
    bench.fork(501, 502, 15 * MS);
    bench.exit(502, 1, 16 * MS);
    bench.told(&[
        "a: 101 > 500 [unreadable]",
        "a: 500 exit code 0",
        "a: 500 > 501 daemon",
        "a: 501 > 502 [unreadable]",
        "a: 502 exit code 1",
    ]);
    assert!(!bench.lineage.is_empty(bench.roots[0]));
    // The proxy's pid is anybody's now.
    bench.fork(STRANGER, 100, 20 * MS);
    bench.fork(100, 600, 21 * MS);
    bench.exit(600, 0, 22 * MS);
    bench.told(&[]);
}

#[test]
fn what_the_proxy_starts_for_itself_is_not_the_sessions() {
    let mut bench = Bench::empty();
    // The init of a namespace, and a go-between that makes the agent.
    bench.fork(100, 110, 10 * MS);
    bench.fork(100, 111, 11 * MS);
    bench.fork(111, 112, 12 * MS);
    bench.tick(1000 * MS);
    bench.exit(111, 0, 1001 * MS);
    bench.told(&[]);
    bench.exec(112, 1002 * MS, "agent");
    bench.told(&["a: 111 > 112 agent"]);
    // The agent makes its parent's child with CLONE_PARENT: of the init, or of the proxy.
    bench.fork(110, 113, 1003 * MS);
    bench.fork(100, 114, 1004 * MS);
    bench.exit(113, 1, 1005 * MS);
    bench.exit(114, 2, 1006 * MS);
    bench.told(&["a: 110 > 113 [unreadable]", "a: 113 exit code 1", "a: 100 > 114 [unreadable]", "a: 114 exit code 2"]);
    bench.exit(112, 0, 1007 * MS);
    bench.exit(110, 0, 1008 * MS);
    bench.told(&["a: 112 exit code 0"]);
    assert!(bench.lineage.is_empty(bench.roots[0]));
}

#[test]
fn a_dead_leader_with_living_threads_is_alive() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.exec(500, 11 * MS, "threads");
    bench.lines.clear();
    bench.thread(500, 510, 12 * MS);
    bench.thread(500, 511, 13 * MS);
    bench.exit(500, 0, 14 * MS);
    bench.fork(500, 520, 15 * MS);
    bench.thread_exit(500, 510, 0, 16 * MS);
    bench.exit(520, 4, 17 * MS);
    bench.told(&["a: 500 > 520 [unreadable]", "a: 520 exit code 4"]);
    bench.thread_exit(500, 511, 9, 18 * MS);
    bench.told(&["a: 500 exit code 9"]);
}

#[test]
fn an_exec_by_a_thread_is_no_end_in_any_order_of_the_events() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.exec(500, 11 * MS, "threads");
    bench.lines.clear();
    bench.thread(500, 510, 12 * MS);
    // The leader ends under its own id; then under the id that the thread had; then later than the exec.
    bench.apply(ProcEvent::LeaderExited { pid: 500, exit: ExitStatus::Code(0), at: 13 * MS });
    bench.exec(500, 14 * MS, "once");
    bench.thread(500, 511, 15 * MS);
    bench.thread_exit(500, 511, 0, 16 * MS);
    bench.exec(500, 17 * MS, "twice");
    bench.thread(500, 512, 18 * MS);
    bench.exec(500, 20 * MS, "thrice");
    bench.apply(ProcEvent::LeaderExited { pid: 500, exit: ExitStatus::Code(0), at: 19 * MS });
    bench.thread(500, 513, 21 * MS);
    bench.thread_exit(500, 512, 0, 19 * MS);
    bench.told(&[]);
    bench.thread_exit(500, 513, 5, 22 * MS);
    bench.exit(500, 5, 23 * MS);
    bench.told(&["a: 500 exit code 5"]);
}

#[test]
fn a_pid_used_again_is_another_process() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.exec(500, 11 * MS, "first");
    // Its end was missed; the pid is now of the other session, then a stranger's.
    bench.proc.0.remove(&500);
    bench.fork(201, 500, 500 * MS);
    bench.told(&["a: 101 > 500 first", "a: 500 unseen"]);
    bench.proc.put(500, STRANGER, 90, "stranger");
    bench.exit(500, 2, 600 * MS);
    bench.told(&["b: 201 > 500 [unreadable]", "b: 500 exit code 2"]);
    bench.fork(201, 500, 700 * MS);
    bench.proc.put(500, STRANGER, 90, "stranger");
    bench.fork(STRANGER, 500, 900 * MS);
    bench.exit(500, 3, 901 * MS);
    bench.told(&["b: 201 > 500 [unreadable]", "b: 500 unseen"]);
}

#[test]
fn what_proc_says_of_a_younger_process_is_not_believed() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.proc.put(500, STRANGER, 4000, "stranger");
    bench.apply(ProcEvent::Exec { pid: 500, at: 11 * MS });
    bench.told(&["a: 101 > 500 [unreadable]"]);
}

#[test]
fn what_happened_before_a_session_is_none_of_its() {
    let mut bench = Bench::empty();
    let root = bench.lineage.add("c".parse().expect("an id"), 400, 50 * MS);
    bench.roots.push(root);
    bench.fork(400, 401, 10 * MS);
    bench.exit(400, 0, 20 * MS);
    bench.exec(401, 30 * MS, "earlier");
    bench.told(&[]);
    bench.fork(400, 402, 60 * MS);
    bench.exec(402, 61 * MS, "agent");
    bench.told(&["c: 400 > 402 agent"]);
}

#[test]
fn of_two_sessions_of_one_name_the_newer_is_told_of() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    bench.exec(500, 11 * MS, "told");
    bench.lines.clear();
    let again = bench.lineage.add("a".parse().expect("an id"), 400, 20 * MS);
    bench.exit(500, 0, 21 * MS);
    bench.told(&[]);
    assert!(bench.lineage.session(bench.roots[0]).is_none() && bench.lineage.session(again).is_some());
}

#[test]
fn after_a_loss_proc_says_what_there_is() {
    let mut bench = Bench::new();
    bench.proc.put(101, 100, 0, "agent");
    bench.proc.put(201, 200, 0, "agent");
    for (pid, line) in [(500, "ends"), (501, "lives"), (502, "orphan")] {
        bench.fork(101, pid, 10 * MS);
        bench.exec(pid, 11 * MS, line);
    }
    bench.lines.clear();
    // What was lost: the end of 500, a new child of 501, and that it has threads and its first one is dead.
    bench.proc.0.remove(&500);
    bench.proc.put(502, 1, 1, "orphan");
    bench.proc.put(510, 501, 8, "new");
    bench.proc.put(511, 510, 8, "");
    let threaded = bench.proc.0.get_mut(&501).expect("it lives");
    (threaded.0.leader_is_dead, threaded.2) = (true, vec![530]);
    bench.resynchronize();
    bench.told(&["a: 500 unseen", "a: 501 > 510 new"]);
    // Its fork is read after all.
    bench.fork(501, 510, 80 * MS);
    bench.apply(ProcEvent::Exec { pid: 510, at: 81 * MS });
    bench.told(&[]);
    bench.tick(1000 * MS);
    bench.told(&["a: 510 > 511 [unreadable]"]);
    bench.thread_exit(501, 530, 6, 90 * MS);
    bench.exit(502, 0, 91 * MS);
    bench.told(&["a: 501 exit code 6", "a: 502 exit code 0"]);
}

#[test]
fn a_session_that_is_over_leaves_nothing() {
    let mut bench = Bench::new();
    bench.fork(101, 500, 10 * MS);
    let mut told = LineageEvent::new();
    bench.proc.0.clear();
    bench.lineage.remove(bench.roots[0], &mut bench.proc, &mut told);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(bench.lineage.is_empty(bench.roots[0]));
    assert_eq!(bench.lineage.roots().collect::<Vec<_>>(), bench.roots[1..]);
    bench.fork(100, 501, 20 * MS);
    assert!(bench.lineage.due().is_none());
}

/// One thing that a process of the model does.
#[derive(Clone, Debug)]
enum Act {
    Fork,
    Exec,
    Thread,
    LeaderEnds,
    ThreadEnds,
    Exit(i32),
    ThreadExecs,
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act, u64)>> {
    let act = prop_oneof![
        4 => Just(Act::Fork),
        3 => Just(Act::Exec),
        2 => Just(Act::Thread),
        1 => Just(Act::LeaderEnds),
        1 => Just(Act::ThreadEnds),
        3 => (0..100_i32).prop_map(Act::Exit),
        1 => Just(Act::ThreadExecs),
    ];
    prop::collection::vec((any::<usize>(), act, 1..60_u64), 1..200)
}

/// A process of the model.
#[derive(Clone, Debug)]
struct Real {
    pid: Pid,
    session: Option<usize>,
    threads: Vec<Pid>,
    leader_is_dead: bool,
}

proptest! {
    /// Whatever processes do: each of a session's is told of once, under its session, after its parent, and so is its
    /// end, with the status that the kernel gives; nothing is told of anybody else's.
    #[test]
    fn every_process_is_told_of_once(acts in acts(), sees in any::<bool>()) {
        let mut bench = Bench::new();
        let mut living: Vec<Real> = [(101, Some(0)), (201, Some(1)), (STRANGER, None)]
            .map(|(pid, session)| Real { pid, session, threads: Vec::new(), leader_is_dead: false })
            .to_vec();
        let (mut now, mut ids) = (10 * MS, 1000);
        // Pid to what was told of it: spawned, exited.
        let mut expected = BTreeMap::new();
        for (who, act, pause) in acts {
            if living.is_empty() {
                break;
            }
            now += pause * MS;
            let at = who % living.len();
            let Real { pid, session, .. } = living[at];
            match act {
                Act::Fork => {
                    ids += 1;
                    if sees {
                        bench.proc.put(ids, pid, bench.lineage.ticks(now), "");
                    }
                    bench.fork(pid, ids, now);
                    living.push(Real { pid: ids, session, threads: Vec::new(), leader_is_dead: false });
                    if let Some(session) = session {
                        expected.insert(ids, (session, pid, None));
                    }
                }
                Act::Exec if !living[at].leader_is_dead => {
                    for thread in std::mem::take(&mut living[at].threads) {
                        bench.thread_exit(pid, thread, 0, now);
                    }
                    bench.apply(ProcEvent::Exec { pid, at: now });
                }
                Act::Thread if !(living[at].leader_is_dead && living[at].threads.is_empty()) => {
                    ids += 1;
                    living[at].threads.push(ids);
                    bench.thread(pid, ids, now);
                }
                Act::LeaderEnds if !living[at].leader_is_dead && !living[at].threads.is_empty() => {
                    living[at].leader_is_dead = true;
                    bench.apply(ProcEvent::LeaderExited { pid, exit: ExitStatus::Code(0), at: now });
                }
                Act::ThreadEnds if living[at].threads.len() > 1 => {
                    let thread = living[at].threads.remove(0);
                    bench.thread_exit(pid, thread, 0, now);
                }
                Act::ThreadExecs if !living[at].threads.is_empty() => {
                    let executing = living[at].threads.remove(0);
                    for thread in std::mem::take(&mut living[at].threads) {
                        bench.thread_exit(pid, thread, 0, now);
                    }
                    match (living[at].leader_is_dead, who % 3) {
                        (true, _) => {}
                        (false, 0) => bench.thread_exit(pid, executing, 0, now),
                        (false, _) => {
                            bench.apply(ProcEvent::LeaderExited { pid, exit: ExitStatus::Code(0), at: now });
                        }
                    }
                    living[at].leader_is_dead = false;
                    bench.apply(ProcEvent::Exec { pid, at: now + 1 });
                }
                Act::Exit(code) => {
                    let real = living.swap_remove(at);
                    bench.proc.0.remove(&pid);
                    let exit = ExitStatus::Code(code);
                    let leader = ProcEvent::LeaderExited { pid, exit, at: now };
                    let (first, last) = real.threads.split_at(if who % 2 == 0 { 0 } else { real.threads.len() });
                    for thread in first {
                        bench.thread_exit(pid, *thread, code, now);
                    }
                    if !real.leader_is_dead {
                        bench.apply(leader);
                    }
                    for thread in last {
                        bench.thread_exit(pid, *thread, code, now);
                    }
                    if let Some((_, _, exit)) = expected.get_mut(&pid) {
                        *exit = Some(code);
                    }
                }
                _ => {}
            }
            bench.tick(now);
        }
        bench.tick(now + 1000 * MS);
        let lines = std::mem::take(&mut bench.lines);
        for (pid, (session, parent, exit)) in expected {
            let session = ["a", "b"][session];
            let spawned = format!("{session}: {parent} > {pid} [unreadable]");
            let position = |line: &str| lines.iter().position(|told| told == line);
            prop_assert_eq!(lines.iter().filter(|line| **line == spawned).count(), 1, "{} in {:#?}", spawned, lines);
            if let Some(above) = lines.iter().position(|line| line.contains(&format!(" > {parent} "))) {
                prop_assert!(position(&spawned) > Some(above), "{} in {:#?}", spawned, lines);
            }
            if let Some(code) = exit {
                let exited = format!("{session}: {pid} exit code {code}");
                prop_assert_eq!(lines.iter().filter(|line| **line == exited).count(), 1, "{} in {:#?}", exited, lines);
                prop_assert!(position(&exited) > position(&spawned));
            }
        }
        let of_sessions = |line: &String| line.starts_with("a: ") || line.starts_with("b: ");
        prop_assert!(lines.iter().all(of_sessions), "{:#?}", lines);
        let strangers = lines.iter().filter(|line| line.contains(&format!(" {STRANGER} ")));
        prop_assert_eq!(strangers.count(), 0, "{:#?}", lines);
    }
}
