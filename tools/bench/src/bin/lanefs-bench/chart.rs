//! A table as an SVG that fits a slide: lines by numbers of workers, bars by kind of work, or intervals. One file
//! without scripts, fonts or links; the colors differ for the color-blind too, and dashes tell apart what shares one.

mod bars;
mod frame;
mod intervals;
mod lines;

use lanefs_bench::{Table, TableShape};

pub use frame::escape;

/// Draws a table; nothing for one that is only figures.
pub fn draw(table: &Table) -> String {
    match table.shape {
        TableShape::Lines => lines::draw(table),
        TableShape::Bars => bars::draw(table),
        TableShape::Intervals => intervals::draw(table),
        TableShape::Figures => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs_bench::{Cell, Column};

    /// A table of these columns, all rows alike.
    fn table(shape: TableShape, columns: &[f64]) -> Table {
        let named = |number| Column {
            label: format!("form {number}"),
            way: String::new(),
        };
        let rows = vec!["1".into(), "2".into()];
        let mut table = Table::new(
            "key",
            "Title",
            "About.",
            rows,
            (0..columns.len()).map(named).collect(),
        );
        table.shape = shape;
        for cells in &mut table.cells {
            *cells = columns.iter().copied().map(Cell::of).collect();
        }
        table
    }

    /// The numbers of an attribute, of each element that begins so.
    fn numbers(svg: &str, element: &str, name: &str) -> Vec<f64> {
        let elements = svg.lines().filter(|line| line.starts_with(element));
        let value = |line: &str| {
            let (_, rest) = line.split_once(&format!(" {name}=\""))?;
            rest.split_once('"')?.0.parse().ok()
        };
        elements.filter_map(value).collect()
    }

    #[test]
    fn negative_values_of_lines_lie_below_the_line_of_zero() {
        let svg = draw(&table(TableShape::Lines, &[20.0, -9.0, -12.0]));
        let axis = svg
            .lines()
            .find(|line| line.contains("stroke=\"#495057\"/>"))
            .unwrap();
        let zero = numbers(axis, "<line", "y1")[0];
        let dots = numbers(&svg, "<circle", "cy");
        let below: Vec<f64> = dots.iter().copied().filter(|y| *y > zero + 1.0).collect();
        assert_eq!((dots.len(), below.len()), (6, 4));
        assert!(
            (below[0] - below[2]).abs() > 1.0,
            "-9 and -12 are told apart: {below:?}"
        );
    }

    #[test]
    fn negative_values_of_bars_lie_to_the_left_of_the_line_of_zero() {
        let svg = draw(&table(TableShape::Bars, &[20.0, -10.0]));
        let bars = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("height=\"13\""));
        let bars: Vec<(f64, f64)> = bars
            .map(|bar| {
                (
                    numbers(bar, "<rect", "x")[0],
                    numbers(bar, "<rect", "width")[0],
                )
            })
            // The legend's are as high as wide.
            .filter(|(_, width)| (width - 13.0).abs() > 0.1)
            .collect();
        let [(positive, long), (negative, short), ..] = bars[..] else {
            panic!("{svg}");
        };
        assert!((negative + short - positive).abs() < 0.2 && (long - 2.0 * short).abs() < 0.2);
    }

    #[test]
    fn the_first_of_many_columns_stands_out_and_each_is_told_apart() {
        let values: Vec<f64> = (0..14).map(f64::from).collect();
        let svg = draw(&table(TableShape::Lines, &values));
        let strokes = svg.lines().filter(|line| line.starts_with("<polyline"));
        let strokes: std::collections::BTreeSet<&str> = strokes
            .filter_map(|line| Some(line.split_once("stroke=")?.1))
            .collect();
        assert_eq!(strokes.len(), 14);
        assert_eq!(
            strokes
                .iter()
                .filter(|stroke| stroke.contains("\"4.5\""))
                .count(),
            1
        );
        let svg = draw(&table(TableShape::Bars, &values));
        for column in 0..14 {
            assert_eq!(svg.matches(&format!("form {column}</text>")).count(), 2);
        }
    }
}
