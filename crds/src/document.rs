//! Text to typed values, with every misfit named by its path, all of them in one go.
//!
//! Serde stops at the first misfit. [`read`] therefore reads again after each one, with the misfit
//! left out or a blank in its place, until the rest fits. The blanks never leave this crate:
//! whoever gets problems gets no value.
//!
//! Invariant: a value is taken only if it has the JSON type the field asks for; nothing is
//! converted, `null` never means "left out", and a list never stands for an object. The API server
//! judges the same way, save that it drops a `null`.

mod misfit;
mod reader;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::problem::Problem;
use misfit::{Misfit, child};
use reader::Reader;

/// More misfits than this in one document are not listed.
const MOST_MISFITS: usize = 200;

/// Reads the one YAML document in `text`.
pub(crate) fn from_yaml(text: &str) -> Result<Value, Problem> {
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let reason = one_line(&error.without_snippet().to_string());
        Problem::of_document(format!("the file is not valid YAML: {reason}"))
    })?;
    documents.retain(|document| !document.is_null());
    match documents.len() {
        0 => Err(Problem::of_document(
            "the file is empty but must hold one InboxOutbox",
        )),
        1 => Ok(documents.swap_remove(0)),
        n => Err(Problem::of_document(format!(
            "the file holds {n} documents but must hold one InboxOutbox; put each in a file of its own"
        ))),
    }
}

/// Reads the JSON document in `text`.
pub(crate) fn from_json(text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text)
        .map_err(|error| Problem::of_document(format!("the document is not valid JSON: {error}")))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What came of reading a document into a type.
pub(crate) struct Reading<T> {
    /// The value, with blanks where there are problems; none if nothing could be made of it.
    pub(crate) value: Option<T>,
    /// Every misfit.
    pub(crate) problems: Vec<Problem>,
    repairs: Repairs,
}

impl<T> Reading<T> {
    /// Whether the value at `path` is not the author's, so that rules about it would mislead.
    pub(crate) fn is_blank(&self, path: &str) -> bool {
        self.repairs.cover(path)
    }
}

/// Where the document is not read as it stands.
#[derive(Default)]
pub(crate) struct Repairs {
    left_out: BTreeSet<String>,
    blanks: BTreeMap<String, BTreeSet<&'static str>>,
}

impl Repairs {
    fn cover(&self, path: &str) -> bool {
        let mut blanks = self.blanks.iter().flat_map(|(container, fields)| {
            fields.iter().map(move |field| child(container, field))
        });
        self.left_out.iter().any(|part| within(path, part))
            || blanks.any(|part| within(path, &part))
    }
}

fn within(path: &str, part: &str) -> bool {
    path.strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Reads `document` into `T` and lists everything that does not fit.
pub(crate) fn read<T: DeserializeOwned>(document: &Value) -> Reading<T> {
    let mut reading = Reading {
        value: None,
        problems: Vec::new(),
        repairs: Repairs::default(),
    };
    while reading.problems.len() < MOST_MISFITS {
        match T::deserialize(Reader::root(document, &reading.repairs)) {
            Ok(value) => {
                reading.value = Some(value);
                break;
            }
            Err(misfit) => {
                if !repair(&mut reading, misfit) {
                    break;
                }
            }
        }
    }
    reading
}

/// Notes the misfit and makes the next reading pass it. False if that is impossible.
fn repair<T>(reading: &mut Reading<T>, misfit: Misfit) -> bool {
    let path = misfit.path();
    if !reading.repairs.cover(&path) {
        let problem = match path.as_str() {
            "" => Problem::of_document(format!("the document {}", misfit.rest())),
            _ => Problem::of_field(&path, misfit.rest()),
        };
        reading.problems.push(problem);
    }
    match misfit.missing() {
        Some((container, field)) => reading
            .repairs
            .blanks
            .entry(container)
            .or_default()
            .insert(field),
        None => !path.is_empty() && reading.repairs.left_out.insert(path),
    }
}
