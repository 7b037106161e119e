//! Map of bounded size.

use std::collections::{HashMap, VecDeque};

/// Map that removes its oldest key to make room for a new one.
#[derive(Debug)]
pub(crate) struct BoundedMap<V, const MOST: usize = 1024> {
    known: HashMap<Box<str>, V>,
    order: VecDeque<Box<str>>,
}

impl<V, const MOST: usize> Default for BoundedMap<V, MOST> {
    fn default() -> Self {
        Self { known: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V, const MOST: usize> BoundedMap<V, MOST> {
    pub(crate) fn get(&self, key: &str) -> Option<&V> {
        self.known.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.known.get_mut(key)
    }

    /// Inserts a value. Returns the entry that was removed for it.
    pub(crate) fn insert(&mut self, key: &str, value: V) -> Option<(Box<str>, V)> {
        if self.known.insert(key.into(), value).is_none() {
            self.order.push_back(key.into());
            if self.order.len() > MOST {
                let oldest = self.order.pop_front()?;
                return self.known.remove_entry(&oldest);
            }
        }
        None
    }

    /// Returns the value of `key`, which is the default for a new key.
    pub(crate) fn get_or_default(&mut self, key: &str) -> &mut V
    where
        V: Default,
    {
        if !self.known.contains_key(key) {
            self.insert(key, V::default());
        }
        self.known.entry(key.into()).or_default()
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &str) -> Option<V> {
        let value = self.known.remove(key)?;
        self.order.retain(|known| **known != *key);
        Some(value)
    }

    /// Returns all entries, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &V)> {
        self.order.iter().filter_map(|key| Some((&**key, self.known.get(key)?)))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.known.values_mut()
    }

    /// Visits all entries, oldest first.
    pub(crate) fn for_each(&mut self, mut visit: impl FnMut(&str, &mut V)) {
        for key in &self.order {
            if let Some(value) = self.known.get_mut(key) {
                visit(key, value);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut map = BoundedMap::<_, 2>::default();
        map.insert("a", 1);
        assert_eq!((map.insert("b", 2), map.insert("a", 3)), (None, None));
        assert_eq!(map.insert("c", 4), Some(("a".into(), 3)));
        assert_eq!((map.get("a"), map.get("b"), map.get("c")), (None, Some(&2), Some(&4)));
    }
}
