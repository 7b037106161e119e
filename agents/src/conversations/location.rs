//! Location of an agent's conversations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use ipc_protocol::EnvVars;

use crate::AgentSpec;

/// Place in which the agents of a family keep their conversations.
#[derive(Debug)]
pub struct ConversationStorage {
    /// Root directories in the order of preference: a variable, and a path below the directory that it names. The last is below `HOME`.
    pub(crate) roots: &'static [(&'static str, &'static str)],
    /// Shape of the files.
    pub(crate) format: StorageFormat,
    /// Directory below the root in which agents name processes by their pid. In a PID namespace an agent would have the records of
    /// two sessions in one file, and take those of processes outside for dead.
    pub(crate) pid_records: Option<&'static str>,
}

/// Shape of the files in which conversations are kept.
#[derive(Debug)]
pub enum StorageFormat {
    /// A file of JSON lines for each conversation, below this directory of the root.
    LineFiles(&'static str),
    /// One database in the root for all conversations.
    Database {
        /// Variable that names its file.
        variable: &'static str,
        /// Name of the file otherwise.
        name: &'static str,
    },
}

/// Conversations of an agent with a certain environment.
#[derive(Clone, Debug, Default)]
pub struct ConversationLocation {
    root: Option<PathBuf>,
    files: Option<PathBuf>,
    home: Option<String>,
    storage: Option<&'static ConversationStorage>,
}

impl ConversationStorage {
    /// Returns the root directory under `env`.
    pub(crate) fn root(&self, env: &EnvVars) -> Option<PathBuf> {
        let place = |(variable, below): &(&str, &str)| Some(Path::new(set(env, variable)?).join(below));
        self.roots.iter().find_map(place)
    }

    /// Returns the home directory that the agents take for theirs: `HOME`, or a variable that stands in for it.
    fn home<'a>(&self, env: &'a EnvVars) -> Option<&'a String> {
        let (_, below) = self.roots.last()?;
        self.roots.iter().filter(|(_, other)| other == below).find_map(|(variable, _)| set(env, variable))
    }

    /// Returns the default place of the files, as a catalog row may say it: `{home}/.claude/projects`.
    pub(crate) fn template(&self) -> String {
        let (_, below) = self.roots.last().copied().unwrap_or_default();
        match self.format {
            StorageFormat::LineFiles(files) if !files.is_empty() => format!("{{home}}/{below}/{files}"),
            _ => format!("{{home}}/{below}"),
        }
    }
}

impl ConversationLocation {
    /// Finds the conversations of an agent of `spec` that starts in `cwd`. Blocks for some system calls.
    ///
    /// A row without a family has its home as root, and the files where it says (`session_config.session_dir_template`).
    pub fn new(spec: &AgentSpec, env: &EnvVars, cwd: &Path) -> Self {
        let Some(storage) = spec.agent_family().map(|family| &family.storage) else {
            let home = set(env, "HOME");
            let template = Some(&spec.session_config.session_dir_template).filter(|template| !template.is_empty());
            let files = template.and_then(|template| Some(PathBuf::from(template.replace("{home}", home?))));
            let files = files.filter(|files| files.is_absolute());
            return Self { root: home.map(|home| real(&cwd.join(home))), files, home: home.cloned(), storage: None };
        };
        let root = storage.root(env).map(|root| real(&cwd.join(root)));
        let below = match storage.format {
            StorageFormat::LineFiles(below) => below,
            StorageFormat::Database { variable, name } => set(env, variable).map_or(name, String::as_str),
        };
        let files = root.as_ref().map(|root| if below.is_empty() { root.clone() } else { root.join(below) });
        Self { root, files, home: storage.home(env).cloned(), storage: Some(storage) }
    }

    /// Root directory in canonical spelling. `None` where no variable is set.
    pub fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Directory of the files, or the database. `None` where neither the family nor the row says it.
    pub fn files(&self) -> Option<&Path> {
        self.files.as_deref()
    }

    /// Directory with records by pid.
    pub fn pid_records(&self) -> Option<PathBuf> {
        Some(self.root()?.join(self.storage?.pid_records?))
    }

    /// Home directory that the agent takes for its own.
    pub(super) fn home(&self) -> Option<&str> {
        self.home.as_deref()
    }

    /// Returns whether each conversation is a file of JSON lines.
    pub(super) fn has_line_files(&self) -> bool {
        self.storage.is_some_and(|storage| matches!(storage.format, StorageFormat::LineFiles(_)))
    }

    /// Returns the database with all conversations.
    pub(super) fn database(&self) -> Option<&Path> {
        let is_database = self.storage.is_some_and(|storage| matches!(storage.format, StorageFormat::Database { .. }));
        self.files().filter(|_| is_database)
    }
}

/// Returns the value of a variable that is set to something.
fn set<'a>(env: &'a EnvVars, name: &str) -> Option<&'a String> {
    env.0.get(name).filter(|value| !value.is_empty())
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

    fn location(family: &str, env: &[(&str, &str)]) -> ConversationLocation {
        let mut spec = AgentSpec::new("x", "acp", &["x"]);
        spec.protocol_config = serde_json::json!({ "config": family });
        ConversationLocation::new(&spec, &env.iter().copied().collect(), Path::new("/nowhere/work"))
    }

    fn at(family: &str, env: &[(&str, &str)]) -> Option<PathBuf> {
        location(family, env).root
    }

    #[test]
    fn records_by_pid_are_where_the_conversations_are() {
        let records = |family, env: &[_]| location(family, env).pid_records();
        assert_eq!(records("claude", &[("HOME", "/nowhere/h")]), Some("/nowhere/h/.claude/sessions".into()));
        assert_eq!((records("claude", &[]), records("codex", &[("HOME", "/nowhere/x")])), (None, None));
    }

    #[test]
    fn each_family_has_its_files_and_others_what_their_row_says() {
        let of = |family: &str, template: &str, env: &[(&str, &str)]| {
            let mut spec = AgentSpec::new("x", "acp", &["x"]);
            spec.protocol_config = serde_json::json!({ "config": family });
            spec.session_config.session_dir_template = template.to_owned();
            let env = env.iter().copied().chain([("HOME", "/nowhere/h")]).collect();
            ConversationLocation::new(&spec, &env, Path::new("/w")).files
        };
        assert_eq!(of("claude", "{home}/elsewhere", &[]), Some("/nowhere/h/.claude/projects".into()));
        assert_eq!(of("pi", "", &[]), Some("/nowhere/h/.pi/agent/sessions".into()));
        assert_eq!(of("mine", "{home}/chats", &[]), Some("/nowhere/h/chats".into()));
        assert_eq!((of("mine", "", &[]), of("mine", "chats", &[])), (None, None));
        let database = |name| of("opencode", "", &[("XDG_DATA_HOME", "/nowhere/x"), ("OPENCODE_DB", name)]);
        let expected = ["opencode.db", "mine.db"].map(|name| Some(Path::new("/nowhere/x/opencode").join(name)));
        assert_eq!([database(""), database("mine.db")], expected);
        assert_eq!(database("/m.db"), Some("/m.db".into()));
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
        let home = |family, own| location(family, &[("HOME", "/h"), ("GEMINI_CLI_HOME", own)]).home;
        assert_eq!((home("gemini", "/g").as_deref(), home("pi", "/g").as_deref()), (Some("/g"), Some("/h")));
        assert_eq!(home("gemini", "").as_deref(), Some("/h"));
    }
}
