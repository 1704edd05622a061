//! The platform that an image is for.

use serde::{Deserialize, Deserializer};

use super::super::error::SourceError;

/// `os/architecture[/variant]`.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Platform {
    pub(super) os: String,
    architecture: String,
    #[serde(default, deserialize_with = "or_empty")]
    pub(super) variant: String,
}

/// A string; `null` counts as the empty string.
fn or_empty<'d, D: Deserializer<'d>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Platform {
    /// Reads `os/architecture[/variant]`.
    pub(super) fn parse(text: &str) -> Result<Self, SourceError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, ""),
            [os, architecture, variant] => (os, architecture, variant),
            _ => ("", "", ""),
        };
        if os.is_empty() || architecture.is_empty() {
            return Err(SourceError::Usage(format!(
                "`{text}` is not a platform in the form os/architecture[/variant], such as linux/arm64"
            )));
        }
        let (os, variant) = (os.to_lowercase(), variant.to_lowercase());
        Ok(Self {
            os,
            architecture: spelled(&architecture.to_lowercase()),
            variant,
        })
    }

    /// The platform of this machine.
    pub(super) fn own() -> Self {
        let architecture = spelled(std::env::consts::ARCH);
        Self {
            os: std::env::consts::OS.into(),
            architecture,
            variant: String::new(),
        }
    }

    /// Whether `offered` satisfies `self`.
    pub(super) fn accepts(&self, offered: &Self) -> bool {
        // arm64 is always v8; some images name the variant and others do not.
        let same_variant = self.variant == offered.variant
            || self.architecture == "arm64"
                && matches!((&*self.variant, &*offered.variant), ("v8", "") | ("", "v8"));
        self.os == offered.os
            && self.architecture == offered.architecture
            && (self.variant.is_empty() || same_variant)
    }
}

/// The name that images use for an architecture.
fn spelled(architecture: &str) -> String {
    match architecture {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" | "i686" | "i386" => "386",
        "powerpc64" => "ppc64le",
        "loongarch64" => "loong64",
        other => other,
    }
    .into()
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() {
            Ok(())
        } else {
            write!(f, "/{}", self.variant)
        }
    }
}
