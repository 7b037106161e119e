//! One start at a time for each session key: two at once shall get one session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// The keys that somebody starts a session with, or waits to.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<String, Lock>>);

impl Keys {
    /// Waits until nobody else starts a session with `key`. Nobody else does as long as the guard lives.
    pub(super) async fn hold(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock_of(key).lock_owned().await
    }

    fn lock_of(&self, key: &str) -> Lock {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds or waits for.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(key.to_owned()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    #[tokio::test]
    async fn each_key_waits_for_itself_alone_and_leaves_nothing() {
        let keys = Keys::default();
        let one = keys.hold("one").await;
        let two = keys.hold("two").await;
        assert!(timeout(Duration::ZERO, keys.hold("one")).await.is_err(), "it is held");
        drop(one);
        let one = timeout(Duration::from_secs(20), keys.hold("one")).await.expect("free");
        drop((one, two));
        drop(keys.hold("three").await);
        assert_eq!(keys.0.lock().expect("whole").len(), 1);
    }
}
