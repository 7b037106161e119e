//! Directory in which an agent keeps its conversations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ipc_protocol::EnvVars;

/// Directories that the agents of a family try, in this order: a variable, and a path below the directory it names.
const STORES: [(&str, &[(&str, &str)]); 5] = [
    ("claude", &[("CLAUDE_CONFIG_DIR", ""), ("HOME", ".claude")]),
    ("codex", &[("CODEX_HOME", ""), ("HOME", ".codex")]),
    ("gemini", &[("GEMINI_CLI_HOME", ".gemini"), ("HOME", ".gemini")]),
    ("opencode", &[("XDG_DATA_HOME", "opencode"), ("HOME", ".local/share/opencode")]),
    ("pi", &[("PI_CODING_AGENT_SESSION_DIR", ""), ("PI_CODING_AGENT_DIR", "sessions"), ("HOME", ".pi/agent/sessions")]),
];

/// Finds the directory in which an agent of `family` keeps its conversations, in canonical spelling. An unknown family
/// has its home. `None` where no variable is set. Blocks for some system calls.
pub(super) fn store(family: &str, env: &EnvVars, cwd: &Path) -> Option<PathBuf> {
    let places = STORES.iter().find(|(name, _)| *name == family).map_or(&[("HOME", "")][..], |(_, places)| places);
    let named = |(variable, below): &(&str, &str)| {
        let directory = env.0.get(*variable).filter(|directory| !directory.is_empty())?;
        Some(cwd.join(directory).join(below))
    };
    places.iter().find_map(named).map(|path| real(&path))
}

/// Directories in which an agent of `family`, which keeps its conversations in `store`, names processes by their pid. In a PID
/// namespace it would have the records of two sessions in one file, and take those of processes outside for dead.
pub(super) fn by_pid(family: &str, store: Option<&Path>) -> Vec<PathBuf> {
    store.filter(|_| family == "claude").map(|store| store.join("sessions")).into_iter().collect()
}

/// The home that an agent of `family` takes for its own.
pub(super) fn home<'a>(family: &str, env: &'a EnvVars) -> Option<&'a String> {
    let set = |name: &str| env.0.get(name).filter(|directory| !directory.is_empty());
    (family == "gemini").then(|| set("GEMINI_CLI_HOME")).flatten().or_else(|| set("HOME"))
}

/// Resolves links in `path` and normalizes its spelling. The part that does not exist yet is taken literally.
fn real(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, fs::canonicalize(above).ok()?)));
    let Some((above, real)) = there else { return path.components().collect() };
    // An existing path gets no trailing slash.
    path.strip_prefix(above)
        .ok()
        .map_or_else(|| real.clone(), |rest| real.components().chain(rest.components()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn at(family: &str, env: &[(&str, &str)]) -> Option<PathBuf> {
        store(family, &env.iter().copied().collect(), Path::new("/nowhere/work"))
    }

    #[test]
    fn records_by_pid_are_where_the_conversations_are() {
        let store = at("claude", &[("HOME", "/nowhere/h")]);
        assert_eq!(by_pid("claude", store.as_deref()), [Path::new("/nowhere/h/.claude/sessions")]);
        assert!(by_pid("claude", None).is_empty() && by_pid("codex", Some(Path::new("/nowhere/x"))).is_empty());
    }

    #[test]
    fn each_family_has_its_own_variables() {
        let cases = [
            ("claude", "CLAUDE_CONFIG_DIR", "/nowhere/x", "/nowhere/h/.claude"),
            ("codex", "CODEX_HOME", "/nowhere/x", "/nowhere/h/.codex"),
            ("gemini", "GEMINI_CLI_HOME", "/nowhere/x/.gemini", "/nowhere/h/.gemini"),
            ("opencode", "XDG_DATA_HOME", "/nowhere/x/opencode", "/nowhere/h/.local/share/opencode"),
            ("pi", "PI_CODING_AGENT_DIR", "/nowhere/x/sessions", "/nowhere/h/.pi/agent/sessions"),
            ("pi", "PI_CODING_AGENT_SESSION_DIR", "/nowhere/x", "/nowhere/h/.pi/agent/sessions"),
            ("anything", "ANYTHING_HOME", "/nowhere/h", "/nowhere/h"),
        ];
        for (family, variable, named, default) in cases {
            let home = ("HOME", "/nowhere/h");
            assert_eq!(at(family, &[home, (variable, "/nowhere/x")]), Some(named.into()), "{variable}");
            assert_eq!(at(family, &[home, (variable, "")]), Some(default.into()), "{variable}");
            assert_eq!(at(family, &[home]), Some(default.into()), "{family}");
            assert_eq!(at(family, &[]), None, "{family}");
        }
        assert_eq!(at("codex", &[("CODEX_HOME", "x")]), Some("/nowhere/work/x".into()));
    }

    #[test]
    fn a_place_is_one_however_it_is_spelled() {
        let scratch = tempfile::tempdir().expect("a directory");
        let home = scratch.path().join("home");
        fs::create_dir(&home).expect("made");
        symlink(&home, scratch.path().join("link")).expect("linked");
        let spelled = |name: &str, family| {
            let path = format!("{}/{name}", scratch.path().display());
            at(family, &[("HOME", &path)]).expect("known")
        };
        // With and without the directory below it.
        for made in [false, true] {
            for family in ["codex", "anything"] {
                for name in ["home/", "link", "link//", "./home/.", "home/../link"] {
                    assert_eq!(spelled(name, family), spelled("home", family), "{name} of {family}, {made}");
                }
                assert_ne!(spelled("other", family), spelled("home", family));
            }
            let _ = fs::create_dir(home.join(".codex"));
        }
    }

    #[test]
    fn gemini_has_a_home_of_its_own() {
        let env: EnvVars = [("HOME", "/h"), ("GEMINI_CLI_HOME", "/g")].into_iter().collect();
        assert_eq!(
            (home("gemini", &env).map(String::as_str), home("pi", &env).map(String::as_str)),
            (Some("/g"), Some("/h"))
        );
        let env: EnvVars = [("HOME", "/h"), ("GEMINI_CLI_HOME", "")].into_iter().collect();
        assert_eq!(home("gemini", &env).map(String::as_str), Some("/h"));
    }
}
