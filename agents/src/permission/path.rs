//! Matching of globs with paths.

use globset::{Glob, GlobBuilder, GlobMatcher};

/// Glob for absolute paths: `*` stays within a directory, `**` does not. A glob that is not absolute and does not start with `**` is
/// relative to the working directory.
#[derive(Debug)]
pub(super) struct PathGlob {
    paths: GlobMatcher,
    /// Matcher of the directory itself, for a glob on everything in it.
    directory: Option<GlobMatcher>,
}

impl PathGlob {
    /// Compiles a glob.
    ///
    /// # Errors
    /// The error in the glob.
    pub(super) fn new(glob: &str, cwd: &str) -> Result<Self, String> {
        if glob.split('/').any(|part| part == "." || part == "..") {
            return Err("paths are compared without `.` and `..`".into());
        }
        if glob.len() > 1 && glob.ends_with('/') || glob.contains("//") {
            return Err(
                "paths are compared without `//` and without a `/` at the end: for what is in a directory write `/**`"
                    .into(),
            );
        }
        if glob.starts_with('~') {
            return Err("`~` is nobody's home here: write the path in full".into());
        }
        let whole = if glob.starts_with('/') || glob.starts_with("**") {
            glob.to_owned()
        } else {
            let cwd = absolute(".", cwd).unwrap_or_default();
            format!("{}/{glob}", globset::escape(cwd.trim_end_matches('/')))
        };
        let build = |glob: &str| -> Result<Glob, String> {
            GlobBuilder::new(glob).literal_separator(true).build().map_err(|error| error.kind().to_string())
        };
        let directory = whole.strip_suffix("/**").filter(|directory| !directory.is_empty());
        Ok(Self {
            paths: build(&whole)?.compile_matcher(),
            directory: directory.map(build).transpose()?.map(|glob| glob.compile_matcher()),
        })
    }

    /// Returns whether a rule that allows matches this path.
    pub(super) fn allows(&self, path: &str) -> bool {
        self.paths.is_match(path)
    }

    /// Returns whether a rule that does not allow matches: deleting a directory deletes everything in it.
    pub(super) fn concerns(&self, path: &str) -> bool {
        self.allows(path) || self.directory.as_ref().is_some_and(|directory| directory.is_match(path))
    }
}

/// Returns `path` as an absolute path, without `.`, `..` and repeated slashes. Links are not followed: the file system is not read.
/// Returns `None` if the path is ambiguous: in somebody's home (`~`), a URL, or with blanks around it, which some agents remove and
/// others do not.
pub(crate) fn absolute(path: &str, cwd: &str) -> Option<String> {
    let is_blank = |char: char| char.is_whitespace() || char == '\u{feff}';
    if path.is_empty()
        || path.starts_with(is_blank)
        || path.ends_with(is_blank)
        || path.starts_with('~')
        || path.contains("://")
        || path.contains('\0')
    {
        return None;
    }
    let cwd = if path.starts_with('/') { "" } else { cwd };
    let mut parts = Vec::new();
    for part in cwd.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some(format!("/{}", parts.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_without_a_look_at_the_disk() {
        for (path, whole) in [
            ("a", "/w/d/a"),
            ("./a//b/", "/w/d/a/b"),
            ("../a", "/w/a"),
            ("/../../a", "/a"),
            ("/w/d/../../etc/passwd", "/etc/passwd"),
            (".", "/w/d"),
            ("..a/...", "/w/d/..a/..."),
        ] {
            assert_eq!(absolute(path, "/w/d").as_deref(), Some(whole), "{path}");
        }
        for unknown in ["", "~/a", "~root/a", "file:///a", "a\0b", " /a", "/a\n", "\u{feff}/a", "\u{a0}a"] {
            assert_eq!(absolute(unknown, "/w/d"), None, "{unknown:?}");
        }
    }

    #[test]
    fn a_star_stays_within_a_directory() {
        let allows = |glob: &str, path: &str| PathGlob::new(glob, "/w/[d]").expect("a glob").allows(path);
        assert!(allows("/src/*.rs", "/src/a.rs") && !allows("/src/*.rs", "/src/a/b.rs"));
        assert!(allows("/src/**", "/src/a/b.rs") && !allows("/src/**", "/src") && !allows("/src/**", "/srcs/a"));
        assert!(allows("src/*", "/w/[d]/src/a") && !allows("src/*", "/w/d/src/a"), "the working directory is no glob");
        assert!(allows("**/.env", "/.env") && allows("**/.env", "/a/b/.env") && !allows("**/.env", "/a/.envrc"));
        assert!(PathGlob::new("a", "/w ").expect("a glob").allows("/w /a"), "a directory may be called so");
        let glob = PathGlob::new("/src/**", "/").expect("a glob");
        assert!(glob.concerns("/src") && glob.concerns("/src/a") && !glob.concerns("/"));
    }

    #[test]
    fn a_glob_that_could_never_match_is_refused() {
        for glob in ["/a/../b", "./a", "~/a", "/a/[", "/a/{b", "/secret/", "a//b"] {
            assert!(PathGlob::new(glob, "/").is_err(), "{glob}");
        }
    }
}
