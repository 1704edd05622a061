//! The images that a command line names, each opened once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use lanefs::Fs;

use crate::args::FsArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::open::open_fs;
use crate::target::ImagePath;

/// The open images of a command.
pub struct Images(BTreeMap<PathBuf, Fs>);

impl Images {
    /// Opens all images of the targets.
    pub fn open(
        context: &Context,
        targets: &[ImagePath],
        options: &FsArgs,
    ) -> Result<Images, Failure> {
        let mut images = BTreeMap::new();
        for target in targets {
            if !images.contains_key(&target.image) {
                images.insert(
                    target.image.clone(),
                    open_fs(context, &target.image, options)?,
                );
            }
        }
        Ok(Images(images))
    }

    /// The file system that a target is in; the target must be one of those given to [`Images::open`].
    pub fn of(&self, target: &ImagePath) -> &Fs {
        &self.0[&target.image]
    }
}
