//! The watchdog's decisions, on made-up readings.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ipc_protocol::{ExitStatus, LimitAction, LimitExceeded, LimitForm, LimitInForce, LimitKind, Limits, ProcessId};
use proptest::prelude::*;
use registry::{GroupUsage, LargeFile, LimitVerdict, LimitWatchdog, ProcessUsage, UsageReading, file_size_exceeded};

const MIB: u64 = 1 << 20;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

fn id(pid: u32) -> ProcessId {
    ProcessId { pid, start_time: u64::from(pid) }
}

const AGENT: u32 = 1;

fn limit(kind: LimitKind, value: u64) -> LimitInForce {
    let form = if kind == LimitKind::WallClock { LimitForm::Clock } else { LimitForm::Watchdog };
    LimitInForce { limit: kind, value, form }
}

fn watchdog(limits: &[LimitInForce], action: LimitAction, now: Instant) -> LimitWatchdog {
    LimitWatchdog::new(limits, action, id(AGENT), 2, now)
}

/// Processes with their MiB and CPU milliseconds.
fn usage(processes: &[(u32, u64, u64)]) -> UsageReading {
    let each = |(pid, mib, cpu): &(u32, u64, u64)| ProcessUsage {
        id: id(*pid),
        memory_bytes: mib * MIB,
        cpu_time: Duration::from_millis(*cpu),
        open_files: 0,
    };
    UsageReading {
        processes: processes.iter().map(each).collect(),
        cpu_time: Duration::from_millis(processes.iter().map(|(_, _, cpu)| cpu).sum()),
        ..UsageReading::default()
    }
}

fn victims(verdicts: &[LimitVerdict]) -> Vec<u32> {
    verdicts.iter().flat_map(|verdict| &verdict.victims).map(|id| id.pid).collect()
}

#[test]
fn the_largest_goes_first_and_the_agent_last() {
    let now = Instant::now();
    let mut dog = watchdog(&[limit(LimitKind::Memory, 100 * MIB)], LimitAction::KillProcess, now);
    let at = |millis| now + Duration::from_millis(millis);
    let first = dog.look(at(10), &usage(&[(AGENT, 110, 0), (2, 20, 0), (3, 30, 0)]));
    assert_eq!((first.len(), first[0].announce, victims(&first)), (1, true, vec![3]));
    assert_eq!((first[0].exceeded.measured, first[0].exceeded.process), (160 * MIB, Some(id(3))));
    // It is looked again at once; what is dying does not count, and the next one is.
    assert_eq!(dog.next(false), Some(at(11)));
    let second = dog.look(at(11), &usage(&[(AGENT, 110, 0), (2, 20, 0), (3, 30, 0)]));
    assert_eq!((second[0].announce, victims(&second)), (false, vec![2]));
    let third = dog.look(at(12), &usage(&[(AGENT, 110, 0), (2, 20, 0)]));
    assert_eq!(victims(&third), [AGENT]);
}

#[test]
fn what_is_dying_is_not_waited_for_for_ever() {
    let now = Instant::now();
    let mut dog = watchdog(&[limit(LimitKind::Memory, 100 * MIB)], LimitAction::KillProcess, now);
    let stuck = usage(&[(AGENT, 10, 0), (2, 200, 0)]);
    assert_eq!(victims(&dog.look(now + Duration::from_secs(1), &stuck)), [2]);
    assert!(dog.look(now + Duration::from_secs(2), &stuck).is_empty());
    assert_eq!(victims(&dog.look(now + Duration::from_secs(4), &stuck)), [2]);
}

#[test]
fn of_too_many_processes_the_youngest_go() {
    let now = Instant::now();
    let mut dog = watchdog(&[limit(LimitKind::Processes, 3)], LimitAction::KillProcess, now);
    let bomb: Vec<_> = (1..=6).map(|pid| (pid, 1, 0)).collect();
    let verdicts = dog.look(now + SHORTEST, &usage(&bomb));
    assert_eq!(victims(&verdicts), [6, 5, 4]);
    assert_eq!((verdicts[0].exceeded.measured, verdicts[0].exceeded.process), (6, Some(id(6))));
}

#[test]
fn cpu_time_that_is_used_up_stays_so() {
    let now = Instant::now();
    let mut dog = watchdog(&[limit(LimitKind::CpuTime, 1000)], LimitAction::KillProcess, now);
    let mut look = |millis, processes: &[(u32, u64, u64)]| {
        let verdicts = dog.look(now + Duration::from_millis(millis), &usage(processes));
        assert!(verdicts.iter().all(|verdict| verdict.announce), "each is said: {verdicts:?}");
        victims(&verdicts)
    };
    assert!(look(100, &[(AGENT, 1, 500), (2, 1, 500)]).is_empty());
    assert_eq!(look(200, &[(AGENT, 1, 600), (2, 1, 500), (3, 1, 1)]), [2]);
    // Those that use little more are left alone.
    assert!(look(300, &[(AGENT, 1, 1150), (3, 1, 10)]).is_empty());
    assert_eq!(look(400, &[(AGENT, 1, 1100), (3, 1, 110)]), [3]);
}

#[test]
fn cpu_percent_are_of_a_second() {
    let now = Instant::now();
    let mut dog = watchdog(&[limit(LimitKind::CpuPercent, 50)], LimitAction::KillProcess, now);
    let mut killed = Vec::new();
    for step in 0..=12_u64 {
        // Half a second of nothing; then all of one core, by process 2; the agent used much before that.
        let used = step.saturating_sub(2).min(3) * 250;
        let mut reading = usage(&[(AGENT, 1, 9000), (2, 1, used), (3, 1, 5000)]);
        // It was told to die, and did; its time still counts.
        reading.processes.retain(|process| process.id != id(2) || killed.is_empty());
        let verdicts = dog.look(now + Duration::from_millis(250 * step), &reading);
        if let [verdict] = verdicts.as_slice() {
            killed.push((step, verdict.exceeded.measured, victims(&verdicts)));
        }
    }
    assert_eq!(killed, [(5, 75, vec![2])]);
}

#[test]
fn the_wall_clock_is_nobodys_doing() {
    let now = Instant::now();
    for (action, done) in [
        (LimitAction::Warn, LimitAction::Warn),
        (LimitAction::KillProcess, LimitAction::KillSession),
        (LimitAction::KillSession, LimitAction::KillSession),
    ] {
        let mut dog = watchdog(&[limit(LimitKind::WallClock, 500)], action, now);
        // Nothing has to be read in the meantime.
        assert_eq!(dog.next(true), Some(now + Duration::from_millis(501)));
        assert!(!dog.reading_scope().tree);
        let verdicts = dog.look(now + Duration::from_millis(501), &UsageReading::default());
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert_eq!((verdict.exceeded.action, verdict.exceeded.process), (done, None));
        assert_eq!((dog.next(true), verdict.announce, verdict.victims.len()), (None, true, 0));
    }
}

#[test]
fn files_count_once_they_are_stopped_or_grow_beyond() {
    let now = Instant::now();
    let file = |inode, size, is_new| LargeFile { process: id(2), file: (1, inode), size, is_new };
    let with = |files: &[LargeFile]| UsageReading { large_files: files.to_vec(), ..usage(&[(AGENT, 1, 0), (2, 1, 0)]) };
    let stopping = LimitInForce { limit: LimitKind::FileSize, value: 100, form: LimitForm::Rlimit };
    let mut dog = watchdog(&[stopping], LimitAction::KillProcess, now);
    // A large file that was there before is nobody's fault.
    assert!(dog.look(now + LONGEST, &with(&[file(1, 500, false)])).is_empty());
    let verdicts = dog.look(now + 2 * LONGEST, &with(&[file(1, 500, false), file(2, 100, true)]));
    assert_eq!((victims(&verdicts), verdicts[0].exceeded.measured), (vec![2], 100));

    let mut dog = watchdog(&[limit(LimitKind::FileSize, 100)], LimitAction::Warn, now);
    let mut said = |millis, files: &[LargeFile]| {
        dog.look(now + Duration::from_millis(millis), &with(files))
            .iter()
            .map(|v| v.exceeded.measured)
            .collect::<Vec<_>>()
    };
    assert!(said(0, &[file(1, 500, false), file(2, 100, true)]).is_empty(), "at the limit is not beyond it");
    assert_eq!(said(1000, &[file(1, 500, false), file(3, 101, true)]), [101]);
    assert!(said(1100, &[file(1, 501, false), file(3, 200, true)]).is_empty(), "one warning a second");
    assert_eq!(said(2100, &[file(1, 502, false), file(3, 300, true)]), [502]);
}

#[test]
fn the_signal_of_the_kernel_tells_of_a_file() {
    let now = Instant::now();
    let limits = Limits { file_size_bytes: Some(100), ..Limits::default() };
    let xfsz = ExitStatus::Signal(25);
    assert!(file_size_exceeded(&limits, id(2), ExitStatus::Signal(9)).is_none());
    assert!(file_size_exceeded(&Limits::default(), id(2), xfsz).is_none());
    let stopping = LimitInForce { limit: LimitKind::FileSize, value: 100, form: LimitForm::Rlimit };
    let mut dog = watchdog(&[stopping], LimitAction::KillSession, now);
    let verdict = dog.record_exit(&limits, id(2), xfsz, now).expect("passed");
    assert_eq!((verdict.exceeded.measured, verdict.exceeded.process), (100, Some(id(2))));
    assert!(verdict.announce && dog.record_exit(&limits, id(3), xfsz, now).is_none(), "the session is being ended");
}

#[test]
fn counters_of_a_cgroup_are_events_too() {
    let now = Instant::now();
    let by_kernel = |kind| LimitInForce { limit: kind, value: 30, form: LimitForm::Cgroup };
    let limits = [by_kernel(LimitKind::Memory), by_kernel(LimitKind::Processes)];
    let mut dog = watchdog(&limits, LimitAction::KillProcess, now);
    let mut look = |millis, oom, forks| {
        let tree = usage(&[(AGENT, 99, 0), (2, 99, 0), (3, 99, 0)]);
        dog.look(
            now + Duration::from_millis(millis),
            &UsageReading {
                group: GroupUsage { oom_kills: Some(oom), forks_refused: Some(forks), ..GroupUsage::default() },
                ..tree
            },
        )
    };
    assert!(look(0, 0, 0).is_empty(), "the kernel has them in hand");
    let verdicts = look(300, 1, 0);
    assert_eq!((verdicts[0].exceeded.limit, verdicts[0].victims.len()), (LimitKind::Memory, 0));
    assert_eq!((verdicts[0].exceeded.measured, verdicts[0].exceeded.form), (30, LimitForm::Cgroup));
    assert_eq!(victims(&look(600, 1, 7)), [3]);
    assert!(look(900, 1, 7).is_empty());
}

#[test]
fn an_idle_session_is_looked_at_rarely() {
    let now = Instant::now();
    let limits = [
        limit(LimitKind::Memory, 100 * MIB),
        limit(LimitKind::Processes, 10),
        limit(LimitKind::CpuTime, 100_000),
        limit(LimitKind::CpuPercent, 50),
    ];
    let mut dog = watchdog(&limits, LimitAction::KillSession, now);
    let idle = usage(&[(AGENT, 90, 10), (2, 5, 5)]);
    dog.look(now + SHORTEST, &idle);
    let at = now + 2 * SHORTEST;
    dog.look(at, &idle);
    assert_eq!(dog.next(false), Some(at + LONGEST));
    // At work it could begin to run away at any time: 5 MiB are left.
    assert_eq!(dog.next(true), Some(at + SHORTEST));
    // A reading that takes long is taken less often.
    dog.look(at + SHORTEST, &UsageReading { cost: Duration::from_millis(4), ..idle });
    assert_eq!(dog.next(true), Some(at + SHORTEST + Duration::from_millis(40)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// However a process of the session allocates, up to 1 GiB a second, from a start at work or in an idle session: it is
    /// noticed within what it takes in the shortest time between readings, or in an idle session in the longest.
    #[test]
    fn a_runaway_is_noticed_in_time(
        value in 1..4096_u64,
        base in 0..4096_u64,
        speed in 1..=1024_u64,
        begins in 0..2000_u64,
        working: bool,
    ) {
        let now = Instant::now();
        let base = base.min(value);
        let mut dog = watchdog(&[limit(LimitKind::Memory, value * MIB)], LimitAction::KillSession, now);
        let mut at = now;
        let mut before = base;
        dog.look(at, &usage(&[(AGENT, base, 0)]));
        loop {
            at = dog.next(working).expect("it watches").max(at);
            let running = at.duration_since(now + Duration::from_millis(begins)).as_secs_f64();
            let taken = base + (running * speed as f64) as u64;
            if let [verdict] = dog.look(at, &usage(&[(AGENT, base, 0), (2, taken - base, 0)])).as_slice() {
                let overshoot = verdict.exceeded.measured / MIB - value;
                let interval = if working { SHORTEST } else { LONGEST };
                let most = 1024 * interval.as_millis() as u64 / 1000;
                prop_assert!(overshoot <= most + 1, "{} MiB beyond, {} before", overshoot, before);
                break;
            }
            prop_assert!(taken <= value, "{} MiB are not noticed", taken);
            before = taken;
        }
    }

    /// Whatever is read: verdicts are true, events are not repeated, victims are fair game, and the next reading is neither
    /// too soon nor too late.
    #[test]
    fn decisions_are_sound(
        memory in 1..200_u64,
        processes in 1..20_u64,
        action in prop::sample::select(vec![LimitAction::Warn, LimitAction::KillProcess, LimitAction::KillSession]),
        readings in prop::collection::vec((prop::collection::btree_map(1..30_u32, 0..40_u64, 1..30), 1..400_u64), 1..40),
        working: bool,
    ) {
        let now = Instant::now();
        let limits = [limit(LimitKind::Memory, memory * MIB), limit(LimitKind::Processes, processes)];
        let mut dog = watchdog(&limits, action, now);
        let mut at = now;
        let mut said: BTreeMap<LimitKind, Instant> = BTreeMap::new();
        let mut over = false;
        for (tree, pause) in readings {
            at += Duration::from_millis(pause);
            let list: Vec<_> = tree.iter().map(|(pid, mib)| (*pid, *mib, 0)).collect();
            let verdicts = dog.look(at, &usage(&list));
            prop_assert!(!over || verdicts.is_empty(), "the session was ended");
            for verdict in &verdicts {
                let exceeded = &verdict.exceeded;
                let value = if exceeded.limit == LimitKind::Memory { memory * MIB } else { processes };
                prop_assert!(exceeded.measured > value && exceeded.value == value);
                let most =
                    if exceeded.limit == LimitKind::Memory { tree.values().sum::<u64>() * MIB } else { tree.len() as u64 };
                prop_assert!(exceeded.measured <= most);
                for victim in &verdict.victims {
                    prop_assert!(action == LimitAction::KillProcess && tree.contains_key(&victim.pid));
                }
                if verdict.announce && action == LimitAction::Warn {
                    let last = said.insert(exceeded.limit, at);
                    prop_assert!(last.is_none_or(|last| at - last >= Duration::from_secs(1)));
                }
                over |= exceeded.action == LimitAction::KillSession;
            }
            match dog.next(working) {
                None => prop_assert!(over),
                Some(next) => {
                    let in_haste = verdicts.iter().any(|verdict| !verdict.victims.is_empty());
                    let least = if in_haste { Duration::from_millis(1) } else { SHORTEST };
                    prop_assert!(next <= at + LONGEST && next >= at + least);
                }
            }
        }
    }

    /// What is told to die dies: then the limits hold again after a few looks, or only the agent was left to end.
    #[test]
    fn killing_goes_on_until_the_limits_hold(
        memory in 1..200_u64,
        processes in 1..20_u64,
        tree in prop::collection::btree_map(1..60_u32, 0..40_u64, 1..60),
    ) {
        let now = Instant::now();
        let limits = [limit(LimitKind::Memory, memory * MIB), limit(LimitKind::Processes, processes)];
        let mut dog = watchdog(&limits, LimitAction::KillProcess, now);
        let mut tree = tree;
        tree.insert(AGENT, 1);
        let mut announced = 0;
        for millis in 1.. {
            prop_assert!(millis < 100, "it does not end");
            let list: Vec<_> = tree.iter().map(|(pid, mib)| (*pid, *mib, 0)).collect();
            let verdicts = dog.look(now + Duration::from_millis(millis), &usage(&list));
            announced += verdicts.iter().filter(|verdict| verdict.announce).count();
            let victims = victims(&verdicts);
            prop_assert!(!victims.contains(&AGENT) || tree.len() == 1, "others were left");
            if victims.is_empty() {
                break;
            }
            tree.retain(|pid, _| !victims.contains(pid));
        }
        prop_assert!(tree.len() as u64 <= processes && tree.values().sum::<u64>() <= memory);
        prop_assert!(announced <= 2, "said once for each");
    }
}

fn by_group(kind: LimitKind, value: u64) -> LimitInForce {
    LimitInForce { limit: kind, value, form: LimitForm::Cgroup }
}

/// As root can for its own cgroup.
#[test]
fn a_limit_that_somebody_lifts_is_kept_all_the_same() {
    let now = Instant::now();
    let group = |mib: u64, tasks| GroupUsage {
        memory_bytes: Some(mib * MIB),
        tasks: Some(tasks),
        oom_kills: Some(0),
        forks_refused: Some(0),
        ..GroupUsage::default()
    };
    let reading = |group| UsageReading { group, ..usage(&[(AGENT, 10, 0), (2, 90, 0), (3, 20, 0), (4, 1, 0)]) };
    for (kind, value, lifted) in
        [(LimitKind::Memory, 100 * MIB, group(120, 4)), (LimitKind::Processes, 2, group(80, 4))]
    {
        // At the limit, and the little beyond it that the kernel itself allows, nothing has happened.
        let mut dog = watchdog(&[by_group(kind, value)], LimitAction::KillSession, now);
        assert!(dog.look(now + LONGEST, &reading(group(103, 2))).is_empty(), "{kind}");
        let verdicts = dog.look(now + 2 * LONGEST, &reading(lifted));
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert_eq!((verdict.announce, verdict.exceeded.form), (true, LimitForm::Watchdog));
        assert_eq!((verdict.exceeded.limit, verdict.exceeded.action), (kind, LimitAction::KillSession));
        assert!(verdict.exceeded.measured > value);
        let mut dog = watchdog(&[by_group(kind, value)], LimitAction::KillProcess, now);
        assert!(
            dog.reading_scope().tree
                && dog.reading_scope().group
                && (dog.reading_scope().memory == (kind == LimitKind::Memory))
        );
        let ended = victims(&dog.look(now + LONGEST, &reading(lifted)));
        assert_eq!(ended, if kind == LimitKind::Memory { vec![2] } else { vec![4, 3] });
    }
}

#[test]
fn who_has_all_the_descriptors_it_may_is_told_once() {
    let now = Instant::now();
    let reading = |open: &[(u32, u64)]| {
        let mut usage = usage(&open.iter().map(|(pid, _)| (*pid, 1, 0)).collect::<Vec<_>>());
        usage.processes.iter_mut().zip(open).for_each(|(process, (_, open))| process.open_files = *open);
        usage
    };
    let at = |seconds| now + Duration::from_secs(seconds);
    let limits = [LimitInForce { limit: LimitKind::OpenFiles, value: 64, form: LimitForm::Rlimit }];
    for action in [LimitAction::Warn, LimitAction::KillProcess, LimitAction::KillSession] {
        let mut dog = watchdog(&limits, action, now);
        assert!(dog.reading_scope().open_files && dog.reading_scope().tree);
        assert!(dog.look(at(2), &reading(&[(AGENT, 63), (2, 3)])).is_empty());
        let verdicts = dog.look(at(4), &reading(&[(AGENT, 63), (2, 64)]));
        let [verdict] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert_eq!((verdict.announce, verdict.exceeded.action, verdict.exceeded.process), (true, action, Some(id(2))));
        assert_eq!((verdict.exceeded.measured, verdict.exceeded.form), (64, LimitForm::Rlimit));
        assert_eq!(victims(&verdicts), if action == LimitAction::KillProcess { vec![2] } else { vec![] });
        if action == LimitAction::KillSession {
            continue;
        }
        assert!(dog.look(at(6), &reading(&[(AGENT, 63), (2, 64)])).is_empty(), "it still has them");
        // Another one comes to it; the agent is spared while it is not alone.
        let verdicts = dog.look(at(8), &reading(&[(AGENT, 64), (3, 9)]));
        assert_eq!((verdicts.len(), victims(&verdicts)), (1, vec![]), "{verdicts:?}");
        assert_eq!(verdicts[0].exceeded.process, Some(id(AGENT)));
        assert_eq!(verdicts[0].exceeded.action, LimitAction::Warn);
    }
}

/// Where nothing stops a writer, a file is passed by growing: once each time it is found too large for the first time, or
/// grows beyond the limit.
#[test]
fn files_that_only_warn() {
    const VALUE: u64 = 100;
    let now = Instant::now();
    let file = |inode, size, is_new| LargeFile { process: id(2), file: (1, inode), size, is_new };
    let mut dog = watchdog(&[limit(LimitKind::FileSize, VALUE)], LimitAction::Warn, now);
    let mut second = 0;
    let mut look = |files: &[LargeFile]| {
        second += 2;
        let reading = UsageReading { large_files: files.to_vec(), ..usage(&[(AGENT, 1, 0), (2, 1, 0)]) };
        let verdicts = dog.look(now + Duration::from_secs(second), &reading);
        assert!(verdicts.iter().all(|verdict| {
            let LimitExceeded { action, form, process, .. } = verdict.exceeded;
            verdict.announce && (action, form, process) == (LimitAction::Warn, LimitForm::Watchdog, Some(id(2)))
        }));
        verdicts.iter().map(|verdict| verdict.exceeded.measured).collect::<Vec<_>>()
    };
    // At the limit it has passed nothing: nobody stopped it there.
    assert_eq!(look(&[file(1, 100, true)]), [0; 0]);
    assert_eq!(look(&[file(1, 101, true)]), [101]);
    assert_eq!(look(&[file(1, 500, true)]), [0; 0], "it is passed already");
    // One that was there before the session is its doing only by growing.
    assert_eq!(look(&[file(1, 500, true), file(2, 900, false)]), [0; 0]);
    assert_eq!(look(&[file(1, 500, true), file(2, 900, false)]), [0; 0]);
    assert_eq!(look(&[file(1, 500, true), file(2, 901, false)]), [901]);
    // Closed and opened again, a new one is found too large again; an old one is not.
    assert_eq!(look(&[]), [0; 0]);
    assert_eq!(look(&[file(2, 901, false)]), [0; 0]);
    assert_eq!(look(&[file(1, 600, true), file(2, 901, false)]), [600]);
}
