//! Locks of session keys: two concurrent starts with one key must get one session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::OwnedMutexGuard;

type KeyLock = Arc<tokio::sync::Mutex<()>>;

/// Keys with which starts are in progress or waiting.
#[derive(Debug, Default)]
pub(super) struct KeyLocks(Mutex<HashMap<String, KeyLock>>);

impl KeyLocks {
    /// Waits until no other start uses `key`, and excludes others until the guard is dropped.
    pub(super) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        self.lock_of(key).lock_owned().await
    }

    fn lock_of(&self, key: &str) -> KeyLock {
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
        let keys = KeyLocks::default();
        let one = keys.lock("one").await;
        let two = keys.lock("two").await;
        assert!(timeout(Duration::ZERO, keys.lock("one")).await.is_err(), "it is held");
        drop(one);
        let one = timeout(Duration::from_secs(20), keys.lock("one")).await.expect("free");
        drop((one, two));
        drop(keys.lock("three").await);
        assert_eq!(keys.0.lock().expect("whole").len(), 1);
    }
}
