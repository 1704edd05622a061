//! A B+tree that many threads use at once: a change of an item that is there locks its leaf alone for writing.
//!
//! ```text
//!   anchor                 names the root; a "node" above it, so that a root that splits is no special case
//!     |
//!   inner  [ k | k | k ]   [read] for an update; [write] for an insert, from the leaf's parent down
//!    /   |   |   \
//!  leaf leaf leaf leaf     [write] by one thread; scans take [read]
//! ```
//!
//! Locks are coupled: a child's is taken before its parent's is given back, from the anchor down, so nobody sees a node
//! in the middle of a split. An update ([`LogTree::update`], a search with an insertion length of 0) shares every node
//! but the leaf, and never splits. An insert ([`LogTree::insert`]) holds the leaf's parent exclusively and splits a
//! leaf without room; when the parent has no room either, it begins again one level higher. Nodes are never joined:
//! the tree lives as long as one transaction. All nodes have rank [`Rank::LogTree`], keyed by their height. Nothing
//! here is on disk; a crash forgets the tree.

use sync::{Arc, Counter, Hint, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// No tree is higher: with the smallest nodes this holds more than memory does.
const LEVELS_MAX: u64 = 64;
/// Children that an inner node must be able to have, whatever a node's size: two after a split, and one more.
const CHILDREN_MIN: usize = 4;

/// How often what was done; see [`LogTree::counters`].
#[derive(Debug, Default)]
pub(crate) struct TreeCounters {
    /// Items changed with their leaf alone locked for writing.
    pub(crate) updates: Counter,
    /// Items put in, or changed, with the leaf's parent locked for writing.
    pub(crate) inserts: Counter,
    /// Inner nodes (the anchor among them) locked for writing.
    pub(crate) parent_write_locks: Counter,
    /// Leaves that became two.
    pub(crate) leaf_splits: Counter,
    /// Inner nodes that became two.
    pub(crate) node_splits: Counter,
    /// Inserts that began again because a node above the leaf's parent had to split.
    pub(crate) restarts: Counter,
}

/// The tree; see the module.
pub(crate) struct LogTree<K, V> {
    /// Holds the root as its only child.
    anchor: Node<K, V>,
    /// The root's level. [written with the anchor locked]
    height: Hint<u64>,
    /// Bytes of a node. [const]
    node_bytes: usize,
    /// Bytes of a value that count towards a node's size. [const]
    weigh: fn(&V) -> usize,
    counters: TreeCounters,
}

struct Node<K, V> {
    /// 0 for a leaf. [const]
    level: u64,
    /// [log tree; keyed by height]
    body: RwLock<Body<K, V>>,
}

enum Body<K, V> {
    Leaf(Vec<(K, V)>),
    /// Children, each with the least key that it may hold; the first one's is not looked at.
    Inner(Vec<(K, Arc<Node<K, V>>)>),
}

/// A node above the one that is looked at, locked.
enum Above<'a, K, V> {
    Shared(RwLockReadGuard<'a, Body<K, V>>),
    /// With the node's level.
    Exclusive(u64, RwLockWriteGuard<'a, Body<K, V>>),
}

/// Puts a value into a leaf's items; returns whether its key was there.
type Put<'a, K, V> = dyn FnMut(&mut Vec<(K, V)>, V) -> bool + 'a;

/// How a try to insert ended.
enum Inserted<V> {
    /// Whether the item was there before.
    Done(bool),
    /// Nodes up to this level must be locked exclusively.
    Again(u64, V),
}

impl<K: Ord + Copy, V> Node<K, V> {
    fn new(level: u64, body: Body<K, V>) -> Node<K, V> {
        // Locks are waited for from the anchor down: higher nodes come first.
        let height = LEVELS_MAX.saturating_sub(level);
        Node {
            level,
            body: RwLock::keyed(Rank::LogTree, height, body),
        }
    }
}

impl<K: Ord + Copy, V> Body<K, V> {
    /// The child that may hold `key`, and its place; `None` in a leaf.
    fn child(&self, key: &K) -> Option<(usize, &Arc<Node<K, V>>)> {
        let Body::Inner(children) = self else {
            return None;
        };
        let place = children
            .partition_point(|(least, _)| least <= key)
            .saturating_sub(1);
        children.get(place).map(|(_, child)| (place, child))
    }

    /// The least key of the child at a place, if there is one.
    fn least(&self, place: usize) -> Option<K> {
        match self {
            Body::Leaf(_) => None,
            Body::Inner(children) => children.get(place).map(|(least, _)| *least),
        }
    }

    /// Whether the node lacks room for `weight` bytes more, or for one child more.
    fn is_full(&self, weight: usize, node_bytes: usize, weigh: fn(&V) -> usize) -> bool {
        match self {
            // An item of its own alone fits any leaf.
            Body::Leaf(items) => items.len() > 1 && weigh_all(items, weigh) + weight > node_bytes,
            Body::Inner(children) => {
                let most = node_bytes / (size_of::<K>() + size_of::<usize>());
                children.len() >= most.max(CHILDREN_MIN)
            }
        }
    }

    /// Takes the upper half out, as a node of its own, with the least key that it may hold.
    fn split(&mut self, level: u64, weigh: fn(&V) -> usize) -> Option<(K, Arc<Node<K, V>>)> {
        let (least, upper) = match self {
            Body::Leaf(items) => {
                let half = weigh_all(items, weigh) / 2;
                let mut sum = 0;
                let mut at = items.partition_point(|(_, value)| {
                    sum += weigh(value) + size_of::<K>();
                    sum <= half
                });
                // Both halves get something.
                at = at.clamp(1, items.len().checked_sub(1)?);
                let upper = items.split_off(at);
                (upper.first()?.0, Body::Leaf(upper))
            }
            Body::Inner(children) => {
                let upper = children.split_off(children.len() / 2);
                (upper.first()?.0, Body::Inner(upper))
            }
        };
        Some((least, Arc::new(Node::new(level, upper))))
    }
}

fn weigh_all<K, V>(items: &[(K, V)], weigh: fn(&V) -> usize) -> usize {
    let of = |(_, value): &(K, V)| weigh(value) + size_of::<K>();
    items.iter().map(of).sum()
}

/// Goes down from a node locked for reading to the leaf that may hold `key`, which alone is locked for writing.
fn descend<K: Ord + Copy, V, R>(
    above: RwLockReadGuard<'_, Body<K, V>>,
    key: &K,
    work: impl FnOnce(&mut Vec<(K, V)>) -> Option<R>,
) -> Option<R> {
    let child = Arc::clone(above.child(key)?.1);
    if child.level > 0 {
        let below = child.body.read();
        drop(above);
        return descend(below, key, work);
    }
    let mut leaf = child.body.write();
    drop(above);
    match &mut *leaf {
        Body::Leaf(items) => work(items),
        Body::Inner(_) => None,
    }
}

/// Shows the leaf that may hold `key`, locked for reading, with the least key of the leaf behind it. `end`: the least
/// key behind the node above.
fn show<K: Ord + Copy, V, R>(
    above: RwLockReadGuard<'_, Body<K, V>>,
    key: &K,
    end: Option<K>,
    look: impl FnOnce(&[(K, V)], Option<K>) -> R,
) -> Option<R> {
    let (place, child) = above.child(key)?;
    let child = Arc::clone(child);
    let end = above.least(place + 1).or(end);
    let below = child.body.read();
    drop(above);
    match &*below {
        Body::Leaf(items) => Some(look(items, end)),
        Body::Inner(_) => show(below, key, end, look),
    }
}

impl<K: Ord + Copy + Default, V> LogTree<K, V> {
    /// An empty tree with nodes of about this size.
    #[must_use]
    pub(crate) fn new(node_bytes: usize, weigh: fn(&V) -> usize) -> LogTree<K, V> {
        let root = Arc::new(Node::new(0, Body::Leaf(Vec::new())));
        LogTree {
            anchor: Node::new(LEVELS_MAX, Body::Inner(vec![(K::default(), root)])),
            height: Hint::new(0),
            node_bytes,
            weigh,
            counters: TreeCounters::default(),
        }
    }

    /// What was counted so far.
    pub(crate) fn counters(&self) -> &TreeCounters {
        &self.counters
    }

    /// Changes an existing item without making it heavier: its leaf alone is locked for writing, and nothing splits.
    /// `None` if the item does not exist.
    pub(crate) fn update<R>(&self, key: &K, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        descend(self.anchor.body.read(), key, |items| {
            let place = items.binary_search_by_key(key, |(key, _)| *key).ok()?;
            let value = &mut items[place].1;
            let before = (self.weigh)(value);
            let result = change(value);
            debug_assert!(
                (self.weigh)(value) <= before,
                "an update makes nothing heavier"
            );
            self.counters.updates.add(1);
            Some(result)
        })
    }

    /// Inserts an item, or has `merge` change the existing one; returns whether it existed. The leaf's parent is locked
    /// for writing, and a leaf without room is split, whether or not the item exists.
    pub(crate) fn insert(&self, key: K, value: V, merge: impl FnOnce(&mut V, V)) -> bool {
        let (mut level, mut value, mut merge) = (1, value, Some(merge));
        loop {
            // If the root split since, one node more is locked exclusively than needed.
            let above = if self.height.get() < level {
                self.lock_exclusive(&self.anchor)
            } else {
                Above::Shared(self.anchor.body.read())
            };
            let mut put = |items: &mut Vec<(K, V)>, value: V| {
                let place = items.binary_search_by_key(&key, |(key, _)| *key);
                match (place, merge.take()) {
                    (Ok(place), Some(merge)) => merge(&mut items[place].1, value),
                    (Err(place), _) => items.insert(place, (key, value)),
                    // Put once only.
                    (Ok(_), None) => {}
                }
                place.is_ok()
            };
            match self.insert_below(above, &key, value, level, &mut put) {
                Inserted::Done(was_there) => {
                    self.counters.inserts.add(1);
                    return was_there;
                }
                Inserted::Again(higher, again) => {
                    self.counters.restarts.add(1);
                    (level, value) = (higher, again);
                }
            }
        }
    }

    fn lock_exclusive<'a>(&self, node: &'a Node<K, V>) -> Above<'a, K, V> {
        self.counters.parent_write_locks.add(1);
        Above::Exclusive(node.level, node.body.write())
    }

    /// Goes on below a locked node; nodes up to `level` are locked exclusively.
    fn insert_below(
        &self,
        mut above: Above<'_, K, V>,
        key: &K,
        value: V,
        level: u64,
        put: &mut Put<'_, K, V>,
    ) -> Inserted<V> {
        loop {
            let body: &Body<K, V> = match &above {
                Above::Shared(guard) => guard,
                Above::Exclusive(_, guard) => guard,
            };
            let Some((place, child)) = body.child(key) else {
                // Only a leaf has no child, and this is never called below one.
                return Inserted::Again(LEVELS_MAX, value);
            };
            let child = Arc::clone(child);
            if child.level > level {
                let below = Above::Shared(child.body.read());
                drop(above);
                return self.insert_below(below, key, value, level, put);
            }
            let mut guard = child.body.write();
            if guard.is_full(
                (self.weigh)(&value) + size_of::<K>(),
                self.node_bytes,
                self.weigh,
            ) {
                let Above::Exclusive(above_level, parent) = &mut above else {
                    return Inserted::Again(child.level + 1, value);
                };
                self.split(*above_level, parent, place, &child, &mut guard);
                continue;
            }
            drop(above);
            return match &mut *guard {
                Body::Leaf(items) => Inserted::Done(put(items, value)),
                Body::Inner(_) => {
                    self.counters.parent_write_locks.add(1);
                    let below = Above::Exclusive(child.level, guard);
                    self.insert_below(below, key, value, level, put)
                }
            };
        }
    }

    /// Splits a full child of a node; both are locked exclusively, and the node has room.
    fn split(
        &self,
        above_level: u64,
        parent: &mut Body<K, V>,
        place: usize,
        child: &Arc<Node<K, V>>,
        body: &mut Body<K, V>,
    ) {
        let splits = match child.level {
            0 => &self.counters.leaf_splits,
            _ => &self.counters.node_splits,
        };
        let Body::Inner(children) = parent else {
            return;
        };
        let Some((least, upper)) = body.split(child.level, self.weigh) else {
            return;
        };
        splits.add(1);
        if above_level < LEVELS_MAX {
            children.insert(place + 1, (least, upper));
            return;
        }
        // The anchor keeps one child: a new root over both.
        let both = vec![(children[place].0, Arc::clone(child)), (least, upper)];
        children[place].1 = Arc::new(Node::new(child.level + 1, Body::Inner(both)));
        self.height.set(child.level + 1);
    }

    /// Removes an item; returns whether it was there. Its leaf alone is locked for writing. The log itself removes
    /// nothing.
    #[cfg(test)]
    pub(crate) fn remove(&self, key: &K) -> bool {
        let removed = descend(self.anchor.body.read(), key, |items| {
            let place = items.binary_search_by_key(key, |(key, _)| *key).ok()?;
            Some(items.remove(place))
        });
        removed.is_some()
    }

    /// The result of `look` for an item; `None` if the item does not exist.
    pub(crate) fn get<R>(&self, key: &K, look: impl FnOnce(&V) -> R) -> Option<R> {
        show(self.anchor.body.read(), key, None, |items, _| {
            let place = items.binary_search_by_key(key, |(key, _)| *key).ok()?;
            Some(look(&items[place].1))
        })?
    }

    /// Shows the items from `from` on, in order, as long as `look` returns true. Each leaf is shown as it is at one
    /// time. The log itself reads items one by one.
    #[cfg(test)]
    pub(crate) fn scan(&self, from: K, mut look: impl FnMut(&K, &V) -> bool) {
        let mut next = Some(from);
        while let Some(from) = next {
            next = show(self.anchor.body.read(), &from, None, |items, end| {
                let first = items.partition_point(|(key, _)| *key < from);
                let goes_on = items[first..].iter().all(|(key, value)| look(key, value));
                end.filter(|_| goes_on)
            })
            .flatten();
        }
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
