//! Sizes and offsets of every structure, asserted at compile time against the numbers of the kernel's
//! documentation (Documentation/filesystems/ext4). Nowhere else repeats them.

/// Asserts a structure's size and the offsets of its fields.
macro_rules! assert_layout {
    ($ty:ty, $size:literal $(, $field:ident @ $offset:literal)* $(,)?) => {
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            $( assert!(core::mem::offset_of!($ty, $field) == $offset); )*
        };
    };
}
