//! Refuses to run under fakeroot or pseudo if this program is static: no library can be preloaded into it, so it would
//! see the user's own numbers as owners, and empty files in place of devices. About any other library that is to be
//! preloaded, whose effect is unknown, it only warns.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::context::Context;
use crate::failure::Failure;

/// Whether this program has no dynamic loader.
const IS_STATIC: bool = cfg!(target_feature = "crt-static");

/// Libraries that pretend to be root, as their names begin.
const PRETENDERS: [&[u8]; 2] = [b"libfakeroot", b"libpseudo"];

/// Fails when this program is static and runs under fakeroot or pseudo; `otherwise` says how to do without them. That
/// any other preloaded library is not seen is a warning.
///
/// # Errors
/// The failure with this explanation.
pub fn refuse_if_static(context: &Context, otherwise: &str) -> Result<(), Failure> {
    let preload = std::env::var_os("LD_PRELOAD");
    let key = std::env::var_os("FAKEROOTKEY");
    match unseen(IS_STATIC, preload.as_deref(), key.as_deref()) {
        None => {
            if IS_STATIC && let Some(list) = preload.filter(|list| !list.is_empty()) {
                context.warn_once(format_args!(
                    "LD_PRELOAD is set ({}), but this program is statically linked and runs without it",
                    list.display()
                ));
            }
            Ok(())
        }
        Some(name) => {
            let text = "fakeroot and pseudo can't reach this program, which is statically linked";
            Err(
                Failure::new(format!("{name} is set, but {text}")).hint(format!(
                    "use a dynamically linked lanefs (the build for glibc), or {otherwise}"
                )),
            )
        }
    }
}

/// The variable that asks for a preloaded library that a static program never sees.
fn unseen(
    is_static: bool,
    preload: Option<&OsStr>,
    fakeroot_key: Option<&OsStr>,
) -> Option<&'static str> {
    if !is_static {
        return None;
    }
    if fakeroot_key.is_some_and(|key| !key.is_empty()) {
        return Some("FAKEROOTKEY");
    }
    let is_pretender = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        PRETENDERS.iter().any(|known| name.starts_with(known))
    };
    let mut paths = preload?
        .as_bytes()
        .split(|byte| matches!(byte, b':' | b' '));
    paths.any(is_pretender).then_some("LD_PRELOAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_static_program_under_fakeroot_or_pseudo_is_refused() {
        let of = |is_static, preload: Option<&str>, key: Option<&str>| {
            unseen(is_static, preload.map(OsStr::new), key.map(OsStr::new))
        };
        let fakeroot = Some("libfakeroot-sysv.so");
        let pseudo = Some("/usr/lib/libjemalloc.so.2:/opt/pseudo/lib64/libpseudo.so");
        assert_eq!(of(true, fakeroot, Some("7")), Some("FAKEROOTKEY"));
        assert_eq!(of(true, None, Some("7")), Some("FAKEROOTKEY"));
        assert_eq!(of(true, fakeroot, None), Some("LD_PRELOAD"));
        assert_eq!(of(true, pseudo, None), Some("LD_PRELOAD"));
        assert_eq!(
            of(true, Some("a.so /x/libfakeroot.so"), None),
            Some("LD_PRELOAD")
        );
        assert_eq!(of(true, Some("/pseudo/libjemalloc.so"), None), None);
        assert_eq!(of(true, Some(""), Some("")), None);
        assert_eq!(of(true, None, None), None);
        assert_eq!(of(false, fakeroot, Some("7")), None);
        assert_eq!(of(false, pseudo, None), None);
    }
}
