//! What a run draws: options for the file system, and sizes. All numbers come from the run's seed.

use testkit::Random;

/// Numbers that follow from a seed, in the distributions that draws need.
pub struct Numbers(Random);

impl Numbers {
    pub fn new(seed: u64) -> Numbers {
        Numbers(Random::new(seed))
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub fn one_of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 20)
    }

    /// From 0 to `limit`, small numbers as likely as large ones.
    pub fn log_uniform(&mut self, limit: f64) -> u64 {
        (limit + 1.0).powf(self.share()) as u64 - 1
    }

    /// From `least` to `most`, small numbers as likely as large ones.
    pub fn log_between(&mut self, least: u64, most: u64) -> u64 {
        let (least, most) = (least as f64, most.max(least) as f64);
        (least * (most / least).powf(self.share())) as u64
    }
}

/// The most bytes that the blocks of all files, or the inode tables, may take; more only where the block size is not
/// drawn.
const BUDGET: u64 = 768 << 20;
/// Clusters take room in a sparse image only.
const CLUSTERS_BUDGET: u64 = 16 << 30;

/// What is drawn before the tree is made.
pub struct Draw {
    /// Options, except the size.
    pub options: Vec<String>,
    block: u64,
    inode: u64,
}

impl Draw {
    fn give(&mut self, letter: &str, value: impl ToString) {
        self.options.extend([letter.to_owned(), value.to_string()]);
    }

    /// Random options for a tree of `names` names.
    pub fn new(random: &mut Numbers, names: u64) -> Draw {
        let mut draw = Draw {
            options: Vec::new(),
            block: 4096,
            inode: 256,
        };
        let names = names + 20;
        if random.below(3) > 0 {
            // 1, 2 and 4 KiB, as the kernel mounts them, more often than the others.
            let most = (BUDGET / names).clamp(2048, 65_536).ilog2();
            let bits = [10, 10, 11, 12, 12, 13, 14, 15, 16][random.below(9) as usize];
            draw.block = 1 << bits.min(most);
            draw.give("-b", draw.block);
        }
        if random.below(2) == 0 {
            let most = draw.block.min(4096).min(BUDGET / names).max(256).ilog2();
            draw.inode = 1 << (7 + random.below(u64::from(most) - 6));
            draw.give("-I", draw.inode);
        }
        let features = features(random);
        draw.inodes(random, names);
        draw.groups(random, names, &features);
        draw.others(random, &features);
        if !features.is_empty() {
            draw.give("-O", features);
        }
        draw
    }

    fn inodes(&mut self, random: &mut Numbers, names: u64) {
        match random.below(8) {
            // Any ratio, where the tables do not fill nearly all of a large image.
            0 | 1 => {
                let least = if names > 2000 {
                    1024.max(self.inode * 3 / 2)
                } else {
                    1024
                };
                self.give("-i", random.log_between(least, 4 << 20));
            }
            // Often close to what the tree needs.
            2 => self.give("-N", (names + random.below(30)).saturating_sub(20).max(1)),
            3 | 4 => {
                let most = (names * 60).min(BUDGET / 2 / self.inode).max(names);
                self.give("-N", random.log_between(names, most));
            }
            _ => {}
        }
    }

    fn groups(&mut self, random: &mut Numbers, names: u64, features: &str) {
        if features.contains("bigalloc") {
            if random.below(3) > 0 {
                let most = (CLUSTERS_BUDGET / names).clamp(self.block * 2, 16 << 20);
                self.give("-C", 1 << random.log_between(self.block * 2, most).ilog2());
            }
        } else if random.below(3) == 0 {
            let most = (self.block * 8).min(65_528);
            self.give("-g", random.log_between(256, most) & !7);
        }
        if !features.contains("flex_bg") && random.below(3) == 0 {
            self.give("-G", 1 << random.below(11));
        }
    }

    fn others(&mut self, random: &mut Numbers, features: &str) {
        if random.once_in(8) && !features.contains("^has_journal") {
            let least = (1024 * self.block) >> 20;
            self.give(
                "-J",
                format!("size={}", least.max(1) + random.log_uniform(60.0)),
            );
        }
        if random.once_in(8) {
            self.give("-m", random.below(20));
        }
        if random.once_in(10) {
            let blocks = random.log_between(10_000, 100_000_000);
            self.give("-E", format!("resize={blocks}"));
        } else if random.once_in(12) {
            self.give("-E", format!("num_backup_sb={}", random.below(3)));
        }
    }
}

/// Random features: one of each list, where they go together.
fn features(random: &mut Numbers) -> String {
    let layout = random.one_of(&[
        "",
        "",
        "",
        "^flex_bg",
        "^flex_bg",
        "^flex_bg,^resize_inode",
        "^flex_bg,sparse_super2",
        "meta_bg,^resize_inode",
        "meta_bg,^resize_inode,^flex_bg",
        "sparse_super2",
        "sparse_super2,^resize_inode",
        "bigalloc",
        "bigalloc,^resize_inode",
        "^resize_inode",
        "^sparse_super,^resize_inode",
        "^sparse_super,^resize_inode,^flex_bg",
        "^meta_bg",
    ]);
    let width = if layout.contains("bigalloc") {
        random.one_of(&["", "^64bit"])
    } else {
        random.one_of(&["", "", "", "64bit", "^64bit", "^64bit", "^extents,^64bit"])
    };
    let lists = [
        layout,
        width,
        random.one_of(&["", "", "", "^has_journal", "^has_journal", "fast_commit"]),
        random.one_of(&["", "", "", "^metadata_csum", "uninit_bg,^metadata_csum"]),
        random.one_of(&[
            "",
            "",
            "",
            "inline_data",
            "ea_inode,large_dir",
            "mmp",
            "inline_data,ea_inode",
        ]),
        random.one_of(&[
            "",
            "",
            "",
            "",
            "^dir_index",
            "^orphan_file",
            "^huge_file",
            "^filetype",
            "^large_file",
            "^dir_nlink,^extra_isize",
        ]),
    ];
    let some: Vec<&str> = lists.into_iter().filter(|list| !list.is_empty()).collect();
    some.join(",")
}

/// A size that is not a number.
pub fn auto_size(random: &mut Numbers) -> String {
    match random.below(6) {
        0 | 1 => "auto".into(),
        2 => format!("auto+{}%", random.log_uniform(150.0)),
        3 => format!("auto+{}", random.log_uniform(100e6)),
        _ => "min".into(),
    }
}

/// A size in bytes, given the smallest one: one at which the tree fits, just fits, or does not fit.
pub fn fixed_size(random: &mut Numbers, smallest: u64) -> u64 {
    match random.below(6) {
        0 => smallest / 100 * (30 + random.below(70)),
        1 => smallest - random.log_uniform(smallest as f64 / 20.0),
        2 => smallest,
        3 => smallest + random.log_uniform(smallest as f64 / 50.0),
        4 => smallest + random.log_uniform(smallest as f64),
        _ => smallest + random.log_uniform(1e9),
    }
}
