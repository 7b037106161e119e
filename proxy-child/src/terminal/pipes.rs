//! Standard streams of a program without a terminal, which go to and from one viewer.

use std::{io, sync::Arc};

use ipc_protocol::{
    ExitStatus,
    terminal::{FromTerminal, ToTerminal},
};
use registry::SpawnedProcess;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    sync::{Notify, watch},
    task::JoinHandle,
};

use super::{CHUNK, ViewerLink};

/// Most bytes that are read of a dead program's output: a survivor may go on writing.
const MAX_LEFTOVER: usize = 1 << 20;

/// Program's streams, in a task of their own.
pub(crate) struct ProgramPipes {
    exit: watch::Sender<Option<ExitStatus>>,
    run: JoinHandle<()>,
}

impl ProgramPipes {
    /// Takes the program's pipes. `wake` is notified when the viewer has left.
    ///
    /// # Errors
    /// The runtime cannot watch them.
    pub(crate) fn start(program: SpawnedProcess, link: ViewerLink, wake: Arc<Notify>) -> io::Result<Self> {
        let (exit, exited) = watch::channel(None);
        let task = PipesTask {
            link,
            stdin: program.stdin.map(pipe::Sender::from_owned_fd).transpose()?,
            outputs: [
                program.stdout.map(pipe::Receiver::from_owned_fd).transpose()?,
                program.stderr.map(pipe::Receiver::from_owned_fd).transpose()?,
            ],
            unread: Vec::new(),
            closes: false,
            exited,
        };
        let run = tokio::spawn(async move {
            task.run().await;
            wake.notify_one();
        });
        Ok(Self { exit, run })
    }

    /// Returns true if the viewer has left, or has all there is.
    pub(crate) fn is_over(&self) -> bool {
        self.run.is_finished()
    }

    /// Sends what the program has left in its pipes, and its exit.
    pub(crate) fn end(&self, exit: ExitStatus) {
        self.exit.send_replace(Some(exit));
    }

    /// Waits until the viewer has all there is.
    pub(crate) async fn finished(&mut self) {
        let _ = tokio::time::timeout(super::END_TIMEOUT, &mut self.run).await;
    }
}

impl Drop for ProgramPipes {
    fn drop(&mut self) {
        self.run.abort();
    }
}

/// Step on the viewer's connection.
enum ViewerStep {
    /// The output was sent, or nobody takes it.
    Flushed(bool),
    /// A message; `None` if the viewer has left.
    Message(Option<ToTerminal>),
}

struct PipesTask {
    link: ViewerLink,
    stdin: Option<pipe::Sender>,
    outputs: [Option<pipe::Receiver>; 2],
    /// Input that the program has not read. No message is received meanwhile.
    unread: Vec<u8>,
    /// True if the input ends after that.
    closes: bool,
    exited: watch::Receiver<Option<ExitStatus>>,
}

impl PipesTask {
    /// Runs until the program has exited, or the viewer has left.
    async fn run(mut self) {
        let mut chunks = [vec![0; CHUNK], vec![0; CHUNK]];
        loop {
            if self.unread.is_empty() && self.closes {
                self.stdin = None;
            }
            let [out, error] = &mut self.outputs;
            let [out_chunk, error_chunk] = &mut chunks;
            // The program waits with its output while the viewer does not read.
            let has_room = !self.link.has_unsent();
            let takes_input = self.unread.is_empty();
            let link = &mut self.link;
            let viewer = async move {
                match (has_room, takes_input) {
                    (false, _) => ViewerStep::Flushed(link.flush().await.is_ok()),
                    (true, true) => ViewerStep::Message(link.receive().await),
                    (true, false) => {
                        link.left().await;
                        ViewerStep::Message(None)
                    }
                }
            };
            let read = tokio::select! {
                biased;
                _ = self.exited.wait_for(Option::is_some) => break,
                read = read(out, out_chunk), if has_room => Some((false, read)),
                read = read(error, error_chunk), if has_room => Some((true, read)),
                written = write(&mut self.stdin, &self.unread), if !takes_input => {
                    match written {
                        Ok(written) => drop(self.unread.drain(..written)),
                        // It has closed its input: what is typed is dropped.
                        Err(_) => (self.stdin, self.unread) = (None, Vec::new()),
                    }
                    None
                }
                step = viewer => {
                    match step {
                        ViewerStep::Message(Some(ToTerminal::Input(bytes))) => self.unread = bytes,
                        ViewerStep::Message(Some(ToTerminal::EndOfInput)) => self.closes = true,
                        ViewerStep::Message(Some(_)) | ViewerStep::Flushed(true) => {}
                        ViewerStep::Message(None) | ViewerStep::Flushed(false) => return,
                    }
                    None
                }
            };
            if let Some((is_error, read)) = read {
                let chunk = &chunks[usize::from(is_error)];
                self.take(is_error, read, chunk);
            }
        }
        self.finish(&mut chunks[0]).await;
    }

    fn take(&mut self, is_error: bool, read: io::Result<usize>, chunk: &[u8]) {
        match read {
            Ok(read) if read > 0 => {
                self.link.queue(&FromTerminal::Output { is_error, bytes: chunk[..read].to_vec() });
            }
            _ => self.outputs[usize::from(is_error)] = None,
        }
    }

    /// Sends what a dead program has left.
    async fn finish(mut self, chunk: &mut [u8]) {
        for is_error in [false, true] {
            let mut left = MAX_LEFTOVER;
            while let Some(pipe) = &self.outputs[usize::from(is_error)]
                && left > 0
            {
                // The runtime may not have polled since something was written.
                match rustix::io::read(pipe, &mut *chunk) {
                    Ok(read) if read > 0 => {
                        left = left.saturating_sub(read);
                        self.link.queue(&FromTerminal::Output { is_error, bytes: chunk[..read].to_vec() });
                    }
                    _ => break,
                }
            }
        }
        let exit = *self.exited.borrow();
        self.link.close(&FromTerminal::Ended { exit, in_line: false }).await;
    }
}

async fn read(pipe: &mut Option<pipe::Receiver>, chunk: &mut [u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.read(chunk).await,
        None => std::future::pending().await,
    }
}

async fn write(pipe: &mut Option<pipe::Sender>, bytes: &[u8]) -> io::Result<usize> {
    match pipe {
        Some(pipe) => pipe.write(bytes).await,
        None => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
