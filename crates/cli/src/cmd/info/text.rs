//! What `info` prints for people.

use inspect::{ImageFacts, Need, Since, Use};
use ondisk::features::{Feature, Word};
use ondisk::text::{Bytes, PrintedName, Utc, Uuid};

use super::in_word;
use super::journal::JournalLine;

/// Lines of a name and a value, in columns.
struct Lines(Vec<String>);

impl Lines {
    fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        self.0.push(format!("  {name:<14}{value}"));
    }
}

/// All of it, without a final newline.
pub fn text(facts: &ImageFacts<'_>, image: &PrintedName<'_>) -> String {
    let family = facts.family();
    let mut lines = Lines(vec![format!("{image}: {family} file system")]);
    identity(facts, &mut lines);
    space(facts, &mut lines);
    for (name, word) in [
        ("compat", Word::Compat),
        ("incompat", Word::Incompat),
        ("ro_compat", Word::RoCompat),
    ] {
        let features = in_word(facts.raw.geometry.features(), word);
        let names: Vec<String> = features.map(|feature| feature.to_string()).collect();
        lines.field(
            name,
            if names.is_empty() {
                "(none)".into()
            } else {
                names.join(" ")
            },
        );
    }
    users(facts, &mut lines);
    lines.0.join("\n")
}

fn identity(facts: &ImageFacts<'_>, lines: &mut Lines) {
    let sb = &facts.raw.superblock;
    let label = sb.label();
    let label = if label.is_empty() {
        "(none)".into()
    } else {
        PrintedName(label).to_string()
    };
    lines.field("label", label);
    lines.field("UUID", Uuid(sb.uuid()));
    lines.field("state", facts.state());
    let date = |seconds: u64| Utc(i64::try_from(seconds).unwrap_or(i64::MAX));
    lines.field("made", date(sb.mkfs_time()));
    if sb.mount_time() != 0 {
        let at = match sb.last_mounted() {
            [] => String::new(),
            directory => format!(" at {}", PrintedName(directory)),
        };
        lines.field("last mounted", format!("{}{at}", date(sb.mount_time())));
    }
}

fn space(facts: &ImageFacts<'_>, lines: &mut Lines) {
    let (sb, geometry) = (&facts.raw.superblock, &facts.raw.geometry);
    let block = geometry.block_size().bytes_u64();
    let (bytes, blocks) = (geometry.bytes(), geometry.blocks_count());
    lines.field(
        "size",
        format!("{} ({blocks} blocks of {})", Bytes(bytes), Bytes(block)),
    );
    let percent = facts.free_bytes() as f64 * 100.0 / bytes as f64;
    let kept = match sb.reserved_blocks_count() {
        0 => String::new(),
        blocks => format!(", {} of it reserved", Bytes(blocks.saturating_mul(block))),
    };
    lines.field(
        "free",
        format!("{} ({percent:.1}%){kept}", Bytes(facts.free_bytes())),
    );
    let groups = &facts.groups;
    lines.field(
        "inodes",
        format!(
            "{} of {} bytes, {} free, {} directories",
            geometry.inodes_count(),
            geometry.inode_size(),
            groups.free_inodes,
            groups.directories
        ),
    );
    lines.field("groups", groups_line(facts));
    lines.field("journal", JournalLine(&facts.journal));
}

fn groups_line(facts: &ImageFacts<'_>) -> String {
    let geometry = &facts.raw.geometry;
    let block = geometry.block_size().bytes_u64();
    let bytes = u64::from(geometry.blocks_per_group()) * block;
    let mut line = format!("{} of {}", geometry.groups(), Bytes(bytes));
    if geometry.flex_size() > 1 {
        line += &format!(", {} to a flexible group", geometry.flex_size());
    }
    if geometry.has(Feature::BIGALLOC) {
        let cluster = u64::from(geometry.cluster_ratio()) * block;
        line += &format!(", clusters of {}", Bytes(cluster));
    }
    if facts.groups.block_uninit > 0 {
        line += &format!(", {} never used", facts.groups.block_uninit);
    }
    if facts.groups.full > 0 {
        line += &format!(", {} full", facts.groups.full);
    }
    line
}

fn users(facts: &ImageFacts<'_>, lines: &mut Lines) {
    lines.0.push("Programs that can use it".into());
    for need in facts.needs() {
        let (name, verb) = match need.purpose {
            Use::LinuxRead => ("Linux reads", "read it"),
            Use::LinuxWrite => ("Linux writes", "write it"),
            Use::E2fsprogs => ("e2fsprogs", "check and change it"),
            Use::Grub => ("GRUB", "boot from it"),
        };
        lines.field(name, sentence(&need, verb));
    }
    let block = facts.raw.geometry.block_size();
    if block.bytes() > 4096 {
        let size = Bytes(block.bytes_u64());
        lines.field("note", format!(
            "Linux mounts blocks of {size} where memory pages are as large, and from 6.19 on anywhere"
        ));
    }
}

/// When a program can do what `verb` says, and why not earlier.
fn sentence(need: &Need, verb: &str) -> String {
    let names: Vec<String> = need.because.iter().map(Feature::to_string).collect();
    match need.version() {
        Some(version) => format!("from {version} on (because of {})", names.join(", ")),
        None if need.since == Since::Always => "any release".into(),
        None => format!("can't {verb} (because of {})", names.join(", ")),
    }
}
