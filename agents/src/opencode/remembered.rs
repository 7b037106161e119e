//! Maps of bounded size.

use std::collections::{HashMap, VecDeque};

/// Map that removes its oldest key to make room for a new one.
#[derive(Debug)]
pub(super) struct Remembered<V> {
    known: HashMap<Box<str>, V>,
    order: VecDeque<Box<str>>,
    most: usize,
}

impl<V> Remembered<V> {
    pub(super) fn new(most: usize) -> Self {
        Self { known: HashMap::new(), order: VecDeque::new(), most }
    }

    pub(super) fn get(&self, key: &str) -> Option<&V> {
        self.known.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.known.get_mut(key)
    }

    /// Inserts a value. Returns the entry that was removed for it.
    pub(super) fn insert(&mut self, key: &str, value: V) -> Option<(Box<str>, V)> {
        if self.known.insert(key.into(), value).is_none() {
            self.order.push_back(key.into());
            if self.order.len() > self.most {
                let oldest = self.order.pop_front()?;
                return self.known.remove_entry(&oldest);
            }
        }
        None
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.known.values_mut()
    }

    /// Visits all entries, oldest first.
    pub(super) fn for_each(&mut self, mut visit: impl FnMut(&str, &mut V)) {
        for key in &self.order {
            if let Some(value) = self.known.get_mut(key) {
                visit(key, value);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut map = Remembered::new(2);
        map.insert("a", 1);
        assert_eq!((map.insert("b", 2), map.insert("a", 3)), (None, None));
        assert_eq!(map.insert("c", 4), Some(("a".into(), 3)));
        assert_eq!((map.get("a"), map.get("b"), map.get("c")), (None, Some(&2), Some(&4)));
    }
}
