//! Queue of the actions appended to a session's stream, which run one at a time in the order of the stream.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ipc_protocol::SessionId;
use tokio::{
    runtime,
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
};

use crate::error::{Error, Result};

/// Maximum number of waiting actions of a session.
const MAX_WAITING: usize = 64;

/// Queue of one session, over all its incarnations.
#[derive(Debug)]
pub(crate) struct ActionQueue {
    /// Lock of the running action.
    run_lock: Arc<Mutex<()>>,
    /// Lock of a caller that appends, until its action has its place: the queue keeps the order of the stream.
    append_lock: Arc<Mutex<()>>,
    room: Arc<Semaphore>,
}

impl Default for ActionQueue {
    fn default() -> Self {
        Self { run_lock: Arc::default(), append_lock: Arc::default(), room: Arc::new(Semaphore::new(MAX_WAITING)) }
    }
}

impl ActionQueue {
    /// As [`ActionQueue::join_with`], with a place that it takes.
    ///
    /// # Errors
    /// [`Error::Busy`] if too much waits: then nothing was appended. What `append` says.
    #[cfg(test)]
    pub(crate) async fn append_and_run<A: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        session: &SessionId,
        append: impl Future<Output = Result<u64>> + Send + 'static,
        act: impl FnOnce(u64) -> A + Send + 'static,
    ) -> Result<u64> {
        let room = self.room(session)?;
        self.join_with(Some(room), append, act).await
    }

    /// A place for one more.
    ///
    /// # Errors
    /// [`Error::Busy`] if too much waits.
    pub(crate) fn room(&self, session: &SessionId) -> Result<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().map_err(|_| Error::Busy { session: session.clone(), permission: None })
    }

    /// Appends an event, which yields its offset, and runs its action after those appended before. Once the append has
    /// begun it continues, and so does the action, even if the caller stops waiting: nobody would request it again. `room` is a
    /// place that was taken before; none for what has one elsewhere.
    ///
    /// # Errors
    /// What `append` says.
    pub(crate) async fn join_with<A: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        room: Option<OwnedSemaphorePermit>,
        append: impl Future<Output = Result<u64>> + Send + 'static,
        act: impl FnOnce(u64) -> A + Send + 'static,
    ) -> Result<u64> {
        let joining = self.append_lock.clone().lock_owned().await;
        let row = self.clone();
        let join = async move {
            let _joining = joining;
            let offset = append.await?;
            row.enqueue(room, act(offset)).await;
            Ok(offset)
        };
        DetachOnDrop::<Result<u64>>(Some(Box::pin(join))).await
    }

    /// Runs an action that was appended before any caller could join.
    pub(crate) async fn run_first(&self, act: impl Future<Output = ()> + Send + 'static) {
        self.enqueue(None, act).await;
    }

    async fn enqueue(&self, room: Option<OwnedSemaphorePermit>, act: impl Future<Output = ()> + Send + 'static) {
        let mut turn = Box::pin(self.run_lock.clone().lock_owned());
        // The first poll takes the place in the queue.
        let ready = poll_fn(|context| Poll::Ready(turn.as_mut().poll(context))).await;
        tokio::spawn(async move {
            let _in_order = match ready {
                Poll::Ready(guard) => guard,
                Poll::Pending => turn.await,
            };
            act.await;
            drop(room);
        });
    }
}

/// A future that continues in a task of its own if it is dropped.
struct DetachOnDrop<T: Send + 'static>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Polling after the end returns pending. A future that panics does not continue.
        let Some(mut future) = self.0.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        // Without a runtime nothing continues.
        if let (Some(future), Ok(runtime)) = (self.0.take(), runtime::Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[tokio::test]
    async fn what_is_appended_first_is_done_first_whoever_hears_of_it_first() {
        let (row, session) = (Arc::new(ActionQueue::default()), "s".parse().expect("a valid id"));
        let (done, mut doing) = mpsc::unbounded_channel();
        let (told, hears) = oneshot::channel();
        let act = || {
            let done = done.clone();
            |offset| async move { done.send(offset).expect("heard") }
        };
        let slow = async {
            hears.await.expect("told");
            tokio::task::yield_now().await;
            Ok(1)
        };
        let later = async {
            // What would be appended behind it is committed at once.
            _ = told.send(());
            tokio::join!(row.append_and_run(&session, async { Ok(2) }, act())).0
        };
        let (first, second) = tokio::join!(biased; row.append_and_run(&session, slow, act()), later);
        assert_eq!((first.expect("appended"), second.expect("appended")), (1, 2));
        assert_eq!((doing.recv().await, doing.recv().await), (Some(1), Some(2)));
    }

    #[tokio::test]
    async fn the_row_is_bounded() {
        let (row, session) = (Arc::new(ActionQueue::default()), "s".parse().expect("a valid id"));
        let (go_on, waits) = oneshot::channel::<()>();
        let (done, mut doing) = mpsc::unbounded_channel();
        let first = row.append_and_run(&session, async { Ok(0) }, |_| async move { _ = waits.await });
        first.await.expect("room");
        for offset in 1..MAX_WAITING as u64 {
            let done = done.clone();
            let act = |offset| async move { done.send(offset).expect("heard") };
            row.append_and_run(&session, async move { Ok(offset) }, act).await.expect("room");
        }
        let more = row.append_and_run(&session, async { panic!("appended") }, |_| async {}).await;
        assert!(matches!(more, Err(Error::Busy { .. })), "{more:?}");
        go_on.send(()).expect("it waits");
        for offset in 1..MAX_WAITING as u64 {
            assert_eq!(doing.recv().await, Some(offset));
        }
    }
}
