//! Quota: what each user, group and project uses, as found, against what the quota files say.

use std::collections::HashMap;

pub use ondisk::quota::QuotaKind;
use ondisk::quota::{self, QuotaHeader, QuotaRecord};
use ondisk::{Feature, Ino, Inode};

use crate::limits;
use crate::map::MapRun;
use crate::problem::Code;
use crate::report::Problem;
use crate::special;
use crate::volume::Volume;

/// What an id uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdUsage {
    /// Bytes.
    pub space: u64,
    pub inodes: u64,
}

/// What all ids use.
#[derive(Default)]
pub struct QuotaSums(HashMap<(QuotaKind, u32), IdUsage>);

impl QuotaSums {
    /// Adds to an id's use.
    pub fn charge(&mut self, kind: QuotaKind, id: u32, usage: IdUsage) {
        let sum = self.0.entry((kind, id)).or_default();
        sum.space = sum.space.wrapping_add(usage.space);
        sum.inodes = sum.inodes.wrapping_add(usage.inodes);
    }

    /// Adds the sums of others.
    pub fn add(&mut self, other: &QuotaSums) {
        for ((kind, id), usage) in &other.0 {
            self.charge(*kind, *id, *usage);
        }
    }
}

/// The quota files that the superblock names.
pub fn files(volume: &Volume<'_>) -> impl Iterator<Item = (QuotaKind, Ino)> + use<> {
    let sb = &volume.sb;
    let inos = [
        sb.user_quota_ino(),
        sb.group_quota_ino(),
        sb.project_quota_ino(),
    ];
    let is_on = volume.has(Feature::QUOTA);
    let named = QuotaKind::ALL.into_iter().zip(inos);
    named.filter_map(move |(kind, ino)| Some((kind, ino.filter(|_| is_on)?)))
}

/// Compares the sums with the quota files.
pub fn check(volume: &Volume<'_>, sums: &QuotaSums) {
    for (kind, ino) in files(volume) {
        let bad = |why: &str| {
            volume.found(Problem::new(Code::QuotaInode).ino(ino).name(why));
        };
        let Some((inode, runs)) = special::file(volume, ino) else {
            bad("it is not a regular file in use");
            continue;
        };
        let file = File {
            volume,
            inode: &inode,
            runs: &runs,
        };
        match file.records(kind) {
            Err(why) => bad(why),
            // What a block that can't be read would add is not known.
            Ok(_) if volume.unread.maps() => {}
            Ok(records) => compare(volume, ino, kind, sums, records),
        }
    }
}

fn compare(
    volume: &Volume<'_>,
    ino: Ino,
    kind: QuotaKind,
    sums: &QuotaSums,
    mut records: HashMap<u32, QuotaRecord>,
) {
    // A project's use is counted only with that feature.
    let is_counted = kind != QuotaKind::Project || volume.has(Feature::PROJECT);
    let mut wrong = Vec::new();
    for ((_, id), usage) in sums.0.iter().filter(|(key, _)| is_counted && key.0 == kind) {
        match records.remove(id) {
            None => wrong.push((*id, IdUsage::default(), *usage)),
            Some(record) => {
                let stored = usage_of(&record);
                if stored != *usage {
                    wrong.push((*id, stored, *usage));
                }
            }
        }
    }
    let unused = records
        .into_iter()
        .map(|(id, record)| (id, usage_of(&record), IdUsage::default()));
    wrong.extend(unused.filter(|(_, stored, _)| *stored != IdUsage::default()));
    wrong.sort_unstable_by_key(|(id, _, _)| *id);
    for (id, stored, usage) in wrong {
        let figures = [
            ("bytes", stored.space, usage.space),
            ("inodes", stored.inodes, usage.inodes),
        ];
        for (unit, found, expected) in figures {
            if found != expected {
                let name = format!("{unit} of {} {id}", kind.name());
                let problem = Problem::new(Code::QuotaUsage).ino(ino).name(name);
                volume.found(problem.found(found).expected(expected));
            }
        }
    }
}

fn usage_of(record: &QuotaRecord) -> IdUsage {
    IdUsage {
        space: record.space(),
        inodes: record.inodes(),
    }
}

/// A quota file.
struct File<'a> {
    volume: &'a Volume<'a>,
    inode: &'a Inode,
    runs: &'a [MapRun],
}

impl File<'_> {
    /// A block of the quota file, which is smaller than the file system's or as large. A hole is empty.
    fn block(&self, number: u32) -> Result<Vec<u8>, &'static str> {
        let mut bytes = vec![0; quota::BLOCK];
        let bits = self.volume.geometry.block_size().bits();
        let at = u64::from(number) * quota::BLOCK as u64;
        let lblk = at >> bits;
        let after = self.runs.partition_point(|run| run.lblk + run.len <= lblk);
        if let Some(run) = self.runs.get(after).filter(|run| run.lblk <= lblk) {
            let offset = ((run.pblk + lblk - run.lblk) << bits) + (at & ((1 << bits) - 1));
            let read = self.volume.device.read_at(offset, &mut bytes);
            read.map_err(|_| "a block can't be read")?;
        }
        Ok(bytes)
    }

    /// All records, read from the root of the tree.
    fn records(&self, kind: QuotaKind) -> Result<HashMap<u32, QuotaRecord>, &'static str> {
        let first = self.block(0)?;
        let header = QuotaHeader::read(&first).ok_or("it is too short")?;
        if let Some(why) = header.fault(kind, self.inode.size(true)) {
            return Err(why);
        }
        let mut records = HashMap::new();
        // A block is entered once, whatever leads to it; the header bounds how many there are.
        let mut met = vec![false; header.blocks() as usize];
        let mut pending = vec![(quota::ROOT, 0)];
        while let Some((number, depth)) = pending.pop() {
            match met.get_mut(number as usize) {
                None => return Err("its tree leads beyond its end"),
                Some(met) if *met => continue,
                Some(met) => *met = true,
            }
            let block = self.block(number)?;
            if depth < quota::DEPTH {
                let below = quota::references(&block).filter(|number| *number != 0);
                pending.extend(below.map(|number| (number, depth + 1)));
                continue;
            }
            for record in quota::records(&block) {
                if records.len() >= limits::QUOTA_RECORDS {
                    return Err("it has more records than this checker reads");
                }
                records.insert(record.id(), record);
            }
        }
        Ok(records)
    }
}
