//! Judges a manifest file.

use std::fs::File;
use std::io::{self, Read, Write};

use postroom_crds::manifest::Manifest;
use postroom_crds::problem::Problem;
use serde_json::json;

use crate::cli::{Failure, Outcome, Output};

/// Largest manifest that is read; a cluster stores no larger object either.
const MOST_BYTES: u64 = 1_572_864;

/// Checks the manifest in `file` and says what is wrong with it.
pub fn validate(file: &str, output: Output, out: &mut impl Write) -> Result<Outcome, Failure> {
    let text = read(file)?;
    let problems = Manifest::from_yaml(&text).err().unwrap_or_default();
    match output {
        Output::Text => write_text(file, &problems, out),
        Output::Json => write_json(file, &problems, out),
    }
    .map_err(Failure::Write)?;
    Ok(if problems.is_empty() {
        Outcome::Done
    } else {
        Outcome::FoundWrong
    })
}

fn read(file: &str) -> Result<String, Failure> {
    let failure = |reason: String| Failure::Read {
        file: file.to_owned(),
        reason,
    };
    let source: Box<dyn Read> = match file {
        "-" => Box::new(io::stdin()),
        _ => Box::new(File::open(file).map_err(|error| failure(error.to_string()))?),
    };
    let mut text = String::new();
    source
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(|error| failure(error.to_string()))?;
    if u64::try_from(text.len()).is_ok_and(|bytes| bytes <= MOST_BYTES) {
        Ok(text)
    } else {
        Err(failure(format!("it has more than {MOST_BYTES} bytes")))
    }
}

fn write_text(file: &str, problems: &[Problem], out: &mut impl Write) -> io::Result<()> {
    if problems.is_empty() {
        return writeln!(out, "{file}: valid");
    }
    for problem in problems {
        writeln!(out, "{file}: {problem}")?;
    }
    Ok(())
}

fn write_json(file: &str, problems: &[Problem], out: &mut impl Write) -> io::Result<()> {
    let report = json!({"file": file, "valid": problems.is_empty(), "problems": problems});
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}
