//! Cost of a kill without the product: one `killpg`, or one write to `cgroup.kill`, on the same tree.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, killpg},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use registry::{ManagerCgroup, ProcessRegistry};

use super::{method::KillMethod, tree::READY};
use crate::{
    contestant::MeasuredFigures,
    error::{Error, Result},
    programs,
};

/// Longest time for a tree to start, or to end.
const DEADLINE: Duration = Duration::from_secs(20);

/// Kills a tree of `count` and its root. `kill_ms` is the time until nothing more of it dies, `left` the number of
/// survivors.
///
/// # Errors
/// The system's; when no cgroup can be created.
pub(crate) fn measure(method: KillMethod, count: u32) -> Result<MeasuredFigures> {
    prctl::set_child_subreaper(true).map_err(Error::system("becoming a subreaper"))?;
    let group = match method {
        KillMethod::CgroupKill => Some(ScratchGroup::new()?),
        _ => None,
    };
    let own = programs::own()?.into_os_string();
    let mut root = programs::start(&own, &["tree".into(), count.to_string().into()])
        .map_err(Error::system("starting the tree"))?;
    let pid = root.id();
    if let Some(group) = &group {
        group.write("cgroup.procs", &pid.to_string())?;
    }
    let (Some(mut stdin), Some(stdout)) = (root.stdin.take(), root.stdout.take()) else {
        return Err(Error::answer("the tree", "has no pipes"));
    };
    writeln!(stdin, "go").map_err(Error::system("giving the tree its word"))?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(Error::system("waiting for the tree"))?;
    if line.trim() != READY {
        return Err(Error::answer("the tree", format!("said {line:?}")));
    }
    let all = count + 1;
    let expected = match method {
        // Every third has left the group.
        KillMethod::Killpg => all - count.div_ceil(3),
        _ => all,
    };
    let begin = Instant::now();
    match &group {
        Some(group) => group.write("cgroup.kill", "1")?,
        None => killpg(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).map_err(Error::system("killpg"))?,
    }
    let mut reaped = 0;
    while reaped < expected {
        // No results are examined: this is the kernel's cost alone.
        match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            Ok(_) => reaped += 1,
            Err(Errno::ECHILD) => break,
            Err(error) => return Err(Error::system("reaping")(error)),
        }
        if begin.elapsed() > DEADLINE {
            return Err(Error::Deadline { operation: format!("{method:?} of {count}"), after: DEADLINE });
        }
    }
    let kill_ms = begin.elapsed().as_secs_f64() * 1e3;
    let session = ipc_protocol::SessionId::mint();
    let rest =
        ProcessRegistry::new(session).map_err(Error::system("cleaning up"))?.kill_all(ipc_protocol::KillOptions::NOW);
    let left = rest.processes.len();
    Ok(MeasuredFigures::from([("kill_ms".to_owned(), kill_ms), ("left".to_owned(), left as f64)]))
}

/// Cgroup for one measurement, removed when dropped.
struct ScratchGroup {
    path: PathBuf,
    /// Owner of the directory around it.
    _groups: ManagerCgroup,
}

impl ScratchGroup {
    fn new() -> Result<Self> {
        let own = registry::identify(std::process::id()).map_err(Error::system("looking at this process"))?;
        let groups =
            ManagerCgroup::create(None, own).map_err(|error| Error::answer("this system", error.to_string()))?;
        let path = groups.path().join("raw");
        fs::create_dir(&path).map_err(Error::system(format!("making {}", path.display())))?;
        Ok(Self { path, _groups: groups })
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, text).map_err(Error::system(format!("writing {}", path.display())))
    }
}

impl Drop for ScratchGroup {
    fn drop(&mut self) {
        // The next run sweeps a group that cannot be removed now.
        let _ = fs::remove_dir(&self.path);
    }
}
