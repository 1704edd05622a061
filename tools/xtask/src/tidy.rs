//! The house rules that a machine can check. Each rule has a test that shows it catching a planted violation.

mod docs;
mod layers;
mod names;
mod shared;
mod sites;
mod source;
mod text;
mod words;

use std::fmt;
use std::path::Path;

use source::RustFile;

/// A broken rule, and where.
#[derive(Debug)]
pub struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}: [{}] {}",
            self.path, self.line, self.rule, self.message
        )
    }
}

/// Checks all files under `root`; says how many were looked at, or prints what is wrong.
pub fn run(root: &Path) -> Result<String, String> {
    let (files, violations) =
        check(root).map_err(|error| format!("tidy can't read its files: {error}"))?;
    if violations.is_empty() {
        return Ok(format!("{files} files"));
    }
    for violation in &violations {
        eprintln!("{violation}");
    }
    Err(format!("tidy: {} broken rules", violations.len()))
}

fn check(root: &Path) -> std::io::Result<(usize, Vec<Violation>)> {
    let mut violations = Vec::new();
    let mut sources = Vec::new();
    let mut pages = Vec::new();
    let mut count = 0;
    let folders = machine_folders(root);
    for file in source::files(root)? {
        let path = file.strip_prefix(root).unwrap_or(&file);
        let name = path.to_string_lossy().replace('\\', "/");
        let Ok(text) = String::from_utf8(std::fs::read(&file)?) else {
            continue;
        };
        count += 1;
        docs::check_paths(&name, &text, &folders, &mut violations);
        if name.ends_with(".rs") {
            sources.push(RustFile::new(path, &text));
        } else if name.ends_with(".md") {
            pages.push((name, text));
        } else if let Some(folder) = manifest_of(&name) {
            layers::check_manifest(&name, folder, &text, &mut violations);
        }
    }
    for source in &sources {
        words::check_comments(source, &mut violations);
        words::check_messages(source, &mut violations);
        text::check(source, &mut violations);
        layers::check_engine(source, &mut violations);
        shared::check(source, &mut violations);
    }
    sites::check(&sources, &mut violations);
    names::check_types(&sources, &mut violations);
    names::check_glossary(&pages, &sources, &mut violations);
    let cli_page = pages
        .iter()
        .find(|(path, _)| path == docs::CLI_PAGE)
        .map_or("", |(_, text)| text);
    let functions = sources
        .iter()
        .flat_map(|source| &source.lines)
        .filter_map(|line| docs::function(&line.code))
        .collect();
    let files: Vec<&str> = sources.iter().map(|source| &source.path[..]).collect();
    let methods = sources
        .iter()
        .flat_map(|source| source.lines.iter().map(|line| (&source.path, &line.code)))
        .filter_map(|(path, code)| docs::method(path, code))
        .collect();
    docs::check_measured(&pages, &mut violations);
    docs::check_sizes(&pages, &mut violations);
    for page in &pages {
        words::check_page(page, &mut violations);
        docs::check_tests(page, &functions, &mut violations);
        docs::check_methods(page, &methods, &mut violations);
        docs::check_files(page, &files, &mut violations);
        docs::check_links(
            page,
            &pages,
            &|path| root.join(path).exists(),
            &mut violations,
        );
        if !page.0.starts_with("docs/decisions/") && page.0 != docs::CLI_PAGE {
            docs::check_commands(page, cli_page, &mut violations);
        }
    }
    Ok((count, violations))
}

/// The crate whose manifest this is.
fn manifest_of(name: &str) -> Option<&str> {
    let folder = name.strip_suffix("/Cargo.toml")?;
    let inside = folder
        .strip_prefix("crates/")
        .or(folder.strip_prefix("tools/"));
    inside.filter(|name| !name.contains('/'))
}

/// The folders that no file may name: the one of this working copy, and the home directory of its user.
fn machine_folders(root: &Path) -> Vec<String> {
    let home = std::env::var("HOME")
        .ok()
        .filter(|home| home.matches('/').count() > 1);
    let here =
        Some(root.to_string_lossy().into_owned()).filter(|here| here.matches('/').count() > 1);
    home.into_iter()
        .chain(here)
        .map(|folder| folder + "/")
        .collect()
}
