//! How something wrong is said: one sentence that names the field, its value and the rule.
//!
//! Invariant: no sentence repeats a connection URL or the contents of an object, so a secret that
//! was put in the wrong place does not reach a log.

use std::fmt;

use serde::Serialize;

/// Longest piece of a value that a sentence repeats.
const SHOWN_CHARACTERS: usize = 80;

/// One thing wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Path of the field, such as `spec.outboxes[0].delivery.channels`; empty for the document as a whole.
    pub field: String,
    /// The whole sentence, without a final stop.
    pub sentence: String,
}

impl Problem {
    /// A problem of the field at `field`; `rest` continues the sentence after the path.
    pub fn of_field(field: impl Into<String>, rest: impl fmt::Display) -> Self {
        let field = field.into();
        Self {
            sentence: format!("`{field}` {rest}"),
            field,
        }
    }

    /// A problem of the document as a whole.
    pub fn of_document(sentence: impl Into<String>) -> Self {
        Self {
            field: String::new(),
            sentence: sentence.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// A text as a sentence may repeat it: in quotes, cut when long, and never when it looks like a URL.
pub(crate) fn shown(text: &str) -> String {
    if text.contains("://") {
        return "a URL (not shown)".to_owned();
    }
    let mut characters = text.chars();
    let start: String = characters.by_ref().take(SHOWN_CHARACTERS).collect();
    match characters.next() {
        None => format!("'{}'", start.escape_debug()),
        Some(_) => format!("'{}...'", start.escape_debug()),
    }
}

/// Names in back-quotes with commas between them.
pub(crate) fn listed(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
