//! The superblock's byte strings: UUIDs, and texts that end at their first zero byte or at their field's end.
//! No text is promised to be UTF-8.

use super::Superblock;

/// The bytes before the first zero.
pub(crate) fn until_zero(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Fills the field with the text and zeros; what does not fit is cut off.
fn fill(field: &mut [u8], text: &[u8]) {
    field.fill(0);
    for (to, from) in field.iter_mut().zip(text) {
        *to = *from;
    }
}

macro_rules! text_accessors {
    ($( $(#[$m:meta])* $get:ident, $set:ident = $field:ident; )*) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $get(&self) -> &[u8] {
                until_zero(&self.$field)
            }
            #[doc = concat!("Sets [`Self::", stringify!($get), "`]; what does not fit is cut off.")]
            pub fn $set(&mut self, text: &[u8]) {
                fill(&mut self.$field, text);
            }
        )*
    };
}

macro_rules! array_accessors {
    ($( $(#[$m:meta])* $get:ident, $set:ident: $ty:ty = $field:ident; )*) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $get(&self) -> $ty {
                self.$field
            }
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, value: $ty) {
                self.$field = value;
            }
        )*
    };
}

impl Superblock {
    text_accessors! {
        /// The label, at most 16 bytes.
        label, set_label = s_volume_name;
        /// Where it was last mounted, at most 64 bytes.
        last_mounted, set_last_mounted = s_last_mounted;
        /// Mount options by default, as text, at most 64 bytes.
        mount_options, set_mount_options = s_mount_opts;
        /// The kernel function that found the first error.
        first_error_function, set_first_error_function = s_first_error_func;
        /// The kernel function that found the last error.
        last_error_function, set_last_error_function = s_last_error_func;
    }

    array_accessors! {
        /// The file system's UUID.
        uuid, set_uuid: [u8; 16] = s_uuid;
        /// The UUID of an external journal.
        journal_uuid, set_journal_uuid: [u8; 16] = s_journal_uuid;
        /// Encryption modes in use.
        encryption_algorithms, set_encryption_algorithms: [u8; 4] = s_encrypt_algos;
        /// Salt of keys made from passwords.
        encryption_salt, set_encryption_salt: [u8; 16] = s_encrypt_pw_salt;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_their_first_zero_or_their_fields_end() {
        let mut sb = Superblock::zeroed();
        sb.set_label(b"0123456789abcdefTOO LONG");
        assert_eq!(sb.label(), b"0123456789abcdef");
        sb.set_label(b"short");
        assert_eq!(sb.label(), b"short");
        assert_eq!(sb.s_volume_name[5..], [0; 11]);
    }
}
