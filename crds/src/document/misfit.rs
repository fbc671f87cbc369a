//! A place where document and type differ, and how that is said.

use std::fmt;

use serde::de;

use crate::problem::{listed, shown};

/// Path of a member of the object at `container`.
pub(crate) fn child(container: &str, key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    match (
        container.is_empty(),
        !key.is_empty() && key.chars().all(plain),
    ) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{container}.{key}"),
        (_, false) => format!("{container}[{}]", shown(key)),
    }
}

/// A place where document and type differ.
#[derive(Debug)]
pub(crate) struct Misfit {
    place: Option<String>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Missing(&'static str),
    Other(String),
}

impl Misfit {
    /// A misfit of the value at `place`; `rest` continues the sentence.
    pub(crate) fn at(place: &str, rest: String) -> Self {
        Self {
            place: Some(place.to_owned()),
            kind: Kind::Other(rest),
        }
    }

    /// A misfit whose place a caller adds.
    pub(crate) fn unplaced(rest: String) -> Self {
        Self {
            place: None,
            kind: Kind::Other(rest),
        }
    }

    /// Adds the place, unless one is known already.
    pub(crate) fn or_at(mut self, place: &str) -> Self {
        self.place.get_or_insert_with(|| place.to_owned());
        self
    }

    /// Path of the field that is wrong or missing.
    pub(crate) fn path(&self) -> String {
        let place = self.place.as_deref().unwrap_or_default();
        match self.kind {
            Kind::Missing(field) => child(place, field),
            Kind::Other(_) => place.to_owned(),
        }
    }

    /// The sentence after the path.
    pub(crate) fn rest(&self) -> &str {
        match &self.kind {
            Kind::Missing(_) => "is missing but must be given",
            Kind::Other(rest) => rest,
        }
    }

    /// Container and name of a missing field.
    pub(crate) fn missing(self) -> Option<(String, &'static str)> {
        match self.kind {
            Kind::Missing(field) => Some((self.place.unwrap_or_default(), field)),
            Kind::Other(_) => None,
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.path(), self.rest())
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::unplaced(format!("does not fit: {message}"))
    }

    fn invalid_value(unexpected: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::unplaced(format!("is {unexpected} but must be {expected}"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::unplaced(format!(
            "is {} but must be one of {}",
            shown(variant),
            choices(expected)
        ))
    }

    fn unknown_field(_field: &str, expected: &'static [&'static str]) -> Self {
        Self::unplaced(match expected {
            [] => "is not a known field; none are allowed here".to_owned(),
            _ => format!(
                "is not a known field; allowed here are {}",
                listed(expected)
            ),
        })
    }

    fn missing_field(field: &'static str) -> Self {
        Self {
            place: None,
            kind: Kind::Missing(field),
        }
    }
}

/// Names in quotes with commas between them.
pub(crate) fn choices(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
    quoted.join(", ")
}
