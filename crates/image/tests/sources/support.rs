//! Trees with everything in them, and manifests: a tree, or a directory as the kernel shows it, as text.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use lanefs_image::source::{
    Data, DataSink, Input, Kind, NodeId, Options, SinkError, SourceError, SourceId, SourceTree,
};

/// Runs a shell script in `directory`.
pub fn sh(directory: &Path, script: &str) {
    let output = Command::new("bash")
        .arg("-euc")
        .arg(script)
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether a test that needs root and `programs` can run; prints the reason if not.
pub fn can_run(programs: &[&str]) -> bool {
    let have = |program: &&str| {
        let found = Command::new("sh")
            .arg("-c")
            .arg(format!("command -v {program}"))
            .output();
        found.is_ok_and(|output| output.status.success())
    };
    let root = rustix::process::geteuid().is_root();
    match programs.iter().find(|program| !have(program)) {
        _ if !root => eprintln!("skipped: needs root"),
        Some(program) => eprintln!("skipped: needs {program}"),
        None => return true,
    }
    false
}

/// Everything that a directory can hold.
pub const EVERYTHING: &str = r#"
umask 022
mkdir -p dir/sub/deep empty 'with space' dir/übung
echo hello > dir/file; : > dir/empty; head -c 70000 /dev/zero | tr '\0' x > dir/big
head -c 3000000 /dev/urandom > random
ln -s file dir/link; ln -s "$(printf 'x%.0s' $(seq 200))" dir/slow; ln -s /nowhere dangling
ln dir/file dir/hard; ln dir/file hard; ln -s a l1; ln l1 l2
mkfifo fifo; mknod char c 5 1; mknod block b 259 70000
python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.bind("socket")'
truncate -s 10M sparse; printf start | dd of=sparse conv=notrunc status=none
printf middle | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
truncate -s 30M hole; printf e | dd of=tail bs=1 seek=8000000 status=none
printf n > "$(printf 'n%.0s' $(seq 255))"; printf b > "$(printf 'bad\377name')"
printf q > '%41=x'; printf nl > "$(printf 'new\nline')"
chmod 4755 dir/file; chmod 2775 dir; chmod 1777 empty; chown 1000:2000 dir/big;
chown -h 12345678:87654321 dir/link
chmod 0 dir/empty; chown 4294967294:4294967294 random
setfattr -n user.one -v 1 dir/file; setfattr -n user.two -v "$(printf 'v%.0s' $(seq 1000))" dir/big
setfattr -n user.bin -v 0x00ff3d0a25 dir/sub; setfattr -n trusted.t -v x dir/sub;
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 random
setfattr -n 'user.a=b%c' -v y random
setfattr -h -n trusted.link -v l dir/link; setfattr -n security.selinux -v 0x7379737400 random
setfacl -m u:7:r,g:8:rwx dir/big; setfacl -d -m u:9:rwx dir/sub; setfacl -m u:7:rx dir/sub
touch -d '2001-02-03 04:05:06.123456789' dir/big; touch -d '1965-01-01 00:00:00.5' dir/file
touch -hd '2100-01-01 00:00:00.000000001' dir/link; touch -d @1 dir/sub
find . -depth -exec touch -had '2020-01-01 00:00:00.25' {} +
touch -d '2010-10-10 10:10:10.101010101' empty dir
"#;

/// The data of all files, each from wherever it is.
pub fn contents(
    tree: &SourceTree,
    streamed: &HashMap<(u16, u32), Vec<u8>>,
) -> HashMap<NodeId, Vec<u8>> {
    let mut collected = Collect::default();
    for source in tree.streams() {
        tree.stream(source, &mut collected).unwrap();
    }
    collected
        .items
        .extend(streamed.iter().map(|(key, bytes)| (*key, bytes.clone())));
    let mut contents = HashMap::new();
    for id in tree.nodes() {
        let Kind::File { size } = tree.kind(id) else {
            continue;
        };
        let extents: Vec<_> = tree.extents(id).collect();
        let mut bytes = match tree.data(id) {
            Data::Empty => {
                assert_eq!(extents, []);
                Vec::new()
            }
            Data::Stream { source, index } => collected.items[&(source.0, index)].clone(),
            Data::Path(_) | Data::Range { .. } => {
                let reader = tree
                    .open(id, &mut lanefs_image::source::Nearby::default())
                    .unwrap();
                let mut bytes = Vec::new();
                for extent in &extents {
                    bytes.resize(extent.offset as usize, 0);
                    let mut part = vec![0; extent.len as usize];
                    reader.read_at(extent.offset, &mut part).unwrap();
                    bytes.append(&mut part);
                }
                reader.check().unwrap();
                bytes
            }
        };
        // A hole at the end is left out of what is compared, so that big holes cost nothing.
        assert!(bytes.len() as u64 <= size);
        trim(&mut bytes);
        contents.insert(id, bytes);
    }
    contents
}

fn trim(bytes: &mut Vec<u8>) {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |at| at + 1);
    bytes.truncate(end);
}

/// A sink that keeps everything.
#[derive(Default)]
pub struct Collect {
    pub items: HashMap<(u16, u32), Vec<u8>>,
    now: Option<(u16, u32)>,
    left: u64,
}

impl DataSink for Collect {
    fn begin(
        &mut self,
        source: SourceId,
        index: u32,
        _size: u64,
        data_bytes: u64,
    ) -> Result<bool, SinkError> {
        assert!(self.now.is_none());
        self.now = Some((source.0, index));
        self.left = data_bytes;
        assert!(self.items.insert((source.0, index), Vec::new()).is_none());
        Ok(true)
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), SinkError> {
        let item = self.items.get_mut(&self.now.unwrap()).unwrap();
        assert!(offset >= item.len() as u64 && !bytes.is_empty());
        item.resize(offset as usize, 0);
        item.extend_from_slice(bytes);
        self.left -= bytes.len() as u64;
        Ok(())
    }

    fn end(&mut self) -> Result<(), SinkError> {
        assert_eq!(self.left, 0);
        assert!(self.now.take().is_some());
        Ok(())
    }
}

/// Which parts a manifest has.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Nanoseconds of the time of change, else seconds.
    pub nanoseconds: bool,
    pub xattrs: bool,
    pub sockets: bool,
}

pub const ALL: Parts = Parts {
    nanoseconds: true,
    xattrs: true,
    sockets: true,
};

/// What `tree` holds, a line an entry in order.
pub fn manifest(tree: &SourceTree, parts: Parts) -> String {
    manifest_with(tree, parts, &HashMap::new())
}

pub fn manifest_with(
    tree: &SourceTree,
    parts: Parts,
    streamed: &HashMap<(u16, u32), Vec<u8>>,
) -> String {
    let contents = contents(tree, streamed);
    let mut lines = BTreeMap::new();
    let mut first: HashMap<NodeId, Vec<u8>> = HashMap::new();
    let mut stack = vec![(NodeId::ROOT, Vec::new())];
    let mut all = Vec::new();
    while let Some((id, path)) = stack.pop() {
        for (name, child) in tree.children(id) {
            stack.push((child, [&path[..], b"/", name].concat()));
        }
        all.push((path, id));
    }
    all.sort();
    for (path, id) in all {
        if matches!(tree.kind(id), Kind::Socket) && !parts.sockets {
            continue;
        }
        let attributes = tree.attributes(id);
        let group = first.entry(id).or_insert_with(|| path.clone()).clone();
        let nanoseconds = if parts.nanoseconds {
            attributes.mtime.nanoseconds()
        } else {
            0
        };
        let mut line = format!(
            "{:o} {}:{} {}.{nanoseconds:09}",
            attributes.mode,
            attributes.uid,
            attributes.gid,
            attributes.mtime.seconds(),
        );
        match tree.kind(id) {
            Kind::Directory => line.push_str(" dir"),
            Kind::File { size } => {
                let bytes = &contents[&id];
                write!(line, " file {size} {:08x}", fnv(bytes)).unwrap();
            }
            Kind::Symlink(target) => write!(line, " link {}", target.escape_ascii()).unwrap(),
            Kind::CharDevice { major, minor } => write!(line, " c {major}:{minor}").unwrap(),
            Kind::BlockDevice { major, minor } => write!(line, " b {major}:{minor}").unwrap(),
            Kind::Fifo => line.push_str(" fifo"),
            Kind::Socket => line.push_str(" socket"),
        }
        if !matches!(tree.kind(id), Kind::Directory) {
            write!(line, " {}x {}", tree.links(id), group.escape_ascii()).unwrap();
        }
        if parts.xattrs {
            for (name, value) in tree.xattrs(id) {
                write!(line, " {}={}", name.escape_ascii(), hex(value)).unwrap();
            }
        }
        lines.insert(path, line);
    }
    join(lines)
}

fn join(lines: BTreeMap<Vec<u8>, String>) -> String {
    lines
        .iter()
        .map(|(path, line)| format!("{} {line}\n", path.escape_ascii()))
        .collect()
}

fn all_paths(root: &Path) -> Vec<std::path::PathBuf> {
    let mut all = vec![root.to_path_buf()];
    let mut at = 0;
    while at < all.len() {
        let path = all[at].clone();
        if path.symlink_metadata().unwrap().is_dir() {
            all.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
        at += 1;
    }
    all.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    all
}

/// What the kernel says of the directory at `root`, in the same form.
pub fn manifest_of_directory(root: &Path, parts: Parts) -> String {
    let mut lines = BTreeMap::new();
    let mut first: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
    let all = all_paths(root);
    for path in all {
        let name = path.as_os_str().as_bytes()[root.as_os_str().len()..].to_vec();
        let found = path.symlink_metadata().unwrap();
        let kind = found.file_type();
        if kind.is_socket() && !parts.sockets {
            continue;
        }
        let inode = (found.dev(), found.ino());
        let group = first.entry(inode).or_insert_with(|| name.clone()).clone();
        let nanoseconds = if parts.nanoseconds {
            found.mtime_nsec()
        } else {
            0
        };
        let mut line = format!(
            "{:o} {}:{} {}.{nanoseconds:09}",
            found.permissions().mode() & 0o7777,
            found.uid(),
            found.gid(),
            found.mtime(),
        );
        let (major, minor) = (
            rustix::fs::major(found.rdev()),
            rustix::fs::minor(found.rdev()),
        );
        if kind.is_dir() {
            line.push_str(" dir");
        } else if kind.is_file() {
            let mut bytes = if found.blocks() == 0 {
                vec![]
            } else {
                std::fs::read(&path).unwrap()
            };
            trim(&mut bytes);
            write!(line, " file {} {:08x}", found.len(), fnv(&bytes)).unwrap();
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            write!(
                line,
                " link {}",
                target.as_os_str().as_bytes().escape_ascii()
            )
            .unwrap();
        } else if kind.is_char_device() {
            write!(line, " c {major}:{minor}").unwrap();
        } else if kind.is_block_device() {
            write!(line, " b {major}:{minor}").unwrap();
        } else {
            line.push_str(if kind.is_fifo() { " fifo" } else { " socket" });
        }
        if !kind.is_dir() {
            write!(line, " {}x {}", found.nlink(), group.escape_ascii()).unwrap();
        }
        if parts.xattrs {
            for (name, value) in kernel_xattrs(&path) {
                write!(line, " {}={}", name.escape_ascii(), hex(&value)).unwrap();
            }
        }
        lines.insert(name, line);
    }
    join(lines)
}

fn kernel_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0_u8; 65536];
    let length = rustix::fs::llistxattr(path, list.as_mut_slice()).unwrap();
    let mut xattrs = BTreeMap::new();
    for name in list[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0_u8; 65536];
        let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).unwrap();
        xattrs.insert(name.to_vec(), value[..length].to_vec());
    }
    xattrs
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Options with these inputs.
pub fn options(inputs: &[&Path]) -> Options {
    Options {
        inputs: inputs
            .iter()
            .map(|path| Input::parse(path.as_os_str()))
            .collect(),
        ..Options::default()
    }
}

pub fn scan(inputs: &[&Path]) -> Result<SourceTree, SourceError> {
    lanefs_image::source::scan(&options(inputs))
}

/// Says which lines differ.
pub fn assert_same(left: &str, right: &str, what: &str) {
    if left != right {
        let missing = |a: &str, b: &str| -> Vec<String> {
            let other: std::collections::HashSet<&str> = b.lines().collect();
            a.lines()
                .filter(|line| !other.contains(line))
                .take(10)
                .map(String::from)
                .collect()
        };
        panic!(
            "{what}: only left: {:#?}\nonly right: {:#?}",
            missing(left, right),
            missing(right, left)
        );
    }
}
