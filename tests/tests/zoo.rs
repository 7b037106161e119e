//! Every member of the zoo under a session of every layer that the machine offers, once in a PID namespace of its own and
//! once outside. `AGENT_PROXY_ZOO=full` adds: an agent that exits first, and SIGKILL of each supervisor.

use std::{
    collections::BTreeSet,
    io::Write,
    process::{Command, ExitCode},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use agent_proxy_tests::zoo::{
    arms::{self, Arm, Failure, Verdict},
    host,
};
use libtest_mimic::{Arguments, Failed, Trial};
use proxy_manager::Containment;
use zoo::MEMBERS;

const CHILD: &str = env!("CARGO_BIN_EXE_proxy-child");
/// Set to `full` for every arm.
const FULL: &str = "AGENT_PROXY_ZOO";
/// Set in the process that runs in a PID namespace of its own.
const INSIDE: &str = "AGENT_PROXY_ZOO_INSIDE";
/// Runs at once, unless the command line says otherwise: they wait more than they work.
const THREADS: usize = 4;
const LAYERS: [Containment; 3] = [Containment::Baseline, Containment::Cgroup, Containment::Strict];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == host::HOST
    {
        host::be_host(rest);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or(Some(THREADS));
    if arguments.list {
        let all = [Place::Inside, Place::Outside].into_iter().flat_map(|place| trials(place, &LAYERS, &Arc::default()));
        return libtest_mimic::run(&arguments, all.collect()).exit_code();
    }
    if std::env::var_os(INSIDE).is_some() {
        return pass(Place::Inside, &arguments);
    }
    let inside = pass_inside(&args);
    let outside = pass(Place::Outside, &arguments);
    if inside { outside } else { ExitCode::from(101) }
}

/// Where a pass runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a PID namespace of its own, where nothing can get away from a mistake.
    Inside,
    /// Not so, since the kernel's proc connector is silent there. Only what stands still once it has started.
    Outside,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Outside => "outside",
        }
    }
}

/// Figures of a pass.
#[derive(Default)]
struct Counts {
    members: Mutex<BTreeSet<&'static str>>,
    runs: AtomicUsize,
    survivors: AtomicUsize,
    not_started: AtomicUsize,
    wrong: AtomicUsize,
    not_run: AtomicUsize,
}

/// Starts this program again in a namespace; says whether all went well there.
#[expect(clippy::disallowed_methods, reason = "the code under test shall not start its own test")]
fn pass_inside(args: &[String]) -> bool {
    let mut unshare = vec!["--pid", "--fork", "--mount-proc", "--kill-child"];
    if !nix::unistd::geteuid().is_root() {
        unshare.extend(["--user", "--map-current-user"]);
    }
    let probe = Command::new("unshare").args(&unshare).arg("true").output();
    match probe {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            say(&format!("NOT RUN: zoo in a PID namespace: {}", String::from_utf8_lossy(&output.stderr).trim()));
            return true;
        }
        Err(error) => {
            say(&format!("NOT RUN: zoo in a PID namespace: unshare: {error}"));
            return true;
        }
    }
    let program = std::env::current_exe().expect("this program has a path");
    // The shell is the namespace's init, and reaps what becomes its child.
    let status = Command::new("unshare")
        .args(&unshare)
        .args(["sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(program)
        .args(args)
        .env(INSIDE, "1")
        .status();
    status.is_ok_and(|status| status.success())
}

fn pass(place: Place, arguments: &Arguments) -> ExitCode {
    let mut layers = Vec::new();
    let mut failed = false;
    for layer in LAYERS {
        match runtime().block_on(arms::probe(CHILD, layer)) {
            Ok(Verdict::Passed) => layers.push(layer),
            Ok(Verdict::NotRun(reason)) => say(&format!("NOT RUN: zoo {}::{layer}: {reason}", place.name())),
            Err(failure) => {
                say(&format!("FAILED: zoo {}::{layer}: {failure:?}", place.name()));
                failed = true;
            }
        }
    }
    let counts = Arc::new(Counts::default());
    let conclusion = libtest_mimic::run(arguments, trials(place, &layers, &counts));
    let number = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let members = counts.members.lock().expect("no run panics with it").len();
    say(&format!(
        "zoo {}: {members} members, {} runs, {} survivors, {} not started, {} wrong, {} not run",
        place.name(),
        number(&counts.runs),
        number(&counts.survivors),
        number(&counts.not_started),
        number(&counts.wrong),
        number(&counts.not_run),
    ));
    if failed { ExitCode::from(101) } else { conclusion.exit_code() }
}

fn trials(place: Place, layers: &[Containment], counts: &Arc<Counts>) -> Vec<Trial> {
    let is_full = std::env::var(FULL).is_ok_and(|value| value == "full");
    let mut trials = Vec::new();
    for &layer in layers {
        for (arm, arm_name) in Arm::ALL {
            if arm != Arm::Kill && !is_full {
                continue;
            }
            for member in MEMBERS {
                if !arm.suits(member) || (place == Place::Outside && !member.is_still) {
                    continue;
                }
                let name = format!("{}::{layer}::{arm_name}::{}", place.name(), member.name);
                let (shown, counts) = (name.clone(), counts.clone());
                trials.push(Trial::test(name, move || {
                    let result = runtime().block_on(arms::run(CHILD, member, layer, arm));
                    if matches!(result, Ok(Verdict::NotRun(_))) {
                        counts.not_run.fetch_add(1, Ordering::Relaxed);
                    } else {
                        counts.runs.fetch_add(1, Ordering::Relaxed);
                        counts.members.lock().expect("no run panics with it").insert(member.name);
                    }
                    let (count, what) = match result {
                        Ok(Verdict::Passed) => return Ok(()),
                        Ok(Verdict::NotRun(why)) => {
                            say(&format!("NOT RUN: zoo {shown}: {why}"));
                            return Ok(());
                        }
                        Err(Failure::Survivors(what)) => (&counts.survivors, what),
                        Err(Failure::NotStarted(what)) => (&counts.not_started, format!("not started: {what}")),
                        Err(Failure::Wrong(what)) => (&counts.wrong, what),
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    Err(Failed::from(what))
                }));
            }
        }
    }
    trials
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn say(line: &str) {
    // Lost only with the terminal itself.
    let _ = writeln!(std::io::stdout(), "{line}");
}
