//! Which form of each mechanism a file system runs with: `name=value`, as a mount option. All forms leave the same
//! images and may be mixed; they differ in what threads wait for.
//!
//! Of each mechanism the plain form is there, and the default. What is planned and not there is refused by its name.

use core::fmt;

/// Where orphans are noted down.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OrphanForm {
    /// In the orphan file's slots, all under one lock; on the list when they are full (`locked`).
    #[default]
    Locked,
    /// On the superblock's list only (`list`).
    List,
}

/// Where the first blocks of large files go.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum StreamGoal {
    /// Into the inode's group (`inode`).
    #[default]
    Inode,
    /// Behind the last ones of any large file (`global`).
    Global,
}

/// The forms that are used. Constant after the mount.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Variants {
    /// Where orphans are noted down.
    pub orphan: OrphanForm,
    /// Where the first blocks of large files go.
    pub stream_goal: StreamGoal,
}

/// A mechanism and the values of its option.
struct Mechanism {
    name: &'static str,
    /// The default first.
    there: &'static [&'static str],
    planned: &'static [&'static str],
}

const MECHANISMS: [Mechanism; 6] = [
    Mechanism {
        name: "orphan",
        there: &["locked", "list"],
        planned: &["lockless", "none"],
    },
    Mechanism {
        name: "group_lock",
        there: &["wait"],
        planned: &["try"],
    },
    Mechanism {
        name: "stream_goal",
        there: &["inode", "global"],
        planned: &["hashed"],
    },
    Mechanism {
        name: "mb_optimize_scan",
        there: &["0"],
        planned: &["1"],
    },
    Mechanism {
        name: "inode_lookup",
        there: &["locked"],
        planned: &["rcu"],
    },
    Mechanism {
        name: "dir_ireserve",
        there: &["off"],
        planned: &["auto", "low", "normal", "high"],
    },
];

/// Why a form can't be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VariantError {
    /// No mechanism has this name.
    Unknown(String),
    /// The mechanism has no such form, or not yet.
    Value {
        /// What was asked for.
        option: String,
        /// Whether it is planned.
        is_planned: bool,
        /// What there is, separated by commas.
        there: String,
    },
}

impl fmt::Display for VariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VariantError::Unknown(option) => write!(f, "{option} chooses no mechanism"),
            VariantError::Value {
                option,
                is_planned,
                there,
            } => {
                let when = if *is_planned {
                    "not there yet"
                } else {
                    "unknown"
                };
                write!(f, "{option} is {when}; there is {there}")
            }
        }
    }
}

impl core::error::Error for VariantError {}

impl Variants {
    /// Whether an option, with or without its value, is about a mechanism.
    #[must_use]
    pub fn knows(option: &str) -> bool {
        let name = option.split('=').next();
        MECHANISMS.iter().any(|known| Some(known.name) == name)
    }

    /// Chooses a form by `name=value`.
    ///
    /// # Errors
    /// What can't be chosen, by name.
    pub fn set(&mut self, option: &str) -> Result<(), VariantError> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let known = MECHANISMS.iter().find(|known| known.name == name);
        let known = known.ok_or_else(|| VariantError::Unknown(option.to_owned()))?;
        if !known.there.contains(&value) {
            return Err(VariantError::Value {
                option: option.to_owned(),
                is_planned: known.planned.contains(&value),
                there: known.there.join(", "),
            });
        }
        match (name, value) {
            ("orphan", "list") => self.orphan = OrphanForm::List,
            ("orphan", _) => self.orphan = OrphanForm::Locked,
            ("stream_goal", "global") => self.stream_goal = StreamGoal::Global,
            ("stream_goal", _) => self.stream_goal = StreamGoal::Inode,
            // Of the others there is one form.
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_chosen_and_what_is_not_there_is_refused_by_name() {
        let mut variants = Variants::default();
        for option in ["orphan=list", "stream_goal=global", "group_lock=wait"] {
            variants.set(option).unwrap();
        }
        assert_eq!(variants.orphan, OrphanForm::List);
        assert_eq!(variants.stream_goal, StreamGoal::Global);
        for mechanism in &MECHANISMS {
            for value in mechanism.there {
                let option = format!("{}={value}", mechanism.name);
                assert!(Variants::knows(&option));
                variants.set(&option).unwrap();
            }
            for value in mechanism.planned {
                let option = format!("{}={value}", mechanism.name);
                let text = variants.set(&option).unwrap_err().to_string();
                assert!(text.contains(&option) && text.contains("yet"), "{text}");
            }
            assert!(variants.set(mechanism.name).is_err());
        }
        assert!(!Variants::knows("commit=5") && variants.set("commit=5").is_err());
        let text = variants.set("orphan=file").unwrap_err().to_string();
        assert_eq!(text, "orphan=file is unknown; there is locked, list");
    }
}
