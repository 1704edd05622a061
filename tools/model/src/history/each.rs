//! What a crash may leave where an fsync makes one file durable and not all that was done before it, as fast commits
//! do.
//!
//! Each name stands for what it stood for in some state that is not older than the last full commit or any promise
//! about it; and so has each inode the attributes, size and contents of one such state, not the same state for all. All
//! names of an inode are those of one state, so that a rename is never half done. As many links as names, and data by
//! the rules of the whole history.

use std::collections::{BTreeMap, BTreeSet};

use super::History;
use crate::compare::describe_but_links;
use crate::{Difference, Kind, ModelId, ModelPath, ModelTree};

/// How many names are tried to stand for something before a tree counts as unexplained.
const TRIES: u32 = 20_000;

/// Found nodes and the model's, both ways.
#[derive(Clone)]
struct Numbers {
    to_model: BTreeMap<ModelId, ModelId>,
    taken: BTreeSet<ModelId>,
    /// Names that lead to a found node.
    names: BTreeMap<ModelId, u32>,
    /// The same by the model's node, with the model's directories.
    places: BTreeMap<ModelId, Names>,
}

/// Names of an inode, each with its directory.
type Names = BTreeSet<(ModelId, Vec<u8>)>;

/// A name that is yet to be explained.
#[derive(Clone)]
struct Name {
    path: ModelPath,
    /// The model's directory, and the name in it.
    directory: ModelId,
    name: Vec<u8>,
    /// What was found there.
    actual: Option<ModelId>,
}

/// The search for what each name stands for.
struct Search<'a> {
    found: &'a ModelTree,
    /// For each inode, all the sets of names that it had.
    sets: BTreeMap<ModelId, BTreeSet<Names>>,
    tries: u32,
    /// Why the attempt failed that explained most names, and how many those were.
    nearest: Option<(usize, Difference)>,
}

impl Search<'_> {
    /// Records an attempt that failed after `explained` names were explained.
    fn failed(&mut self, explained: usize, path: &ModelPath, what: String) {
        if self
            .nearest
            .as_ref()
            .is_none_or(|(most, _)| explained > *most)
        {
            let path = path.clone();
            self.nearest = Some((explained, Difference { path, what }));
        }
    }
}

impl History {
    pub(super) fn check_each(&self, found: &ModelTree) -> Result<(), Difference> {
        let numbers = Numbers {
            to_model: BTreeMap::from([(ModelId::ROOT, ModelId::ROOT)]),
            taken: BTreeSet::from([ModelId::ROOT]),
            names: BTreeMap::new(),
            places: BTreeMap::new(),
        };
        let mut search = Search {
            found,
            sets: self.sets_of_names(),
            tries: 0,
            nearest: None,
        };
        let names = self.names_below(&ModelPath(Vec::new()), ModelId::ROOT, found, ModelId::ROOT);
        if self.explain(&names, &numbers, 0, &mut search) {
            return Ok(());
        }
        Err(search.nearest.map_or_else(
            || Difference {
                path: ModelPath(Vec::new()),
                what: "is of no state".into(),
            },
            |(_, difference)| difference,
        ))
    }

    /// Whether the names that are left, and those below them, stand for what they may. Two names may each stand for one
    /// inode and only one for another, so what was chosen for the first is taken back where nothing is left for the
    /// second.
    fn explain(
        &self,
        names: &[Name],
        numbers: &Numbers,
        explained: usize,
        search: &mut Search<'_>,
    ) -> bool {
        let Some((first, rest)) = names.split_first() else {
            return match check_links(search, numbers) {
                Ok(()) => true,
                Err(what) => {
                    search.failed(explained, &ModelPath(Vec::new()), what);
                    false
                }
            };
        };
        let choices = match self.choices(first, search.found, numbers) {
            Ok(choices) => choices,
            Err(what) => {
                search.failed(explained, &first.path, what);
                return false;
            }
        };
        for id in choices {
            search.tries += 1;
            if search.tries > TRIES {
                return false;
            }
            let mut numbers = numbers.clone();
            let mut rest = rest.to_vec();
            if let (Some(id), Some(there)) = (id, first.actual) {
                *numbers.names.entry(there).or_insert(0) += 1;
                let place = (first.directory, first.name.clone());
                numbers.places.entry(id).or_default().insert(place);
                numbers.taken.insert(id);
                let is_new = numbers.to_model.insert(there, id).is_none();
                if is_new && matches!(search.found.node(there).kind, Kind::Directory(_)) {
                    rest.extend(self.names_below(&first.path, id, search.found, there));
                }
            }
            if self.explain(&rest, &numbers, explained + 1, search) {
                return true;
            }
        }
        false
    }

    /// The names of a directory of the model's that was found as `there`.
    fn names_below(
        &self,
        path: &ModelPath,
        directory: ModelId,
        found: &ModelTree,
        there: ModelId,
    ) -> Vec<Name> {
        (self.names_in(directory, found, there).into_iter())
            .map(|name| Name {
                path: path.join(&name),
                directory,
                actual: child(found, there, &name),
                name,
            })
            .collect()
    }

    /// For each inode since the last full commit, the names that it had in each state. What is logged of an inode is
    /// logged with all names of it that changed, so it can't have some of one state and some of another.
    fn sets_of_names(&self) -> BTreeMap<ModelId, BTreeSet<Names>> {
        let states = &self.states[self.durable..];
        let of_state: Vec<BTreeMap<ModelId, Names>> = states.iter().map(names_in).collect();
        let ids: BTreeSet<ModelId> = of_state
            .iter()
            .flat_map(|names| names.keys().copied())
            .collect();
        ids.into_iter()
            .map(|id| {
                let sets = (of_state.iter())
                    .map(|names| names.get(&id).cloned().unwrap_or_default())
                    .collect();
                (id, sets)
            })
            .collect()
    }

    /// All names that a directory had since the last full commit, or has.
    fn names_in(&self, directory: ModelId, found: &ModelTree, there: ModelId) -> BTreeSet<Vec<u8>> {
        let states = self.states[self.durable..].iter();
        let had = states.filter(|state| state.get(directory).is_some());
        let had = had.flat_map(|state| state.children(directory).map(|(name, _)| name.to_vec()));
        let has = found.children(there).map(|(name, _)| name.to_vec());
        had.chain(has).collect()
    }

    /// All that a name may stand for, the newest first; the error says why it is nothing.
    fn choices(
        &self,
        place: &Name,
        found: &ModelTree,
        numbers: &Numbers,
    ) -> Result<Vec<Option<ModelId>>, String> {
        let floor = self.floor_of_name(place.directory, &place.name);
        let mut allowed: Vec<Option<ModelId>> = Vec::new();
        for state in self.states[floor..].iter().rev() {
            let stood_for = child(state, place.directory, &place.name);
            if !allowed.contains(&stood_for) {
                allowed.push(stood_for);
            }
        }
        let Some(node) = place.actual else {
            return if allowed.contains(&None) {
                Ok(vec![None])
            } else {
                Err("is missing".into())
            };
        };
        if let Some(known) = numbers.to_model.get(&node) {
            return if allowed.contains(&Some(*known)) {
                Ok(vec![Some(*known)])
            } else {
                Err("is linked to other names than expected".into())
            };
        }
        let mut why = "should not be there".to_owned();
        let mut choices = Vec::new();
        for id in allowed.into_iter().flatten() {
            if numbers.taken.contains(&id) {
                continue;
            }
            match self.check_node(id, node, found) {
                Ok(()) => choices.push(Some(id)),
                Err(what) => why = what,
            }
        }
        if choices.is_empty() {
            Err(why)
        } else {
            Ok(choices)
        }
    }

    /// Whether a found node is one of the model's, as it was in some state that it may have.
    fn check_node(&self, id: ModelId, there: ModelId, found: &ModelTree) -> Result<(), String> {
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
    fn floor_of_name(&self, directory: ModelId, name: &[u8]) -> usize {
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

/// Every file has as many links as names, and of each inode all names are those of one state.
fn check_links(search: &Search<'_>, numbers: &Numbers) -> Result<(), String> {
    for (id, sets) in &search.sets {
        let none = Names::new();
        let names = numbers.places.get(id).unwrap_or(&none);
        if !sets.contains(names) {
            let names = names.iter().map(|(_, name)| String::from_utf8_lossy(name));
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(format!("an inode of no state's names: [{names}]"));
        }
    }
    for (node, names) in &numbers.names {
        let node = search.found.node(*node);
        if !matches!(node.kind, Kind::Directory(_)) && node.links != *names {
            return Err(format!("{} links, and {names} names", node.links));
        }
    }
    Ok(())
}

/// The names of each inode of a tree.
fn names_in(tree: &ModelTree) -> BTreeMap<ModelId, Names> {
    let mut names: BTreeMap<ModelId, Names> = BTreeMap::new();
    let mut rest = vec![ModelId::ROOT];
    while let Some(directory) = rest.pop() {
        for (name, id) in tree.children(directory) {
            let place = (directory, name.to_vec());
            names.entry(id).or_default().insert(place);
            if matches!(tree.node(id).kind, Kind::Directory(_)) {
                rest.push(id);
            }
        }
    }
    names
}

/// What a name in a directory stands for.
fn child(tree: &ModelTree, directory: ModelId, name: &[u8]) -> Option<ModelId> {
    match &tree.get(directory)?.kind {
        Kind::Directory(names) => names.get(name).copied(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Op, RenameMode};

    fn history(ops: &[Op]) -> History {
        let mut history = History::new_of_each(ModelTree::new());
        for op in ops {
            let mut state = history.last().clone();
            state.apply(op).unwrap();
            history.push(state);
        }
        history
    }

    fn create(name: &str) -> Op {
        Op::Create {
            path: ModelPath::new(name),
            mode: 0o644,
        }
    }

    fn renamed() -> Op {
        Op::Rename {
            from: ModelPath::new("a"),
            to: ModelPath::new("b"),
            flag: RenameMode::NoReplace,
        }
    }

    /// Both inodes may stand under "a", but only the older one under "b".
    #[test]
    fn a_name_taken_twice_leaves_the_older_inode_to_the_name_that_has_it() {
        let all = history(&[create("a"), renamed(), create("a")]);
        all.check(all.last()).unwrap();
        // "b" was never there without having been "a", but fast commits may bring it alone.
        let mut only_new = ModelTree::new();
        only_new.apply(&create("b")).unwrap();
        all.check(&only_new).unwrap();
        let mut foreign = all.last().clone();
        foreign.apply(&create("c")).unwrap();
        assert!(all.check(&foreign).is_err());
        // One inode can't be both.
        let mut linked = ModelTree::new();
        linked.apply(&create("a")).unwrap();
        let link = Op::Link {
            from: crate::OpTarget::Path(ModelPath::new("a")),
            to: ModelPath::new("b"),
        };
        linked.apply(&link).unwrap();
        assert!(all.check(&linked).is_err());
        // Nor may it lose its old name before it has the new one.
        assert!(
            history(&[create("a"), renamed()])
                .check(&ModelTree::new())
                .is_ok()
        );
        let mut from_a = history(&[create("a")]);
        from_a.promise(&Op::Sync);
        let mut state = from_a.last().clone();
        state.apply(&renamed()).unwrap();
        from_a.push(state);
        from_a.check(from_a.last()).unwrap();
        assert!(from_a.check(&ModelTree::new()).is_err());
    }
}
