//! What callers may ask of sessions at most, as the configuration has it.
//!
//! ```toml
//! [policy]                          # for everybody
//! cwd = ["/srv/work"]
//! agents = ["claude-code", "codex"]
//! containment = "cgroup"            # at least
//! permission-modes = ["ask", "deny", "readOnly"]
//! workspaces = ["copy", "worktree"] # no session works in the tree itself
//!
//! [policy.limits]                   # at most; a session that names no limit gets this one
//! memoryBytes = 4294967296
//!
//! [policy.roles.operate]            # besides, for a role, a user or a caller
//! max-sessions = 10
//!
//! [policy.users.ada]
//! cwd = ["/srv/work/ada"]
//!
//! [policy.callers.ci]
//! limits = { wallClockMs = 3600000 }
//! ```

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use globset::{GlobBuilder, GlobMatcher};
use proxy_manager::{
    AgentSessionConfig, Containment, Lifecycle, Limits, Operation, PermissionMode, Profiles, SessionMount,
    WorkspaceKind, workspace_source,
};
use serde::Deserialize;
use serde_json::json;

use super::{Identity, Role};
use crate::{ProblemDetails, requests::RouteResult};

/// Rules for what callers may ask for: the general ones, and more for a role, a user or a caller. All that apply have to hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Policy {
    /// Directories of sessions, with all below them; absolute.
    pub cwd: Option<Vec<PathBuf>>,
    /// Ids of agents in the catalog.
    pub agents: Option<Vec<String>>,
    /// Least containment.
    pub containment: Option<Containment>,
    /// Permission modes that may be chosen.
    pub permission_modes: Option<Vec<PermissionMode>>,
    /// Modes of agents that may be chosen, as with the operation `setMode`.
    pub modes: Option<Vec<String>>,
    /// Workspaces that may be chosen; `off` is the tree itself.
    pub workspaces: Option<Vec<WorkspaceKind>>,
    /// Globs for images that may be named, as the caller writes them; `*` is within one part of a name, `**` any parts. The image of an
    /// agent's row needs none.
    pub images: Option<Vec<String>>,
    /// Largest limits. A session that names none gets these.
    pub limits: Limits,
    /// Living sessions at once, of everybody to whom this applies.
    pub max_sessions: Option<usize>,
    /// True to let callers set where the agent's program comes from: its command line, its address, variables of its loader.
    pub commands: Option<bool>,
    /// Hosts that callbacks of asks may go to, of those that the webhooks' configuration allows.
    pub callback_hosts: Option<Vec<String>>,
    /// More rules for callers of a role.
    pub roles: BTreeMap<Role, PolicyRules>,
    /// More rules for sessions of a user.
    pub users: BTreeMap<String, PolicyRules>,
    /// More rules for callers of a name: tokens, for example.
    pub callers: BTreeMap<String, PolicyRules>,
}

/// Rules for some callers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PolicyRules {
    /// See [`Policy::cwd`].
    pub cwd: Option<Vec<PathBuf>>,
    /// See [`Policy::agents`].
    pub agents: Option<Vec<String>>,
    /// See [`Policy::containment`].
    pub containment: Option<Containment>,
    /// See [`Policy::permission_modes`].
    pub permission_modes: Option<Vec<PermissionMode>>,
    /// See [`Policy::modes`].
    pub modes: Option<Vec<String>>,
    /// See [`Policy::workspaces`].
    pub workspaces: Option<Vec<WorkspaceKind>>,
    /// See [`Policy::images`].
    pub images: Option<Vec<String>>,
    /// See [`Policy::limits`].
    pub limits: Limits,
    /// See [`Policy::max_sessions`].
    pub max_sessions: Option<usize>,
    /// See [`Policy::commands`].
    pub commands: Option<bool>,
    /// See [`Policy::callback_hosts`].
    pub callback_hosts: Option<Vec<String>>,
}

/// Rules with the place in the configuration where they stand.
struct NamedRules {
    place: String,
    rules: PolicyRules,
    scope: SessionScope,
}

/// Sessions that count against a bound.
#[derive(Clone, Debug, PartialEq)]
enum SessionScope {
    All,
    Role(Role),
    User(String),
    Caller(String),
}

impl Policy {
    /// Returns true if nothing is restricted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Checks that the policy can hold.
    ///
    /// # Errors
    /// Says which key is wrong, and what is allowed there.
    pub fn check(&self) -> Result<(), String> {
        let general = std::iter::once(("policy".to_owned(), self.general()));
        let tables = general
            .chain(self.roles.iter().map(|(role, rules)| (format!("policy.roles.{role}"), rules.clone())))
            .chain(self.users.iter().map(|(user, rules)| (format!("policy.users.{user}"), rules.clone())))
            .chain(self.callers.iter().map(|(name, rules)| (format!("policy.callers.{name}"), rules.clone())));
        for (place, rules) in tables {
            for directory in rules.cwd.iter().flatten() {
                if !directory.is_absolute() || directory.components().any(|part| part == Component::ParentDir) {
                    return Err(format!("{place}.cwd has {directory:?}: a directory there is absolute, without `..`"));
                }
            }
            for image in rules.images.iter().flatten() {
                image_glob(image).map_err(|error| format!("{place}.images has {image:?}: {error}"))?;
            }
        }
        Ok(())
    }

    fn general(&self) -> PolicyRules {
        PolicyRules {
            cwd: self.cwd.clone(),
            agents: self.agents.clone(),
            containment: self.containment,
            permission_modes: self.permission_modes.clone(),
            modes: self.modes.clone(),
            workspaces: self.workspaces.clone(),
            images: self.images.clone(),
            limits: self.limits.clone(),
            max_sessions: self.max_sessions,
            commands: self.commands,
            callback_hosts: self.callback_hosts.clone(),
        }
    }

    /// Returns the rules for a caller who acts for a user.
    fn rules(&self, identity: &Identity, user: Option<&str>) -> Vec<NamedRules> {
        let mut found = vec![NamedRules { place: "policy".into(), rules: self.general(), scope: SessionScope::All }];
        if let Some(rules) = self.roles.get(&identity.role) {
            let (place, scope) = (format!("policy.roles.{}", identity.role), SessionScope::Role(identity.role));
            found.push(NamedRules { place, rules: rules.clone(), scope });
        }
        if let Some((user, rules)) = user.and_then(|user| self.users.get_key_value(user)) {
            let (place, scope) = (format!("policy.users.{user}"), SessionScope::User(user.clone()));
            found.push(NamedRules { place, rules: rules.clone(), scope });
        }
        if let Some((name, rules)) = self.callers.get_key_value(&identity.name) {
            let (place, scope) = (format!("policy.callers.{name}"), SessionScope::Caller(name.clone()));
            found.push(NamedRules { place, rules: rules.clone(), scope });
        }
        found
    }
}

/// Living sessions, for bounds on their number.
pub(crate) trait LivingSessions {
    /// Counts those of a user, or of all.
    fn of_user(&self, user: Option<&str>) -> usize;
    /// Counts those that callers of this role, or this caller, have started.
    fn of_caller(&self, role: Option<Role>, name: Option<&str>) -> usize;
}

impl Policy {
    /// Checks a session that is about to start or resume, and gives it the limits that it does not name.
    ///
    /// # Errors
    /// `refused`: says which field, what was given and what is allowed.
    pub(crate) fn apply(
        &self,
        identity: &Identity,
        config: &mut AgentSessionConfig,
        profiles: &Profiles,
        living: &impl LivingSessions,
    ) -> RouteResult<()> {
        let effective = effective(config, profiles);
        for NamedRules { place, rules, scope } in self.rules(identity, config.user_id.as_deref()) {
            check_session(&place, &rules, &effective)?;
            check_shell_commands(&place, &rules, &config.lifecycle)?;
            apply_limits(&place, &rules.limits, &effective.limits, &mut config.limits)?;
            if let Some(most) = rules.max_sessions {
                let there = match &scope {
                    SessionScope::All => living.of_user(None),
                    SessionScope::User(user) => living.of_user(Some(user)),
                    SessionScope::Role(role) => living.of_caller(Some(*role), None),
                    SessionScope::Caller(name) => living.of_caller(None, Some(name)),
                };
                if there >= most {
                    return Err(excess(&place, "max-sessions", &json!(there + 1), &json!(most)));
                }
            }
        }
        Ok(())
    }

    /// Gives a session that is nobody's the limits for everybody, as a start of anybody's would get them.
    ///
    /// # Errors
    /// `refused` for a limit of its profile's that is larger.
    pub fn apply_general_limits(&self, config: &mut AgentSessionConfig, profiles: &Profiles) -> RouteResult<()> {
        let limits = effective(config, profiles).limits;
        apply_limits("policy", &self.limits, &limits, &mut config.limits)
    }

    /// Checks an operation on a session of a user.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_operation(
        &self,
        identity: &Identity,
        user: Option<&str>,
        operation: &Operation,
    ) -> RouteResult<()> {
        for NamedRules { place, rules, .. } in self.rules(identity, user) {
            match (operation, &rules.modes) {
                (Operation::SetMode { mode }, Some(allowed)) if !allowed.contains(mode) => {
                    return Err(excess(&place, "mode", &json!(mode), &json!(allowed)));
                }
                // A command of the agent's own could set anything.
                (Operation::Native { .. }, Some(allowed)) => {
                    return Err(excess(
                        &place,
                        "native",
                        &json!("a command of the agent's own"),
                        &json!({ "modes": allowed }),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Policy {
    /// Checks a program of the caller's beside the agent of a user's session.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_shell(&self, identity: &Identity, user: Option<&str>) -> RouteResult<()> {
        let forbids = self.rules(identity, user).into_iter().find(|named| named.rules.commands == Some(false));
        match forbids {
            Some(NamedRules { place, .. }) => {
                Err(excess(&place, "shell", &json!("a program of the caller's"), &json!({ "commands": false })))
            }
            None => Ok(()),
        }
    }

    /// Checks the host of a callback, of an ask in a session of a user.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_callback(&self, identity: &Identity, user: Option<&str>, host: &str) -> RouteResult<()> {
        for NamedRules { place, rules, .. } in self.rules(identity, user) {
            if let Some(allowed) = &rules.callback_hosts
                && !allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
            {
                return Err(excess(&place, "callback", &json!(host), &json!(allowed)));
            }
        }
        Ok(())
    }

    /// Checks a visit of the own screen of an agent, in a session of a user.
    ///
    /// # Errors
    /// `refused`.
    pub(crate) fn check_visit(&self, identity: &Identity, user: Option<&str>) -> RouteResult<()> {
        for NamedRules { place, rules, .. } in self.rules(identity, user) {
            let given = json!("the agent's own screen, which sets them");
            if let Some(allowed) = &rules.modes {
                return Err(excess(&place, "modes", &given, &json!(allowed)));
            }
            if let Some(allowed) = &rules.permission_modes {
                return Err(excess(&place, "permissionMode", &given, &json!(allowed)));
            }
        }
        Ok(())
    }
}

/// Returns a configuration as its profile makes it.
fn effective(config: &AgentSessionConfig, profiles: &Profiles) -> AgentSessionConfig {
    let mut effective = config.clone();
    if let Some(profile) = config.profile.as_deref().and_then(|name| profiles.get(name).ok()) {
        // What does not fit is an error of the start.
        let _ = profile.apply(&mut effective);
    }
    effective
}

/// Returns the real path of the nearest directory that exists: `cwd`, or one above it. `None` for a path with `..`.
fn nearest(cwd: &Path) -> Option<PathBuf> {
    let is_plain = cwd.is_absolute() && !cwd.components().any(|part| part == Component::ParentDir);
    is_plain.then(|| cwd.ancestors().find_map(|directory| fs::canonicalize(directory).ok())).flatten()
}

fn excess(place: &str, field: &str, given: &serde_json::Value, allowed: &serde_json::Value) -> ProblemDetails {
    ProblemDetails::new(
        "refused",
        format!("{field}: given is {given}, and {place} of the configuration allows {allowed}"),
    )
}

/// Checks the shell commands that the caller names, beside those of a profile: they run outside the agent and its sandbox.
fn check_shell_commands(place: &str, rules: &PolicyRules, lifecycle: &Lifecycle) -> RouteResult<()> {
    let fields = [("lifecycle.beforeStart", &lifecycle.before_start), ("lifecycle.afterEnd", &lifecycle.after_end)];
    let Some((field, given)) = fields.into_iter().find(|(_, given)| given.is_some()) else { return Ok(()) };
    if rules.commands == Some(false) {
        return Err(excess(place, field, &json!(given), &json!({ "commands": false })));
    }
    match &rules.agents {
        Some(allowed) if !allowed.iter().any(|agent| agent == "command") => {
            Err(excess(place, field, &json!(given), &json!({ "agents": allowed })))
        }
        _ => Ok(()),
    }
}

fn check_session(place: &str, rules: &PolicyRules, config: &AgentSessionConfig) -> RouteResult<()> {
    if let Some(allowed) = &rules.cwd {
        let given = config.cwd.as_deref();
        // A link would lead out of the directory.
        let has_workspace = config.workspace.unwrap_or_default() != WorkspaceKind::Off;
        let real = given.and_then(|cwd| match has_workspace {
            // Changes are applied to all of it.
            true => workspace_source(Path::new(cwd)).ok(),
            // The command before the start may make it.
            false if config.lifecycle.before_start.is_some() => nearest(Path::new(cwd)),
            false => fs::canonicalize(cwd).ok(),
        });
        let within = |directory: &PathBuf| {
            let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
            real.as_deref().is_some_and(|real: &Path| real.starts_with(&directory))
        };
        if !allowed.iter().any(within) {
            return Err(excess(place, "cwd", &json!(given), &json!(allowed)));
        }
        for SessionMount { source, .. } in &config.container.mounts {
            let real = fs::canonicalize(source).ok();
            let within = |directory: &PathBuf| {
                let directory = fs::canonicalize(directory).unwrap_or_else(|_| directory.clone());
                real.as_deref().is_some_and(|real: &Path| real.starts_with(&directory))
            };
            if !allowed.iter().any(within) {
                return Err(excess(place, "container.mounts", &json!(source), &json!(allowed)));
            }
        }
    }
    if let Some(allowed) = &rules.agents
        && !allowed.contains(&config.agent)
    {
        return Err(excess(place, "agent", &json!(config.agent), &json!(allowed)));
    }
    if let Some(least) = rules.containment {
        // A container has a PID and a mount namespace.
        let of_container = config.container.image.as_ref().map(|_| Containment::Strict);
        let given = of_container.or(config.containment).unwrap_or_default();
        if strength(given) < strength(least) {
            return Err(excess(place, "containment", &json!(given), &json!({ "at least": least })));
        }
    }
    if let Some(allowed) = &rules.permission_modes
        && !allowed.contains(&config.permission_mode)
    {
        return Err(excess(place, "permissionMode", &json!(config.permission_mode), &json!(allowed)));
    }
    if let (Some(allowed), Some(mode)) = (&rules.modes, &config.mode)
        && !allowed.contains(mode)
    {
        return Err(excess(place, "mode", &json!(mode), &json!(allowed)));
    }
    let workspace = config.workspace.unwrap_or_default();
    if let Some(allowed) = &rules.workspaces
        && !allowed.contains(&workspace)
    {
        return Err(excess(place, "workspace", &json!(workspace), &json!(allowed)));
    }
    if let (Some(allowed), Some(image)) = (&rules.images, &config.container.image) {
        let fits = |glob: &String| image_glob(glob).is_ok_and(|glob| glob.is_match(image));
        if !allowed.iter().any(fits) {
            return Err(excess(place, "container.image", &json!(image), &json!(allowed)));
        }
    }
    if rules.commands == Some(false) {
        let is_loader = |name: &str| name == "PATH" || name.starts_with("LD_");
        let given = [
            ("command", !config.command.is_empty()),
            ("endpoint", config.endpoint.is_some()),
            ("mcpServers", !config.mcp_servers.is_empty()),
            ("env", config.env.0.keys().any(|name| is_loader(name))),
        ];
        if let Some((field, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
            return Err(excess(place, field, &json!("some"), &json!(null)));
        }
    }
    Ok(())
}

/// Compiles a glob for images.
fn image_glob(glob: &str) -> Result<GlobMatcher, globset::Error> {
    Ok(GlobBuilder::new(glob).literal_separator(true).build()?.compile_matcher())
}

/// Order of containments: `auto` promises no more than the baseline.
fn strength(containment: Containment) -> u8 {
    match containment {
        Containment::Auto | Containment::Baseline => 0,
        Containment::Cgroup => 1,
        Containment::Strict => 2,
    }
}

fn apply_limits(place: &str, most: &Limits, effective: &Limits, given: &mut Limits) -> RouteResult<()> {
    let fields = [
        ("limits.memoryBytes", most.memory_bytes, effective.memory_bytes, &mut given.memory_bytes),
        ("limits.processes", most.processes, effective.processes, &mut given.processes),
        ("limits.cpuTimeMs", most.cpu_time_ms, effective.cpu_time_ms, &mut given.cpu_time_ms),
        ("limits.cpuPercent", most.cpu_percent, effective.cpu_percent, &mut given.cpu_percent),
        ("limits.openFiles", most.open_files, effective.open_files, &mut given.open_files),
        ("limits.fileSizeBytes", most.file_size_bytes, effective.file_size_bytes, &mut given.file_size_bytes),
        ("limits.wallClockMs", most.wall_clock_ms, effective.wall_clock_ms, &mut given.wall_clock_ms),
    ];
    for (field, most, effective, given) in fields {
        let Some(most) = most else { continue };
        match effective {
            Some(asked) if asked > most => {
                return Err(excess(place, field, &json!(asked), &json!({ "at most": most })));
            }
            Some(_) => {}
            // The smallest of several tables.
            None => *given = Some(given.map_or(most, |set| set.min(most))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Living(usize);

    impl LivingSessions for Living {
        fn of_user(&self, _: Option<&str>) -> usize {
            self.0
        }

        fn of_caller(&self, _: Option<Role>, _: Option<&str>) -> usize {
            self.0
        }
    }

    fn policy(json: serde_json::Value) -> Policy {
        serde_json::from_value(json).expect("a policy")
    }

    fn applied(policy: &Policy, config: &mut AgentSessionConfig) -> Result<(), String> {
        let identity = Identity::new("ci", Role::Operate);
        policy.apply(&identity, config, &Profiles::default(), &Living(2)).map_err(|problem| problem.detail)
    }

    #[test]
    fn an_excess_says_the_field_what_was_given_and_what_is_allowed() {
        let directory = tempfile::tempdir().expect("a directory");
        let work = directory.path().join("work");
        fs::create_dir_all(work.join("deep/below")).expect("made");
        fs::create_dir(work.join("deep/.git")).expect("made");
        fs::create_dir(directory.path().join("workshop")).expect("made");
        std::os::unix::fs::symlink("/", work.join("out")).expect("linked");
        let work = work.to_str().expect("UTF-8");
        let config = || AgentSessionConfig { cwd: Some(work.to_owned()), ..AgentSessionConfig::new("command") };
        let with = |change: &dyn Fn(&mut AgentSessionConfig)| {
            let mut config = config();
            change(&mut config);
            config
        };
        for (rules, wrong, right) in [
            (json!({ "cwd": [work] }), with(&|c| c.cwd = Some("/".into())), config()),
            (json!({ "cwd": [work] }), with(&|c| c.cwd = None), with(&|c| c.cwd = Some(format!("{work}/deep")))),
            (json!({ "cwd": [work] }), with(&|c| c.cwd = Some(format!("{work}/out"))), config()),
            (json!({ "cwd": [work] }), with(&|c| c.cwd = Some(format!("{work}/deep/../.."))), config()),
            (json!({ "cwd": [work] }), with(&|c| c.cwd = Some(format!("{work}shop"))), config()),
            (
                json!({ "cwd": [format!("{work}/deep/below")] }),
                with(&|c| {
                    c.cwd = Some(format!("{work}/deep/below"));
                    c.workspace = Some(WorkspaceKind::Worktree);
                }),
                with(&|c| c.cwd = Some(format!("{work}/deep/below"))),
            ),
            (json!({ "workspaces": ["copy"] }), config(), with(&|c| c.workspace = Some(WorkspaceKind::Copy))),
            (
                json!({ "images": ["ghcr.io/us/*:v1", "local/**"] }),
                with(&|c| c.container.image = Some("ghcr.io/us/deep/agent:v1".into())),
                with(&|c| c.container.image = Some("ghcr.io/us/agent:v1".into())),
            ),
            (
                json!({ "images": ["ghcr.io/us/*:v1", "local/**"] }),
                with(&|c| c.container.image = Some("ghcr.io/us/agent".into())),
                with(&|c| c.container.image = Some("local/a/b".into())),
            ),
            (json!({ "images": [] }), with(&|c| c.container.image = Some("x".into())), config()),
            (
                json!({ "cwd": [work] }),
                with(&|c| c.container.mounts = vec!["/etc:/host".parse().expect("a mount")]),
                with(&|c| c.container.mounts = vec![format!("{work}/deep:/deep:ro").parse().expect("a mount")]),
            ),
            (json!({ "containment": "strict" }), config(), with(&|c| c.container.image = Some("x".into()))),
            (json!({ "agents": ["command"] }), with(&|c| c.agent = "pi".into()), config()),
            (json!({ "containment": "cgroup" }), config(), with(&|c| c.containment = Some(Containment::Strict))),
            (
                json!({ "containment": "strict" }),
                with(&|c| c.containment = Some(Containment::Cgroup)),
                with(&|c| c.containment = Some(Containment::Strict)),
            ),
            (json!({ "permission-modes": ["ask"] }), with(&|c| c.permission_mode = PermissionMode::Allow), config()),
            (
                json!({ "modes": ["plan"] }),
                with(&|c| c.mode = Some("build".into())),
                with(&|c| c.mode = Some("plan".into())),
            ),
            (
                json!({ "limits": { "processes": 5 } }),
                with(&|c| c.limits.processes = Some(6)),
                with(&|c| c.limits.processes = Some(5)),
            ),
            (json!({ "commands": false }), with(&|c| c.command = vec!["sh".into()]), config()),
            (json!({ "max-sessions": 2 }), config(), config()),
        ] {
            let most = rules.get("max-sessions").is_some();
            for rules in
                [rules.clone(), json!({ "roles": { "operate": rules } }), json!({ "callers": { "ci": rules } })]
            {
                let policy = policy(rules.clone());
                let problem = applied(&policy, &mut wrong.clone()).expect_err("too much");
                assert!(problem.contains("given is") && problem.contains("allows"), "{rules}: {problem}");
                if !most {
                    applied(&policy, &mut right.clone()).unwrap_or_else(|problem| panic!("{rules}: {problem}"));
                }
            }
            // For somebody else.
            let policy =
                policy(json!({ "roles": { "read": rules }, "users": { "ada": rules }, "callers": { "x": rules } }));
            applied(&policy, &mut wrong.clone()).expect("of others");
        }
    }

    #[test]
    fn a_session_that_names_no_limit_gets_the_smallest() {
        let policy = policy(json!({
            "limits": { "memoryBytes": 100, "processes": 9 },
            "roles": { "operate": { "limits": { "memoryBytes": 50 } } },
            "callers": { "ci": { "limits": { "memoryBytes": 70 } } }
        }));
        let mut config = AgentSessionConfig::new("command");
        applied(&policy, &mut config).expect("allowed");
        assert_eq!((config.limits.memory_bytes, config.limits.processes), (Some(50), Some(9)));
    }

    #[test]
    fn a_key_that_is_not_known_is_refused() {
        for wrong in
            [json!({ "cwds": [] }), json!({ "roles": { "root": {} } }), json!({ "users": { "a": { "x": 1 } } })]
        {
            serde_json::from_value::<Policy>(wrong.clone()).expect_err(&wrong.to_string());
        }
        for wrong in ["work", "/srv/../etc"] {
            let error =
                policy(json!({ "callers": { "ci": { "cwd": [wrong] } } })).check().expect_err("no absolute path");
            assert!(error.starts_with("policy.callers.ci.cwd"), "{error}");
        }
    }

    #[test]
    fn a_mode_is_not_changed_beyond_what_is_allowed() {
        let policy = policy(json!({ "modes": ["plan"] }));
        let identity = Identity::new("ci", Role::Operate);
        let check = |operation| policy.check_operation(&identity, None, &operation).map_err(|problem| problem.status);
        assert_eq!(check(Operation::SetMode { mode: "build".into() }), Err(403));
        assert_eq!(check(Operation::SetMode { mode: "plan".into() }), Ok(()));
        let message = proxy_manager::Json::from(&json!({ "set": "build" }));
        assert_eq!(check(Operation::Native { message }), Err(403));
        assert_eq!(check(Operation::Compact), Ok(()));
    }
}
