//! What `info --frag` prints: how large the runs of free blocks are, and in how many pieces the contents of files lie.

use std::io::{self, Write};

use inspect::{FilePieces, Fragmentation};
use ondisk::Geometry;
use ondisk::text::Bytes;
use serde_json::{Value, json};

/// Characters of the longest bar.
const BAR: u64 = 24;

/// A part of a whole, in per cent.
fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 * 100.0 / whole as f64,
    }
}

/// A mean with one digit behind the point.
fn mean(sum: u64, count: u64) -> f64 {
    match count {
        0 => 0.0,
        count => (sum as f64 / count as f64 * 10.0).round() / 10.0,
    }
}

/// A bar of this part of a whole.
fn bar(part: u64, whole: u64, color: Option<&str>) -> String {
    // Of a part that is not nothing, something is seen.
    let len = (u128::from(part) * u128::from(BAR)).div_ceil(u128::from(whole.max(1))) as usize;
    match color {
        Some(color) => format!("\x1b[{color}m{}\x1b[0m", "█".repeat(len)),
        None => "#".repeat(len),
    }
}

/// Prints it for people.
pub fn text(
    out: &mut impl Write,
    frag: &Fragmentation,
    geometry: &Geometry,
    color: bool,
) -> io::Result<()> {
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(geometry.block_size().bytes_u64()));
    let free = &frag.free;
    let share = percent(free.blocks, geometry.blocks_count());
    writeln!(out, "\nFree space")?;
    writeln!(
        out,
        "  {:<14}{} ({share:.1}%) in {} runs",
        "free",
        bytes(free.blocks),
        free.runs
    )?;
    if let Some(average) = free.blocks.checked_div(free.runs) {
        let average = bytes(average);
        let (shortest, longest) = (bytes(free.shortest), bytes(free.longest));
        writeln!(
            out,
            "  {:<14}{average} on average, {shortest} to {longest}",
            "a run"
        )?;
        writeln!(
            out,
            "  {:<24}{:>12}{:>14}   of free",
            "size", "runs", "blocks"
        )?;
    }
    for (from, runs, blocks) in free.by_size.rows() {
        let range = format!("{} to {}", bytes(from), bytes(from.saturating_mul(2)));
        let bar = bar(blocks, free.blocks, color.then_some("90"));
        let share = percent(blocks, free.blocks);
        writeln!(
            out,
            "  {range:<24}{runs:>12}{blocks:>14} {share:>8.2}%  {bar}"
        )?;
    }
    pieces_text(out, &frag.files, ["Files", "files"], color)?;
    pieces_text(
        out,
        &frag.directories,
        ["Directories", "directories"],
        color,
    )
}

/// The same for programs.
pub fn json(frag: &Fragmentation, geometry: &Geometry) -> Value {
    let size = geometry.block_size().bytes_u64();
    let free = &frag.free;
    let by_size = free.by_size.rows().map(|(from, runs, blocks)| {
        let share = percent(blocks, free.blocks);
        json!({ "from_blocks": from, "extents": runs, "blocks": blocks, "percent": share })
    });
    json!({
        "free": {
            "blocks": free.blocks,
            "bytes": free.blocks.saturating_mul(size),
            "extents": free.runs,
            "average_bytes": free.blocks.saturating_mul(size).checked_div(free.runs),
            "smallest_bytes": free.shortest.saturating_mul(size),
            "largest_bytes": free.longest.saturating_mul(size),
            "histogram": by_size.collect::<Vec<_>>(),
        },
        "files": pieces_json(&frag.files),
        "directories": pieces_json(&frag.directories),
        "left_out": frag.broken,
    })
}

fn pieces_text(
    out: &mut impl Write,
    pieces: &FilePieces,
    [title, name]: [&str; 2],
    color: bool,
) -> io::Result<()> {
    writeln!(out, "\n{title}")?;
    let Some((ino, worst)) = pieces.worst else {
        return writeln!(out, "  {:<14}none with blocks", name);
    };
    let average = mean(pieces.extents, pieces.files);
    writeln!(
        out,
        "  {name:<14}{} with {} blocks in {} extents",
        pieces.files, pieces.blocks, pieces.extents
    )?;
    writeln!(
        out,
        "  {:<14}{average} on average, {worst} at most (inode {ino})",
        "extents"
    )?;
    writeln!(
        out,
        "  {:<24}{name:>12}{:>14}   of {name}",
        "extents", "blocks"
    )?;
    for (from, files, blocks) in pieces.by_extents.rows() {
        let to = from.saturating_mul(2) - 1;
        let range = match from {
            1 => "1".to_owned(),
            from => format!("{from} to {to}"),
        };
        let shade = match from {
            1 => "32",
            2..=4 => "33",
            _ => "31",
        };
        let bar = bar(files, pieces.files, color.then_some(shade));
        let share = percent(files, pieces.files);
        writeln!(
            out,
            "  {range:<24}{files:>12}{blocks:>14} {share:>8.2}%  {bar}"
        )?;
    }
    Ok(())
}

fn pieces_json(pieces: &FilePieces) -> Value {
    let by_extents = pieces.by_extents.rows().map(
        |(from, files, blocks)| json!({ "from_extents": from, "files": files, "blocks": blocks }),
    );
    json!({
        "files": pieces.files,
        "extents": pieces.extents,
        "blocks": pieces.blocks,
        "average": mean(pieces.extents, pieces.files),
        "worst": pieces.worst.map(|(_, extents)| extents),
        "worst_inode": pieces.worst.map(|(ino, _)| ino.0),
        "histogram": by_extents.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part_and_never_nothing() {
        assert_eq!(bar(5, 5, None).len(), BAR as usize);
        assert_eq!(bar(1, 1_000_000, None), "#");
        assert_eq!(bar(0, 5, None), "");
        assert_eq!(bar(0, 0, None), "");
        assert!(bar(1, 2, Some("32")).starts_with("\x1b[32m█"));
    }
}
