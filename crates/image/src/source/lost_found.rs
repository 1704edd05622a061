//! The directory lost+found that an image gets if no source has one: a directory of the tree like any other.

use super::builder::Builder;
use super::tree::{Attributes, NONE, S_IFDIR, TreeNode, join};
use super::{SourceError, Time};

/// Its name in the root.
pub(crate) const NAME: &[u8] = b"lost+found";

/// The time of a lost+found that no source has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostFoundTime {
    /// Seconds since 1970.
    At(i64),
    /// The second of the newest time of change in the sources.
    Newest,
}

/// Adds an empty lost+found of root's to the root directory, unless it has one.
///
/// # Errors
/// If a source has something of this name that is not a directory, or the tree is full.
pub(super) fn add(builder: &mut Builder, time: LostFoundTime) -> Result<(), SourceError> {
    added(builder, time).map_err(|problem| SourceError::Tree {
        path: NAME.escape_ascii().to_string(),
        problem,
    })
}

fn added(builder: &mut Builder, time: LostFoundTime) -> Result<(), String> {
    // Without the builder's index, which a single source does not need.
    let mut names = Vec::new();
    builder.tree.children_of(0, &mut names);
    let own = names
        .iter()
        .find(|child| builder.tree.name(child.name) == NAME);
    if let Some(own) = own {
        return if builder.node(own.node).is_directory() {
            Ok(())
        } else {
            Err("it is not a directory; leave it out, or use --no-lost-found".into())
        };
    }
    let seconds = match time {
        LostFoundTime::At(seconds) => seconds,
        LostFoundTime::Newest => {
            let nodes = builder.tree.nodes.iter().filter(|node| node.links > 0);
            let newest = nodes.map(|node| node.mtime).max();
            newest.unwrap_or(Time::EPOCH).seconds()
        }
    };
    let mut node = TreeNode::new(S_IFDIR, u16::MAX);
    node.set_attributes(&Attributes::new(0o700, 0, 0, Time::new(seconds, 0)));
    node.key = join(NONE, 0);
    let name = builder.add_name(NAME)?;
    let node = builder.add_node(node)?;
    builder.add_entry(0, name, node)?;
    builder.tree.made += 1;
    Ok(())
}
