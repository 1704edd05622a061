//! The options of a file system to be made, in mke2fs's letters: shared by `build` and `mkfs`. What a letter means is
//! decided by [`lanefs::mkfs::Options::set`] alone.

use clap::Args;
use lanefs::mkfs::{Compat, Error, Options};

/// What file system to make.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "File system options (mke2fs's letters)")]
pub struct MkfsArgs {
    /// ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
    /// Profile: default, floppy, small, big, huge, news, largefile, largefile4
    #[arg(short = 'T', value_name = "USAGE")]
    usage_type: Option<String>,
    /// Features to add, or with ^ to leave out
    #[arg(short = 'O', value_name = "[^]FEATURE,...")]
    features: Vec<String>,
    /// Only what these programs can read: debian12, grub2 or mke2fs-1.46
    #[arg(long, value_name = "NAME")]
    compat: Option<String>,
    /// Block size, 1024 to 65536; -BYTES: at least this size
    #[arg(short = 'b', value_name = "[-]BYTES", allow_hyphen_values = true)]
    block_size: Option<String>,
    /// Cluster size (with -O bigalloc)
    #[arg(short = 'C', value_name = "BYTES")]
    cluster_size: Option<String>,
    /// Bytes of the image for each inode
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<String>,
    /// Size of an inode
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<String>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<String>,
    /// Label
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// UUID, `random` or `clear`
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Percent of the blocks that only root may use
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved_percent: Option<String>,
    /// Directory of the last mount
    #[arg(short = 'M', value_name = "DIRECTORY")]
    last_mounted: Option<String>,
    /// Make a journal, whatever the type
    #[arg(short = 'j')]
    journal: bool,
    /// The journal: size=MIB, fast_commit_size=KIB, location=BLOCK, device=FILE (mkfs only)
    #[arg(short = 'J', value_name = "NAME=VALUE,...")]
    journal_options: Vec<String>,
    /// stride=, stripe_width=, resize=, lazy_itable_init=, hash_seed=, root_owner=, ... (see docs/mkfs.md)
    #[arg(short = 'E', value_name = "NAME[=VALUE],...")]
    extended: Vec<String>,
    /// Groups in a flex group
    #[arg(short = 'G', value_name = "COUNT")]
    groups_per_flex: Option<String>,
    /// Blocks in a group
    #[arg(short = 'g', value_name = "BLOCKS")]
    blocks_per_group: Option<String>,
    /// On errors: continue, remount-ro or panic
    #[arg(short = 'e', value_name = "WHAT")]
    errors: Option<String>,
    /// The creator's operating system
    #[arg(short = 'o', value_name = "OS", hide = true)]
    creator_os: Option<String>,
    /// The revision (only 1)
    #[arg(short = 'r', value_name = "REVISION", hide = true)]
    revision: Option<String>,
}

impl MkfsArgs {
    /// As the library has them.
    ///
    /// # Errors
    /// The first letter whose argument can't be understood or made.
    pub fn options(&self) -> Result<Options, Error> {
        let mut options = Options::default();
        let once = [
            ('t', &self.fs_type),
            ('T', &self.usage_type),
            ('b', &self.block_size),
            ('C', &self.cluster_size),
            ('i', &self.inode_ratio),
            ('I', &self.inode_size),
            ('N', &self.inodes),
            ('L', &self.label),
            ('U', &self.uuid),
            ('m', &self.reserved_percent),
            ('M', &self.last_mounted),
            ('G', &self.groups_per_flex),
            ('g', &self.blocks_per_group),
            ('e', &self.errors),
            ('o', &self.creator_os),
            ('r', &self.revision),
        ];
        for (letter, value) in once {
            if let Some(value) = value {
                options.set(letter, value)?;
            }
        }
        let often = [
            ('O', &self.features),
            ('J', &self.journal_options),
            ('E', &self.extended),
        ];
        for (letter, values) in often {
            for value in values {
                options.set(letter, value)?;
            }
        }
        if self.journal {
            options.set('j', "")?;
        }
        if let Some(name) = &self.compat {
            options.compat = Some(Compat::parse(name)?);
        }
        Ok(options)
    }
}
