//! Sparse files: old GNU headers, and PAX formats 0.0, 0.1 and 1.0. All become a list of data extents.

use super::super::limits;
use super::super::stream::Stream;
use super::super::tree::DataExtent;
use super::header::{BLOCK, Header, number};
use super::pax::{Records, decimal};

/// A sparse file's layout.
pub(super) struct Sparse {
    /// The size with holes.
    pub(super) size: u64,
    /// Data runs as stored, possibly empty ones among them.
    pub(super) runs: Vec<(u64, u64)>,
    /// The name, where the header's own is made up.
    pub(super) name: Option<Vec<u8>>,
    /// Bytes that the map took from the entry's data.
    pub(super) map_bytes: u64,
}

impl Sparse {
    /// The extents in order and apart.
    ///
    /// # Errors
    /// When runs overlap, leave the file, or do not add up to the `stored` bytes.
    pub(super) fn extents(&self, stored: u64) -> Result<Vec<DataExtent>, String> {
        let mut extents: Vec<DataExtent> = Vec::new();
        let (mut end, mut total) = (0_u64, 0_u64);
        for (offset, len) in &self.runs {
            let after = offset.checked_add(*len).filter(|after| *after <= self.size);
            let Some(after) = after else {
                return Err("a data run of the sparse file lies beyond its end".into());
            };
            if *offset < end {
                return Err("the data runs of the sparse file overlap".into());
            }
            end = after;
            total += len;
            match extents.last_mut() {
                _ if *len == 0 => {}
                Some(last) if last.offset + last.len == *offset => last.len += len,
                _ => extents.push(DataExtent {
                    offset: *offset,
                    len: *len,
                }),
            }
        }
        if total != stored {
            return Err(format!(
                "the sparse file's runs have {total} bytes, but {stored} are stored"
            ));
        }
        Ok(extents)
    }
}

fn add(runs: &mut Vec<(u64, u64)>, run: (u64, u64)) -> Result<(), String> {
    if runs.len() >= limits::FILE_EXTENTS {
        return Err(format!(
            "a file has more than {} data runs",
            limits::FILE_EXTENTS
        ));
    }
    runs.push(run);
    Ok(())
}

/// Adds pairs of 12-byte numbers up to the first empty one.
fn add_pairs(runs: &mut Vec<(u64, u64)>, pairs: &[u8]) -> Result<(), String> {
    for pair in pairs.chunks_exact(24) {
        if pair[0] == 0 {
            break;
        }
        let read = |field| number(field).and_then(|value| u64::try_from(value).ok());
        let run = read(&pair[..12]).zip(read(&pair[12..]));
        add(
            runs,
            run.ok_or("the sparse map holds something that is not a number")?,
        )?;
    }
    Ok(())
}

/// The map of an old GNU sparse header (type `S`); continuation blocks are taken from `stream`.
pub(super) fn old_gnu(header: &Header, stream: &mut dyn Stream) -> Result<Sparse, String> {
    let size = header
        .gnu_real_size()
        .and_then(|size| u64::try_from(size).ok());
    let size = size.ok_or("the sparse file's size is not a number")?;
    let mut runs = Vec::new();
    add_pairs(&mut runs, header.gnu_sparse())?;
    let mut more = header.gnu_sparse_continues();
    let mut block = [0; BLOCK];
    while more {
        stream
            .exact(&mut block)
            .map_err(|_| "the sparse map is truncated")?;
        add_pairs(&mut runs, &block[..504])?;
        more = block[504] != 0;
        if runs.len() >= limits::FILE_EXTENTS {
            return Err(format!(
                "a file has more than {} data runs",
                limits::FILE_EXTENTS
            ));
        }
    }
    Ok(Sparse {
        size,
        runs,
        name: None,
        map_bytes: 0,
    })
}

/// The map that PAX records describe; `None` if the file is not sparse. Format 1.0 stores the map in front of the data;
/// `stored` is the number of bytes of both.
pub(super) fn pax(
    records: &Records,
    stored: u64,
    stream: &mut dyn Stream,
) -> Result<Option<Sparse>, String> {
    let name = records.text("GNU.sparse.name").map(<[u8]>::to_vec);
    let real = records.number("GNU.sparse.realsize")?;
    let size = records.number("GNU.sparse.size")?;
    if records.text("GNU.sparse.major").is_some() {
        let version = (
            records.number("GNU.sparse.major")?,
            records.number("GNU.sparse.minor")?,
        );
        if version != (Some(1), Some(0)) {
            return Err("its sparse format is an unknown one".into());
        }
        let size = real.or(size).ok_or("a sparse file without its size")?;
        let (runs, map_bytes) = map_in_data(stored, stream)?;
        return Ok(Some(Sparse {
            size,
            runs,
            name,
            map_bytes,
        }));
    }
    let Some(size) = size.or(real) else {
        return Ok(None);
    };
    let mut runs = records.runs.clone();
    if let Some(map) = records.text("GNU.sparse.map") {
        let mut numbers = map.split(|byte| *byte == b',').map(decimal);
        runs.clear();
        while let Some(offset) = numbers.next() {
            let run = offset.zip(numbers.next().flatten());
            add(
                &mut runs,
                run.ok_or("the sparse map holds something that is not a number")?,
            )?;
        }
    }
    Ok(Some(Sparse {
        size,
        runs,
        name,
        map_bytes: 0,
    }))
}

type Runs = Vec<(u64, u64)>;

/// Decimal numbers, one a line: how many runs, then offset and length of each; padded to a block.
fn map_in_data(stored: u64, stream: &mut dyn Stream) -> Result<(Runs, u64), String> {
    let mut used = 0_u64;
    let mut block = [0; BLOCK];
    let mut at = BLOCK;
    let mut number = || -> Result<u64, String> {
        let mut digits = Vec::new();
        loop {
            if at == BLOCK {
                used += BLOCK as u64;
                if used > stored {
                    return Err("the sparse map is longer than the data".into());
                }
                stream
                    .exact(&mut block)
                    .map_err(|_| "the sparse map is truncated")?;
                at = 0;
            }
            let byte = block[at];
            at += 1;
            if byte == b'\n' {
                return decimal(&digits)
                    .ok_or_else(|| "the sparse map holds something that is not a number".into());
            }
            digits.push(byte);
            if digits.len() > 20 {
                return Err("the sparse map holds something that is not a number".into());
            }
        }
    };
    let count = number()?;
    if count > limits::FILE_EXTENTS as u64 {
        return Err(format!(
            "a file has more than {} data runs",
            limits::FILE_EXTENTS
        ));
    }
    let mut runs = Vec::new();
    for _ in 0..count {
        runs.push((number()?, number()?));
    }
    Ok((runs, used))
}
