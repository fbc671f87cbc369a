//! Loads the configuration a command runs with.
//!
//! Invariant: a file with anything wrong yields no configuration, but every sentence about it.

use std::fs;
use std::path::Path;

use postroom_crds::manifest::Manifest;
use postroom_crds::resolve::Where;
use postroom_crds::worker_config::WorkerConfig;

use crate::cli::Origin;
use crate::cli::failure::Failure;
use crate::reason::Reason;

/// Reads the file that the command line names.
pub fn load(origin: &Origin) -> Result<WorkerConfig, Failure> {
    match (&origin.config, &origin.resource) {
        (Some(path), _) => from_config(path),
        (None, Some(path)) => from_resource(path),
        (None, None) => Err(Failure::Reason(Reason::new(
            "NoConfiguration",
            "neither a configuration nor a resource was given",
            "Give --config FILE or --resource FILE.",
        ))),
    }
}

fn from_config(path: &Path) -> Result<WorkerConfig, Failure> {
    WorkerConfig::from_json(&read(path)?).map_err(|problems| Failure::wrong_file(path, problems))
}

fn from_resource(path: &Path) -> Result<WorkerConfig, Failure> {
    Manifest::from_yaml(&read(path)?)
        .and_then(|manifest| WorkerConfig::from_resource(&manifest, Where::Environment))
        .map_err(|problems| Failure::wrong_file(path, problems))
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| {
        Failure::Reason(Reason::new(
            "FileNotReadable",
            format!("the file {} cannot be read: {error}", path.display()),
            "Correct the path, or the rights of the file.",
        ))
    })
}
