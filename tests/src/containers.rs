//! Podman with a store of a test's own, and an image made of busybox without a network.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use ipc_protocol::EnvVars;
use proxy_manager::{AgentSessionConfig, SessionContainer};

use crate::system::not_run;

/// The image.
pub const IMAGE: &str = "localhost/busybox:test";

/// Programs of busybox that the image has.
const APPLETS: [&str; 16] = [
    "cat", "env", "grep", "id", "ls", "mkdir", "mount", "nohup", "ps", "pwd", "setsid", "sh", "sleep", "touch", "true",
    "wc",
];

/// A store of containers, removed with its end.
pub struct PodmanStore {
    directory: tempfile::TempDir,
}

impl PodmanStore {
    /// Makes the store with the image; `None`, and says so, without podman, runc and busybox, and without root, whose store it is.
    pub fn new() -> Option<Self> {
        let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(Path::new).find(|file| file.exists());
        let is_there = |program: &&str| command(program, &["--version"]).output().is_ok();
        let missing = ["podman", "runc"].into_iter().find(|program| !is_there(program));
        let (None, Some(busybox), true) = (missing, busybox, nix::unistd::geteuid().is_root()) else {
            not_run("sessions in containers: they take root, podman, runc and busybox-static");
            return None;
        };
        let directory = tempfile::Builder::new().prefix("agent-proxy-podman.").tempdir().expect("a directory");
        let store = Self { directory };
        let path = |name: &str| store.path().join(name).display().to_string();
        let storage =
            format!("[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n", path("graph"), path("run"));
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
        assert!(imported.status.success(), "{imported:?}");
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
            ("CONTAINERS_CONF", file("containers.conf")),
            ("CONTAINERS_STORAGE_CONF", file("storage.conf")),
        ]
        .into_iter()
        .collect()
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
    }
}

#[expect(clippy::disallowed_methods, reason = "the ground truth is not from the code under test")]
fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}
