//! Finds the inode that an argument names: `<12>`, or a path. A path is looked up block by block and byte for byte, as
//! debugfs does: without an index, case folding or symbolic links.

use ondisk::Ino;

use crate::directory::DirectoryReader;
use crate::error::InspectError;
use crate::image::RawImage;

/// The inode that an argument names: its number in angle brackets, or a path from the root.
///
/// A number may be that of a deleted inode.
///
/// # Errors
/// `InvalidInode` if no inode has the number, `NoName` if a component of the path does not exist, `NotADirectory` if a
/// component before the last one is not a directory, and the errors of reading the directories.
pub fn find(raw: &RawImage, argument: &str) -> Result<Ino, InspectError> {
    if let Some(number) = argument
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
    {
        let number = number.parse().map(Ino);
        return number.map_err(|_| InspectError::InvalidInode(argument.to_owned()));
    }
    let mut at = Ino::ROOT;
    for name in argument
        .split('/')
        .filter(|name| !name.is_empty() && *name != ".")
    {
        let found = DirectoryReader::open(raw, at)?.lookup(name.as_bytes())?;
        at = found.ok_or_else(|| InspectError::NoName {
            path: argument.to_owned(),
            name: name.to_owned(),
            directory: at,
        })?;
    }
    Ok(at)
}
