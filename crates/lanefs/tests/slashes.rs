//! A slash at a path's end asks for a directory; what files lose with their owner; and errors as numbers.

use std::io;

use lanefs::{CopyOptions, Error, Fs, FsError, OpenOptions, XattrFlag};

fn made(folder: &std::path::Path) -> Fs {
    let image = folder.join("image");
    lanefs::make::make(&image, Some(8 << 20), &Default::default(), false).unwrap();
    Fs::open_for_writing(&image).unwrap()
}

fn why<T>(result: Result<T, Error>) -> FsError {
    match result.err().unwrap() {
        Error::Fs { source, .. } => source,
        other => panic!("{other}"),
    }
}

#[test]
fn a_slash_at_the_end_asks_for_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    fs.write("/file", b"bytes").unwrap();
    fs.create_dir("/directory").unwrap();
    fs.symlink("file", "/link").unwrap();
    let host = folder.path().join("host");
    std::fs::write(&host, b"host").unwrap();
    let options = CopyOptions::default();
    assert!(matches!(
        why(fs.remove_file("/file/")),
        FsError::NotDirectory
    ));
    assert!(matches!(
        why(fs.remove_file("/link//")),
        FsError::NotDirectory
    ));
    assert!(matches!(
        why(fs.remove_file("/directory/")),
        FsError::IsDirectory
    ));
    assert!(matches!(why(fs.remove_file("/none/")), FsError::NotFound));
    for path in ["/none/", "/none//", "/directory/"] {
        assert!(
            matches!(why(fs.write(path, b"new")), FsError::IsDirectory),
            "{path}"
        );
        let from = fs.write_from(path, &mut &b"new"[..]);
        assert!(matches!(why(from), FsError::IsDirectory), "{path}");
        let made = OpenOptions::new().write(true).create(true).open(&fs, path);
        assert!(matches!(why(made), FsError::IsDirectory), "{path}");
        assert!(fs.copy_in(&host, path, &options).is_err(), "{path}");
    }
    assert!(matches!(
        why(fs.write("/file/", b"new")),
        FsError::NotDirectory
    ));
    assert!(OpenOptions::new().read(true).open(&fs, "/file/").is_err());
    assert_eq!(fs.read("/file").unwrap(), b"bytes");
    assert!(fs.symlink_metadata("/none").is_err());
    fs.create_dir("/new/").unwrap();
    fs.remove_dir("/new/").unwrap();
    fs.close().unwrap();
}

#[test]
fn what_cannot_be_removed_itself_keeps_all_below_it() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    fs.create_dir("/directory").unwrap();
    fs.create_dir("/directory/below").unwrap();
    fs.write("/directory/file", b"bytes").unwrap();
    for path in [
        "/",
        "//",
        "/.",
        "/..",
        "..",
        ".",
        "/directory/.",
        "/directory/./",
        "/directory/..",
        "/directory/../",
        "/directory/below/..",
        "/directory/below/..//",
        "/directory/file",
    ] {
        assert!(fs.remove_dir_all(path).is_err(), "{path}");
        assert_eq!(fs.read("/directory/file").unwrap(), b"bytes", "{path}");
        assert!(fs.metadata("/directory/below").is_ok(), "{path}");
    }
    fs.remove_dir_all("/directory/below/../../directory/")
        .unwrap();
    assert!(fs.symlink_metadata("/directory").is_err());
    fs.close().unwrap();
    testkit::e2fsck(&folder.path().join("image"));
}

#[test]
fn a_new_owner_does_not_inherit_capabilities() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    fs.write("/file", b"bytes").unwrap();
    fs.create_dir("/directory").unwrap();
    for path in ["/file", "/directory"] {
        let ino = fs.metadata(path).unwrap().ino;
        let set = fs
            .inodes()
            .set_xattr(ino, b"security.capability", &[2; 20], XattrFlag::Any);
        set.unwrap();
        fs.set_owner(path, Some(7), None).unwrap();
        let left = fs.inodes().xattr(ino, b"security.capability");
        assert_eq!(left.is_ok(), path == "/directory");
        assert_eq!(fs.metadata(path).unwrap().uid, 7);
    }
    fs.set_owner("/file", None, Some(8)).unwrap();
    fs.close().unwrap();
}

#[test]
fn where_nothing_is_written_any_more_the_error_is_the_number() {
    let folder = tempfile::tempdir().unwrap();
    let fs = made(folder.path());
    fs.close().unwrap();
    let fs = Fs::open(folder.path().join("image")).unwrap();
    let error = io::Error::from(fs.create_dir("/new").err().unwrap());
    assert_eq!(error.raw_os_error(), Some(30));
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
}
