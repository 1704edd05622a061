//! Concurrent calls in one directory, and whether some order of them explains what each returned: an order that keeps
//! what returned before another call began. Found by search (Wing and Gong), with the model as the object.

use std::collections::HashSet;

use device::BlockDevice;
use engine::{Ino, InodeFs};
use model::{Errno, ModelPath, ModelTree, Op, Random, RenameMode};
use sync::gauge;
use sync::schedule::{self, SchedulePlan};
use sync::{Arc, Mutex, Rank};

use crate::executor::{Executor, OpRefusal};
use crate::image::{Image, open};

/// Points after which a run counts as a livelock.
const POINTS: u64 = 2_000_000;
/// States that a search may see.
const SEARCHED: usize = 200_000;

/// Something asked of the directory.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Asked {
    Change(Op),
    /// Whether a name is there.
    Lookup(ModelPath),
    /// All names.
    List(ModelPath),
}

/// What it said.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Done(Result<(), Errno>),
    Names(Vec<Vec<u8>>),
}

#[derive(Clone, Debug)]
struct Event {
    thread: usize,
    asked: Asked,
    told: Told,
    called: u64,
    returned: u64,
}

/// Runs a seed's calls, and looks for an order.
///
/// # Errors
/// The calls, if no order explains them; a panic, a deadlock, a failure of the image.
pub fn run(image: &Image, seed: u64) -> Result<usize, String> {
    let device: Arc<dyn BlockDevice> = Arc::new(image.device.clone());
    let plan = SchedulePlan {
        seed,
        points: POINTS,
    };
    let work = || -> Result<Vec<Event>, String> {
        let fs = open(&device).map_err(|error| error.to_string())?;
        let directory = fs
            .lookup(Ino::ROOT, b"d0")
            .map_err(|error| error.to_string())?;
        let all = Mutex::new(Rank::Job, Vec::new());
        let threads = 2 + Random::new(seed).below(3) as usize;
        sync::thread::workers(threads, |thread| {
            let random = Random::new(seed.wrapping_mul(5).wrapping_add(thread as u64));
            let mine = run_thread(&fs, directory, thread, random, 16 / threads);
            all.lock().extend(mine);
        });
        fs.close().map_err(|error| error.to_string())?;
        all.into_inner().into_iter().collect()
    };
    let (events, _) = schedule::run(plan, work)?;
    let mut events = events?;
    events.sort_by_key(|event| event.called);
    explain(&image.tree, &events)?;
    Ok(events.len())
}

fn run_thread(
    fs: &InodeFs,
    directory: Ino,
    thread: usize,
    mut random: Random,
    steps: usize,
) -> Vec<Result<Event, String>> {
    let mut executor = Executor::new(fs);
    let mut events = Vec::new();
    for _ in 0..steps {
        let asked = ask(&mut random);
        let called = gauge::read().at;
        let told = tell(fs, directory, &mut executor, &asked);
        let returned = gauge::read().at;
        let event = told.map(|told| Event {
            thread,
            asked,
            told,
            called,
            returned,
        });
        events.push(event);
    }
    events
}

fn ask(random: &mut Random) -> Asked {
    let mut name = || ModelPath::new("d0").join(format!("n{}", random.below(3)).as_bytes());
    let (path, other) = (name(), name());
    match random.below(10) {
        0..3 => Asked::Change(Op::Create { path, mode: 0o644 }),
        3..5 => Asked::Change(Op::Unlink { path }),
        5..7 => {
            let flags = [
                RenameMode::Replace,
                RenameMode::NoReplace,
                RenameMode::Exchange,
            ];
            Asked::Change(Op::Rename {
                from: path,
                to: other,
                flag: *random.pick(&flags),
            })
        }
        7..9 => Asked::Lookup(path),
        _ => Asked::List(ModelPath::new("d0")),
    }
}

fn tell(
    fs: &InodeFs,
    directory: Ino,
    executor: &mut Executor<'_>,
    asked: &Asked,
) -> Result<Told, String> {
    let result = match asked {
        Asked::Change(op) => executor.apply(op),
        Asked::Lookup(path) => {
            let name = path.0.last().map_or(&[][..], Vec::as_slice);
            fs.lookup(directory, name)
                .map(drop)
                .map_err(OpRefusal::from)
        }
        Asked::List(_) => {
            let mut names = Vec::new();
            let entries = fs.read_dir(directory).map_err(|error| error.to_string())?;
            for entry in entries {
                names.push(entry.map_err(|error| error.to_string())?.name);
            }
            names.retain(|name| name != b"." && name != b"..");
            names.sort();
            return Ok(Told::Names(names));
        }
    };
    match result {
        Ok(()) => Ok(Told::Done(Ok(()))),
        Err(OpRefusal::Errno(errno)) => Ok(Told::Done(Err(errno))),
        Err(other) => Err(format!("{asked:?}: {other:?}")),
    }
}

/// What the model says to a question, and the state after it.
fn answer(tree: &ModelTree, asked: &Asked) -> (Told, ModelTree) {
    let mut after = tree.clone();
    let told = match asked {
        Asked::Change(op) => Told::Done(after.apply(op)),
        Asked::Lookup(path) => Told::Done(tree.lookup(path).map(drop)),
        Asked::List(path) => Told::Names(tree.lookup(path).map_or_else(
            |_| Vec::new(),
            |id| tree.children(id).map(|(name, _)| name.to_vec()).collect(),
        )),
    };
    (told, after)
}

/// Looks for an order in which every answer is the model's.
fn explain(start: &ModelTree, events: &[Event]) -> Result<(), String> {
    let mut seen: HashSet<(u64, String)> = HashSet::new();
    let mut rest = vec![(0_u64, start.clone())];
    let all = (1_u64 << events.len()) - 1;
    while let Some((done, tree)) = rest.pop() {
        if done == all {
            return Ok(());
        }
        if seen.len() > SEARCHED {
            return Err("the search for an order became too long".into());
        }
        let open = |index: &usize| done & (1 << index) == 0;
        let first_return = (0..events.len())
            .filter(open)
            .map(|index| events[index].returned)
            .min()
            .unwrap_or(u64::MAX);
        for index in (0..events.len()).filter(open) {
            let event = &events[index];
            // Whatever returned before this was called comes before it.
            if event.called > first_return {
                continue;
            }
            let (told, after) = answer(&tree, &event.asked);
            if told == event.told {
                let done = done | (1 << index);
                if seen.insert((done, summary(&after))) {
                    rest.push((done, after));
                }
            }
        }
    }
    let lines: Vec<String> = events
        .iter()
        .map(|event| {
            format!(
                "  thread {} {}..{}: {:?} -> {:?}",
                event.thread, event.called, event.returned, event.asked, event.told
            )
        })
        .collect();
    Err(format!("no order explains\n{}", lines.join("\n")))
}

/// What of a tree later answers depend on: which names are there, and which are the same file.
fn summary(tree: &ModelTree) -> String {
    let names = tree.walk().into_iter();
    let lines: Vec<String> = names.map(|(path, id)| format!("{path}={}", id.0)).collect();
    lines.join(" ")
}

/// An image for these runs.
///
/// # Errors
/// Those of [`crate::image::make`].
pub fn image() -> Result<Image, String> {
    crate::image::make(crate::image::PROFILES[1], &crate::seeds::setup())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(thread: usize, asked: Asked, told: Told, called: u64, returned: u64) -> Event {
        Event {
            thread,
            asked,
            told,
            called,
            returned,
        }
    }

    fn created(name: &str, called: u64, returned: u64) -> Event {
        let path = ModelPath::new("d0").join(name.as_bytes());
        let asked = Asked::Change(Op::Create { path, mode: 0o644 });
        event(0, asked, Told::Done(Ok(())), called, returned)
    }

    fn looked_up(name: &str, found: bool, called: u64, returned: u64) -> Event {
        let told = Told::Done(if found { Ok(()) } else { Err(Errno::ENOENT) });
        let path = ModelPath::new("d0").join(name.as_bytes());
        event(1, Asked::Lookup(path), told, called, returned)
    }

    fn start() -> ModelTree {
        let mut tree = ModelTree::new();
        for op in crate::seeds::setup() {
            tree.apply(&op).unwrap();
        }
        tree
    }

    #[test]
    fn what_overlaps_may_come_in_either_order() {
        for found in [false, true] {
            let events = [created("a", 1, 10), looked_up("a", found, 5, 6)];
            explain(&start(), &events).unwrap();
        }
    }

    #[test]
    fn what_came_before_can_not_come_after() {
        let events = [created("a", 1, 4), looked_up("a", false, 5, 6)];
        assert!(explain(&start(), &events).is_err());
        let events = [looked_up("a", true, 1, 2), created("a", 3, 4)];
        assert!(explain(&start(), &events).is_err());
    }

    #[test]
    fn a_name_seen_once_is_not_unseen_again() {
        let events = [
            created("a", 1, 20),
            looked_up("a", true, 2, 3),
            looked_up("a", false, 4, 5),
        ];
        assert!(explain(&start(), &events).is_err());
    }

    #[test]
    fn a_list_shows_one_moment() {
        let list = |names: &[&str]| {
            let told = Told::Names(names.iter().map(|name| name.as_bytes().to_vec()).collect());
            event(1, Asked::List(ModelPath::new("d0")), told, 1, 20)
        };
        let changes = [created("a", 2, 3), created("b", 4, 5)];
        for (names, is_one) in [(&["a"][..], true), (&["a", "b"], true), (&["b"], false)] {
            let mut events = changes.to_vec();
            events.push(list(names));
            events.sort_by_key(|event| event.called);
            assert_eq!(explain(&start(), &events).is_ok(), is_one, "{names:?}");
        }
    }
}
