//! Bound on the rate of requests: a bucket of tokens for each caller, and one for each address that no caller is known of.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use super::audit::lock;

/// Callers and addresses that are remembered.
const MAX_BUCKETS: usize = 10_000;
/// Failed attempts of one address in a second, over some time.
const FAILURES_PER_SECOND: f64 = 5.0;
/// Failed attempts of one address at once.
const FAILURE_BURST: f64 = 30.0;
/// Seconds of a caller's rate that may come at once.
const BURST_SECONDS: f64 = 2.0;

/// Whose requests are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RateKey {
    Caller(String),
    Failures(Option<IpAddr>),
}

/// Bucket of tokens: one for each request, refilled over time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateBucket {
    left: f64,
    at: Instant,
}

impl RateBucket {
    /// Creates a full one.
    pub(crate) fn full(burst: f64, now: Instant) -> Self {
        Self { left: burst, at: now }
    }

    /// Takes a token.
    ///
    /// # Errors
    /// The time until there is one.
    pub(crate) fn take(&mut self, per_second: f64, burst: f64, now: Instant) -> Result<(), Duration> {
        *self = Self { left: self.refilled(per_second, burst, now), at: now };
        if self.left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.left) / per_second));
        }
        self.left -= 1.0;
        Ok(())
    }

    fn refilled(&self, per_second: f64, burst: f64, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() * per_second).min(burst)
    }
}

/// Rates of all callers. A clone has the same.
#[derive(Clone, Debug)]
pub(crate) struct RequestRates {
    per_second: f64,
    buckets: Arc<Mutex<HashMap<RateKey, RateBucket>>>,
}

impl RequestRates {
    /// Allows each caller so many requests in a second.
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second: f64::from(per_second.max(1)), buckets: Arc::default() }
    }

    /// Counts a request of a caller.
    ///
    /// # Errors
    /// The time until the next one is admitted.
    pub(crate) fn count(&self, caller: &str) -> Result<(), Duration> {
        self.take(RateKey::Caller(caller.to_owned()), self.per_second, self.per_second * BURST_SECONDS, Instant::now())
    }

    /// Checks that an address has attempts left.
    ///
    /// # Errors
    /// The time until it has.
    pub(crate) fn check_failures(&self, address: Option<IpAddr>) -> Result<(), Duration> {
        let key = RateKey::Failures(address);
        let left = lock(&self.buckets)
            .get(&key)
            .map(|bucket| bucket.refilled(FAILURES_PER_SECOND, FAILURE_BURST, Instant::now()));
        match left {
            Some(left) if left < 1.0 => Err(Duration::from_secs_f64((1.0 - left) / FAILURES_PER_SECOND)),
            _ => Ok(()),
        }
    }

    /// Counts a failed attempt of an address.
    pub(crate) fn count_failure(&self, address: Option<IpAddr>) {
        // Whether it was the last one is asked at the next.
        let _ = self.take(RateKey::Failures(address), FAILURES_PER_SECOND, FAILURE_BURST, Instant::now());
    }

    fn take(&self, key: RateKey, per_second: f64, burst: f64, now: Instant) -> Result<(), Duration> {
        let mut buckets = lock(&self.buckets);
        if buckets.len() >= MAX_BUCKETS && !buckets.contains_key(&key) {
            // A bucket that was not used for a minute is full.
            buckets.retain(|_, bucket| now.duration_since(bucket.at) < Duration::from_secs(60));
            if buckets.len() >= MAX_BUCKETS {
                buckets.clear();
            }
        }
        buckets.entry(key).or_insert_with(|| RateBucket::full(burst, now)).take(per_second, burst, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_has_its_rate_and_nobody_else_pays_for_it() {
        let rates = RequestRates::new(10);
        let now = Instant::now();
        let take = |name: &str, now| rates.take(RateKey::Caller(name.into()), 10.0, 20.0, now);
        for _ in 0..20 {
            take("a", now).expect("within the burst");
        }
        assert_eq!(take("a", now).expect_err("over it"), Duration::from_millis(100));
        take("b", now).expect("another caller");
        take("a", now + Duration::from_millis(101)).expect("after a tenth of a second");
        take("a", now + Duration::from_millis(102)).expect_err("one at a time");
    }

    #[test]
    fn an_address_has_so_many_failures() {
        let rates = RequestRates::new(1000);
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        for _ in 0..30 {
            rates.check_failures(address).expect("some are left");
            rates.count_failure(address);
        }
        rates.check_failures(address).expect_err("none is left");
        rates.check_failures(None).expect("another address");
    }
}
