//! From addresses of code to lines of source, inlined calls included. One thread; nothing survives the process.

use std::collections::HashMap;

/// A place in the source.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceFrame {
    /// The path, from `crates/` or `tools/` on if the file is ours.
    pub file: String,
    /// Counted from 1.
    pub line: u32,
    /// With its path, without generics.
    pub function: String,
}

impl SourceFrame {
    /// Whether it is the project's own code, but not the crate of locks and atomics.
    pub fn is_ours(&self) -> bool {
        let is_of_engine =
            self.file.starts_with("crates/") && !self.file.starts_with("crates/sync/");
        is_of_engine || self.file == "tools/sharing/src/canary.rs"
    }
}

/// What was looked up so far.
#[derive(Default)]
pub struct Symbols(HashMap<usize, Vec<SourceFrame>>);

impl Symbols {
    /// The places that a chain of calls stands for, innermost first.
    pub fn frames(&mut self, chain: &[usize]) -> Vec<SourceFrame> {
        chain
            .iter()
            .flat_map(|address| self.at(*address).to_vec())
            .collect()
    }

    fn at(&mut self, address: usize) -> &[SourceFrame] {
        self.0.entry(address).or_insert_with(|| {
            let mut frames = Vec::new();
            // The address is the one returned to; what called ends just before it.
            let within = std::ptr::without_provenance_mut(address.saturating_sub(1));
            backtrace::resolve(within, |symbol| {
                let file = symbol.filename().map(|file| file.display().to_string());
                frames.push(SourceFrame {
                    file: shortened(&file.unwrap_or_default()),
                    line: symbol.lineno().unwrap_or(0),
                    function: symbol
                        .name()
                        .map_or_else(String::new, |name| name.to_string()),
                });
            });
            frames
        })
    }
}

/// A path from its crate on, for what is ours: not the standard library's, nor out of the registry.
fn shortened(file: &str) -> String {
    let is_others =
        file.contains("/rustc/") || file.contains("/library/") || file.contains("/registry/");
    match file.rfind("crates/").or_else(|| file.rfind("tools/")) {
        Some(at) if !is_others => file[at..].to_owned(),
        _ => {
            let parts: Vec<&str> = file.rsplit('/').take(3).collect();
            parts.into_iter().rev().collect::<Vec<_>>().join("/")
        }
    }
}
