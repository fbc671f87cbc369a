//! Secrets, read where the configuration says they are, at the moment they are needed.
//!
//! Invariant: a secret is returned to the caller that connects with it and goes nowhere else.

use std::env;
use std::fs;

use postroom_crds::worker_config::{FileSource, Source};

use crate::reason::Reason;

/// The value of a secret.
pub fn read(source: &Source) -> Result<String, Reason> {
    match source {
        Source::File(path) => fs::read_to_string(path)
            .map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
            .map_err(|error| {
                Reason::new(
                    "SecretNotFound",
                    format!("the file {path} cannot be read: {error}"),
                    "Check that the Secret exists and has the key that the resource names.",
                )
            }),
        Source::Environment(names) => first_set(names).ok_or_else(|| not_set(names)),
    }
}

/// The path of a certificate or key file, if one is named.
pub fn path(source: Option<&FileSource>) -> Result<Option<String>, Reason> {
    match source {
        None => Ok(None),
        Some(FileSource::File(path)) => Ok(Some(path.clone())),
        Some(FileSource::Environment(names)) => {
            first_set(names).map(Some).ok_or_else(|| not_set(names))
        }
    }
}

fn first_set(names: &[String]) -> Option<String> {
    names
        .iter()
        .find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

fn not_set(names: &[String]) -> Reason {
    Reason::new(
        "SecretNotFound",
        format!(
            "none of the environment variables {} is set",
            names.join(", ")
        ),
        "Set one of them.",
    )
}
