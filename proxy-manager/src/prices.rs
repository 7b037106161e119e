//! The user's prices of models, which all sessions share: a change holds for the next usage that an agent tells.

use std::sync::{Arc, Mutex, PoisonError};

use agents::PriceTable;

/// Prices that can be replaced while sessions use them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPrices(Arc<Mutex<Arc<PriceTable>>>);

impl SharedPrices {
    /// Replaces all prices.
    pub(crate) fn replace(&self, prices: PriceTable) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(prices);
    }

    /// Returns the prices; `None` if there are none.
    pub(crate) fn table(&self) -> Option<Arc<PriceTable>> {
        let prices = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (!prices.is_empty()).then_some(prices)
    }
}
