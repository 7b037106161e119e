//! Discovery of installed agents of the catalog, and of missing parts. It reads files in the places that the caller names, and starts
//! nothing: where only the program itself knows its version, the result contains the command to run.

use std::{
    fmt,
    fs::File,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{AgentSpec, PerPlatform};

/// Longest `package.json` that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Number of directories above a program that are searched for its package.
const MAX_PARENTS: usize = 8;

/// Places that are searched.
#[derive(Clone, Debug, Default)]
pub struct SearchPaths {
    /// Directories of PATH.
    pub path: Vec<PathBuf>,
    /// Directory for a leading `~`.
    pub home: Option<PathBuf>,
}

/// Result for an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundAgent {
    /// Path of the agent's program, before links are resolved.
    pub program: Option<PathBuf>,
    /// Program that a session would start: `program` may be found by another of its names.
    pub start_program: Option<PathBuf>,
    /// Program that would be started if it could be executed.
    pub not_executable: Option<PathBuf>,
    /// The version that its package tells.
    pub version: Option<String>,
    /// The name of that package.
    pub package: Option<String>,
    /// Command that prints the version, wherever it is known from: one that fails tells that the program does not run. A package may be
    /// there without its part for this platform.
    pub version_command: Option<Vec<String>>,
    /// Node.js that would run the agent, if it needs a version of Node.js.
    pub node: Option<NodeRuntime>,
    /// Files that mean that the agent is set up.
    pub files: Vec<PathBuf>,
    /// Existing files with the agent's own MCP servers.
    pub mcp_files: Vec<PathBuf>,
}

/// Node.js requirement of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRuntime {
    /// Oldest version that works.
    pub min: ProgramVersion,
    /// Path of the installed Node.js, if there is one.
    pub program: Option<PathBuf>,
}

impl NodeRuntime {
    /// Returns the missing requirement, given the version that `node --version` printed, or `None` if nothing is missing.
    pub fn missing(&self, version: Option<ProgramVersion>) -> Option<String> {
        let min = self.min;
        match (&self.program, version) {
            (None, _) => Some(format!("Node.js {min} or later: there is none in PATH")),
            (Some(_), Some(version)) if version >= min => None,
            (Some(path), Some(version)) => Some(format!("Node.js {min} or later: {} is {version}", path.display())),
            (Some(path), None) => Some(format!("Node.js {min} or later: {} does not tell its version", path.display())),
        }
    }
}

/// Searches for the agent of `spec`. A row without a program has nothing to find.
pub fn discover(spec: &AgentSpec, places: &SearchPaths) -> FoundAgent {
    let named = spec.discovery.executables.here();
    let names = if named.is_empty() { spec.cmd.get(..1).unwrap_or_default() } else { named };
    let program = names.iter().find_map(|name| executable(name, places));
    let starts = spec.cmd.first().and_then(|name| executable(name, places));
    let not_executable =
        spec.cmd.first().filter(|_| starts.is_none()).and_then(|name| self::not_executable(name, places));
    let there = |paths: &PerPlatform| {
        let paths = paths.here().iter().filter_map(|path| expand(path, places));
        paths.filter(|path| path.exists()).collect()
    };
    let (files, mcp_files) = (there(&spec.discovery.installation_path), there(&spec.discovery.mcp_config_path));
    // The link in PATH leads to the package.
    let real = program.as_ref().map(|program| program.canonicalize().unwrap_or_else(|_| program.clone()));
    let packaged = real.as_deref().and_then(|real| packaged(real, spec));
    let (package, version) = packaged.map_or((None, None), |(package, version)| (Some(package), Some(version)));
    let version_command: Option<Vec<String>> =
        program.as_ref().filter(|_| !spec.discovery.version_args.is_empty()).map(|program| {
            let program = program.to_string_lossy().into_owned();
            std::iter::once(program).chain(spec.discovery.version_args.iter().cloned()).collect()
        });
    let node = ProgramVersion::parse(&spec.discovery.min_node).and_then(|min| {
        let program = match real.as_deref().map(interpreter) {
            // An agent that is yet to be installed will be run by the `node` in PATH.
            None | Some(ScriptInterpreter::NodeOfPath) => executable("node", places),
            Some(ScriptInterpreter::Node(path)) => executable(&path, places),
            // A program of its own, or a script that brings its own interpreter.
            Some(ScriptInterpreter::Other) => return None,
        };
        Some(NodeRuntime { min, program })
    });
    FoundAgent {
        program,
        start_program: starts,
        not_executable,
        version,
        package,
        version_command,
        node,
        files,
        mcp_files,
    }
}

/// Returns the executable of that name in PATH, or at that path.
pub fn executable(name: &str, places: &SearchPaths) -> Option<PathBuf> {
    named(name, places, |mode| mode & 0o111 != 0)
}

/// A file of that name in PATH, or at that path, that nobody may execute.
pub fn not_executable(name: &str, places: &SearchPaths) -> Option<PathBuf> {
    named(name, places, |mode| mode & 0o111 == 0)
}

/// A file of that name with such a mode.
fn named(name: &str, places: &SearchPaths, is_wanted: fn(u32) -> bool) -> Option<PathBuf> {
    let fits =
        |path: &PathBuf| path.metadata().is_ok_and(|found| found.is_file() && is_wanted(found.permissions().mode()));
    if name.contains('/') {
        return expand(name, places).filter(fits);
    }
    if name.is_empty() {
        return None;
    }
    places.path.iter().filter(|directory| directory.is_absolute()).map(|directory| directory.join(name)).find(fits)
}

/// Expands a leading `~` in a path.
fn expand(path: &str, places: &SearchPaths) -> Option<PathBuf> {
    match path.strip_prefix('~') {
        Some(rest) => Some(places.home.as_ref()?.join(rest.trim_start_matches('/'))),
        None => Some(PathBuf::from(path)),
    }
}

/// Interpreter of a program.
#[derive(Debug, PartialEq, Eq)]
enum ScriptInterpreter {
    /// The `node` in PATH.
    NodeOfPath,
    /// A `node` by its path.
    Node(String),
    /// None, or another interpreter.
    Other,
}

fn interpreter(program: &Path) -> ScriptInterpreter {
    let head = head(program, 256).unwrap_or_default();
    let Some(line) = head.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next()) else {
        return ScriptInterpreter::Other;
    };
    let line = String::from_utf8_lossy(line).into_owned();
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    let is_node = |word: &str| word.rsplit('/').next() == Some("node");
    if is_node(first) {
        return ScriptInterpreter::Node(first.to_owned());
    }
    // `env -S node --flag` runs it too.
    let by_env =
        first.rsplit('/').next() == Some("env") && words.find(|word| !word.starts_with('-')).is_some_and(is_node);
    if by_env { ScriptInterpreter::NodeOfPath } else { ScriptInterpreter::Other }
}

fn head(path: &Path, longest: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(longest).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// `NAME VERSION` of the npm package that holds the program `name`, looked for as it is started.
pub fn packaged_program(spec: &AgentSpec, name: &str, places: &SearchPaths) -> Option<String> {
    let (package, version) = packaged(&executable(name, places)?.canonicalize().ok()?, spec)?;
    Some(format!("{package} {version}"))
}

/// Name and version of the npm package of `spec` that holds `program`; what holds it may be that package's part for this platform.
fn packaged(program: &Path, spec: &AgentSpec) -> Option<(String, String)> {
    let tried = spec.discovery.tried.iter().filter_map(|tried| tried.split_once(' ')).map(|(name, _)| name);
    let mut names: Vec<&str> = tried.chain([spec.discovery.npm_package.as_str()]).collect();
    // Of two that begin alike the longer one is meant.
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    names.into_iter().find_map(|name| Some((name.to_owned(), packaged_as(program, name)?)))
}

/// The version of the npm package `name` that holds `program`, or of the package of it for this platform.
fn packaged_as(program: &Path, name: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct PackageManifest {
        name: String,
        version: String,
    }
    if name.is_empty() {
        return None;
    }
    let package = |directory: &Path| {
        let package: PackageManifest = serde_json::from_slice(&head(&directory.join("package.json"), LONGEST)?).ok()?;
        let of_platform = package.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
        of_platform.then_some(package.version)
    };
    let version = program.ancestors().skip(1).take(MAX_PARENTS).find_map(package)?;
    // The version of a platform's package may name the platform: `0.169.0-linux-x64`.
    let platform = ["-linux", "-darwin", "-win32"].iter().find_map(|platform| version.find(platform));
    Some(version[..platform.unwrap_or(version.len())].to_owned())
}

/// Version, as far as it can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramVersion([u64; 3]);

impl ProgramVersion {
    /// Parses the first version in `text`: `2.1.329 (Claude Code)`, `codex-cli 0.169.0`, `v22.23.3`.
    pub fn parse(text: &str) -> Option<Self> {
        let word = |word: &str| {
            let mut parts = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
            let number = |part: &str| {
                let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                part[..end].parse::<u64>().ok()
            };
            let (major, minor) = (parts.next()?.parse().ok()?, number(parts.next()?)?);
            Some(Self([major, minor, parts.next().map_or(Some(0), number)?]))
        };
        text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | '/')).find_map(word)
    }
}

impl fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::DiscoverySpec;

    fn write(path: &Path, text: &str, mode: u32) {
        fs::create_dir_all(path.parent().expect("in a directory")).expect("created");
        fs::write(path, text).expect("written");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }

    fn spec(min_node: &str) -> AgentSpec {
        let mut spec = AgentSpec::new("tool", "acp", &["tool", "serve"]);
        spec.discovery =
            DiscoverySpec { npm_package: "@x/tool".into(), min_node: min_node.into(), ..DiscoverySpec::default() };
        spec.discovery.installation_path.linux = vec!["~/.tool".into(), "~/.other".into()];
        spec.discovery.installation_path.macos = spec.discovery.installation_path.linux.clone();
        spec.discovery.mcp_config_path.linux = vec!["~/.tool-mcp".into(), "/proc/none".into()];
        spec.discovery.mcp_config_path.macos = spec.discovery.mcp_config_path.linux.clone();
        spec
    }

    #[test]
    fn an_npm_package_behind_a_link_tells_its_version() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        write(&at("lib/node_modules/@x/tool/package.json"), r#"{"name":"@x/tool","version":"1.2.3-linux-x64"}"#, 0o644);
        write(&at("lib/node_modules/@x/tool/dist/cli.js"), "#!/usr/bin/env -S node --quiet\n", 0o755);
        write(&at("home/.tool"), "", 0o600);
        write(&at("home/.tool-mcp"), "", 0o600);
        fs::create_dir_all(at("bin")).expect("created");
        symlink(at("lib/node_modules/@x/tool/dist/cli.js"), at("bin/tool")).expect("linked");
        let places = SearchPaths { path: vec![at("none"), at("bin")], home: Some(at("home")) };

        let found = discover(&spec("22.19.0"), &places);
        assert_eq!(found.program, Some(at("bin/tool")));
        assert_eq!(found.version.as_deref(), Some("1.2.3"));
        assert_eq!(found.version_command, Some(vec![at("bin/tool").display().to_string(), "--version".into()]));
        assert_eq!(found.package.as_deref(), Some("@x/tool"));
        // Another package may have a program of the same name.
        write(&at("lib/node_modules/@x/tool/package.json"), r#"{"name":"@y/tool-next","version":"2.0.0"}"#, 0o644);
        let mut other = spec("");
        other.discovery.tried = vec!["@x/tool 1.0.0 - 1.2.3".into(), "@y/tool-next 2.0.0".into()];
        assert_eq!(packaged_program(&other, "tool", &places).as_deref(), Some("@y/tool-next 2.0.0"));
        assert_eq!(packaged_program(&spec(""), "tool", &places), None);
        assert_eq!((found.files, found.mcp_files), (vec![at("home/.tool")], vec![at("home/.tool-mcp")]));
        let node = found.node.expect("it is a script for node");
        assert_eq!(node.missing(None), Some("Node.js 22.19.0 or later: there is none in PATH".into()));

        write(&at("bin/node"), "", 0o755);
        let node = discover(&spec("22.19.0"), &places).node.expect("still");
        assert_eq!(node.program, Some(at("bin/node")));
        assert!(node.missing(ProgramVersion::parse("v20.1.0")).is_some_and(|text| text.ends_with("node is 20.1.0")));
        assert_eq!(node.missing(ProgramVersion::parse("v22.19.0")), None);
    }

    #[test]
    fn a_program_without_its_package_has_to_be_asked() {
        let root = tempfile::tempdir().expect("a directory");
        // Another package is above it.
        write(&root.path().join("package.json"), r#"{"name":"tools","version":"9.9.9"}"#, 0o644);
        let tool = root.path().join("bin/tool");
        write(&tool, "#!/bin/sh\nexec own-node cli.js\n", 0o755);
        let places = SearchPaths { path: vec![root.path().join("bin")], home: None };
        let found = discover(&spec("22.19.0"), &places);
        let command = vec![tool.display().to_string(), "--version".into()];
        assert_eq!((found.version, found.version_command, found.node), (None, Some(command), None));
        let silent =
            AgentSpec { discovery: DiscoverySpec { version_args: vec![], ..DiscoverySpec::default() }, ..spec("") };
        assert_eq!(discover(&silent, &places).version_command, None);
    }

    #[test]
    fn a_program_is_found_by_any_of_its_names() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        let places = SearchPaths { path: vec![at("bin")], home: Some(at("home")) };
        let mut spec = spec("");
        let names = vec!["tool2".to_owned(), "~/.tool/tool".to_owned()];
        (spec.discovery.executables.linux, spec.discovery.executables.macos) = (names.clone(), names);
        write(&at("bin/tool"), "", 0o755);
        assert_eq!(discover(&spec, &places).program, None, "not one of its names");
        write(&at("home/.tool/tool"), "", 0o755);
        assert_eq!(discover(&spec, &places).program, Some(at("home/.tool/tool")));
        write(&at("bin/tool2"), "", 0o755);
        let found = discover(&spec, &places);
        assert_eq!(
            (found.program, found.start_program),
            (Some(at("bin/tool2")), Some(at("bin/tool"))),
            "the first of them"
        );
        fs::remove_file(at("bin/tool")).expect("removed");
        assert_eq!(discover(&spec, &places).start_program, None);
    }

    #[test]
    fn what_cannot_be_run_is_not_found() {
        let root = tempfile::tempdir().expect("a directory");
        write(&root.path().join("tool"), "", 0o644);
        fs::create_dir_all(root.path().join("deep/tool")).expect("created");
        let path = vec![root.path().to_owned(), root.path().join("deep"), PathBuf::from("relative")];
        let found = discover(&spec("22.19.0"), &SearchPaths { path, home: None });
        assert_eq!((&found.program, found.files.len()), (&None, 0));
        assert_eq!(found.not_executable, Some(root.path().join("tool")), "which is another thing to say");
        assert!(found.node.is_some(), "what installs it needs node too");
        assert_eq!(discover(&AgentSpec::new("acp", "acp", &[]), &SearchPaths::default()), FoundAgent::default());
    }

    #[test]
    fn versions_in_what_programs_print() {
        for (text, version) in [
            ("2.1.329 (Claude Code)", Some([2, 1, 329])),
            ("codex-cli 0.169.0\n", Some([0, 169, 0])),
            ("v22.23.3", Some([22, 23, 3])),
            ("tool/1.4 linux", Some([1, 4, 0])),
            ("1.0.0-rc.1", Some([1, 0, 0])),
            ("usage: codex-acp [OPTIONS]", None),
            ("12", None),
            ("99999999999999999999.1.1", None),
        ] {
            assert_eq!(ProgramVersion::parse(text), version.map(ProgramVersion), "{text}");
        }
        assert!(ProgramVersion([22, 19, 0]) > ProgramVersion([22, 9, 9]));
    }
}
