//! What a crash may leave where an fsync makes one file durable and not all that was done before it, as fast commits
//! do.
//!
//! Each name stands for what it stood for in some state that is not older than the last full commit or any promise
//! about it; and so has each inode the attributes, size and contents of one such state, not the same state for all. As
//! many links as names, and data by the rules of the whole history.

use std::collections::{BTreeMap, BTreeSet};

use super::History;
use crate::compare::describe_but_links;
use crate::{Difference, Kind, NodeId, Path, Tree};

/// Found nodes and the model's, both ways.
struct Numbers {
    to_model: BTreeMap<NodeId, NodeId>,
    taken: BTreeSet<NodeId>,
    /// Names that lead to a found node.
    names: BTreeMap<NodeId, u32>,
}

impl History {
    pub(super) fn check_each(&self, found: &Tree) -> Result<(), Difference> {
        let mut numbers = Numbers {
            to_model: BTreeMap::from([(NodeId::ROOT, NodeId::ROOT)]),
            taken: BTreeSet::from([NodeId::ROOT]),
            names: BTreeMap::new(),
        };
        let mut rest = vec![(Path(Vec::new()), NodeId::ROOT)];
        while let Some((path, there)) = rest.pop() {
            let directory = numbers.to_model[&there];
            for name in self.names_in(directory, found, there) {
                let path = path.join(&name);
                let actual = child(found, there, &name);
                self.check_name(directory, &name, actual, found, &mut numbers)
                    .map_err(|what| Difference {
                        path: path.clone(),
                        what,
                    })?;
                if let Some(node) = actual
                    && let Kind::Directory(_) = found.node(node).kind
                {
                    rest.push((path, node));
                }
            }
        }
        for (node, names) in &numbers.names {
            let node = found.node(*node);
            if !matches!(node.kind, Kind::Directory(_)) && node.links != *names {
                return Err(Difference {
                    path: Path(Vec::new()),
                    what: format!("{} links, and {names} names", node.links),
                });
            }
        }
        Ok(())
    }

    /// All names that a directory had since the last full commit, or has.
    fn names_in(&self, directory: NodeId, found: &Tree, there: NodeId) -> BTreeSet<Vec<u8>> {
        let states = self.states[self.durable..].iter();
        let had = states.filter(|state| state.get(directory).is_some());
        let had = had.flat_map(|state| state.children(directory).map(|(name, _)| name.to_vec()));
        let has = found.children(there).map(|(name, _)| name.to_vec());
        had.chain(has).collect()
    }

    fn check_name(
        &self,
        directory: NodeId,
        name: &[u8],
        actual: Option<NodeId>,
        found: &Tree,
        numbers: &mut Numbers,
    ) -> Result<(), String> {
        let floor = self.floor_of_name(directory, name);
        let states = self.states[floor..].iter();
        let allowed: Vec<Option<NodeId>> =
            states.map(|state| child(state, directory, name)).collect();
        let Some(node) = actual else {
            return match allowed.contains(&None) {
                true => Ok(()),
                false => Err("is missing".into()),
            };
        };
        *numbers.names.entry(node).or_insert(0) += 1;
        if let Some(known) = numbers.to_model.get(&node) {
            return match allowed.contains(&Some(*known)) {
                true => Ok(()),
                false => Err("is linked to other names than expected".into()),
            };
        }
        let mut why = "should not be there".to_owned();
        for id in allowed.into_iter().flatten() {
            if numbers.taken.contains(&id) {
                continue;
            }
            match self.check_node(id, node, found) {
                Ok(()) => {
                    numbers.to_model.insert(node, id);
                    numbers.taken.insert(id);
                    return Ok(());
                }
                Err(what) => why = what,
            }
        }
        Err(why)
    }

    /// Whether a found node is one of the model's, as it was in some state that it may have.
    fn check_node(&self, id: NodeId, there: NodeId, found: &Tree) -> Result<(), String> {
        let promised = self.synced.get(&id).copied().unwrap_or(0);
        let floor = self.durable.max(promised);
        let actual = found.node(there);
        let mut why = "is of no state".to_owned();
        for index in (floor..self.states.len()).rev() {
            let Some(expected) = self.states[index].get(id) else {
                continue;
            };
            let (mine, theirs) = (describe_but_links(expected), describe_but_links(actual));
            if mine != theirs {
                why = format!("expected {mine}, found {theirs}");
                continue;
            }
            let (Kind::File(mine), Kind::File(theirs)) = (&expected.kind, &actual.kind) else {
                return Ok(());
            };
            let from = index.max(self.durable_data.get(&id).copied().unwrap_or(0));
            match self.check_data(id, index, from, mine, theirs) {
                Ok(()) => return Ok(()),
                Err(what) => why = what,
            }
        }
        Err(why)
    }

    /// No older state of a name may be found.
    fn floor_of_name(&self, directory: NodeId, name: &[u8]) -> usize {
        let of_directory = self.synced_names.get(&directory).copied().unwrap_or(0);
        let mut floor = self.durable.max(of_directory);
        for (id, promised) in &self.synced_names {
            let change = (1..=*promised).rev().find(|index| {
                let before = child(&self.states[index - 1], directory, name);
                let after = child(&self.states[*index], directory, name);
                before != after && (before == Some(*id) || after == Some(*id))
            });
            floor = floor.max(change.unwrap_or(0));
        }
        floor
    }
}

/// What a name in a directory stands for.
fn child(tree: &Tree, directory: NodeId, name: &[u8]) -> Option<NodeId> {
    match &tree.get(directory)?.kind {
        Kind::Directory(names) => names.get(name).copied(),
        _ => None,
    }
}
