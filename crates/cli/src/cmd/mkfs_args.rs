//! The options of a file system to be made, in mke2fs's letters: shared by `build` and `mkfs`.

use clap::Args;
use lanefs::mkfs::{FsType, Options};

/// What file system to make.
#[derive(Args, Clone, Debug)]
pub struct MkfsArgs {
    /// Bytes a block: 1024 to 65536
    #[arg(short = 'b', value_name = "BYTES")]
    block_size: Option<u64>,
    /// Bytes an inode
    #[arg(short = 'I', value_name = "BYTES")]
    inode_size: Option<u16>,
    /// One inode for so many bytes of the image
    #[arg(short = 'i', value_name = "BYTES")]
    inode_ratio: Option<u64>,
    /// Number of inodes
    #[arg(short = 'N', value_name = "COUNT")]
    inodes: Option<u64>,
    /// Label
    #[arg(short = 'L', value_name = "LABEL")]
    label: Option<String>,
    /// UUID (`random` for a new one)
    #[arg(short = 'U', value_name = "UUID")]
    uuid: Option<String>,
    /// Percent of the blocks that only root may use
    #[arg(short = 'm', value_name = "PERCENT")]
    reserved_percent: Option<f64>,
    /// Features, as mke2fs names them
    #[arg(short = 'O', value_name = "FEATURES")]
    features: Vec<String>,
    /// ext2, ext3 or ext4
    #[arg(short = 't', value_name = "TYPE")]
    fs_type: Option<String>,
}

impl MkfsArgs {
    /// As the library has them.
    pub fn options(&self) -> Result<Options, String> {
        let mut options = Options {
            inode_size: self.inode_size,
            inode_ratio: self.inode_ratio,
            inodes: self.inodes,
            label: self.label.clone().unwrap_or_default().into_bytes(),
            features: self.features.join(","),
            ..Options::default()
        };
        if let Some(bytes) = self.block_size {
            let size = ondisk::BlockSize::from_bytes(bytes);
            options.block_size = Some(size.ok_or(format!("-b: no block size of {bytes} bytes"))?);
        }
        if let Some(percent) = self.reserved_percent {
            options.reserved_percent = percent;
        }
        options.fs_type = match self.fs_type.as_deref() {
            None | Some("ext4") => FsType::Ext4,
            Some("ext3") => FsType::Ext3,
            Some("ext2") => FsType::Ext2,
            Some(other) => return Err(format!("-t: no type `{other}`")),
        };
        Ok(options)
    }
}
