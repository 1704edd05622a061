//! Which inode is meant: `<12>`, or a path. Paths are looked up block by block and byte for byte, as debugfs does: no
//! index, no case folding, no symbolic links.

use ondisk::Ino;

use super::directory;
use crate::failure::Failure;
use crate::raw::Raw;

/// The inode that an argument names.
pub fn ino(raw: &Raw, argument: &str) -> Result<Ino, Failure> {
    if let Some(number) = argument
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
    {
        let number = number.parse();
        return number
            .map(Ino)
            .map_err(|_| Failure::usage(format!("invalid inode number `{argument}`: write <12>")));
    }
    let mut at = Ino::ROOT;
    for name in argument
        .split('/')
        .filter(|name| !name.is_empty() && *name != ".")
    {
        let found = directory::lookup(raw, at, name.as_bytes())?;
        at = found
            .ok_or_else(|| Failure::new(format!("no `{name}` in directory <{at}>")).at(argument))?;
    }
    Ok(at)
}
