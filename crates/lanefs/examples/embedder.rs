//! Makes an image, changes it, and reads it: all that most embedders need. `cargo run -p lanefs --example embedder`

use std::io::{Read, Write};

use lanefs::{Error, Fs};

/// Runs the example; a test does so too.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("disk.img");

    let fs = Fs::builder().make(&image, 64 << 20)?;
    fs.create_dir_all("/srv/www")?;
    let www = fs.open_dir("/srv/www")?;
    www.write("index.html", "<p>hello</p>\n")?;
    let mut log = fs.create("/srv/log")?;
    writeln!(log, "started")?;
    log.sync_all()?;
    drop((log, www));
    fs.close()?;

    let fs = Fs::open(&image)?;
    for entry in fs.read_dir("/srv/www")? {
        let entry = entry?;
        println!("{} {}", entry.path().display(), entry.metadata()?.len());
    }
    let mut text = String::new();
    fs.file("/srv/log")?.read_to_string(&mut text)?;
    assert_eq!(text, "started\n");
    assert_eq!(
        fs.read("/none").map_err(|error: Error| error.errno()),
        Err(2)
    );
    Ok(())
}
