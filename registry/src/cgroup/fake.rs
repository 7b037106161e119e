//! For tests: a directory with plain files where the kernel would have its own.

use std::{fs, path::PathBuf};

use super::{SessionCgroup, dir::OpenDir};

pub(crate) struct FakeCgroupFs(PathBuf);

impl FakeCgroupFs {
    /// Makes a hierarchy of a `name` that no other test has.
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let path = std::env::temp_dir().join(format!("agent-proxy-fake-cgroup-{}-{name}", std::process::id()));
        fs::create_dir(&path).expect("a fresh directory");
        for (file, text) in files {
            fs::write(path.join(file), text).expect("written");
        }
        Self(path)
    }

    pub(crate) fn group(&self) -> SessionCgroup {
        SessionCgroup::fake(&self.0)
    }

    pub(super) fn dir(&self) -> OpenDir {
        OpenDir::open_any(&self.0)
    }

    pub(super) fn text(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).expect("readable")
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).expect("written");
    }

    pub(super) fn is_empty(&self) -> bool {
        fs::read_dir(&self.0).expect("readable").next().is_none()
    }
}

impl Drop for FakeCgroupFs {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
