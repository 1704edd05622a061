//! The reader on maps of Linux and mke2fs, on those that the builder makes, and on hostile ones.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::extent::{self, ExtentEntries, ExtentIndex, MAX_DEPTH};
use crate::indirect;
use crate::inode::{BLOCK_AREA, Inode};
use crate::numbers::{BlockSize, LBlock};
use crate::site::Site;

const SLOTS: &[u8] = include_bytes!("../../tests/golden/inodes.bin");
const INDEX: &[u8] = include_bytes!("../../tests/golden/extent_index.bin");
const LEAF: &[u8] = include_bytes!("../../tests/golden/extent_leaf.bin");
const POINTERS: &[u8] = include_bytes!("../../tests/golden/indirect.bin");

/// The blocks that the tests' maps may name.
const ALLOWED: Range<u64> = 1..1 << 20;
/// Blocks of a map that a test reads at most.
const NODES_MAX: usize = 5000;

/// The blocks of a map by their places.
type Nodes = HashMap<u64, Vec<u8>>;

fn run(logical: u64, start: u64, len: u64) -> Run {
    Run {
        logical,
        start: FsBlock(start),
        len,
        unwritten: false,
    }
}

/// What a walk yields from `from` on, and the blocks that it asks for.
fn read(
    (area, nodes): (&[u8; BLOCK_AREA], &Nodes),
    (kind, size): (MapKind, BlockSize),
    from: u64,
) -> Result<(Vec<Run>, Vec<MapNode>), Site> {
    let mut reader = MapReader::new(area, kind, size, ALLOWED).map_err(|found| found.site())?;
    let (mut runs, mut asked): (Vec<Run>, Vec<MapNode>) = (Vec::new(), Vec::new());
    let mut at = from;
    loop {
        match reader.next(at).map_err(|found| found.site())? {
            MapStep::Node(node) => {
                assert!(asked.len() < NODES_MAX, "a walk has an end");
                // To ask again changes nothing.
                assert_eq!(reader.next(at).unwrap(), MapStep::Node(node));
                asked.push(node);
                let bytes = nodes.get(&node.block.0).cloned();
                let bytes = bytes.unwrap_or_else(|| vec![0; size.bytes()]);
                reader.supply(bytes).map_err(|found| found.site())?;
            }
            MapStep::Run(run) => {
                assert!(run.end() > at && run.len > 0, "{run:?} at {at}");
                assert!(ALLOWED.contains(&run.start.0));
                assert!(run.start.0 + run.len <= ALLOWED.end);
                at = run.end();
                runs.push(run);
            }
            MapStep::End => return Ok((runs, asked)),
        }
    }
}

fn joined(runs: &[Run]) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for run in runs {
        match all.last_mut() {
            Some(last) if last.is_continued_by(run) => last.len += run.len,
            _ => all.push(*run),
        }
    }
    all
}

#[test]
fn the_pointers_of_mke2fs_are_read_as_debugfs_shows_them() {
    let area = POINTERS[..BLOCK_AREA].try_into().unwrap();
    let places = [70, 327, 328, 354, 355, 356];
    let blocks = POINTERS[BLOCK_AREA..].chunks(1024).map(<[u8]>::to_vec);
    let nodes: Nodes = places.into_iter().zip(blocks).collect();
    let form = (MapKind::Pointers, BlockSize::K1);
    let (runs, asked) = read((&area, &nodes), form, 0).unwrap();
    let expected = [
        run(0, 58, 12),
        run(12, 71, 256),
        run(268, 329, 25),
        run(66_000, 357, 1),
    ];
    assert_eq!(runs, expected);
    let asked: Vec<_> = asked
        .iter()
        .map(|node| (node.block.0, node.depth))
        .collect();
    let levels = [1, 2, 1, 3, 2, 1];
    assert_eq!(asked, places.into_iter().zip(levels).collect::<Vec<_>>());
    // From the middle of a run, and from the hole before the last one.
    let (runs, asked) = read((&area, &nodes), form, 270).unwrap();
    assert_eq!(runs, [run(270, 331, 23), run(66_000, 357, 1)]);
    assert_eq!(asked.len(), 5);
    let (runs, asked) = read((&area, &nodes), form, 65_900).unwrap();
    assert_eq!((runs.len(), asked.len()), (1, 3));
}

#[test]
fn a_tree_of_linux_is_read_down_to_its_first_leaf() {
    let inode = Inode::parse(&SLOTS[256 * 3..]).unwrap();
    let mut reader = MapReader::new(
        inode.block_area(),
        MapKind::Extents,
        BlockSize::K1,
        1..32768,
    )
    .unwrap();
    for (depth, bytes) in [(1, INDEX), (0, LEAF)] {
        let MapStep::Node(node) = reader.next(20).unwrap() else {
            panic!("a node of depth {depth} comes next");
        };
        assert_eq!(node.depth, depth);
        reader.supply(bytes).unwrap();
    }
    let mut at = 20;
    for number in 10..84 {
        let expected = run(2 * number, 10_241 + 2 * number, 1);
        assert_eq!(reader.next(at).unwrap(), MapStep::Run(expected));
        at = expected.end();
    }
    // The second of eight leaves.
    assert!(matches!(reader.next(at), Ok(MapStep::Node(node)) if node.depth == 0));
}

#[test]
fn a_tree_that_is_its_root_needs_no_reader() {
    let runs = [run(3, 100, 5), run(8, 200, 1), run(20, 300, 10)];
    let area = build_map(MapKind::Extents, &runs, &[], BlockSize::K4, None, |_, _| {
        Err(())
    })
    .unwrap();
    for from in 0..40 {
        let (found, _) = read(
            (&area, &Nodes::new()),
            (MapKind::Extents, BlockSize::K4),
            from,
        )
        .unwrap();
        let first = first_in_root(&area, ALLOWED, from).unwrap();
        assert_eq!(first, found.first().copied(), "from {from}");
    }
}

/// A map of these runs, whose blocks are at odd places from 500,001 on.
fn built(kind: MapKind, size: BlockSize, runs: &[Run]) -> ([u8; BLOCK_AREA], Nodes, Vec<FsBlock>) {
    let count = map_blocks(kind, runs, size);
    let places: Vec<FsBlock> = (0..count).map(|at| FsBlock(500_001 + 2 * at)).collect();
    let mut nodes = Nodes::new();
    let mut order = Vec::new();
    let emit = |place: FsBlock, bytes: &[u8]| {
        order.push(place);
        let before = nodes.insert(place.0, bytes.to_vec());
        before.map_or(Ok(()), |_| Err(()))
    };
    let area = build_map(kind, runs, &places, size, Some(7), emit).unwrap();
    order.sort_unstable();
    assert_eq!(order, places, "each place is used once");
    (area, nodes, places)
}

/// Runs with these holes before them and these lengths; some continue the one before on the device.
fn runs_of(pieces: &[(u64, u64, bool)]) -> Vec<Run> {
    let (mut logical, mut start) = (0, 1000);
    let mut runs = Vec::new();
    for (hole, len, follows) in pieces {
        logical += hole;
        start += if *follows { 0 } else { 3 };
        runs.push(run(logical, start, *len));
        logical += len;
        start += len;
    }
    runs
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What the builder writes, the reader reads: all of it, from any block on, and from no block of the map but those
    /// written.
    #[test]
    fn maps_that_are_built_are_read_back(
        pieces in proptest::collection::vec((0_u64..700, 1_u64..40, any::<bool>()), 0..900),
        unwritten in proptest::collection::vec(any::<bool>(), 900),
        far in 0_u64..16_000_000,
        from in 0_u64..400_000,
        is_large in any::<bool>(),
    ) {
        let size = if is_large { BlockSize::K4 } else { BlockSize::K1 };
        let mut runs = runs_of(&pieces);
        // One that triple indirect blocks reach.
        let end = runs.last().map_or(0, Run::end);
        runs.push(run(end + far, 400_000, 30));
        for kind in [MapKind::Extents, MapKind::Pointers] {
            if kind == MapKind::Extents {
                for (run, unwritten) in runs.iter_mut().zip(&unwritten) {
                    run.unwritten = *unwritten;
                }
            } else {
                runs.iter_mut().for_each(|run| run.unwritten = false);
            }
            let (area, nodes, places) = built(kind, size, &runs);
            let (all, asked) = read((&area, &nodes), (kind, size), 0).unwrap();
            prop_assert_eq!(joined(&all), joined(&runs));
            let mut asked: Vec<FsBlock> = asked.iter().map(|node| node.block).collect();
            asked.sort_unstable();
            prop_assert_eq!(asked, places);
            for bytes in nodes.values().filter(|_| kind == MapKind::Extents) {
                prop_assert!(extent::verify_tail(bytes, 7).is_ok());
            }
            let (rest, asked) = read((&area, &nodes), (kind, size), from).unwrap();
            prop_assert!(asked.len() <= nodes.len());
            let cut = |run: &Run| run.cut(&(from.max(run.logical)..run.end()));
            let rest: Vec<Run> = rest.iter().map(cut).collect();
            let expected: Vec<Run> =
                runs.iter().filter(|run| run.end() > from).map(cut).collect();
            prop_assert_eq!(joined(&rest), joined(&expected));
        }
    }

    /// With bytes changed anywhere a walk still ends, and what it yields ascends and lies where it may (`read` asserts
    /// it).
    #[test]
    fn damaged_maps_are_walked_to_an_end(
        pieces in proptest::collection::vec((0_u64..700, 1_u64..40, any::<bool>()), 100..600),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_usize..1024, any::<u8>()), 1..20),
        from in 0_u64..400_000,
    ) {
        for kind in [MapKind::Extents, MapKind::Pointers] {
            let (mut area, mut nodes, places) = built(kind, BlockSize::K1, &runs_of(&pieces));
            for (node, at, value) in &changes {
                match node.index(places.len() + 1) {
                    0 => area[at % BLOCK_AREA] = *value,
                    node => nodes.get_mut(&places[node - 1].0).unwrap()[*at] = *value,
                }
            }
            let _ = read((&area, &nodes), (kind, BlockSize::K1), from);
        }
    }
}

#[test]
fn large_trees_have_each_depth() {
    let runs: Vec<Run> = (0..30_000)
        .map(|at| run(2 * at, 1000 + 3 * at, 1))
        .collect();
    for (count, depth) in [(4, 0), (5, 1), (336, 1), (337, 2), (28_224, 2), (28_225, 3)] {
        let (area, nodes, places) = built(MapKind::Extents, BlockSize::K1, &runs[..count]);
        assert_eq!(extent::depth(&area), depth, "{count}");
        let (read, asked) = read((&area, &nodes), (MapKind::Extents, BlockSize::K1), 0).unwrap();
        assert_eq!(read, runs[..count]);
        assert_eq!(asked.len(), places.len());
    }
}

/// A root of one index entry, with this depth.
fn index_root(depth: u16, block: u32, leaf: u64) -> [u8; BLOCK_AREA] {
    let mut area = [0; BLOCK_AREA];
    let index = [ExtentIndex::new(LBlock(block), FsBlock(leaf))];
    extent::encode(&mut area, depth, ExtentEntries::Indices(&index));
    area
}

fn tree_site(area: &[u8; BLOCK_AREA], nodes: &Nodes) -> Site {
    let form = (MapKind::Extents, BlockSize::K1);
    read((area, nodes), form, 0).unwrap_err()
}

#[test]
fn hostile_trees_are_refused() {
    let index = |depth: u16, entries: &[(u32, u64)]| {
        let mut bytes = vec![0; 1024];
        let entries: Vec<ExtentIndex> = entries
            .iter()
            .map(|(block, leaf)| ExtentIndex::new(LBlock(*block), FsBlock(*leaf)))
            .collect();
        extent::encode(&mut bytes, depth, ExtentEntries::Indices(&entries));
        bytes
    };
    let leaf = |entries: &[(u32, u16, u64)]| {
        let mut bytes = vec![0; 1024];
        let entries: Vec<Extent> = entries
            .iter()
            .map(|(block, len, start)| Extent::new(LBlock(*block), *len, FsBlock(*start), false))
            .collect();
        extent::encode(&mut bytes, 0, ExtentEntries::Extents(&entries));
        bytes
    };
    // A cycle: a node below itself has the wrong depth.
    let nodes = Nodes::from([(9, index(1, &[(0, 9)]))]);
    assert_eq!(tree_site(&index_root(2, 0, 9), &nodes), Site::ExtentDepth);
    assert_eq!(tree_site(&index_root(1, 0, 9), &nodes), Site::ExtentDepth);
    // Deeper than any tree, and a pointer that leads beyond the end.
    let none = Nodes::new();
    let deep = index_root(MAX_DEPTH + 1, 0, 9);
    assert_eq!(tree_site(&deep, &none), Site::ExtentDepth);
    let beyond = index_root(1, 0, ALLOWED.end);
    assert_eq!(tree_site(&beyond, &none), Site::ExtentIndexPointer);
    // A node of zeros.
    assert_eq!(tree_site(&index_root(1, 0, 9), &none), Site::ExtentMagic);
    // A leaf that reaches beyond the end, one that overlaps the next, and one that begins before its place.
    let nodes = Nodes::from([(9, leaf(&[(0, 8, ALLOWED.end - 4)]))]);
    assert_eq!(tree_site(&index_root(1, 0, 9), &nodes), Site::ExtentPointer);
    let nodes = Nodes::from([
        (8, index(1, &[(0, 9), (10, 10)])),
        (9, leaf(&[(0, 12, 100)])),
        (10, leaf(&[(10, 5, 200)])),
    ]);
    assert_eq!(tree_site(&index_root(2, 0, 8), &nodes), Site::ExtentOrder);
    let nodes = Nodes::from([(9, leaf(&[(3, 1, 100)]))]);
    assert_eq!(tree_site(&index_root(1, 4, 9), &nodes), Site::ExtentOrder);
}

#[test]
fn hostile_pointers_are_refused_and_cycles_end() {
    let form = (MapKind::Pointers, BlockSize::K1);
    let area = |word: usize, pointer: u32| {
        let mut area = [0; BLOCK_AREA];
        area[4 * word..4 * word + 4].copy_from_slice(&pointer.to_le_bytes());
        area
    };
    let beyond = ALLOWED.end as u32;
    for word in 0..15 {
        let refused = read((&area(word, beyond), &Nodes::new()), form, 0);
        assert_eq!(refused, Err(Site::IndirectPointer), "word {word}");
        // A block of zeros maps nothing.
        let (runs, asked) = read((&area(word, 9), &Nodes::new()), form, 0).unwrap();
        assert_eq!(
            (runs.len(), asked.len()),
            match word {
                ..12 => (1, 0),
                _ => (0, 1),
            }
        );
    }
    // A block of pointers that names itself: three levels down it is taken for data, and the walk has an end.
    let mut block = vec![0; 1024];
    indirect::set_pointer(&mut block, 0, 9);
    indirect::set_pointer(&mut block, 255, 9);
    let nodes = Nodes::from([(9, block)]);
    let (runs, asked) = read((&area(14, 9), &nodes), form, 0).unwrap();
    assert_eq!((runs.len(), asked.len()), (8, 1 + 2 + 4));
    // A run ends with the blocks that are allowed; what follows is refused.
    let mut block = vec![0; 1024];
    indirect::set_pointer(&mut block, 0, beyond - 1);
    indirect::set_pointer(&mut block, 1, beyond);
    let nodes = Nodes::from([(9, block)]);
    let mut reader = MapReader::new(&area(12, 9), form.0, form.1, ALLOWED).unwrap();
    assert!(matches!(reader.next(0), Ok(MapStep::Node(_))));
    reader.supply(nodes[&9].clone()).unwrap();
    let last = run(12, ALLOWED.end - 1, 1);
    assert_eq!(reader.next(0), Ok(MapStep::Run(last)));
    let refused = reader.next(13).unwrap_err();
    assert_eq!(refused.site(), Site::IndirectPointer);
    assert_eq!(refused.block_number(), Some(FsBlock(ALLOWED.end)));
    // After an error the walk is over.
    assert_eq!(reader.next(14), Ok(MapStep::End));
}
