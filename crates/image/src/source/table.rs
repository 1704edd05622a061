//! The ownership and device table, in the form of Buildroot's makedevs:
//!
//! ```text
//! # name        type mode uid gid major minor start increment count
//! /dev          d    755  0   0   -     -     -     -         -
//! /dev/console  c    600  0   5   5     1     -     -         -
//! /dev/tty      c    666  0   5   4     0     0     1         4
//! /home/joe     r    -1   1000 1000 -   -     -     -         -
//! /bin/ping     f    755  0   0   -     -     -     -         -
//! |xattr cap_net_raw+ep
//! ```
//!
//! `f` changes a file that must exist, `F` one that may be missing; `d` changes or makes a directory; `r` changes a
//! directory and everything in it; `c`, `b`, `p` and `s` make devices, fifos and sockets, or change those that exist. A
//! mode, uid or gid of `-` or `-1` is left alone. With a count above 0, `c` and `b` make `name` followed by `start`,
//! `start + 1`, ..., each with a minor number larger by `increment`. A line of `|xattr` gives the file of the line
//! before it capabilities. Everything that is made has the time 0 (1970). Missing parents are made, too.

use std::path::Path;

use super::apply::clean;
use super::builder::Builder;
use super::capability;
use super::error::SourceError;
use super::limits;
use super::tree::{
    Attributes, NONE, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK, TreeNode,
    halves, join,
};

/// One line that names something.
struct Line<'a> {
    kind: &'a str,
    mode: Option<u16>,
    uid: Option<u32>,
    gid: Option<u32>,
    major: u32,
    minor: u32,
    start: u32,
    increment: u32,
    count: u32,
}

/// Reads the table at `path` and applies it.
pub(super) fn apply(path: &Path, builder: &mut Builder) -> Result<(), SourceError> {
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| SourceError::Io {
        operation: "read",
        path: path.into(),
        error,
    })?;
    apply_text(&text, builder).map_err(|(line, problem)| SourceError::Line {
        path: path.into(),
        line,
        problem,
    })
}

/// Applies a table; the error has its line.
pub(super) fn apply_text(text: &str, builder: &mut Builder) -> Result<(), (usize, String)> {
    let mut last = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let result = match line.strip_prefix("|xattr") {
            Some(capabilities) => match last {
                Some(node) => set_capabilities(builder, node, capabilities),
                None => Err("`|xattr` follows no line that names a file".into()),
            },
            None => apply_line(line, builder).map(|node| last = node),
        };
        result.map_err(|problem| (number + 1, problem))?;
    }
    Ok(())
}

fn set_capabilities(builder: &mut Builder, node: u32, text: &str) -> Result<(), String> {
    let mut set = builder.tree.xattrs.set(builder.node(node).xattrs).clone();
    set.set(b"security.capability", &capability::to_xattr(text)?);
    let set = builder.intern(set)?;
    builder.node_mut(node).xattrs = set;
    Ok(())
}

fn apply_line(text: &str, builder: &mut Builder) -> Result<Option<u32>, String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [name, kind, mode, uid, gid, rest @ ..] = &fields[..] else {
        return Err("a line needs at least a name, type, mode, uid and gid".into());
    };
    if rest.len() > 5 {
        return Err("a line has more than ten fields".into());
    }
    let absent = |text: &str| text == "-" || text == "-1";
    let id = |text: &str| match text {
        text if absent(text) => Ok(None),
        text => digits(text)
            .map(Some)
            .ok_or_else(|| format!("invalid uid or gid `{text}`: use a number")),
    };
    let number = |at: usize| match rest.get(at) {
        None | Some(&"-") => Ok(0),
        Some(text) => digits(text).ok_or_else(|| format!("`{text}` is not a number")),
    };
    let mode = match *mode {
        text if absent(text) => None,
        text => match u16::from_str_radix(text, 8) {
            Ok(mode) if mode <= 0o7777 && !text.starts_with('+') => Some(mode),
            _ => {
                return Err(format!(
                    "invalid mode `{text}`: use an octal number up to 7777"
                ));
            }
        },
    };
    let line = Line {
        kind,
        mode,
        uid: id(uid)?,
        gid: id(gid)?,
        major: number(0)?,
        minor: number(1)?,
        start: number(2)?,
        increment: number(3)?,
        count: number(4)?,
    };
    line.check(&rest.iter().map(|text| *text != "-").collect::<Vec<_>>())?;
    line.apply(name, builder)
}

/// A number of digits only: no sign.
fn digits(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

impl Line<'_> {
    /// Whether the fields that this type of line needs are there; `given` says it of those from the major number on.
    fn check(&self, given: &[bool]) -> Result<(), String> {
        let has = |at: usize| given.get(at).copied().unwrap_or(false);
        let device = matches!(self.kind, "c" | "b");
        if device && !(has(0) && has(1)) {
            return Err("a device needs a major and a minor number".into());
        }
        if device && self.count > 1 && !(has(2) && has(3)) {
            return Err("a line with a count above 1 needs a start and an increment".into());
        }
        let more = self.major | self.minor | self.start | self.increment | self.count;
        if !device && more != 0 {
            return Err(format!(
                "device numbers, a start, an increment and a count are for the types c and b, not `{}`",
                self.kind
            ));
        }
        Ok(())
    }

    /// Whether something new gets all it needs.
    fn check_new(&self) -> Result<(), String> {
        if self.mode.is_none() || self.uid.is_none() || self.gid.is_none() {
            return Err("it is new, so that it needs a mode, a uid and a gid".into());
        }
        Ok(())
    }

    fn apply(&self, name: &str, builder: &mut Builder) -> Result<Option<u32>, String> {
        let path = clean(name.as_bytes())?;
        match self.kind {
            "f" | "F" => match builder.find_from(0, &path) {
                Some(node) if builder.node(node).mode & S_IFMT == S_IFREG => {
                    self.change(builder, node);
                    Ok(Some(node))
                }
                Some(_) => Err(format!("`{name}` is not a regular file")),
                None if self.kind == "F" => Ok(None),
                None => Err(format!("no such file: `{name}`")),
            },
            "d" => {
                let node = self.make(builder, &path, S_IFDIR, 0)?;
                Ok(Some(node))
            }
            "r" => {
                let found = builder.find_from(0, &path);
                let Some(node) = found.filter(|node| builder.node(*node).is_directory()) else {
                    return Err(format!("no such directory: `{name}`"));
                };
                self.change_all(builder, node);
                Ok(Some(node))
            }
            "p" => self.make(builder, &path, S_IFIFO, 0).map(Some),
            "s" => self.make(builder, &path, S_IFSOCK, 0).map(Some),
            "c" | "b" => self.devices(builder, &path).map(Some),
            other => Err(format!(
                "unknown type `{other}`: use one of f F d r c b p s"
            )),
        }
    }

    fn devices(&self, builder: &mut Builder, path: &[u8]) -> Result<u32, String> {
        let kind = if self.kind == "c" { S_IFCHR } else { S_IFBLK };
        if path.is_empty() {
            return Err("the root is a directory".into());
        }
        if self.count > limits::DEVICES {
            return Err(format!(
                "a line makes more than {} devices",
                limits::DEVICES
            ));
        }
        let mut last = None;
        for step in 0..self.count.max(1) {
            let minor = step
                .checked_mul(self.increment)
                .and_then(|more| more.checked_add(self.minor));
            let minor =
                minor.filter(|minor| self.major <= limits::MAJOR && *minor <= limits::MINOR);
            let minor = minor.ok_or("a device number is beyond what Linux has")?;
            let mut path = path.to_vec();
            // One alone is not numbered.
            if self.count > 1 {
                let number = u64::from(self.start) + u64::from(step);
                path.extend_from_slice(number.to_string().as_bytes());
            }
            last = Some(self.make(builder, &clean(&path)?, kind, join(self.major, minor))?);
        }
        last.ok_or_else(|| "nothing is made".into())
    }

    /// Makes or changes what is at `path`.
    fn make(&self, builder: &mut Builder, path: &[u8], kind: u16, key: u64) -> Result<u32, String> {
        if let Some(old) = builder.find_from(0, path) {
            if builder.node(old).mode & S_IFMT != kind {
                return Err(format!(
                    "`/{}` is there and of another type",
                    path.escape_ascii()
                ));
            }
            self.change(builder, old);
            if kind != S_IFDIR {
                builder.node_mut(old).key = key;
            }
            return Ok(old);
        }
        if kind != S_IFDIR {
            self.check_new()?;
        }
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (parent, name) = match slash {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        let parent = builder.directory_from(0, parent)?;
        let mut node = TreeNode::new(kind, u16::MAX);
        node.set_attributes(&Attributes::DEFAULT_DIRECTORY);
        node.key = key;
        let made = builder.put(parent, name, node)?;
        self.change(builder, made);
        Ok(made)
    }

    fn change(&self, builder: &mut Builder, node: u32) {
        let node = builder.node_mut(node);
        if let Some(mode) = self.mode {
            node.mode = node.mode & S_IFMT | mode;
        }
        node.uid = self.uid.unwrap_or(node.uid);
        node.gid = self.gid.unwrap_or(node.gid);
    }

    /// Changes a directory and all in it. The mode of symbolic links stays.
    fn change_all(&self, builder: &mut Builder, top: u32) {
        let mut directories = vec![top];
        self.change(builder, top);
        while let Some(directory) = directories.pop() {
            let (mut at, _) = halves(builder.node(directory).key);
            while at != NONE {
                let entry = builder.tree.entries[at as usize];
                at = entry.next;
                if entry.node == NONE {
                    continue;
                }
                let mode = builder.node(entry.node).mode;
                self.change(builder, entry.node);
                if mode & S_IFMT == super::tree::S_IFLNK {
                    builder.node_mut(entry.node).mode = mode;
                }
                if builder.node(entry.node).is_directory() {
                    directories.push(entry.node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Kind, SourceTree};
    use super::*;

    fn apply_to(text: &str) -> Result<SourceTree, (usize, String)> {
        let mut builder = Builder::new();
        let home = builder.directory_from(0, b"home/joe").unwrap();
        builder
            .put(home, b"file", TreeNode::new(S_IFREG | 0o600, 0))
            .unwrap();
        apply_text(text, &mut builder)?;
        Ok(builder.finish())
    }

    #[test]
    fn the_table_makes_and_changes_what_it_names() {
        let tree = apply_to(
            "# comment\n\
             /dev d 750 1 2 - - - - -\n\
             /dev/console c 600 0 5 5 1\n\
             /dev/tty c 666 0 5 4 10 2 3 4\n\
             /dev/mmc b 660 0 6 179 0 0 0 -\n\
             /dev/one c 600 0 5 4 7 3 1 1\n\
             /run/fifo p 644 3 4 - - - - -\n\
             /home r -1 1000 - - - - - -\n\
             /home/joe/file f 4755 0 0 - - - - -\n\
             |xattr cap_net_raw+ep\n\
             /absent F 644 0 0\n",
        )
        .unwrap();
        let at = |path: &str| {
            let id = tree.find(path.as_bytes()).expect(path);
            let found = tree.attributes(id);
            (tree.kind(id), found.mode, found.uid, found.gid)
        };
        let device = |minor| Kind::CharDevice { major: 4, minor };
        assert_eq!(at("dev"), (Kind::Directory, 0o750, 1, 2));
        assert_eq!(
            at("dev/console"),
            (Kind::CharDevice { major: 5, minor: 1 }, 0o600, 0, 5)
        );
        assert_eq!(at("dev/tty2"), (device(10), 0o666, 0, 5));
        assert_eq!(at("dev/tty5"), (device(19), 0o666, 0, 5));
        assert_eq!(at("dev/one"), (device(7), 0o600, 0, 5));
        assert!(tree.find(b"dev/tty6").is_none() && tree.find(b"dev/tty").is_none());
        assert_eq!(
            at("dev/mmc").0,
            Kind::BlockDevice {
                major: 179,
                minor: 0
            }
        );
        assert_eq!(at("run/fifo"), (Kind::Fifo, 0o644, 3, 4));
        assert_eq!(at("home/joe"), (Kind::Directory, 0o755, 1000, 0));
        assert_eq!(at("home/joe/file"), (Kind::File { size: 0 }, 0o4755, 0, 0));
        let file = tree.find(b"home/joe/file").unwrap();
        assert_eq!(tree.xattrs(file).next().unwrap().0, b"security.capability");
    }

    #[test]
    fn an_error_has_its_line() {
        for (text, line, part) in [
            ("\n/a", 2, "at least"),
            ("/a z 1 0 0", 1, "unknown type"),
            ("/a d 8 0 0", 1, "invalid mode"),
            ("/a d 755 joe 0", 1, "joe"),
            ("#\n#\n/a f 755 0 0", 3, "no such file"),
            ("/home f 755 0 0", 1, "not a regular file"),
            ("/home c 755 0 0 1 1", 1, "another type"),
            ("/a/../b d 755 0 0", 1, ".."),
            ("/d c 666 0 0", 1, "major and a minor"),
            ("/d b 666 0 0 5", 1, "major and a minor"),
            ("/d c 666 0 0 - 1 0 0 -", 1, "major and a minor"),
            ("/d c 666 0 0 5 - 0 0 -", 1, "major and a minor"),
            ("/d c 666 0 0 5 1 - - 4", 1, "start and an increment"),
            ("/d c 666 0 0 5 x", 1, "not a number"),
            ("/d c 666 0 0 +5 1", 1, "not a number"),
            ("/d c +666 0 0 5 1", 1, "invalid mode"),
            ("/d c - 0 0 5 1", 1, "it is new"),
            ("/d p 644 - 0", 1, "it is new"),
            ("/d d 755 0 0 5 1", 1, "types c and b"),
            ("/d s 644 0 0 - - 0 1 4", 1, "types c and b"),
            ("/d c 666 0 0 5000 0", 1, "device number"),
            ("/d c 666 0 0 5 0 0 4294967295 3", 1, "device number"),
            ("/d c 666 0 0 5 0 0 1 4000000000", 1, "more than"),
            ("|xattr cap_chown+e", 1, "follows no line"),
            (
                "/home/joe/file f 755 0 0\n|xattr nope+e",
                2,
                "not a capability",
            ),
            ("/a d 755 0 0 0 0 0 0 0 0", 1, "ten fields"),
        ] {
            let (at, problem) = apply_to(text).err().expect(text);
            assert!(
                at == line && problem.contains(part),
                "{text}: {at}: {problem}"
            );
        }
    }
}
