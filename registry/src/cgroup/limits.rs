//! Limits and usage of a group.

use std::io;

use ipc_protocol::{LimitAction, LimitKind, errno::is_group_gone};

use super::dir::OpenDir;

/// Usage of all members of a group together. `None` where its controller is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Memory in bytes, page cache and kernel memory on its behalf included.
    pub memory_bytes: Option<u64>,
    /// Tasks: processes and their threads.
    pub tasks: Option<u64>,
    /// CPU time in microseconds since the group was made, of members that are gone too.
    pub cpu_time_us: Option<u64>,
    /// Number of times that a member was ended for want of memory.
    pub oom_kills: Option<u64>,
    /// Number of times that a fork failed at the limit.
    pub forks_refused: Option<u64>,
    /// Number of periods its members had to wait in for want of CPU.
    pub cpu_throttled: Option<u64>,
}

pub(super) fn usage(dir: &OpenDir) -> GroupUsage {
    let number = |file: &str| dir.read(file).ok().and_then(|text| text.trim().parse().ok());
    let value = |file: &str, key: &str| dir.value(file, key).ok().flatten();
    GroupUsage {
        memory_bytes: number("memory.current"),
        tasks: number("pids.current"),
        cpu_time_us: value("cpu.stat", "usage_usec"),
        oom_kills: value("memory.events", "oom_kill"),
        forks_refused: value("pids.events", "max"),
        cpu_throttled: value("cpu.stat", "nr_throttled"),
    }
}

/// True when the kernel enforces it from now on.
pub(super) fn set(dir: &OpenDir, kind: LimitKind, value: u64, action: LimitAction) -> io::Result<bool> {
    if action == LimitAction::Warn {
        return Ok(false);
    }
    match kind {
        LimitKind::Memory => {
            if !write(dir, "memory.max", &value.to_string())? {
                return Ok(false);
            }
            // Kernels without swap accounting have no such file.
            write(dir, "memory.swap.max", "0")?;
            if action == LimitAction::KillSession {
                write(dir, "memory.oom.group", "1")?;
            }
            Ok(true)
        }
        LimitKind::Processes => write(dir, "pids.max", &value.to_string()),
        LimitKind::CpuPercent => write(dir, "cpu.max", &cpu_max(value)),
        LimitKind::CpuTime | LimitKind::OpenFiles | LimitKind::FileSize | LimitKind::WallClock => Ok(false),
    }
}

/// False when there is no such file.
fn write(dir: &OpenDir, file: &str, text: &str) -> io::Result<bool> {
    match dir.write(file, text) {
        Err(error) if is_group_gone(&error) => Ok(false),
        written => written.map(|()| true),
    }
}

/// Quota and period in microseconds. The kernel takes no quota below 1 ms, and none beyond some months.
fn cpu_max(percent: u64) -> String {
    const PERIOD: u64 = 100_000;
    format!("{} {PERIOD}", percent.clamp(1, 1_000_000) * PERIOD / 100)
}

#[cfg(test)]
mod tests {
    use super::{super::fake::FakeCgroupFs, *};

    const NEW: [(&str, &str); 5] =
        [("memory.max", ""), ("memory.swap.max", ""), ("memory.oom.group", ""), ("pids.max", ""), ("cpu.max", "")];

    #[test]
    fn limits_are_written_as_the_kernel_wants_them() {
        let fake = FakeCgroupFs::new("written", &NEW);
        let set = |kind, value| fake.group().limit(kind, value, LimitAction::KillSession).expect("written");
        assert!(set(LimitKind::Memory, 2 << 30));
        assert!(set(LimitKind::Processes, 200));
        assert!(set(LimitKind::CpuPercent, 150));
        assert_eq!((fake.text("memory.max"), fake.text("memory.swap.max")), ("2147483648".into(), "0".into()));
        assert_eq!(fake.text("memory.oom.group"), "1");
        assert_eq!((fake.text("pids.max"), fake.text("cpu.max")), ("200".into(), "150000 100000".into()));
        for kind in [LimitKind::CpuTime, LimitKind::OpenFiles, LimitKind::FileSize, LimitKind::WallClock] {
            assert!(!set(kind, 1), "{kind} has no controller");
        }
    }

    #[test]
    fn one_process_is_ended_for_memory_where_that_is_the_action() {
        let fake = FakeCgroupFs::new("one", &NEW);
        assert!(fake.group().limit(LimitKind::Memory, 4096, LimitAction::KillProcess).expect("written"));
        assert_eq!((fake.text("memory.max"), fake.text("memory.oom.group")), ("4096".into(), String::new()));
    }

    #[test]
    fn a_warning_holds_nothing_back() {
        let fake = FakeCgroupFs::new("warn", &NEW);
        for (kind, _) in LimitKind::ALL {
            assert!(!fake.group().limit(kind, 1, LimitAction::Warn).expect("nothing to fail"));
        }
        assert!(NEW.iter().all(|(file, _)| fake.text(file).is_empty()));
    }

    #[test]
    fn without_a_controller_nothing_is_promised() {
        let fake = FakeCgroupFs::new("none", &[]);
        for (kind, _) in LimitKind::ALL {
            assert!(!fake.group().limit(kind, 1, LimitAction::KillSession).expect("no error"), "{kind}");
        }
        assert_eq!(fake.group().usage(), GroupUsage::default());
        assert!(fake.is_empty(), "no file is made");
    }

    #[test]
    fn memory_without_swap_accounting_is_limited() {
        let fake = FakeCgroupFs::new("swapless", &[("memory.max", ""), ("memory.oom.group", "")]);
        assert!(fake.group().limit(LimitKind::Memory, 1 << 20, LimitAction::KillSession).expect("written"));
        assert_eq!(fake.text("memory.max"), "1048576");
    }

    #[test]
    fn usage_is_read() {
        let fake = FakeCgroupFs::new(
            "usage",
            &[
                ("memory.current", "1048576\n"),
                ("memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 1\n"),
                ("pids.current", "12\n"),
                ("pids.events", "max 5\n"),
                ("cpu.stat", "usage_usec 2500000\nuser_usec 1\nsystem_usec 2\nnr_periods 9\nnr_throttled 4\n"),
            ],
        );
        let expected = GroupUsage {
            memory_bytes: Some(1 << 20),
            tasks: Some(12),
            cpu_time_us: Some(2_500_000),
            oom_kills: Some(2),
            forks_refused: Some(5),
            cpu_throttled: Some(4),
        };
        assert_eq!(fake.group().usage(), expected);
    }

    #[test]
    fn quotas_stay_in_the_kernel_s_range() {
        assert_eq!(cpu_max(50), "50000 100000");
        assert_eq!(cpu_max(0), "1000 100000");
        assert_eq!(cpu_max(u64::MAX), "1000000000 100000");
    }
}
