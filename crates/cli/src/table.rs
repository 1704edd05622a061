//! Names in columns, as `ls` sets them on a terminal.

use std::io::{self, Write};

/// Writes names down the columns of as few lines as fit `width` characters.
pub fn columns(output: &mut dyn Write, names: &[Vec<u8>], width: usize) -> io::Result<()> {
    let lens: Vec<usize> = names.iter().map(|name| shown_len(name)).collect();
    let rows = (1..=names.len())
        .find(|rows| {
            let widths = lens
                .chunks(*rows)
                .map(|column| column.iter().max().unwrap_or(&0) + 2);
            widths.sum::<usize>() <= width + 2
        })
        .unwrap_or(names.len());
    let widths: Vec<usize> = lens
        .chunks(rows.max(1))
        .map(|column| column.iter().max().unwrap_or(&0) + 2)
        .collect();
    for row in 0..rows {
        let mut cells = (row..names.len()).step_by(rows).zip(&widths).peekable();
        while let Some((index, width)) = cells.next() {
            output.write_all(&names[index])?;
            if cells.peek().is_some() {
                write!(output, "{:1$}", "", width - lens[index])?;
            }
        }
        writeln!(output)?;
    }
    Ok(())
}

/// How many characters a name takes, colors not counted.
fn shown_len(name: &[u8]) -> usize {
    let mut in_color = false;
    String::from_utf8_lossy(name)
        .chars()
        .filter(|c| {
            let counts = !in_color && *c != '\x1b';
            in_color = *c == '\x1b' || in_color && *c != 'm';
            counts
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_run_down_the_columns() {
        let names: Vec<Vec<u8>> = ["a", "bbb", "c", "d", "e"]
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let mut output = Vec::new();
        columns(&mut output, &names, 10).unwrap();
        assert_eq!(String::from_utf8(output).unwrap(), "a    c  e\nbbb  d\n");
    }

    #[test]
    fn colors_take_no_room() {
        assert_eq!(shown_len(b"\x1b[1;34mbin\x1b[0m"), 3);
    }
}
