//! A table as an SVG that fits a slide: lines by numbers of workers, bars by kind of work, or intervals. One file
//! without scripts, fonts or links; the colors differ for the color-blind too, and dashes tell apart what shares one.

mod bars;
mod frame;
mod intervals;
mod lines;

use bench::{Shape, Table};

pub use frame::escape;

/// Draws a table; nothing for one that is only figures.
pub fn draw(table: &Table) -> String {
    match table.shape {
        Shape::Lines => lines::draw(table),
        Shape::Bars => bars::draw(table),
        Shape::Intervals => intervals::draw(table),
        Shape::Figures => String::new(),
    }
}
