//! Secrets, read where the configuration says they are, at the moment they are needed.
//!
//! Invariant: a secret is returned to the caller that connects with it and goes nowhere else; what is said about a Secret
//! names keys, never values.

mod folder;

use std::env;
use std::fs;
use std::path::Path;

use postroom_crds::worker_config::{FileSource, Source};

use crate::reason::Reason;
use folder::{Folder, name_of};

/// What a connection URL is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// PostgreSQL.
    Database,
    /// RabbitMQ.
    Broker,
}

/// The connection URL of `server`.
pub fn read(source: &Source, server: Server) -> Result<String, Reason> {
    match source {
        Source::File(path) => file(path),
        Source::Environment(names) => first_set(names).ok_or_else(|| not_set(names)),
        Source::Secret(path) => Folder::open(path)?.url(server),
        Source::Login(login) => Folder::open(&login.secret)?.login(login),
    }
}

/// The text of a mounted file.
pub fn file(path: &str) -> Result<String, Reason> {
    fs::read_to_string(path)
        .map(|text| text.trim_end_matches(['\n', '\r']).to_owned())
        .map_err(|error| not_readable(path, &error))
}

/// The path of a certificate or key file, if one is named.
pub fn path(source: Option<&FileSource>) -> Result<Option<String>, Reason> {
    match source {
        None => Ok(None),
        Some(FileSource::File(path)) if !Path::new(path).exists() => {
            Err(not_readable(path, &std::io::ErrorKind::NotFound.into()))
        }
        Some(FileSource::File(path)) => Ok(Some(path.clone())),
        Some(FileSource::Environment(names)) => {
            first_set(names).map(Some).ok_or_else(|| not_set(names))
        }
    }
}

/// A folder with other files in it is a Secret that lacks the key; an empty one, or none, is no Secret.
fn not_readable(path: &str, error: &std::io::Error) -> Reason {
    let (folder, key) = path.rsplit_once('/').unwrap_or(("", path));
    match Folder::open(folder) {
        Err(reason) => reason,
        Ok(others) if error.kind() == std::io::ErrorKind::NotFound => Reason::new(
            "SecretKeyMissing",
            format!(
                "the Secret '{}' has no key '{key}'; it has {}",
                name_of(folder),
                others.keys().join(", ")
            ),
            "Add the key to the Secret, or name another one in the resource.",
        ),
        Ok(_) => Reason::new(
            "SecretNotFound",
            format!("the file {path} cannot be read: {error}"),
            "Correct the rights of the file.",
        ),
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
