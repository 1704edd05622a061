//! What is done on each mount: a turn of all rows, one after the other.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use engine::MountOptions;
use lanefs::Error;
use rustix::fs::{Advice, fadvise};
use sync::{clock, thread};

use super::servers::{Kind, Mounted, Place, failed, run};
use crate::in_process::InProcess;
use crate::machine::{children_time, cpu_time};
use crate::table::Sample;
use crate::target::Target;
use model::Random;

/// Directories `d0`, `d1`, ... of every mount, and the files `f0`, `f1`, ... in each.
pub(super) const DIRECTORIES: usize = 20;
pub(super) const FILES: usize = 500;
/// Bytes of a small read or write, of the file that these go to, and of one that is read as a whole.
const BLOCK: usize = 4096;
const DATA_BLOCKS: u64 = 16_384;
const CHUNK: usize = 1 << 20;
/// Bytes of a file of the tree.
const TREE_BYTES: usize = 10 << 10;
/// Files in a directory of it.
const TREE_FILES: usize = 100;
/// Clients at once, where there is more than one.
const CLIENTS: usize = 2;

/// Rows that count microseconds an operation.
pub(super) const OPERATIONS: [&str; 9] = [
    "create, 2 clients",
    "create + unlink, 2 clients",
    "create, of 50,000 names",
    "stat cold, of 50,000 names",
    "rename",
    "stat cold",
    "read 4 KiB",
    "write 4 KiB",
    "append 4 bytes",
];
/// Rows that count seconds.
pub(super) const TREES: [&str; 9] = [
    "untar",
    "find",
    "find, with stat",
    "du",
    "cp -a",
    "rm -rf",
    "git clone",
    "write a stream, fsync",
    "read a stream",
];

/// How much of it is done.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Names of the directory `many`.
    pub(super) many: usize,
    /// Bytes of the files that are read and written as a whole.
    pub(super) stream: u64,
    pub(super) names: usize,
    pub(super) stats: usize,
    pub(super) blocks: usize,
    pub(super) appends: usize,
    pub(super) tree: usize,
}

/// What lies outside of the mounts.
pub(super) struct Scene {
    tree: PathBuf,
    tar: PathBuf,
    repository: PathBuf,
    sizes: Sizes,
}

fn host<T>(path: &Path, result: std::io::Result<T>) -> Result<T, Error> {
    result.map_err(|error| failed("working on", path, error))
}

impl Scene {
    /// Makes the tree, its archive and a repository of it.
    pub(super) fn new(place: &Place, sizes: Sizes, seed: u64) -> Result<Scene, Error> {
        let (tree, tar) = (place.0.join("tree"), place.0.join("tree.tar"));
        let repository = place.0.join("repository");
        let mut random = Random::new(seed);
        for number in 0..sizes.tree {
            let directory = tree.join(format!("t{}", number / TREE_FILES));
            host(&directory, fs::create_dir_all(&directory))?;
            let mut bytes = vec![0; TREE_BYTES];
            random.fill(&mut bytes[..TREE_BYTES / 4]);
            let file = directory.join(format!("file-{number}.txt"));
            host(&file, fs::write(&file, bytes))?;
        }
        run(Command::new("tar")
            .arg("-C")
            .arg(&tree)
            .arg("-cf")
            .arg(&tar)
            .arg("."))?;
        run(Command::new("cp").arg("-a").arg(&tree).arg(&repository))?;
        let git = |words: &[&str]| {
            let author = ["-c", "user.name=bench", "-c", "user.email=bench"];
            let mut git = Command::new("git");
            git.arg("-C").arg(&repository).args(author).args(words);
            run(&mut git)
        };
        git(&["init", "-q"])?;
        git(&["add", "."])?;
        git(&["commit", "-q", "-m", "tree"])?;
        Ok(Scene {
            tree,
            tar,
            repository,
            sizes,
        })
    }
}

/// Makes what every mount has at the beginning, as far as it is not there.
pub(super) fn fill(root: &Path, sizes: &Sizes) -> Result<(), Error> {
    for number in 0..DIRECTORIES {
        let directory = root.join(format!("d{number}"));
        if directory.exists() {
            continue;
        }
        host(&directory, fs::create_dir(&directory))?;
        for file in 0..FILES {
            let file = directory.join(format!("f{file}"));
            host(&file, File::create(&file))?;
        }
    }
    let many = root.join("many");
    host(&many, fs::create_dir(&many))?;
    for number in 0..sizes.many {
        host(&many, File::create(many.join(format!("name-{number}"))))?;
    }
    write_stream(&root.join("data"), DATA_BLOCKS * BLOCK as u64)?;
    let stream = root.join("stream");
    if stream.exists() {
        Ok(())
    } else {
        write_stream(&stream, sizes.stream)
    }
}

/// Makes an image of 1 TiB with this number of files.
pub(super) fn large_image(path: &Path, files: usize) -> Result<(), Error> {
    const BYTES: u64 = 1 << 40;
    const IN_EACH: usize = 1000;
    let target = InProcess::in_file(path, BYTES, &MountOptions::default())?;
    for number in 0..files.div_ceil(IN_EACH) {
        let directory = target.mkdir(target.root(), &format!("l{number}"))?;
        for file in 0..IN_EACH.min(files - number * IN_EACH) {
            target.create(&directory, &format!("f{file}"))?;
        }
    }
    target.close()
}

fn write_stream(path: &Path, bytes: u64) -> Result<(), Error> {
    let chunk = vec![0x5a; CHUNK];
    let file = host(path, File::create(path))?;
    for at in (0..bytes).step_by(CHUNK) {
        host(path, file.write_all_at(&chunk, at))?;
    }
    host(path, file.sync_all())
}

/// Calls stat(2). `std::fs::metadata` would call statx(2), which also asks for the time of birth.
fn stat(path: &Path) -> Result<(), Error> {
    host(
        path,
        rustix::fs::stat(path)
            .map(drop)
            .map_err(std::io::Error::from),
    )
}

/// Has the kernel forget names and attributes.
fn forget_names(root: &Path) -> Result<(), Error> {
    let synced = host(root, File::open(root)).map(|root| rustix::fs::syncfs(&root));
    synced?.map_err(|errno| failed("syncing", root, errno.into()))?;
    let path = Path::new("/proc/sys/vm/drop_caches");
    host(path, fs::write(path, "2"))
}

/// Has the kernel forget a file's contents, and not read ahead of random reads.
fn forget_contents(file: &File, advice: Advice) -> Result<(), Error> {
    let advised =
        fadvise(file, 0, None, Advice::DontNeed).and_then(|()| fadvise(file, 0, None, advice));
    advised.map_err(|errno| failed("advising on", Path::new("a file"), errno.into()))
}

/// A turn on one mount.
pub(super) struct Turn<'a> {
    scene: &'a Scene,
    mounted: &'a Mounted,
    kind: Kind,
    random: Random,
    /// By row, operations first.
    found: Vec<Option<Sample>>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(scene: &'a Scene, mounted: &'a Mounted, kind: Kind, seed: u64) -> Turn<'a> {
        Turn {
            scene,
            mounted,
            kind,
            random: Random::new(seed),
            found: vec![None; OPERATIONS.len() + TREES.len()],
        }
    }

    /// Does all rows.
    pub(super) fn run(mut self) -> Result<Vec<Option<Sample>>, Error> {
        self.creates()?;
        self.many()?;
        self.renames()?;
        self.stats()?;
        self.blocks()?;
        self.appends()?;
        self.trees()?;
        if self.kind != Kind::Null {
            self.clone_repository()?;
        }
        self.streams()?;
        Ok(self.found)
    }

    fn root(&self) -> &'a Path {
        &self.mounted.directory
    }

    /// Times something that is this number of operations.
    fn time(
        &mut self,
        row: &str,
        operations: usize,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let messages = self.mounted.messages();
        let cpu = || cpu_time() + children_time() + self.mounted.cpu();
        let before = cpu();
        let begin = clock::now();
        work()?;
        let seconds = begin.elapsed().as_secs_f64();
        let cpu = (cpu() - before) * 1e6;
        let operations = operations as f64;
        let place = OPERATIONS.iter().position(|name| *name == row);
        let value = match place {
            Some(_) => seconds * 1e6 / operations,
            None => seconds,
        };
        let mut details = vec![
            ("operations", operations),
            ("CPU us/operation", cpu / operations),
        ];
        if let (Some(before), Some(after)) = (messages, self.mounted.messages()) {
            // The last question is one of them.
            let messages = (after - before - 1.0).max(0.0);
            details.push(("messages/operation", messages / operations));
            if messages > operations / 100.0 {
                details.push(("CPU us/message", cpu / messages));
            }
        }
        let in_trees = || {
            let place = TREES.iter().position(|name| *name == row);
            place.map(|place| place + OPERATIONS.len())
        };
        let found = place
            .or_else(in_trees)
            .and_then(|place| self.found.get_mut(place));
        if let Some(found) = found {
            *found = Some(Sample {
                value,
                details,
                counters: Vec::new(),
            });
        }
        Ok(())
    }

    /// Has clients do something at once, each in a directory of its own, which is removed afterwards.
    fn apart(
        &mut self,
        row: &str,
        operations: usize,
        work: impl Fn(&Path) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let directory = |number| self.root().join(format!("own{number}"));
        let directories: Vec<PathBuf> = (0..CLIENTS).map(directory).collect();
        for directory in &directories {
            host(directory, fs::create_dir(directory))?;
        }
        self.time(row, operations * CLIENTS, || {
            thread::scope(|scope| {
                let clients = directories.iter().map(|directory| {
                    let work = &work;
                    scope.spawn(move || work(directory))
                });
                let clients: Vec<_> = clients.collect();
                clients
                    .into_iter()
                    .try_for_each(|client| match client.join() {
                        Ok(done) => done,
                        Err(panic) => std::panic::resume_unwind(panic),
                    })
            })
        })?;
        directories
            .iter()
            .try_for_each(|directory| host(directory, fs::remove_dir_all(directory)))
    }

    fn creates(&mut self) -> Result<(), Error> {
        let names = self.scene.sizes.names;
        self.apart(OPERATIONS[0], names, |directory| {
            let create = |number| File::create_new(directory.join(format!("f{number}")));
            (0..names).try_for_each(|number| host(directory, create(number).map(drop)))
        })?;
        self.apart(OPERATIONS[1], names, |directory| {
            let pair = |number| {
                let name = directory.join(format!("f{number}"));
                File::create_new(&name).and_then(|_| fs::remove_file(&name))
            };
            (0..names).try_for_each(|number| host(directory, pair(number)))
        })
    }

    /// A directory of many names.
    fn many(&mut self) -> Result<(), Error> {
        let many = self.root().join("many");
        let names = self.scene.sizes.names;
        let name = |number| many.join(format!("new-{number}"));
        self.time(OPERATIONS[2], names, || {
            (0..names).try_for_each(|number| host(&many, File::create_new(name(number)).map(drop)))
        })?;
        (0..names).try_for_each(|number| host(&many, fs::remove_file(name(number))))?;
        let all = self.scene.sizes.many;
        let looked = (0..names).map(|_| format!("name-{}", self.random.index(all)));
        let looked: Vec<PathBuf> = looked.map(|name| many.join(name)).collect();
        forget_names(self.root())?;
        host(&many, many.metadata())?;
        self.time(OPERATIONS[3], names, || {
            looked.iter().try_for_each(|path| stat(path))
        })
    }

    fn renames(&mut self) -> Result<(), Error> {
        let directory = self.root().join("renamed");
        let names = self.scene.sizes.names;
        let (old, new) = (
            |number| directory.join(format!("old-{number}")),
            |number| directory.join(format!("new-{number}")),
        );
        host(&directory, fs::create_dir(&directory))?;
        (0..names).try_for_each(|number| host(&directory, File::create(old(number)).map(drop)))?;
        self.time(OPERATIONS[4], names, || {
            (0..names).try_for_each(|number| host(&directory, fs::rename(old(number), new(number))))
        })?;
        host(&directory, fs::remove_dir_all(&directory))
    }

    fn stats(&mut self) -> Result<(), Error> {
        let mut names: Vec<PathBuf> = (0..DIRECTORIES * FILES)
            .map(|number| format!("d{}/f{}", number % DIRECTORIES, number / DIRECTORIES))
            .map(|name| self.root().join(name))
            .collect();
        names.truncate(self.scene.sizes.stats);
        forget_names(self.root())?;
        self.time(OPERATIONS[5], names.len(), || {
            names.iter().try_for_each(|path| stat(path))
        })
    }

    /// Blocks of a file read and written, in no order, none twice.
    fn blocks(&mut self) -> Result<(), Error> {
        let path = self.root().join("data");
        let count = self.scene.sizes.blocks.min(DATA_BLOCKS as usize);
        // 5,003 and the number of blocks have no divisor in common.
        let at = |number: usize| number as u64 * 5003 % DATA_BLOCKS * BLOCK as u64;
        let options = File::options().read(true).write(true).open(&path);
        let file = host(&path, options)?;
        host(&path, file.sync_all())?;
        forget_contents(&file, Advice::Random)?;
        let mut bytes = vec![0; BLOCK];
        self.time(OPERATIONS[6], count, || {
            (0..count)
                .try_for_each(|number| host(&path, file.read_exact_at(&mut bytes, at(number))))
        })?;
        self.time(OPERATIONS[7], count, || {
            (0..count)
                .try_for_each(|number| host(&path, file.write_all_at(&[7; BLOCK], at(number))))
        })
    }

    fn appends(&mut self) -> Result<(), Error> {
        use std::io::Write;
        let path = self.root().join("log");
        let count = self.scene.sizes.appends;
        let file = File::options().create(true).append(true).open(&path);
        let mut file = host(&path, file)?;
        self.time(OPERATIONS[8], count, || {
            (0..count).try_for_each(|_| host(&path, file.write_all(b"line")))
        })?;
        drop(file);
        host(&path, fs::remove_file(&path))
    }

    fn trees(&mut self) -> Result<(), Error> {
        let (root, scene) = (self.root(), self.scene);
        let (tree, copy) = (root.join("tree"), root.join("copy"));
        let files = scene.sizes.tree;
        host(&tree, fs::create_dir(&tree))?;
        self.time(TREES[0], files, || {
            run(Command::new("tar")
                .arg("-C")
                .arg(&tree)
                .arg("-xf")
                .arg(&scene.tar))
            .map(drop)
        })?;
        let find = |words: &[&str]| run(Command::new("find").arg(&tree).args(words)).map(drop);
        find(&["-size", "+1G"])?;
        self.time(TREES[1], files, || find(&[]))?;
        self.time(TREES[2], files, || find(&["-size", "+1G"]))?;
        self.time(TREES[3], files, || {
            run(Command::new("du").arg("-s").arg(&tree)).map(drop)
        })?;
        self.time(TREES[4], files, || {
            run(Command::new("cp").arg("-a").arg(&scene.tree).arg(&copy)).map(drop)
        })?;
        self.time(TREES[5], files, || {
            run(Command::new("rm").arg("-rf").arg(&copy)).map(drop)
        })?;
        run(Command::new("rm").arg("-rf").arg(&tree)).map(drop)
    }

    fn clone_repository(&mut self) -> Result<(), Error> {
        let clone = self.root().join("clone");
        let from = format!("file://{}", self.scene.repository.display());
        let files = self.scene.sizes.tree;
        self.time(TREES[6], files, || {
            run(Command::new("git").args(["clone", "-q", &from]).arg(&clone)).map(drop)
        })?;
        run(Command::new("rm").arg("-rf").arg(&clone)).map(drop)
    }

    fn streams(&mut self) -> Result<(), Error> {
        let (written, read) = (self.root().join("written"), self.root().join("stream"));
        let bytes = self.scene.sizes.stream;
        // At most a few gigabytes.
        let chunks = (bytes / CHUNK as u64) as usize;
        self.time(TREES[7], chunks, || write_stream(&written, bytes))?;
        host(&written, fs::remove_file(&written))?;
        let file = host(&read, File::open(&read))?;
        forget_contents(&file, Advice::Sequential)?;
        let mut chunk = vec![0; CHUNK];
        self.time(TREES[8], chunks, || {
            let mut read_at = |at: u64| host(&read, file.read_exact_at(&mut chunk, at));
            (0..bytes).step_by(CHUNK).try_for_each(&mut read_at)
        })
    }
}
