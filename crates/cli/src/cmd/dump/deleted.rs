//! `lanefs dump IMAGE deleted`: what the inode tables still hold of deleted inodes. Linux and lanefs empty a file's map
//! when they delete the file, so the blocks that it had are not listed. It is like `lsdel` of debugfs.

use std::io::Write;
use std::ops::ControlFlow;

use inspect::RawImage;
use ondisk::{Ino, Timestamp};

use super::heading;
use crate::failure::Failure;
use crate::format;

/// Prints one line for each deleted inode, by number.
pub fn dump(out: &mut impl Write, raw: &RawImage) -> Result<(), Failure> {
    heading(out, "deleted inodes")?;
    let mut groups = Vec::new();
    let unvisited = raw.descs(|group, desc| groups.push((group, desc)))?;
    let mut count = 0u64;
    for (group, desc) in groups {
        let desc = match desc {
            Ok(desc) => desc,
            Err(corrupt) => {
                writeln!(out, "  {corrupt}")?;
                continue;
            }
        };
        let mut written = Ok(());
        let looked = raw.deleted_inodes(group, &desc, |ino, inode| {
            count += 1;
            written = writeln!(out, "  {}", line(ino, inode));
            match &written {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        written?;
        if let Err(error) = looked {
            writeln!(out, "  group {group}: {error}")?;
        }
    }
    if let Some(unvisited) = unvisited {
        writeln!(
            out,
            "  {} groups are missing: {}",
            unvisited.groups, unvisited.why
        )?;
    }
    writeln!(out, "  {count} deleted inodes")?;
    Ok(())
}

fn line(ino: Ino, inode: &ondisk::Inode) -> String {
    let deleted = Timestamp {
        seconds: inode.dtime().into(),
        nanoseconds: 0,
    };
    let deleted = format::time_seconds(deleted);
    // lanefs clears an inode that it deletes, except its time and generation; Linux leaves owner and mode.
    if inode.mode() == 0 {
        return format!("inode {ino}: deleted {deleted}, cleared");
    }
    format!(
        "inode {ino}: deleted {deleted}, {}, owner {}:{}, {} bytes, {} sectors",
        format::mode(inode.mode()),
        inode.uid(),
        inode.gid(),
        inode.size(false),
        inode.blocks_lo(),
    )
}
