//! Locks of session keys: two concurrent starts with one key must get one session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

type Lock = Arc<tokio::sync::Mutex<()>>;

/// Keys with which starts are in progress or waiting.
#[derive(Debug, Default)]
pub(super) struct Keys(Mutex<HashMap<String, Lock>>);

impl Keys {
    /// Waits until no other start uses `key`, and excludes others until the guard is dropped.
    pub(super) async fn hold(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock_of(key).lock_owned().await
    }

    fn lock_of(&self, key: &str) -> Lock {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Drops locks that nobody holds or waits for.
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
