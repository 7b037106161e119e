//! Checks with real sessions of `cat`: each layer, the observers, each limit, each hardening measure.

use std::{
    fs,
    time::{Duration, Instant},
};

use ipc_protocol::ErrorChain;
use proxy_manager::{
    AgentSessionConfig, Capabilities, ChildProgram, Containment, ContainmentStatus, Error, Event, Hardening,
    KillOptions, LimitForm, LimitKind, Limits, ObserverKind, ProxyManager, Receipt, UnavailableFeature,
};

use super::DoctorCheck;
use crate::{environment, render};

/// Longest time for each session, from its start to its proof.
const DEADLINE: Duration = Duration::from_secs(15);

/// Name of the check that the baseline works.
const BASELINE: &str = "test session";

/// Runs all checks that need a manager.
pub(super) async fn examine(child: ChildProgram) -> Vec<DoctorCheck> {
    let begin = Instant::now();
    let manager = match ProxyManager::builder(child).base_env(environment::base()).build().await {
        Ok(manager) => manager,
        Err(error) => return vec![broken(&ErrorChain(&error).to_string())],
    };
    let built = begin.elapsed();
    let capabilities = manager.capabilities().await;
    let mut checks = Vec::new();
    match capabilities {
        Ok(capabilities) => {
            let baseline = SessionTrial::new(&manager, with(Containment::Baseline)).await;
            checks.push(test_session(built, &baseline));
            checks.extend(layers(&manager, &capabilities, &baseline).await);
            checks.extend(observers(&baseline).await);
            checks.extend(controllers(&capabilities));
        }
        Err(error) => checks.push(broken(&ErrorChain(&error).to_string())),
    }
    checks.extend(limits(&manager).await);
    checks.extend(hardening(&manager).await);
    checks.extend(super::engines::examine(&manager).await);
    manager.shutdown().await;
    checks
}

fn broken(what: &str) -> DoctorCheck {
    DoctorCheck::missing(BASELINE, what, "run `agent-proxy -vv doctor` for details").needed()
}

fn with(containment: Containment) -> AgentSessionConfig {
    AgentSessionConfig {
        command: vec!["cat".into()],
        containment: Some(containment),
        ..AgentSessionConfig::new("command")
    }
}

/// Findings in a session of `cat`.
#[derive(Debug)]
struct SessionTrial {
    ready: Duration,
    measures: ContainmentStatus,
    /// True if the agent can gain no privileges: `NoNewPrivs` of its `/proc/PID/status`.
    no_new_privs: Option<bool>,
    /// True if a crash of the agent can leave a core file: its `/proc/PID/limits`.
    core_dumps: Option<bool>,
    receipt: Receipt,
}

impl SessionTrial {
    /// Starts a session and kills it.
    async fn new(manager: &ProxyManager, config: AgentSessionConfig) -> Result<Self, Error> {
        let late = || Error::Deadline { operation: "a test session".into(), after: DEADLINE };
        tokio::time::timeout(DEADLINE, Self::run(manager, config)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn run(manager: &ProxyManager, config: AgentSessionConfig) -> Result<Self, Error> {
        let begin = Instant::now();
        let session = manager.start_session(config).await?;
        let ready = begin.elapsed();
        let no_new_privs = session.info().processes.agent_process.and_then(|agent| no_new_privs(agent.pid));
        let core_dumps = session.info().processes.agent_process.and_then(|agent| core_dumps(agent.pid));
        let mut events = session.subscribe();
        let receipt = session.kill(KillOptions::default()).await?;
        let mut measures = ContainmentStatus::default();
        while let Some(envelope) = events.next().await {
            if let Event::SessionStarted { measures: told, .. } = &envelope.event {
                measures = (**told).clone();
            }
        }
        Ok(Self { ready, measures, no_new_privs, core_dumps, receipt })
    }

    fn figures(&self) -> String {
        let killed = render::duration(self.receipt.duration());
        format!("`cat` ready in {}, killed and proven in {killed}", render::duration(self.ready))
    }
}

fn no_new_privs(pid: u32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix("NoNewPrivs:")?.trim() == "1"))
}

fn core_dumps(pid: u32) -> Option<bool> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"))?;
    // Soft and hard limit.
    Some(line.split_whitespace().take(2).any(|limit| limit != "0"))
}

fn test_session(built: Duration, tried: &Result<SessionTrial, Error>) -> DoctorCheck {
    match tried {
        Ok(tried) => {
            DoctorCheck::ok(BASELINE, format!("fork server {}, {}", render::duration(built), tried.figures())).needed()
        }
        Err(error) => broken(&ErrorChain(error).to_string()),
    }
}

async fn layers(
    manager: &ProxyManager,
    found: &Capabilities,
    baseline: &Result<SessionTrial, Error>,
) -> Vec<DoctorCheck> {
    let default = match found.default {
        Containment::Auto if found.cgroup.is_ok() => "sessions get this and a cgroup unless they ask for less",
        Containment::Auto => "sessions get this unless they ask for more",
        _ => "sessions get this at least",
    };
    let baseline = match baseline {
        Ok(_) => DoctorCheck::ok("layer baseline", format!("process group, subreaper, proof, guard; {default}")),
        Err(error) => DoctorCheck::missing("layer baseline", ErrorChain(error).to_string(), "see the test session"),
    };
    let cgroup = match &found.cgroup {
        Ok(path) => layer(manager, "layer cgroup", Containment::Cgroup, &path.display().to_string()).await,
        Err(why) => unavailable("layer cgroup", why),
    };
    let strict = match &found.strict {
        Ok(()) => {
            let found = "PID and mount namespace: the one for agents that are not trusted (--containment strict)";
            layer(manager, "layer strict", Containment::Strict, found).await
        }
        Err(why) => unavailable("layer strict", why),
    };
    vec![baseline, cgroup, strict]
}

/// Checks a layer that should be available.
async fn layer(manager: &ProxyManager, name: &'static str, containment: Containment, found: &str) -> DoctorCheck {
    let layer = if containment == Containment::Strict {
        ipc_protocol::ContainmentLayer::Strict
    } else {
        ipc_protocol::ContainmentLayer::Cgroup
    };
    match SessionTrial::new(manager, with(containment)).await {
        Ok(tried) if tried.receipt.layers.contains(&layer) => {
            let files = if tried.measures.own_cgroups_only {
                "of cgroup files agents can write to their own group's only"
            } else {
                "agents can write to the cgroup files that your user can write to"
            };
            DoctorCheck::ok(name, format!("{found}; {files}; {}", tried.figures()))
        }
        Ok(tried) => {
            let held = render::receipt::layers(&tried.receipt.layers);
            DoctorCheck::missing(
                name,
                format!("asked for, and its receipt names only {held}"),
                "report this: it is a defect",
            )
        }
        Err(error) => {
            DoctorCheck::missing(name, ErrorChain(&error).to_string(), "run `agent-proxy -vv doctor` for details")
        }
    }
}

fn unavailable(name: &'static str, why: &UnavailableFeature) -> DoctorCheck {
    DoctorCheck::missing(name, format!("{}: {}", why.what, why.why), why.advice.clone())
}

/// Checks the observers of processes.
async fn observers(baseline: &Result<SessionTrial, Error>) -> Vec<DoctorCheck> {
    const CONNECTOR: &str = "observer connector";
    let polling = DoctorCheck::ok(
        "observer polling",
        "looks at /proc every 10 ms while a turn runs, else every 250 ms; what lives shorter can be missed",
    );
    let observer = baseline.as_ref().ok().map(|tried| tried.measures.observer);
    let connector = match observer {
        Some(ObserverKind::Connector) => {
            DoctorCheck::ok(CONNECTOR, "netlink proc connector: every process, with its exit status")
        }
        _ => match tokio::task::spawn_blocking(registry::ProcConnector::probe).await {
            Ok(Err(why)) => unavailable(CONNECTOR, &why),
            _ => DoctorCheck::missing(
                CONNECTOR,
                "it works here, and the test session had none",
                "report this: it is a defect",
            ),
        },
    };
    vec![connector, polling]
}

fn controllers(found: &Capabilities) -> Vec<DoctorCheck> {
    let has = found.controllers;
    [("controller memory", has.memory), ("controller pids", has.pids), ("controller cpu", has.cpu)]
        .into_iter()
        .map(|(name, has)| match (&found.cgroup, has) {
            (_, true) => DoctorCheck::ok(name, "the kernel limits the whole session"),
            (Ok(path), false) => DoctorCheck::missing(
                name,
                format!("{} cannot give it to its sessions", path.display()),
                "delegate it (systemd: Delegate=yes), and on hybrid hosts unbind it from cgroup v1; until then a \
                 watchdog samples",
            ),
            (Err(why), false) => DoctorCheck::missing(name, "no cgroup, see there", why.advice.clone()),
        })
        .collect()
}

/// Checks each kind of limit, with values that nothing passes, and reports its form of enforcement.
async fn limits(manager: &ProxyManager) -> Vec<DoctorCheck> {
    const HOUR: u64 = 3_600_000;
    let limits = Limits {
        memory_bytes: Some(1 << 40),
        processes: Some(10_000),
        cpu_time_ms: Some(HOUR),
        cpu_percent: Some(10_000),
        open_files: Some(256),
        file_size_bytes: Some(1 << 40),
        wall_clock_ms: Some(HOUR),
        ..Limits::default()
    };
    let tried = SessionTrial::new(manager, AgentSessionConfig { limits, ..with(Containment::Auto) }).await;
    let check = |(kind, _)| {
        let name = limit_name(kind);
        let tried = match &tried {
            Ok(tried) => tried,
            Err(error) => {
                return DoctorCheck::missing(name, ErrorChain(error).to_string(), "start sessions without it");
            }
        };
        match tried.measures.limits.iter().find(|limit| limit.limit == kind) {
            Some(limit) => DoctorCheck::ok(name, enforced(kind, limit.form, tried.measures.observer)),
            None => DoctorCheck::missing(name, "asked for, and not in force", "report this: it is a defect"),
        }
    };
    let mut checks: Vec<_> = LimitKind::ALL.into_iter().map(check).collect();
    checks.push(match tried.as_ref().map(|tried| tried.core_dumps) {
        Ok(Some(false)) => DoctorCheck::ok("core dumps", "off: rlimit, unless a session asks for them"),
        Ok(Some(true)) => DoctorCheck::missing("core dumps", "to be off, and not", "report this: it is a defect"),
        Ok(None) => DoctorCheck::note("core dumps", "not known".to_owned(), None),
        Err(error) => DoctorCheck::missing("core dumps", ErrorChain(error).to_string(), "see the test session"),
    });
    checks
}

fn limit_name(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::Memory => "limit memory",
        LimitKind::Processes => "limit pids",
        LimitKind::CpuTime => "limit cpu-time",
        LimitKind::CpuPercent => "limit cpu",
        LimitKind::OpenFiles => "limit open-files",
        LimitKind::FileSize => "limit file-size",
        LimitKind::WallClock => "limit wall-clock",
    }
}

fn enforced(kind: LimitKind, form: LimitForm, observer: ObserverKind) -> &'static str {
    match (form, kind, observer) {
        (LimitForm::Cgroup, ..) => "cgroup controller: the kernel, for the whole session",
        // Without the connector the process that the kernel ends is unknown, unless the proxy reaps it.
        (LimitForm::Rlimit, LimitKind::FileSize, ObserverKind::Polling) => {
            "rlimit: the kernel, for each process; without the connector a file at its limit is noticed, and the action \
             taken, only while it is open"
        }
        (LimitForm::Rlimit, ..) => "rlimit: the kernel, for each process",
        (LimitForm::Clock, ..) => "the proxy's clock",
        (LimitForm::Watchdog, ..) => "watchdog: the proxy samples the whole tree",
    }
}

/// Checks the protection of everything else from an agent.
async fn hardening(manager: &ProxyManager) -> Vec<DoctorCheck> {
    let plain = SessionTrial::new(manager, with(Containment::Baseline)).await;
    let hardening = Hardening { landlock: Some(true), ..Hardening::default() };
    let locked = SessionTrial::new(manager, AgentSessionConfig { hardening, ..with(Containment::Baseline) }).await;
    let undumpable = match &plain {
        Ok(tried) if tried.measures.undumpable => {
            DoctorCheck::ok("undumpable proxy", "processes of your user can neither trace it nor read its memory")
        }
        Ok(_) => DoctorCheck::missing("undumpable proxy", "asked for, and not in force", "report this: it is a defect"),
        Err(error) => DoctorCheck::missing("undumpable proxy", ErrorChain(error).to_string(), "see the test session"),
    };
    let by_default = plain.as_ref().is_ok_and(|tried| tried.measures.landlock);
    let landlock = match &locked {
        Ok(tried) if tried.measures.landlock => DoctorCheck::ok(
            "landlock scope",
            format!(
                "agents signal and trace nothing outside their session; {} by default",
                if by_default { "on" } else { "off" }
            ),
        ),
        Ok(_) => DoctorCheck::missing("landlock scope", "asked for, and not in force", "report this: it is a defect"),
        Err(error) => match registry::landlock_scope_is_available() {
            Err(why) => unavailable("landlock scope", &why),
            Ok(()) => DoctorCheck::missing(
                "landlock scope",
                ErrorChain(error).to_string(),
                "run `agent-proxy -vv doctor` for details",
            ),
        },
    };
    let word = |tried: &Result<SessionTrial, Error>| match tried.as_ref().ok().and_then(|tried| tried.no_new_privs) {
        Some(true) => "on: sudo does not work",
        Some(false) => "off: sudo works",
        None => "not known",
    };
    let found = match (word(&plain), word(&locked)) {
        (word, locked) if word == locked => format!("{word}, with --landlock on too"),
        (word, locked) => format!("{word}; with --landlock on it is {locked}"),
    };
    let no_new_privs = match plain.as_ref().ok().and_then(|tried| tried.no_new_privs) {
        Some(_) => DoctorCheck::ok("no_new_privs", found),
        None => DoctorCheck::note("no_new_privs", found, None),
    };
    vec![undumpable, landlock, no_new_privs, private_proc()]
}

fn private_proc() -> DoctorCheck {
    const NAME: &str = "private /proc";
    if registry::has_private_proc() {
        return DoctorCheck::ok(
            NAME,
            "supervisors read a /proc of their own: no mount over a part of it hides a process",
        );
    }
    let found = "supervisors read /proc as it is mounted; who cannot mount cannot hide anything there";
    DoctorCheck::note(NAME, found.to_owned(), None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::CheckVerdict;

    #[test]
    fn what_cannot_be_had_says_why_and_what_would_help() {
        let why = UnavailableFeature {
            what: "a cgroup".into(),
            why: "nothing is writable".into(),
            advice: "delegate one".into(),
        };
        let check = unavailable("layer cgroup", &why);
        assert_eq!((check.verdict, check.needed), (CheckVerdict::Missing, false));
        assert_eq!(check.found, "a cgroup: nothing is writable");
        assert_eq!(check.advice.as_deref(), Some("delegate one"));
    }

    #[test]
    fn the_kernel_says_whether_privileges_can_be_gained() {
        assert!(no_new_privs(std::process::id()).is_some());
    }

    #[test]
    fn every_limit_has_its_line() {
        let names: Vec<_> = LimitKind::ALL.iter().map(|(kind, _)| limit_name(*kind)).collect();
        for ((_, name), line) in LimitKind::ALL.iter().zip(names) {
            assert_eq!(line, format!("limit {name}"));
        }
    }
    #[test]
    fn what_takes_the_connector_says_so_where_there_is_none() {
        for (kind, _) in LimitKind::ALL {
            let said = |observer| enforced(kind, LimitForm::Rlimit, observer);
            assert!(!said(ObserverKind::Connector).contains("connector"), "{kind}");
            let takes = kind == LimitKind::FileSize;
            assert_eq!(said(ObserverKind::Polling).contains("without the connector"), takes, "{kind}");
        }
    }
}
