//! What the man pages show of each command. A test runs every line in a folder that has a directory `rootfs`, the
//! archive `rootfs.tar` of it, the image `disk.img` made of it, a file `app.conf`, a script `changes.txt` and an empty
//! directory `mnt`; the lines of a command are run one after the other.

/// A line for a shell.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// What it does, as a sentence without its full stop.
    pub does: &'static str,
    /// The line.
    pub line: &'static str,
}

const fn example(does: &'static str, line: &'static str) -> Example {
    Example { does, line }
}

/// The examples of a command; none for the parts of a command.
pub fn of(command: &str) -> &'static [Example] {
    let found = EXAMPLES.iter().find(|(name, _)| *name == command);
    found.map_or(&[], |(_, examples)| examples)
}

/// The commands and their examples.
pub const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "build",
        &[
            example(
                "Make an image of a directory, as large as needed",
                "lanefs build rootfs new.img",
            ),
            example(
                "Make an image of 64 MiB of an archive, with a label and the same bytes each time",
                "lanefs build --reproducible --size 64M -L root rootfs.tar new.img",
            ),
            example(
                "Make an image of a directory and of an archive that a pipe brings",
                "tar -c -C rootfs etc | lanefs build rootfs -:/copy new.img",
            ),
        ],
    ),
    (
        "mkfs",
        &[
            example(
                "Make an empty file system of 1 GiB in a sparse file",
                "lanefs mkfs empty.img 1G",
            ),
            example(
                "Make one without a journal, with blocks of 1 KiB and a label",
                "lanefs mkfs -b 1024 -O ^has_journal -L data small.img 16M",
            ),
        ],
    ),
    (
        "ls",
        &[
            example(
                "List a directory with modes, owners and times",
                "lanefs ls -l disk.img:/etc",
            ),
            example("List everything below the root", "lanefs ls -R disk.img"),
        ],
    ),
    (
        "tree",
        &[example("Draw a directory", "lanefs tree disk.img:/etc")],
    ),
    (
        "cat",
        &[example(
            "Print two files of one image",
            "lanefs cat disk.img /etc/motd /etc/hosts",
        )],
    ),
    (
        "stat",
        &[example(
            "Show owner, mode, times, flags and attributes of a file",
            "lanefs stat disk.img:/etc/motd",
        )],
    ),
    (
        "find",
        &[
            example(
                "Find files by name and size",
                "lanefs find disk.img:/etc -name '*.conf' -size -10k",
            ),
            example(
                "Describe what is found as JSON",
                "lanefs find --json disk.img -type f",
            ),
        ],
    ),
    (
        "du",
        &[example(
            "Show how much space each top directory takes",
            "lanefs du -h -d 1 disk.img",
        )],
    ),
    (
        "df",
        &[example(
            "Show how full an image is",
            "lanefs df -h disk.img",
        )],
    ),
    (
        "cp",
        &[
            example(
                "Copy a file out of an image",
                "lanefs cp disk.img:/etc/motd motd",
            ),
            example(
                "Copy a file into an image",
                "lanefs cp app.conf disk.img:/etc/",
            ),
            example(
                "Copy a directory out with owners, times and attributes",
                "lanefs cp -a disk.img:/etc etc",
            ),
            example(
                "Write a file of an image from a pipe",
                "echo hello | lanefs cp - disk.img:/etc/issue",
            ),
        ],
    ),
    (
        "mv",
        &[example(
            "Rename a file",
            "lanefs mv disk.img /etc/motd /etc/motd.old",
        )],
    ),
    (
        "rm",
        &[
            example("Remove a file", "lanefs rm disk.img:/etc/motd"),
            example(
                "Remove a directory and what is in it",
                "lanefs rm -r disk.img:/etc",
            ),
        ],
    ),
    (
        "mkdir",
        &[example(
            "Make a directory and its parents",
            "lanefs mkdir -p disk.img:/srv/www/html",
        )],
    ),
    (
        "ln",
        &[example(
            "Make a symbolic link",
            "lanefs ln -s ../etc/motd disk.img:/motd",
        )],
    ),
    (
        "chmod",
        &[
            example("Set permissions", "lanefs chmod 0600 disk.img:/etc/hosts"),
            example(
                "Take them from everybody else, recursively",
                "lanefs chmod -R go-w disk.img:/etc",
            ),
        ],
    ),
    (
        "chown",
        &[example(
            "Give a directory and what is in it to a user",
            "lanefs chown -R 1000:1000 disk.img:/etc",
        )],
    ),
    (
        "touch",
        &[example(
            "Set the times of a file",
            "lanefs touch -d 2026-01-01T00:00:00Z disk.img:/etc/motd",
        )],
    ),
    (
        "truncate",
        &[example(
            "Make a file 1 MiB long, with a hole at its end",
            "lanefs truncate -s 1M disk.img:/etc/motd",
        )],
    ),
    (
        "setfattr",
        &[example(
            "Set an extended attribute",
            "lanefs setfattr -n user.origin -v build-42 disk.img:/etc/motd",
        )],
    ),
    (
        "chattr",
        &[example(
            "Make a file immutable",
            "lanefs chattr +i disk.img:/etc/motd",
        )],
    ),
    (
        "edit",
        &[
            example(
                "Apply a script, all of it or nothing",
                "lanefs edit --atomic disk.img changes.txt",
            ),
            example(
                "Apply two commands",
                "printf 'mkdir /opt\\ncp app.conf /opt/\\n' | lanefs edit disk.img",
            ),
        ],
    ),
    (
        "extract",
        &[
            example(
                "Copy all files into a new directory",
                "lanefs extract disk.img out",
            ),
            example(
                "List an image as a tar archive",
                "lanefs extract disk.img - | tar -t",
            ),
        ],
    ),
    (
        "check",
        &[
            example("Check an image and change nothing", "lanefs check disk.img"),
            example(
                "Check it and repair it, with a file that takes the repair back",
                "lanefs check -y --undo undo disk.img",
            ),
        ],
    ),
    (
        "info",
        &[example(
            "Show size, state, features and the programs that can use an image",
            "lanefs info disk.img",
        )],
    ),
    (
        "map",
        &[
            example(
                "Draw the block groups in the terminal",
                "lanefs map disk.img",
            ),
            example(
                "Draw them into a picture",
                "lanefs map --svg disk.svg disk.img",
            ),
        ],
    ),
    (
        "dump",
        &[
            example(
                "Print an inode with its attributes",
                "lanefs dump disk.img inode /etc/motd",
            ),
            example("Print the journal", "lanefs dump disk.img journal"),
        ],
    ),
    (
        "bench",
        &[example(
            "Measure stat with one thread and with two, roughly",
            "lanefs bench stat -t 1,2 --rounds 1 --time 0.02 --pairs 0",
        )],
    ),
    (
        "mount",
        &[
            example(
                "Mount an image, change it, and unmount it",
                "lanefs mount disk.img mnt && touch mnt/new && lanefs umount mnt",
            ),
            example(
                "Mount it read-only and let other users in",
                "lanefs mount -o ro,allow_other disk.img mnt && ls mnt && lanefs umount mnt",
            ),
        ],
    ),
    (
        "umount",
        &[example(
            "Unmount an image and wait until it is clean",
            "lanefs mount disk.img mnt && lanefs umount mnt",
        )],
    ),
    (
        "tune",
        &[example(
            "Change a label and show it",
            "lanefs tune disk.img label=backup && lanefs tune disk.img label",
        )],
    ),
    (
        "top",
        &[example(
            "Show for a second what a mount does",
            "lanefs mount disk.img mnt && lanefs top mnt --once && lanefs umount mnt",
        )],
    ),
];
