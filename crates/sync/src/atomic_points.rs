//! Atomics whose every use is a point at which a scheduled thread may lose its turn. A schedule runs one thread at a
//! time, so what it explores is sequentially consistent, whatever the orderings say. Every use of an `Ordering` has a
//! comment that begins with its name and says what it pairs with. `AtomicBool` and `AtomicPtr` are the standard
//! library's own types, because other libraries ask for them; their uses are not points.

use std::sync::atomic as plain;

pub use plain::{AtomicBool, AtomicPtr, Ordering, compiler_fence};

use crate::turn::point;

/// As [`plain::fence`].
#[inline]
pub fn fence(order: Ordering) {
    point();
    plain::fence(order);
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// As the standard library's atomic of this name.
        #[derive(Debug, Default)]
        pub struct $name(plain::$name);

        #[allow(missing_docs)] // As the standard library's.
        impl $name {
            #[must_use]
            pub const fn new(value: $value) -> $name {
                $name(plain::$name::new(value))
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            #[must_use]
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            #[inline]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                point();
                self.0.swap(value, order)
            }

            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }

            #[inline]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            #[inline]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                point();
                self.0.fetch_update(set, fetch, change)
            }
        }

        impl From<$value> for $name {
            fn from(value: $value) -> $name {
                $name::new(value)
            }
        }
    };
    ($name:ident, $value:ty, $($method:ident)*) => {
        atomic!($name, $value);

        #[allow(missing_docs)] // As the standard library's.
        impl $name {
            $(
                #[inline]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$method(value, order)
                }
            )*
        }
    };
}

atomic!(AtomicU8, u8, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicU16, u16, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicU32, u32, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicU64, u64, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicUsize, usize, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicI32, i32, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
atomic!(AtomicI64, i64, fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);
