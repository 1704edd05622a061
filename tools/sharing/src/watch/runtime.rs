//! The functions that instrumented code calls at each access to memory: the interface of LLVM's thread sanitizer,
//! answered here by recording instead of by its own runtime. Atomic operations are also carried out here, in the
//! strictest order.
//!
//! Which address of code called is in a register or on the stack, so each function begins with one instruction that
//! fetches it. Not called, and so not seen: atomic minimum and maximum (LLVM leaves them as they are), what the
//! standard library does in code that it brings compiled, the C library, and crates that are not instrumented.
//!
//! No locks; nothing survives the process.

use std::arch::naked_asm;

// Not `sync`'s: these carry out what its own ask for.
use core::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};

use super::record::{self, Kind};

/// A function of the interface that hands the caller's address on, in the register of the next argument.
macro_rules! entries {
    ($($name:ident, $x86:literal, $arm:literal, $sink:path;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                naked_asm!(
                    concat!("mov ", $x86, ", [rsp]"),
                    "jmp {sink}",
                    sink = sym $sink
                );
                #[cfg(target_arch = "aarch64")]
                naked_asm!(
                    concat!("mov ", $arm, ", x30"),
                    "b {sink}",
                    sink = sym $sink
                );
            }
        )*
    };
}

entries! {
    __tsan_read1, "rsi", "x1", read::<1>;
    __tsan_read2, "rsi", "x1", read::<2>;
    __tsan_read4, "rsi", "x1", read::<4>;
    __tsan_read8, "rsi", "x1", read::<8>;
    __tsan_read16, "rsi", "x1", read::<16>;
    __tsan_write1, "rsi", "x1", write::<1>;
    __tsan_write2, "rsi", "x1", write::<2>;
    __tsan_write4, "rsi", "x1", write::<4>;
    __tsan_write8, "rsi", "x1", write::<8>;
    __tsan_write16, "rsi", "x1", write::<16>;
    __tsan_unaligned_read2, "rsi", "x1", read::<2>;
    __tsan_unaligned_read4, "rsi", "x1", read::<4>;
    __tsan_unaligned_read8, "rsi", "x1", read::<8>;
    __tsan_unaligned_read16, "rsi", "x1", read::<16>;
    __tsan_unaligned_write2, "rsi", "x1", write::<2>;
    __tsan_unaligned_write4, "rsi", "x1", write::<4>;
    __tsan_unaligned_write8, "rsi", "x1", write::<8>;
    __tsan_unaligned_write16, "rsi", "x1", write::<16>;
    __tsan_memcpy, "rcx", "x3", copy;
    __tsan_memmove, "rcx", "x3", copy;
    __tsan_memset, "rcx", "x3", fill;
}

extern "C" fn read<const BYTES: usize>(address: usize, place: usize) {
    record::touched(address, BYTES, Kind::Read, place);
}

extern "C" fn write<const BYTES: usize>(address: usize, place: usize) {
    record::touched(address, BYTES, Kind::Write, place);
}

extern "C" fn copy(to: *mut u8, from: *const u8, len: usize, place: usize) -> *mut u8 {
    record::touched(from.addr(), len, Kind::Read, place);
    record::touched(to.addr(), len, Kind::Write, place);
    // SAFETY: the code that calls asked for a copy between these places; `memmove` allows whatever `memcpy` does.
    unsafe { std::ptr::copy(from, to, len) };
    to
}

extern "C" fn fill(to: *mut u8, byte: i32, len: usize, place: usize) -> *mut u8 {
    record::touched(to.addr(), len, Kind::Write, place);
    // As C's `memset`, of the lowest byte. SAFETY: the code that calls asked for this place to be filled.
    unsafe { std::ptr::write_bytes(to, byte.to_le_bytes()[0], len) };
    to
}

/// The sanitizer's runtime would get ready here.
#[unsafe(no_mangle)]
extern "C" fn __tsan_init() {}

/// A function begins that was called from `place`.
#[unsafe(no_mangle)]
extern "C" fn __tsan_func_entry(place: usize) {
    record::called(place);
}

/// A function ends.
#[unsafe(no_mangle)]
extern "C" fn __tsan_func_exit() {
    record::returned();
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_thread_fence(_order: i32) {
    // SeqCst: at least what was asked for; pairs with whatever that pairs with.
    fence(Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_signal_fence(_order: i32) {
    // SeqCst: at least what was asked for; pairs with whatever that pairs with.
    compiler_fence(Ordering::SeqCst);
}

// SeqCst: the instrumented code never asks for a stronger ordering; pairs with whatever that code pairs it with.
const ORDER: Ordering = Ordering::SeqCst;

/// The atomic operations on words of one width.
macro_rules! atomics {
    ($module:ident, $atomic:ident, $value:ty;
     $load:ident $store:ident $exchange:ident $add:ident $sub:ident
     $and:ident $or:ident $xor:ident $nand:ident $compare:ident) => {
        mod $module {
            use super::*;

            const BYTES: usize = size_of::<$value>();

            /// The word at `address`, recorded as touched.
            fn word<'a>(address: *mut $value, kind: Kind, place: usize) -> &'a $atomic {
                record::touched(address.addr(), BYTES, kind, place);
                // SAFETY: instrumented code was about to do an atomic operation on this word itself.
                unsafe { $atomic::from_ptr(address) }
            }

            pub(super) extern "C" fn load(
                address: *mut $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::AtomicRead, place).load(ORDER)
            }

            pub(super) extern "C" fn store(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) {
                word(address, Kind::AtomicWrite, place).store(value, ORDER);
            }

            pub(super) extern "C" fn exchange(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).swap(value, ORDER)
            }

            pub(super) extern "C" fn add(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_add(value, ORDER)
            }

            pub(super) extern "C" fn sub(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_sub(value, ORDER)
            }

            pub(super) extern "C" fn and(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_and(value, ORDER)
            }

            pub(super) extern "C" fn or(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_or(value, ORDER)
            }

            pub(super) extern "C" fn xor(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_xor(value, ORDER)
            }

            pub(super) extern "C" fn nand(
                address: *mut $value,
                value: $value,
                _order: i32,
                place: usize,
            ) -> $value {
                word(address, Kind::ReadModifyWrite, place).fetch_nand(value, ORDER)
            }

            pub(super) extern "C" fn compare(
                address: *mut $value,
                current: $value,
                new: $value,
                _order: i32,
                _failure: i32,
                place: usize,
            ) -> $value {
                let word = word(address, Kind::ReadModifyWrite, place);
                match word.compare_exchange(current, new, ORDER, ORDER) {
                    Ok(before) | Err(before) => before,
                }
            }
        }

        entries! {
            $load, "rdx", "x2", $module::load;
            $store, "rcx", "x3", $module::store;
            $exchange, "rcx", "x3", $module::exchange;
            $add, "rcx", "x3", $module::add;
            $sub, "rcx", "x3", $module::sub;
            $and, "rcx", "x3", $module::and;
            $or, "rcx", "x3", $module::or;
            $xor, "rcx", "x3", $module::xor;
            $nand, "rcx", "x3", $module::nand;
            $compare, "r9", "x5", $module::compare;
        }
    };
}

atomics!(of_8, AtomicU8, u8;
    __tsan_atomic8_load __tsan_atomic8_store __tsan_atomic8_exchange __tsan_atomic8_fetch_add
    __tsan_atomic8_fetch_sub __tsan_atomic8_fetch_and __tsan_atomic8_fetch_or __tsan_atomic8_fetch_xor
    __tsan_atomic8_fetch_nand __tsan_atomic8_compare_exchange_val);
atomics!(of_16, AtomicU16, u16;
    __tsan_atomic16_load __tsan_atomic16_store __tsan_atomic16_exchange __tsan_atomic16_fetch_add
    __tsan_atomic16_fetch_sub __tsan_atomic16_fetch_and __tsan_atomic16_fetch_or __tsan_atomic16_fetch_xor
    __tsan_atomic16_fetch_nand __tsan_atomic16_compare_exchange_val);
atomics!(of_32, AtomicU32, u32;
    __tsan_atomic32_load __tsan_atomic32_store __tsan_atomic32_exchange __tsan_atomic32_fetch_add
    __tsan_atomic32_fetch_sub __tsan_atomic32_fetch_and __tsan_atomic32_fetch_or __tsan_atomic32_fetch_xor
    __tsan_atomic32_fetch_nand __tsan_atomic32_compare_exchange_val);
atomics!(of_64, AtomicU64, u64;
    __tsan_atomic64_load __tsan_atomic64_store __tsan_atomic64_exchange __tsan_atomic64_fetch_add
    __tsan_atomic64_fetch_sub __tsan_atomic64_fetch_and __tsan_atomic64_fetch_or __tsan_atomic64_fetch_xor
    __tsan_atomic64_fetch_nand __tsan_atomic64_compare_exchange_val);
