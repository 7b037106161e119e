//! Floors: the costs of the kernel and the codec alone. Runs in a small process with one thread, as forking
//! requires.

use std::{
    ffi::CString,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt, net::UnixStream},
    },
    time::{Duration, Instant},
};

use ipc_protocol::{
    Event, Pid, Signal,
    codec::{Inbox, encode},
    message::FromProxy,
};
use nix::{
    fcntl::OFlag,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd,
};
use registry::PidFd;

use crate::{
    contestant::{self, MeasureRequest, MeasuredFigures},
    error::{Error, Result},
    kill::raw,
    programs::{self, PATIENCE},
    stats::{mean_pss_kib, median},
    text::NumberedTexts,
};

/// Bytes of a ping's frame.
const PING: usize = 17;
/// Bytes written at once: a socket takes larger writes in pieces of this size anyway.
const CHUNK: usize = 64 * 1024;

/// Answers requests until the input ends.
///
/// # Errors
/// Same as [`contestant::serve`].
pub(crate) fn serve() -> Result<()> {
    contestant::serve(|request| {
        let (name, figure) = match request {
            MeasureRequest::Kill { method, count } => return raw::measure(method, count),
            MeasureRequest::Start { count } => ("start_ms", start(count)?),
            MeasureRequest::Idle { count, settle_ms } => {
                ("idle_pss_kib", idle(count, Duration::from_millis(settle_ms))?)
            }
            MeasureRequest::Rtt { count, warm_up } => ("rtt_us", rtt(count, warm_up)?),
            MeasureRequest::Events { count, warm_up, .. } => ("events_per_s_proxy", events(count, warm_up)?),
            MeasureRequest::Stdout { count, warm_up, length, program } => {
                ("events_per_s_stdout", stdout(count, warm_up, length, &program)?)
            }
        };
        Ok(MeasuredFigures::from([(name.to_owned(), figure)]))
    })
}

/// Forked child, killed and reaped when dropped.
struct ForkedChild(Pid);

impl ForkedChild {
    /// Forks; `child` gets `keep`, and no other descriptor.
    fn run(keep: Vec<OwnedFd>, child: impl FnOnce(Vec<OwnedFd>) -> u8) -> Result<Self> {
        registry::fork_child(keep, child).map(Self).map_err(Error::system("forking"))
    }

    fn end(&self) -> io::Result<()> {
        // Nobody else reaps the child, so its pid cannot have been reused.
        let process = PidFd::of_child(self.0)?;
        process.signal(Signal::Kill)?;
        let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], timeout)?;
        process.try_reap().map(|_| ())
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        // A child that has already ended is fine.
        let _ = self.end();
    }
}

/// Times fork and exec of `cat`, until the exec closes a pipe.
fn start(count: u32) -> Result<f64> {
    let cat = CString::new(programs::find("cat")?.into_os_string().into_vec());
    let cat = cat.map_err(|_| Error::answer("PATH", "holds a zero byte"))?;
    let pipe = || unistd::pipe2(OFlag::O_CLOEXEC).map_err(Error::system("making a pipe"));
    let mut times = Vec::new();
    for _ in 0..count {
        // Nothing is written to its input, so that cat waits.
        let ((input, _open), (confirmed, confirm)) = (pipe()?, pipe()?);
        let begin = Instant::now();
        let _cat = ForkedChild::run(vec![input, confirm], |fds| {
            if fds.first().is_some_and(|input| unistd::dup2_stdin(input).is_ok()) {
                // Returns only on failure.
                let _ = unistd::execv(&cat, &[&cat]);
            }
            127
        })?;
        let read = unistd::read(&confirmed, &mut [0]).map_err(Error::system("waiting for an exec"))?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        if read != 0 {
            return Err(Error::answer("cat", "wrote to a pipe that an exec closes"));
        }
    }
    median(&times).ok_or_else(|| Error::answer("the request", "asks for no start"))
}

/// Measures bare forked children that wait.
fn idle(count: u32, settle: Duration) -> Result<f64> {
    let mut children = Vec::new();
    for _ in 0..count {
        children.push(ForkedChild::run(Vec::new(), |_| {
            unistd::pause();
            0
        })?);
    }
    std::thread::sleep(settle);
    mean_pss_kib(&children.iter().map(|child| child.0).collect::<Vec<_>>())
}

/// Creates a connected pair; reads and writes on this end have a deadline.
fn socket_pair() -> Result<(UnixStream, OwnedFd)> {
    let (here, there) = UnixStream::pair().map_err(Error::system("making a socket pair"))?;
    here.set_read_timeout(Some(PATIENCE)).map_err(Error::system("setting a socket's deadline"))?;
    here.set_write_timeout(Some(PATIENCE)).map_err(Error::system("setting a socket's deadline"))?;
    Ok((here, there.into()))
}

/// Times a ping's bytes over a raw socket pair to another process and back.
fn rtt(count: u32, warm_up: u32) -> Result<f64> {
    let (mut here, there) = socket_pair()?;
    let _echo = ForkedChild::run(vec![there], |fds| {
        let Some(mut socket) = fds.into_iter().next().map(UnixStream::from) else { return 1 };
        let mut bytes = [0; PING];
        while socket.read_exact(&mut bytes).is_ok() && socket.write_all(&bytes).is_ok() {}
        0
    })?;
    let mut bytes = [0; PING];
    let mut pings = |count| -> io::Result<()> {
        (0..count).try_for_each(|_| here.write_all(&bytes).and_then(|()| here.read_exact(&mut bytes)))
    };
    pings(warm_up).map_err(Error::system("warming up"))?;
    let begin = Instant::now();
    pings(count).map_err(Error::system("pinging"))?;
    Ok(begin.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// Measures framed bincode over a socket pair from another process.
fn events(count: u64, warm_up: u64) -> Result<f64> {
    let (mut here, there) = socket_pair()?;
    let _sender = ForkedChild::run(vec![there], |fds| {
        let sent = fds.into_iter().next().map(|socket| send_events(socket.into()));
        u8::from(!matches!(sent, Some(Ok(()))))
    })?;
    let mut run = |count: u64| -> Result<()> {
        here.write_all(&count.to_le_bytes()).map_err(Error::system("asking for events"))?;
        let mut inbox = Inbox::default();
        let mut expected = NumberedTexts::plain();
        while expected.taken() < count {
            let read = here.read(inbox.spare()).map_err(Error::system("reading events"))?;
            if read == 0 {
                return Err(Error::answer("the sender", "ended"));
            }
            inbox.filled(read);
            while let Some(message) = inbox.next_message::<FromProxy>()? {
                let FromProxy::Event { event: Event::Text { text }, .. } = message else {
                    return Err(Error::answer("the sender", format!("said {message:?}")));
                };
                expected.check(text.as_bytes())?;
            }
        }
        Ok(())
    };
    per_second(count, warm_up, &mut run)
}

/// Runs the other end of [`events`]: sends as many events as each received count asks for.
fn send_events(mut socket: UnixStream) -> Result<()> {
    let mut count = [0; 8];
    let mut out = Vec::with_capacity(2 * CHUNK);
    loop {
        socket.read_exact(&mut count).map_err(Error::system("reading a count"))?;
        let count = u64::from_le_bytes(count);
        let mut texts = NumberedTexts::plain();
        while texts.taken() < count {
            let text = texts.take(|text| String::from_utf8_lossy(text).into_owned());
            encode(&FromProxy::Event { turn: 0, event: Event::Text { text } }, &mut out)?;
            if out.len() >= CHUNK || texts.taken() == count {
                socket.write_all(&out).map_err(Error::system("writing events"))?;
                out.clear();
            }
        }
    }
}

/// Measures lines from a program's pipe, with nothing in between.
fn stdout(count: u64, warm_up: u64, length: usize, program: &[String]) -> Result<f64> {
    let Some((name, args)) = program.split_first() else {
        return Err(Error::answer("the request", "names no program"));
    };
    let args: Vec<_> = args.iter().map(Into::into).collect();
    let mut agent = programs::start(name.as_ref(), &args).map_err(Error::system(format!("starting {name}")))?;
    let (Some(mut input), Some(output)) = (agent.stdin.take(), agent.stdout.take()) else {
        return Err(Error::answer(name, "has no pipes"));
    };
    let mut output = BufReader::with_capacity(CHUNK, output);
    let mut line = Vec::new();
    let mut run = |count: u64| -> Result<()> {
        writeln!(input, "{count}").map_err(Error::system("asking for lines"))?;
        let mut expected = NumberedTexts::lines(length);
        while expected.taken() < count {
            line.clear();
            output.read_until(b'\n', &mut line).map_err(Error::system("reading lines"))?;
            expected.check(&line)?;
        }
        Ok(())
    };
    let rate = per_second(count, warm_up, &mut run);
    drop(input);
    if rate.is_err() {
        agent.kill().map_err(Error::system(format!("killing {name}")))?;
    }
    agent.wait().map_err(Error::system(format!("reaping {name}")))?;
    rate
}

fn per_second(count: u64, warm_up: u64, run: &mut impl FnMut(u64) -> Result<()>) -> Result<f64> {
    run(warm_up)?;
    let begin = Instant::now();
    run(count)?;
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}
