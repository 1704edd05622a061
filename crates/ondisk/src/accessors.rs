//! The macro that writes accessors: methods with names in plain words, for fields with the kernel's names.

/// Writes a getter and a setter for fields of an on-disk structure.
///
/// `name, set_name: u32 = field;` for one word; `name, set_name: u64 = low, high;` for a number split
/// into two words, where the high word has half or fewer of the bits (`u64 = U32, U32`, `u64 = U32, U16`,
/// `u32 = U16, U16`, ...). The setter of a split number drops bits that neither word can hold.
macro_rules! accessors {
    (@one $(#[$m:meta])* $get:ident, $set:ident: $ty:ty = $field:ident) => {
        $(#[$m])*
        #[must_use]
        pub fn $get(&self) -> $ty {
            self.$field.get()
        }
        #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
        pub fn $set(&mut self, value: $ty) {
            self.$field.set(value);
        }
    };
    (@one $(#[$m:meta])* $get:ident, $set:ident: $ty:ty = $low:ident, $high:ident) => {
        $(#[$m])*
        #[must_use]
        pub fn $get(&self) -> $ty {
            let low_bits = 8 * size_of_val(&self.$low);
            <$ty>::from(self.$low.get()) | (<$ty>::from(self.$high.get()) << low_bits)
        }
        #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
        pub fn $set(&mut self, value: $ty) {
            let low_bits = 8 * size_of_val(&self.$low);
            // Truncation is the point: each word takes its own part of the bits.
            #[allow(clippy::cast_possible_truncation)]
            self.$low.set(value as _);
            #[allow(clippy::cast_possible_truncation)]
            self.$high.set((value >> low_bits) as _);
        }
    };
    ($( $(#[$m:meta])* $get:ident, $set:ident: $ty:ty = $low:ident $(, $high:ident)?; )*) => {
        $( accessors!(@one $(#[$m])* $get, $set: $ty = $low $(, $high)?); )*
    };
}

/// Writes a getter and a setter for fields of one byte: `name, set_name = field;`.
macro_rules! byte_accessors {
    ($( $(#[$m:meta])* $get:ident, $set:ident = $field:ident; )*) => {
        $(
            $(#[$m])*
            #[must_use]
            pub fn $get(&self) -> u8 {
                self.$field
            }
            #[doc = concat!("Sets [`Self::", stringify!($get), "`].")]
            pub fn $set(&mut self, value: u8) {
                self.$field = value;
            }
        )*
    };
}
