//! The freezer of version 1, in which even SIGKILL waits until somebody thaws.

use std::{fs, path::Path};

use ipc_protocol::Pid;

use super::mounts::{CgroupHierarchy, CgroupMount, group_of};

/// Thaws `pid`, if it is in a frozen group of the version 1 freezer; groups above it too, as far as they are frozen. What
/// cannot be thawed stays as it is: the caller sees that it does not die.
pub fn thaw_v1(pid: Pid) {
    let Ok(Some(group)) = group_of(pid, CgroupHierarchy::FreezerV1) else { return };
    // Nearly everybody is in the root, which cannot be frozen.
    if group == Path::new("/") {
        return;
    }
    let own = group_of(std::process::id(), CgroupHierarchy::FreezerV1).ok().flatten().unwrap_or_default();
    thaw(&group, &own, &CgroupMount::find(CgroupHierarchy::FreezerV1).unwrap_or_default());
}

/// A group that we are in ourselves is left alone: it is not frozen, whatever it says by the time it is read.
fn thaw(group: &Path, own: &Path, mounts: &[CgroupMount]) {
    let root = Path::new("/");
    for group in group.ancestors().take_while(|group| *group != root && !own.starts_with(group)) {
        for directory in mounts.iter().filter_map(|mount| mount.directory_of(group)) {
            let state = directory.join("freezer.state");
            if fs::read_to_string(&state).is_ok_and(|state| state.trim() != "THAWED")
                && let Err(error) = fs::write(&state, "THAWED")
            {
                tracing::debug!(state = %state.display(), %error, "a frozen group could not be thawed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_groups_are_thawed_up_to_our_own() {
        let point = std::env::temp_dir().join(format!("agent-proxy-freezer-{}", std::process::id()));
        let groups =
            [("ours", "FROZEN"), ("ours/s", "FREEZING"), ("ours/s/mine", "THAWED"), ("ours/s/mine/deep", "FROZEN")];
        for (group, state) in groups.into_iter().chain([("ours/s/other", "FROZEN")]) {
            fs::create_dir_all(point.join(group)).expect("made");
            fs::write(point.join(group).join("freezer.state"), format!("{state}\n")).expect("written");
        }
        let mount = CgroupMount { root: "/".into(), point: point.clone(), is_read_only: false, is_unified: false };
        thaw(Path::new("/ours/s/mine/deep"), Path::new("/ours/supervisor"), &[mount]);
        let state = |group: &str| fs::read_to_string(point.join(group).join("freezer.state")).expect("readable");
        let states = groups.map(|(group, _)| state(group));
        let other = state("ours/s/other");
        fs::remove_dir_all(&point).expect("removed");
        assert_eq!(states, ["FROZEN\n", "THAWED", "THAWED\n", "THAWED"]);
        assert_eq!(other, "FROZEN\n", "not on the way");
    }

    #[test]
    fn a_process_that_is_not_frozen_or_gone_is_left_alone() {
        thaw_v1(std::process::id());
        thaw_v1(u32::MAX >> 2);
    }
}
