//! The one place that starts programs.

use std::{
    ffi::{CString, OsStr, OsString},
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
};

use ipc_protocol::{EMPTY_PATH, ErrorChain, ProcessId, WireError, errno::is_out_of_descriptors};
use rustix::{
    fs::{Mode, OFlags},
    pipe::PipeFlags,
    process::Resource,
};

use crate::{
    HidingNamespace, LandlockScope, MountView, PidFd, SessionNamespace,
    descriptors::soft_limit_of_programs,
    metadata_guard::MetadataGuard,
    oom,
    proc::identify,
    sys::{self, ConfinementPlan, ExecPlan, SpawnStep, StartedProgram},
};

/// Source of a program's standard input.
#[derive(Debug, Default)]
pub enum SpawnInput {
    /// The device `/dev/null`.
    #[default]
    Null,
    /// A pipe; the other end is [`SpawnedProcess::stdin`].
    Pipe,
    /// This descriptor.
    Fd(OwnedFd),
}

/// Destination of a program's standard output or error.
#[derive(Debug, Default)]
pub enum SpawnOutput {
    /// The device `/dev/null`.
    #[default]
    Null,
    /// A pipe; the other end is [`SpawnedProcess::stdout`] or [`SpawnedProcess::stderr`].
    Pipe,
    /// This descriptor.
    Fd(OwnedFd),
    /// Destination of this process's own stream.
    Inherit,
}

/// A program to start. It gets a session and process group of its own, exactly this environment, its standard streams and
/// [`SpawnRequest::fds`], and no other descriptor; default signal dispositions and an empty mask; the limit on open files that this
/// process had before [`crate::raise_descriptor_limit`].
#[derive(Debug)]
pub struct SpawnRequest {
    /// Program: with a slash it is a path, else it is looked up in `PATH` of [`SpawnRequest::env`].
    pub program: OsString,
    /// Arguments, `argv[0]` included.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory; this process's own by default.
    pub cwd: Option<PathBuf>,
    /// Standard input.
    pub stdin: SpawnInput,
    /// Standard output.
    pub stdout: SpawnOutput,
    /// Standard error.
    pub stderr: SpawnOutput,
    /// Further descriptors; the program gets them as 3, 4, …
    pub fds: Vec<OwnedFd>,
    /// Directory of a cgroup (version 2) that the program joins from the start.
    pub group: Option<OwnedFd>,
    /// Namespaces of the program. It is still a child of this process, and [`SpawnedProcess::id`] has its pid in this
    /// process's namespace.
    pub namespace: Option<SessionNamespace>,
    /// Namespaces in which files are hidden, for a program without [`SpawnRequest::namespace`].
    pub hiding: Option<HidingNamespace>,
    /// Resource limits, hard and soft; a value above this process's own hard limit is lowered to it.
    pub rlimits: Vec<(Resource, u64)>,
    /// The cgroup files that it sees, in a mount namespace of its own; see [`SpawnedProcess::view_failure`]. With
    /// [`SpawnRequest::namespace`] that has the view.
    pub view: Option<MountView>,
    /// A landlock domain around it and all below it.
    pub landlock: Option<LandlockScope>,
    /// True if [`SpawnRequest::stdin`] is a terminal that is to control the program's session: its keys make signals there, and
    /// its end is a SIGHUP.
    pub is_terminal: bool,
    /// Addition to its memory when the kernel looks for a process to end for want of memory, in thousandths of all there
    /// is; at least so much, for it and all below this process.
    pub oom_score_adj: Option<i16>,
}

/// A started program, whose exec is confirmed.
#[derive(Debug)]
pub struct SpawnedProcess {
    /// The process.
    pub process: PidFd,
    /// Write end of its standard input, if that is a pipe; non-blocking.
    pub stdin: Option<OwnedFd>,
    /// Read end of its standard output, if that is a pipe; non-blocking.
    pub stdout: Option<OwnedFd>,
    /// Read end of its standard error, if that is a pipe; non-blocking.
    pub stderr: Option<OwnedFd>,
    /// Reason why the program does not see cgroup files as [`SpawnRequest::view`] has them.
    pub view_failure: Option<io::Error>,
}

impl SpawnedProcess {
    /// Identity of the process.
    pub fn id(&self) -> ProcessId {
        self.process.id()
    }
}

/// Reason why a program was not started. Sent over the wire unchanged.
pub type SpawnError = WireError;

impl SpawnRequest {
    /// Creates a spawn with `argv[0]` set to the program; nothing else is set.
    pub fn new(program: impl Into<OsString>) -> Self {
        let program = program.into();
        Self {
            argv: vec![program.clone()],
            program,
            env: Vec::new(),
            cwd: None,
            stdin: SpawnInput::Null,
            stdout: SpawnOutput::Null,
            stderr: SpawnOutput::Null,
            fds: Vec::new(),
            group: None,
            namespace: None,
            hiding: None,
            rlimits: Vec::new(),
            view: None,
            landlock: None,
            is_terminal: false,
            oom_score_adj: None,
        }
    }

    /// Creates a request for another program with the same environment, working directory, containment and limits. Its
    /// program and its streams are to be set.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn beside(&self) -> io::Result<Self> {
        Ok(Self {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            group: self.group.as_ref().map(OwnedFd::try_clone).transpose()?,
            namespace: self.namespace.as_ref().map(SessionNamespace::try_clone).transpose()?,
            hiding: self.hiding.as_ref().map(HidingNamespace::try_clone).transpose()?,
            rlimits: self.rlimits.clone(),
            view: self.view.clone(),
            landlock: self.landlock.as_ref().map(LandlockScope::try_clone).transpose()?,
            oom_score_adj: self.oom_score_adj,
            ..Self::new("")
        })
    }
}

/// Starts a program and waits for its exec. The calling thread is suspended for that time (some 0.2 ms; longer on a
/// slow file system).
///
/// # Errors
/// [`WireError::ProgramNotFound`], [`WireError::CwdMissing`], [`WireError::Spawn`], [`WireError::FdsExhausted`]. No
/// process is left then, except the init of [`SpawnRequest::namespace`].
pub fn spawn(spawn: SpawnRequest) -> Result<SpawnedProcess, SpawnError> {
    let program = spawn.program.to_string_lossy().into_owned();
    let failed = |step: &str, error: &io::Error| match is_out_of_descriptors(error) {
        true => WireError::FdsExhausted { operation: "starting a program".to_owned() },
        false => {
            let (program, reason) = (program.clone(), ErrorChain(error).to_string());
            WireError::Spawn { program, step: step.to_owned(), reason }
        }
    };
    let io_failed = |error: io::Error| failed("pipe", &error);
    let cstring = |text: OsString| CString::new(text.into_vec()).map_err(|error| failed("argv", &error.into()));

    let path = spawn.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let candidates = candidates(&spawn.program, path.as_deref());
    let not_found = |searched: String| WireError::ProgramNotFound { program: program.clone(), searched };
    let searched_path = || match path.as_deref().filter(|path| !path.is_empty()) {
        Some(path) => format!("PATH ({})", path.display()),
        None => EMPTY_PATH.to_owned(),
    };
    let not_executable = |file: &Path| WireError::Spawn {
        program: file.display().to_string(),
        step: SpawnStep::Exec.name().to_owned(),
        reason: "it is not executable: allow it (chmod +x), or name another program".to_owned(),
    };
    let there = || candidates.iter().find(|file| file.is_absolute() && file.is_file());
    if !candidates.iter().any(is_executable)
        && let Some(file) = there()
    {
        return Err(not_executable(file));
    }
    let candidates: Vec<_> = match &candidates[..] {
        // Whatever is wrong with it is the system's to say.
        [_] if program.contains('/') => candidates,
        _ => candidates.into_iter().filter(is_executable).collect(),
    };
    if candidates.is_empty() {
        return Err(not_found(searched_path()));
    }
    let null = || rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(io::Error::from);
    let (child_in, stdin) = match spawn.stdin {
        SpawnInput::Null => (null().map_err(io_failed)?, None),
        SpawnInput::Pipe => pipe().map(|(read, write)| (read, Some(write))).map_err(io_failed)?,
        SpawnInput::Fd(fd) => (fd, None),
    };
    let output = |output: SpawnOutput, own: BorrowedFd<'_>| match output {
        SpawnOutput::Null => null().map(|fd| (fd, None)),
        SpawnOutput::Pipe => pipe().map(|(read, write)| (write, Some(read))),
        SpawnOutput::Fd(fd) => Ok((fd, None)),
        SpawnOutput::Inherit => own.try_clone_to_owned().map(|fd| (fd, None)),
    };
    let (child_out, stdout) = output(spawn.stdout, rustix::stdio::stdout()).map_err(io_failed)?;
    let (child_err, stderr) = output(spawn.stderr, rustix::stdio::stderr()).map_err(io_failed)?;
    // Only our ends are non-blocking: the program expects blocking streams.
    for ours in [&stdin, &stdout, &stderr].into_iter().flatten() {
        rustix::io::ioctl_fionbio(ours, true).map_err(|e| io_failed(e.into()))?;
    }
    let mut env = Vec::with_capacity(spawn.env.len());
    for (mut name, value) in spawn.env {
        name.push("=");
        name.push(value);
        env.push(cstring(name)?);
    }
    // A process that enters a mount namespace starts at its root.
    let enters = spawn.namespace.is_some() || spawn.hiding.is_some();
    let cwd = spawn.cwd.clone().or_else(|| std::env::current_dir().ok().filter(|_| enters));
    let rlimit = |(resource, value): (Resource, u64)| {
        let most = rustix::process::getrlimit(resource).maximum;
        let value = most.map_or(value, |most| most.min(value));
        (resource as u32, value, value)
    };
    let mut rlimits: Vec<_> = spawn.rlimits.into_iter().map(rlimit).collect();
    // First, so that what was asked for overrides it.
    if let Some((soft, hard)) = soft_limit_of_programs() {
        rlimits.insert(0, (Resource::Nofile as u32, soft, hard));
    }
    let confinement = spawn.landlock.as_ref().and_then(LandlockScope::confinement);
    let (confinement, guarded) = match confinement {
        None => (None, None),
        Some(write) => {
            let (plan, socket) = ConfinementPlan::new().map_err(|error| failed("filter", &error))?;
            (Some(plan), Some((socket, write)))
        }
    };
    let exec = ExecPlan {
        programs: candidates.into_iter().map(|p| cstring(p.into_os_string())).collect::<Result<_, _>>()?,
        argv: spawn.argv.into_iter().map(cstring).collect::<Result<_, _>>()?,
        env,
        cwd: cwd.map(|cwd| cstring(cwd.into_os_string())).transpose()?,
        stdio: [child_in, child_out, child_err],
        fds: spawn.fds,
        group: spawn.group,
        has_socket_filter: spawn.namespace.as_ref().is_some_and(SessionNamespace::has_network),
        namespaces: match (spawn.namespace, spawn.hiding) {
            (Some(namespace), _) => namespace.into_fds(),
            (None, hiding) => hiding.map(HidingNamespace::into_fds).unwrap_or_default(),
        },
        rlimits,
        mounts: spawn.view.map(|view| view.0),
        is_logged: spawn.landlock.as_ref().is_some_and(LandlockScope::is_logged),
        landlock: spawn.landlock.map(LandlockScope::into_fd),
        confinement,
        is_terminal: spawn.is_terminal,
        exit_signal: libc::SIGCHLD,
    };
    let StartedProgram { pid, pidfd, unmounted } =
        sys::clone_exec(exec).map_err(|(step, error)| match (step, error.kind()) {
            (SpawnStep::Cwd, _) => WireError::CwdMissing {
                cwd: spawn.cwd.unwrap_or_default().display().to_string(),
                reason: ErrorChain(&error).to_string(),
            },
            (SpawnStep::Exec, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) if program.contains('/') => {
                not_found("the file system (for a script, its interpreter too)".to_owned())
            }
            (SpawnStep::Exec, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => not_found(searched_path()),
            (step, _) => failed(step.name(), &error),
        })?;
    if let Some((socket, write)) = guarded {
        // Without a listener the calls that it passes on fail.
        if let Err(error) = MetadataGuard::start(&socket, write) {
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            let _ = sys::wait_for(&pidfd);
            return Err(failed("guard of modes and times", &error));
        }
    }
    // Its status is ours alone to collect, so even if it is dead by now /proc still has it.
    let id = identify(pid).map_err(|error| failed("identify", &error))?;
    if let Some(value) = spawn.oom_score_adj {
        // Here and not in the child, which may not write its own: it is not dumpable before its exec.
        oom::raise_below(value);
    }
    Ok(SpawnedProcess { process: PidFd::from_parts(pidfd, id), stdin, stdout, stderr, view_failure: unmounted })
}

/// Candidate files for `program`: the path itself if it has a slash, else one in each directory of `path`.
fn candidates(program: &OsStr, path: Option<&OsStr>) -> Vec<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return vec![PathBuf::from(program)];
    }
    let directories = std::env::split_paths(path.unwrap_or_default()).filter(|dir| !dir.as_os_str().is_empty());
    directories.map(|dir| dir.join(program)).collect()
}

fn is_executable(file: &PathBuf) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Creates a pipe: read and write end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?)
}
