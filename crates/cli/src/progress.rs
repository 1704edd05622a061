//! Progress on standard error, if that is a terminal and `-q` is not given: a bar with rate and time left, or a line
//! with the number of the group that is looked at.

use std::io::Write;

use indicatif::{ProgressBar, ProgressStyle};
use lanefs::build::{Phase, Progress};
use ondisk::Group;

use crate::context::Context;

/// How often the bar is drawn at most, in times a second.
const RATE: u8 = 10;

/// The bar of one build; draws nothing if progress is not wanted.
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// A bar, where the context wants one.
    pub fn new(context: &Context) -> Bar {
        Bar(context.progress().then(|| {
            let target = indicatif::ProgressDrawTarget::stderr_with_hz(RATE);
            ProgressBar::with_draw_target(Some(0), target)
        }))
    }

    /// Removes the bar from the screen.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// A style; the templates below are fixed, and tested to be valid.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

const COPY: &str = "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta} left";
const COUNT: &str = "{spinner} {msg} {bytes} {binary_bytes_per_sec}";
const PLAIN: &str = "{spinner} {msg}";

impl Progress for Bar {
    fn phase(&self, phase: Phase) {
        let Some(bar) = &self.0 else { return };
        let (template, total, message) = match phase {
            Phase::Scan => (PLAIN, None, "scanning"),
            Phase::Plan => (PLAIN, None, "planning"),
            Phase::Copy { total: 0 } => (COUNT, None, "copying"),
            Phase::Copy { total } => (COPY, Some(total), "copying"),
            Phase::Metadata => (PLAIN, None, "writing metadata"),
            Phase::Finish => (PLAIN, None, "finishing"),
        };
        bar.set_style(style(template));
        bar.set_message(message);
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(0);
        bar.reset_eta();
        bar.tick();
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }
}

/// Bytes in the largest unit of which there is at least one.
pub fn human_bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let mut number = bytes as f64 / 1024.0;
    let mut unit = units[0];
    for larger in &units[1..] {
        if number < 1024.0 {
            break;
        }
        number /= 1024.0;
        unit = larger;
    }
    format!("{number:.1} {unit}")
}

/// A line on standard error that says how far a look at all groups is; only when there is much to see.
pub struct GroupLine {
    groups: u32,
    is_shown: bool,
}

impl GroupLine {
    const STEP: u32 = 1024;

    /// A line, where the context wants one.
    pub fn new(context: &Context, groups: u32) -> GroupLine {
        GroupLine {
            groups,
            is_shown: context.progress() && groups > GroupLine::STEP,
        }
    }

    /// Shows the number of every `STEP`th group.
    pub fn at(&self, group: Group) {
        if self.is_shown && group.0.is_multiple_of(GroupLine::STEP) {
            let _ = write!(std::io::stderr(), "\rgroup {group} of {}", self.groups);
        }
    }

    /// Removes the line from the screen.
    pub fn done(&self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bars_templates_are_valid() {
        for template in [COPY, COUNT, PLAIN] {
            assert!(ProgressStyle::with_template(template).is_ok());
        }
    }

    #[test]
    fn bytes_have_the_largest_unit_that_fits() {
        assert_eq!(human_bytes(1023), "1023 bytes");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(5 << 30), "5.0 GiB");
    }
}
