//! Podman with a store of a test's own, and an image made of busybox without a network.

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ipc_protocol::{EnvVars, Signal};
use proxy_manager::{AgentSessionConfig, SessionContainer};

use crate::system::not_run;

/// The image.
pub const IMAGE: &str = "localhost/busybox:test";

/// Programs of busybox that the image has.
const APPLETS: [&str; 16] = [
    "cat", "env", "grep", "id", "ls", "mkdir", "mount", "nohup", "ps", "pwd", "setsid", "sh", "sleep", "touch", "true",
    "wc",
];

/// Ordinary user who runs podman, where root runs the tests.
const NOBODY: [&str; 4] = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Arguments of a program that becomes the one behind them, as an ordinary user; for [`is_apart`](crate::namespaces::is_apart).
pub fn ordinary() -> Option<Vec<&'static str>> {
    Some(if nix::unistd::geteuid().is_root() { NOBODY.to_vec() } else { vec!["/usr/bin/env"] })
}

/// A store of containers, removed with its end.
pub struct PodmanStore {
    directory: tempfile::TempDir,
}

impl PodmanStore {
    /// Makes the store with the image; `None`, and says so, without podman, runc and busybox, and without root, whose store it is.
    pub fn new() -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            not_run("sessions in containers of root: they take root");
            return None;
        }
        Self::of_this_user()
    }

    /// The same of whoever runs this.
    pub fn of_this_user() -> Option<Self> {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(Path::new).find(|file| file.exists());
        let is_there = |program: &&str| command(program, &["--version"]).output().is_ok();
        let missing = ["podman", "runc"].into_iter().find(|program| !is_there(program));
        let (None, Some(busybox)) = (missing, busybox) else {
            not_run("sessions in containers: they take podman, runc and busybox-static");
            return None;
        };
        let directory = tempfile::Builder::new().prefix("agent-proxy-podman.").tempdir().expect("a directory");
        let store = Self { directory };
        let path = |name: &str| store.path().join(name).display().to_string();
        fs::create_dir(path("xdg")).expect("made");
        fs::set_permissions(path("xdg"), Permissions::from_mode(0o700)).expect("set");
        // Nobody has one user only to map files to.
        let (driver, is_ordinary) = if nix::unistd::geteuid().is_root() { ("overlay", false) } else { ("vfs", true) };
        let storage = format!(
            "[storage]\ndriver = \"{driver}\"\ngraphroot = {:?}\nrunroot = {:?}\n[storage.options]\nignore_chown_errors = \"{is_ordinary}\"\n",
            path("graph"),
            path("run")
        );
        // Without the right to raise limits (CAP_SYS_RESOURCE) those that podman asks for cannot be had.
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n[engine]\nruntime = \"runc\"\n\
             cgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nlock_type = \"file\"\ntmp_dir = {:?}\n",
            path("tmp")
        );
        fs::write(path("storage.conf"), storage).expect("written");
        fs::write(path("containers.conf"), containers).expect("written");
        let root = store.path().join("root");
        for below in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(below)).expect("made");
        }
        fs::copy(busybox, root.join("bin/busybox")).expect("copied");
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).expect("linked");
        }
        let tar = path("root.tar");
        let made = command("tar", &["-C", root.to_str().expect("UTF-8"), "-cf", &tar, "."]).output().expect("tar");
        assert!(made.status.success(), "{made:?}");
        let imported = store.podman(&["import", "--quiet", &tar, IMAGE]);
        if is_ordinary && !imported.status.success() {
            not_run(format_args!("rootless podman: {}", String::from_utf8_lossy(&imported.stderr).trim()));
            return None;
        }
        assert!(imported.status.success(), "{imported:?}");
        // Each test begins without the process of podman's that an ordinary user has then.
        store.end_pause();
        Some(store)
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The environment by which engines find the store.
    pub fn env(&self) -> EnvVars {
        let file = |name: &str| self.path().join(name).display().to_string();
        [
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", self.path().display().to_string()),
            ("XDG_RUNTIME_DIR", file("xdg")),
            ("CONTAINERS_CONF", file("containers.conf")),
            ("CONTAINERS_STORAGE_CONF", file("storage.conf")),
        ]
        .into_iter()
        .collect()
    }

    /// The process by which podman holds the namespaces of an ordinary user, if it runs.
    fn pause(&self) -> Option<u32> {
        fs::read_to_string(self.path().join("tmp/pause.pid")).ok()?.trim().parse().ok()
    }

    /// Ends that process.
    pub fn end_pause(&self) {
        let Some(pause) = self.pause().and_then(|pid| registry::identify(pid).ok()) else { return };
        let Ok(process) = registry::PidFd::open(pause) else { return };
        process.signal(Signal::Kill).expect("signalled");
        crate::system::until("podman's process ends", || (!crate::system::is_alive(pause.pid)).then_some(()));
        fs::remove_file(self.path().join("tmp/pause.pid")).expect("removed");
    }

    /// Runs podman.
    pub fn podman(&self, arguments: &[&str]) -> Output {
        command("podman", arguments).env_clear().envs(self.env().0).output().expect("podman: install podman and runc")
    }

    /// The names of all containers.
    pub fn containers(&self) -> Vec<String> {
        let listed = self.podman(&["ps", "--all", "--format", "{{.Names}}"]);
        assert!(listed.status.success(), "{listed:?}");
        String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect()
    }

    /// Mounts below the store, in this process's namespace.
    pub fn mounts(&self) -> Vec<String> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        let store = self.path().to_str().expect("UTF-8");
        mounts.lines().filter(|line| line.contains(store)).map(str::to_owned).collect()
    }

    /// The living processes that have a word with `text` in their command lines: podman, conmon and the runtime name the store.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let store = self.path().to_str().expect("UTF-8");
        let entries = fs::read_dir("/proc").expect("readable").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let line = |pid: u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&line).replace('\0', " "))
        };
        let environ = |pid: u32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let names = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(store);
        pids.map(line)
            .filter(|(pid, _)| Some(*pid) != self.pause())
            .filter(|(pid, line)| (names(line.as_bytes()) || names(&environ(*pid))) && crate::system::is_alive(*pid))
            .collect()
    }

    /// Checks that nothing of a session is left.
    pub fn assert_empty(&self) {
        crate::system::until("the engine's last process ends", || self.processes().is_empty().then_some(()));
        assert_eq!((self.containers(), self.mounts()), (Vec::new(), Vec::new()));
    }

    /// A session that runs a shell script in the image, in a working directory of the store.
    pub fn shell(&self, script: &str) -> AgentSessionConfig {
        let mut config = crate::sessions::shell(script);
        config.container = SessionContainer { image: Some(IMAGE.to_owned()), ..SessionContainer::default() };
        config.sandbox.network = Some(proxy_manager::NetworkAccess::Off);
        config.cwd = Some(self.work().display().to_string());
        config
    }

    /// The working directory.
    pub fn work(&self) -> PathBuf {
        let work = self.path().join("work");
        fs::create_dir_all(&work).expect("made");
        work
    }
}

impl Drop for PodmanStore {
    /// Whatever a failed test left.
    fn drop(&mut self) {
        if !self.containers().is_empty() {
            self.podman(&["rm", "--all", "--force", "--time", "0"]);
        }
        self.end_pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "the ground truth is not from the code under test")]
fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
