//! How a command fails: what is said, and the exit code.
//!
//! Invariant: a code never changes its meaning; scripts and Jobs decide by it whether to try again.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;

use postroom_crds::problem::Problem;
use serde_json::{Value, json};

use super::Output;
use crate::reason::Reason;

/// Wrong command line, environment or file.
pub const USAGE: u8 = 2;
/// A server cannot be reached, or is not ready; trying again may help.
pub const UNREACHABLE: u8 = 3;
/// Trying again will not help.
pub const PERMANENT: u8 = 4;

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A file that does not hold what it must.
    WrongFile {
        /// Path of the file.
        path: String,
        /// Everything wrong with it.
        problems: Vec<Problem>,
    },
    /// Anything else.
    Reason(Reason),
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}

impl Failure {
    /// A file with `problems`.
    pub fn wrong_file(path: &Path, problems: Vec<Problem>) -> Self {
        let path = path.display().to_string();
        Self::WrongFile { path, problems }
    }

    /// What the process ends with.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::WrongFile { .. } => USAGE,
            Self::Reason(reason) => exit_code_of(reason.code),
        }
    }

    /// Says it on standard error.
    pub fn report(&self, output: Output) {
        let mut stderr = stderr();
        let coloured = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let text = match output {
            Output::Json => self.json().to_string(),
            Output::Table if coloured => format!("\x1b[1;31merror:\x1b[0m {}", self.sentences()),
            Output::Table => format!("error: {}", self.sentences()),
        };
        // Nobody reads it where standard error is closed; the exit code remains.
        drop(writeln!(stderr, "{text}"));
    }

    /// Leaves it in a file, for whoever looks after the process.
    pub fn leave(&self, file: &Path) {
        if let Err(error) = std::fs::write(file, self.json().to_string()) {
            tracing::warn!(
                "The failure file {} cannot be written: {error}",
                file.display()
            );
        }
    }

    fn sentences(&self) -> String {
        match self {
            Self::WrongFile { path, problems } => {
                let head = format!("{path} cannot be used; correct what follows:");
                let lines = problems.iter().map(ToString::to_string);
                [head]
                    .into_iter()
                    .chain(lines)
                    .collect::<Vec<_>>()
                    .join("\n")
            }
            Self::Reason(reason) => reason.to_string(),
        }
    }

    fn json(&self) -> Value {
        let error = match self {
            Self::WrongFile { path, problems } => {
                json!({"code": "WrongFile", "message": format!("{path} cannot be used"), "problems": problems})
            }
            Self::Reason(reason) => json!(reason),
        };
        json!({"error": error})
    }
}

fn exit_code_of(code: &str) -> u8 {
    match code {
        "NoConfiguration" | "FileNotReadable" | "SecretNotFound" | "SecretKeyMissing"
        | "WrongUrl" => USAGE,
        "Timeout"
        | "ConnectionRefused"
        | "ConnectionLost"
        | "HostNotFound"
        | "TlsVerificationFailed"
        | "AuthenticationFailed"
        | "DatabaseNotFound"
        | "TooManyConnections"
        | "ReadOnly"
        | "SchemaNotReady"
        | "LockHeld"
        | "LockTimeout" => UNREACHABLE,
        _ => PERMANENT,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use postroom_crds::problem::Problem;

    use super::Failure;
    use crate::reason::Reason;

    fn code(code: &'static str) -> u8 {
        Failure::Reason(Reason::new(code, "seen", "Do.")).exit_code()
    }

    #[test]
    fn what_may_pass_ends_with_3_and_what_will_not_with_4() {
        assert_eq!(
            (code("ConnectionRefused"), code("Timeout"), code("LockHeld")),
            (3, 3, 3)
        );
        assert_eq!(
            (
                code("PermissionDenied"),
                code("SchemaAhead"),
                code("DatabaseError")
            ),
            (4, 4, 4)
        );
    }

    #[test]
    fn a_wrong_file_is_a_wrong_use_and_each_sentence_has_its_line() {
        let problems = vec![
            Problem::of_field("a", "is 1 but must be 2"),
            Problem::of_field("b", "is missing but must be given"),
        ];
        let failure = Failure::wrong_file(Path::new("orders.yaml"), problems);
        assert_eq!(failure.exit_code(), 2);
        assert_eq!(
            failure.sentences(),
            "orders.yaml cannot be used; correct what follows:\n`a` is 1 but must be 2\n`b` is missing but must be given"
        );
        assert_eq!(failure.json()["error"]["problems"][1]["field"], "b");
    }
}
