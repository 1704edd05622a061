//! `lanefs map`: a picture of the block groups. Looks at every group's bitmaps and at the map of every file, keeps
//! only sums for each cell of the picture, and draws them in the terminal or as an SVG. Memory depends on the picture's
//! size, not on the image's.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use inspect::{Grid, Survey};
use ondisk::text::PrintedName;

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::on_disk;
use crate::progress::GroupLine;

mod svg;
mod terminal;

/// Draw the block groups: metadata, file data by how fragmented its file is, free space
#[derive(Args)]
pub struct MapArgs {
    /// The image, a file or block device
    image: PathBuf,
    #[command(flatten)]
    place: FsArgs,
    /// Columns of the picture in the terminal (default: the terminal's own, 80 when piped)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000))]
    width: Option<u16>,
    /// Write the picture to an SVG file instead (- for standard output)
    #[arg(long, value_name = "FILE", conflicts_with = "width")]
    svg: Option<PathBuf>,
}

impl MapArgs {
    /// Runs the command.
    pub fn run(self, context: &Context) -> Result<(), Failure> {
        let raw = on_disk::open(context, &self.image, &self.place)?;
        let raw = on_disk::replayed(&raw, context, &self.image, &self.place).unwrap_or(raw);
        let name = self.image.file_name().unwrap_or(self.image.as_os_str());
        let name = PrintedName(name.as_encoded_bytes()).to_string();
        let grid = match self.svg {
            Some(_) => Grid::new(&raw.geometry, svg::COLUMNS, svg::ROWS),
            None => {
                let width = self.width.unwrap_or_else(terminal::width);
                Grid::new(&raw.geometry, terminal::columns(width), terminal::ROWS)
            }
        };
        let progress = GroupLine::new(context, raw.geometry.groups());
        let survey = Survey::take(&raw, grid, |group| progress.at(group))?;
        progress.done();
        for remark in &survey.remarks {
            context.warn(remark);
        }
        let mut out = context.stdout();
        match &self.svg {
            None => terminal::draw(&mut out, &raw, &name, &survey, context.color())?,
            Some(path) if path.as_os_str() == "-" => {
                out.write_all(svg::draw(&raw, &name, &survey).as_bytes())?;
            }
            Some(path) => {
                let picture = svg::draw(&raw, &name, &survey);
                std::fs::write(path, picture)
                    .map_err(|error| Failure::new(error).at(path.display()))?;
            }
        }
        out.flush()?;
        Ok(())
    }
}
