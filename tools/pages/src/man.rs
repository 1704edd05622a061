//! A man page for each command, and for each part of `lanefs dump`.

use clap::Command;
use clap_mangen::Man;
use cli::examples::{self, Example};
use roff::{Roff, bold, roman};

/// The name of each page's file and its text.
pub fn pages(mut program: Command) -> Vec<(String, Vec<u8>)> {
    program.build();
    let mut pages = vec![page(&program, &[])];
    let commands = program
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    for command in commands {
        pages.push(page(command, examples::of(command.get_name())));
        let parts = command.get_subcommands().filter(|part| !part.is_hide_set());
        pages.extend(parts.map(|part| page(part, &[])));
    }
    pages
}

fn page(command: &Command, examples: &[Example]) -> (String, Vec<u8>) {
    let man = Man::new(command.clone())
        .source(concat!("lanefs ", env!("CARGO_PKG_VERSION")))
        .manual("ext4 in userspace");
    let name = man.get_filename();
    // A vector takes all that is written.
    let text = rendered(&man, command, examples).unwrap_or_default();
    (name, text)
}

fn rendered(man: &Man, command: &Command, examples: &[Example]) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    let about = command.get_long_about().or(command.get_about());
    let mut described = Roff::default();
    described.control("SH", ["DESCRIPTION"]);
    text(
        &mut described,
        &about.map(ToString::to_string).unwrap_or_default(),
    );
    let after = command.get_after_long_help().or(command.get_after_help());
    if let Some(after) = after {
        described.control("PP", []);
        text(&mut described, &after.to_string());
    }
    described.to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::default();
    if !examples.is_empty() {
        rest.control("SH", ["EXAMPLES"]);
        for example in examples {
            rest.control("TP", []);
            rest.text([roman(format!("{}:", example.does))]);
            rest.text([bold(example.line)]);
        }
    }
    let name = command.get_display_name().unwrap_or_default();
    if name != "lanefs" {
        rest.control("SH", ["SEE ALSO"]);
        rest.text([bold("lanefs"), roman("(1)")]);
    }
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// Paragraphs; lines that begin with spaces, and those after them, keep their form, as tables in `--help` do.
fn text(roff: &mut Roff, text: &str) {
    let mut is_table = false;
    for line in text.lines() {
        if line.starts_with("  ") && !is_table {
            roff.control("nf", []);
            is_table = true;
        } else if !line.starts_with("  ") && is_table {
            roff.control("fi", []);
            is_table = false;
        }
        if line.trim().is_empty() {
            roff.control("PP", [])
        } else {
            roff.text([roman(line)])
        };
    }
    if is_table {
        roff.control("fi", []);
    }
}
