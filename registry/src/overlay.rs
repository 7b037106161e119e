//! The overlay of a workspace: the user's tree below, changes in a directory of their own.

use std::{ffi::CString, fs, io, os::unix::ffi::OsStrExt as _, path::Path};

use ipc_protocol::OverlaySpec;

use crate::sys::MountStep;

/// Longest options of a mount, with the zero byte.
const LONGEST_OPTIONS: usize = 4096;
/// Marks are whole files, and a directory is renamed as a copy: whoever reads the layer of the changes finds all of them there.
const PLAIN_LAYERS: &str = "redirect_dir=nofollow,metacopy=off,index=off,xino=off";

/// Plans the mount.
pub(crate) fn overlay_step(overlay: &OverlaySpec) -> io::Result<MountStep> {
    let OverlaySpec { tree, lower, upper, work } = overlay;
    let (lower, upper, work) = (escaped(lower), escaped(upper), escaped(work));
    let mut options = format!("lowerdir={lower},upperdir={upper},workdir={work},{PLAIN_LAYERS}");
    if !may_write_trusted_attributes() {
        options.push_str(",userxattr");
    }
    if options.len() >= LONGEST_OPTIONS {
        let reason = format!("the paths of the overlay on {tree} are too long for a mount: use shorter ones");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let path = CString::new(Path::new(tree).as_os_str().as_bytes())?;
    Ok(MountStep::Own { kind: c"overlay", path, options: CString::new(options)? })
}

/// A path as an option has it.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for letter in path.chars() {
        if matches!(letter, '\\' | ',' | ':') {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// Returns true for root of the machine. Root of a container, and whoever is in a user namespace, may not.
fn may_write_trusted_attributes() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    nix::unistd::geteuid().is_root() && map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_that_are_named() {
        let spec = |upper: &str| OverlaySpec {
            tree: "/s/tree".into(),
            lower: "/a:b,c".into(),
            upper: upper.into(),
            work: "/s/work".into(),
        };
        let MountStep::Own { options, path, .. } = overlay_step(&spec("/s/upper")).expect("planned") else {
            panic!("a mount")
        };
        let options = options.into_string().expect("UTF-8");
        assert!(
            options.starts_with("lowerdir=/a\\:b\\,c,upperdir=/s/upper,workdir=/s/work,redirect_dir=nofollow"),
            "{options}"
        );
        assert_eq!(path.as_c_str(), c"/s/tree");
        assert!(overlay_step(&spec(&"x".repeat(4096))).is_err_and(|error| error.to_string().contains("too long")));
    }
}
