//! Hooks of the agent's own screen that wait for an answer. Each has made a pipe for it in the session's folder, `ask.NUMBER`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, open, unlinkat};
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::unix::pipe,
    sync::{Notify, oneshot},
    time::timeout,
};

/// Most hooks that wait. Adapters have fewer open requests.
const MAX_HOOKS: usize = 256;
/// Time for a hook to read its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Waiting hooks, each with a task of its own.
pub(crate) struct WaitingHooks {
    directory: Option<PathBuf>,
    /// Where the answer goes. A hook without one ends without a word.
    waiting: BTreeMap<u64, oneshot::Sender<Vec<u8>>>,
    /// Hooks that have ended before they were answered.
    ended: Arc<Mutex<Vec<u64>>>,
    wake: Arc<Notify>,
}

impl WaitingHooks {
    /// Makes the table of a session whose reports come through the pipe `reports`. `wake` is notified when a hook has ended.
    pub(crate) fn new(reports: Option<&str>, wake: Arc<Notify>) -> Self {
        let directory = reports.and_then(|path| Path::new(path).parent()).map(Path::to_owned);
        Self { directory, waiting: BTreeMap::new(), ended: Arc::default(), wake }
    }

    /// Takes a hook. One that cannot be reached has ended.
    pub(crate) fn open(&mut self, id: u64) {
        // The pipe's name may come from anybody in the session: a number names nothing but a pipe of its folder.
        let path = self.directory.as_ref().map(|directory| directory.join(format!("ask.{id}")));
        let pipe = match path {
            Some(path) if self.waiting.len() < MAX_HOOKS => open_pipe(&path),
            _ => Err(io::ErrorKind::NotFound.into()),
        };
        let Ok(pipe) = pipe else { return self.note_end(id) };
        let (answer, answered) = oneshot::channel();
        self.waiting.insert(id, answer);
        let (ended, wake) = (self.ended.clone(), self.wake.clone());
        tokio::spawn(async move {
            if !serve(pipe, answered).await {
                ended.lock().unwrap_or_else(PoisonError::into_inner).push(id);
                wake.notify_one();
            }
        });
    }

    fn note_end(&self, id: u64) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        self.wake.notify_one();
    }

    /// Answers a hook, if it waits still.
    pub(crate) fn answer(&mut self, id: u64, answer: Vec<u8>) {
        if let Some(waiting) = self.waiting.remove(&id) {
            let _ = waiting.send(answer);
        }
    }

    /// Returns the hooks that have ended since.
    pub(crate) fn take_ended(&mut self) -> Vec<u64> {
        let ended = std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner));
        ended.iter().for_each(|id| drop(self.waiting.remove(id)));
        ended
    }
}

/// Opens a hook's pipe, removes its name, and tells the hook that somebody is there.
fn open_pipe(path: &Path) -> io::Result<pipe::Sender> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(path, flags, Mode::empty());
    let _ = unlinkat(CWD, path, AtFlags::empty());
    let opened = opened?;
    if FileType::from_raw_mode(fstat(&opened)?.st_mode) != FileType::Fifo {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::write(&opened, b"\n")?;
    pipe::Sender::from_owned_fd(opened)
}

/// Waits for the answer and writes it. Returns false if the hook ended before.
async fn serve(mut pipe: pipe::Sender, answered: oneshot::Receiver<Vec<u8>>) -> bool {
    let left = async {
        let watched = pipe.ready(Interest::ERROR).await;
        watched.is_ok()
    };
    let answer = tokio::select! {
        biased;
        answer = answered => answer.unwrap_or_default(),
        left = left => return !left,
    };
    // A hook that does not read is left to its agent.
    let _ = timeout(ANSWER_TIMEOUT, pipe.write_all(&answer)).await;
    true
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read};

    use rustix::fs::mknodat;

    use super::*;

    struct Place {
        directory: tempfile::TempDir,
        wake: Arc<Notify>,
        hooks: WaitingHooks,
    }

    impl Place {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let wake = Arc::new(Notify::new());
            let reports = directory.path().join("reports");
            let hooks = WaitingHooks::new(reports.to_str(), wake.clone());
            Self { directory, wake, hooks }
        }

        /// Makes the pipe of a hook, and opens it as the hook does.
        fn hook(&self, id: u64) -> File {
            let path = self.directory.path().join(format!("ask.{id}"));
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
            open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("opened").into()
        }

        async fn ended(&mut self) -> Vec<u64> {
            timeout(Duration::from_secs(20), self.wake.notified()).await.expect("woken");
            self.hooks.take_ended()
        }
    }

    /// Reads all that there is, until the other end is closed.
    async fn read(mut hook: File) -> String {
        let mut text = String::new();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            match hook.read_to_string(&mut text) {
                Ok(_) => return text,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    assert!(tokio::time::Instant::now() < deadline, "still open after {text:?}");
                    tokio::task::yield_now().await;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_hook_gets_its_answer_or_nothing() {
        let mut place = Place::new();
        for answer in [&b"yes"[..], b""] {
            let hook = place.hook(7);
            place.hooks.open(7);
            place.hooks.answer(7, answer.to_vec());
            assert_eq!(read(hook).await.as_bytes(), [b"\n", answer].concat());
        }
        let hook = place.hook(8);
        place.hooks.open(8);
        // The end of the session.
        place.hooks.waiting.clear();
        assert_eq!(read(hook).await, "\n");
        assert_eq!(std::fs::read_dir(place.directory.path()).expect("listed").count(), 0);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_end_of_a_hook_is_noticed() {
        let mut place = Place::new();
        let hook = place.hook(1);
        place.hooks.open(1);
        tokio::task::yield_now().await;
        drop(hook);
        assert_eq!(place.ended().await, [1]);
        // One that has gone already, and one that never was.
        drop(place.hook(2));
        place.hooks.open(2);
        assert_eq!(place.ended().await, [2]);
        place.hooks.open(3);
        assert_eq!(place.ended().await, [3]);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_is_no_pipe_is_not_written_to() {
        let mut place = Place::new();
        let outside = place.directory.path().join("file");
        std::fs::write(&outside, "kept").expect("written");
        std::fs::hard_link(&outside, place.directory.path().join("ask.1")).expect("linked");
        std::os::unix::fs::symlink(&outside, place.directory.path().join("ask.2")).expect("linked");
        for id in [1, 2] {
            place.hooks.open(id);
            assert_eq!(place.ended().await, [id]);
        }
        assert_eq!(std::fs::read_to_string(&outside).expect("there"), "kept");
    }
}
