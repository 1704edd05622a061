//! The picture in the terminal: one letter for each cell, in lower case (or `-` for `=`) if less than half of the cell
//! is in use; on a terminal with colors, blocks in the legend's colors instead.

use std::io::{self, Write};

use inspect::{BlockSums, Kind, RawImage, Survey};
use ondisk::text::{Bytes, PrintedName};

/// Rows of a picture, about.
pub const ROWS: u32 = 32;
/// Columns beside the cells: the group's number and a bar, a bar and the row's share.
const MARGIN: u16 = 15;

/// The terminal's width, or 80.
pub fn width() -> u16 {
    rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| size.ws_col)
        .filter(|columns| *columns >= 40)
        .unwrap_or(80)
}

/// How many cells fit a row of this number of columns: the largest power of two, or three times one, that fits.
pub fn columns(width: u16) -> u32 {
    let room = u32::from(width.saturating_sub(MARGIN)).max(16);
    let power = 1 << room.ilog2();
    if power / 2 * 3 <= room {
        power / 2 * 3
    } else {
        power
    }
}

fn letter(kind: Kind, is_half_used: bool) -> char {
    let letter = match kind {
        Kind::Metadata => 'M',
        Kind::Journal => 'J',
        Kind::Whole if is_half_used => '=',
        Kind::Whole => '-',
        Kind::Few => 'F',
        Kind::Many => 'X',
        Kind::Unknown => 'U',
        Kind::Free => '.',
    };
    if is_half_used {
        letter
    } else {
        letter.to_ascii_lowercase()
    }
}

fn color(kind: Kind) -> &'static str {
    match kind {
        Kind::Metadata => "34",
        Kind::Journal => "36",
        Kind::Whole => "32",
        Kind::Few => "33",
        Kind::Many => "31",
        Kind::Unknown => "37",
        Kind::Free => "90",
    }
}

fn glyph(kind: Kind, is_half_used: bool) -> char {
    match kind {
        Kind::Free => '·',
        _ if is_half_used => '█',
        _ => '▒',
    }
}

/// Draws the picture.
pub fn draw(
    out: &mut impl Write,
    raw: &RawImage,
    name: &str,
    survey: &Survey,
    in_color: bool,
) -> io::Result<()> {
    writeln!(out, "{}", title(raw, name))?;
    writeln!(out, "{}", scale(raw, survey))?;
    writeln!(out)?;
    let columns = survey.grid.columns as usize;
    for (row, cells) in survey.cells.chunks(columns).enumerate() {
        let group = row as u64 * u64::from(survey.grid.groups_per_row);
        write!(out, "{group:>7} |")?;
        draw_cells(out, survey, cells, in_color)?;
        let blank = columns - cells.len();
        writeln!(out, "{:blank$}| {:>3}%", "", percent_used(cells))?;
    }
    writeln!(out)?;
    legend(out, raw, survey, in_color)
}

fn draw_cells(
    out: &mut impl Write,
    survey: &Survey,
    cells: &[BlockSums],
    in_color: bool,
) -> io::Result<()> {
    let mut current = "";
    for sums in cells {
        let Some((kind, is_half_used)) = survey.grid.shows(sums) else {
            write!(out, " ")?;
            continue;
        };
        if !in_color {
            write!(out, "{}", letter(kind, is_half_used))?;
            continue;
        }
        if current != color(kind) {
            current = color(kind);
            write!(out, "\x1b[{current}m")?;
        }
        write!(out, "{}", glyph(kind, is_half_used))?;
    }
    if current.is_empty() {
        Ok(())
    } else {
        write!(out, "\x1b[0m")
    }
}

/// How much of these cells is in use, in percent.
pub fn percent_used(cells: &[BlockSums]) -> u64 {
    let all: u64 = cells.iter().flatten().sum();
    let free: u64 = cells.iter().map(|sums| sums[Kind::Free as usize]).sum();
    // Up, so that only a row without anything in use shows 0.
    ((all - free) * 100).div_ceil(all.max(1))
}

/// What is drawn.
pub fn title(raw: &RawImage, name: &str) -> String {
    let geometry = &raw.geometry;
    let label = match raw.superblock.label() {
        [] => String::new(),
        label => format!(" \"{}\"", PrintedName(label)),
    };
    format!(
        "{name}{label}: {}, {}, blocks of {}",
        Bytes(geometry.bytes()),
        groups(geometry.groups()),
        Bytes(geometry.block_size().bytes_u64())
    )
}

/// A number of groups in words.
fn groups(count: u32) -> String {
    match count {
        1 => "1 group".to_string(),
        count => format!("{count} groups"),
    }
}

/// What a row and a cell stand for.
pub fn scale(raw: &RawImage, survey: &Survey) -> String {
    let geometry = &raw.geometry;
    let bits = geometry.block_size().bits();
    let grid = &survey.grid;
    let row = u64::from(grid.groups_per_row) * u64::from(geometry.blocks_per_group());
    let row = Bytes(row.min(geometry.blocks_count()) << bits);
    let groups = groups(grid.groups_per_row);
    let cell = Bytes(grid.blocks_per_cell << bits);
    format!("a row is {groups} ({row}), a cell {cell}")
}

/// The words of one line of the legend: what, how much, which share, and what else there is to say.
pub fn legend_entry(raw: &RawImage, survey: &Survey, kind: Kind) -> [String; 4] {
    let bits = raw.geometry.block_size().bits();
    let blocks = survey.totals[kind as usize];
    let all: u64 = survey.totals.iter().sum();
    let share = format!("{:.1}%", blocks as f64 * 100.0 / all.max(1) as f64);
    let files = |index: usize| match survey.files[index] {
        1 => "1 file".to_string(),
        count => format!("{count} files"),
    };
    let more = match kind {
        Kind::Whole => files(0),
        Kind::Few => files(1),
        Kind::Many => files(2),
        Kind::Free if survey.free_runs > 0 => {
            let longest = Bytes(survey.free_longest << bits);
            match survey.free_runs {
                1 => format!("1 run of {longest}"),
                runs => format!("{runs} runs, up to {longest}"),
            }
        }
        _ => String::new(),
    };
    [
        kind.words().to_string(),
        Bytes(blocks << bits).to_string(),
        share,
        more,
    ]
}

fn legend(out: &mut impl Write, raw: &RawImage, survey: &Survey, in_color: bool) -> io::Result<()> {
    for kind in Kind::ALL {
        if survey.totals[kind as usize] == 0 && matches!(kind, Kind::Journal | Kind::Unknown) {
            continue;
        }
        let [words, size, share, more] = legend_entry(raw, survey, kind);
        let sign = if in_color {
            format!("\x1b[{}m{}\x1b[0m", color(kind), glyph(kind, true))
        } else {
            letter(kind, true).to_string()
        };
        let line = format!("  {sign}  {words:<29}{size:>9}{share:>8}  {more}");
        writeln!(out, "{}", line.trim_end())?;
    }
    let lighter = if in_color { "lighter" } else { "lower case, -" };
    writeln!(out, "  {lighter}: less than half of the cell is in use")?;
    writeln!(out, "  at the right: how much of the row is in use")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_fit_their_columns() {
        assert_eq!(columns(80), 64);
        assert_eq!(columns(200), 128);
        assert_eq!(columns(40), 24);
        for width in 40..=1000 {
            assert!(
                columns(width) + u32::from(MARGIN) <= u32::from(width),
                "{width}"
            );
        }
    }
}
