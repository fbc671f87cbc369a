//! The kinds of rule there are, each with its one sentence.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::form::{fits, is_label, is_plain_identifier, is_quantity};
use crate::limits::{self, Bounds};
use crate::problem::{Problem, shown};

/// Collects what is wrong.
#[derive(Default)]
pub(super) struct Checker {
    pub(super) problems: Vec<Problem>,
}

impl Checker {
    /// Notes that the field at `path` is wrong; `rest` continues the sentence.
    pub(super) fn refuse(&mut self, path: &str, rest: impl Display) {
        self.problems.push(Problem::of_field(path, rest));
    }

    fn require(&mut self, holds: bool, path: &str, value: &str, rule: impl Display) {
        if !holds {
            self.refuse(path, format!("is {} but must {rule}", shown(value)));
        }
    }

    pub(super) fn number(&mut self, path: &str, value: impl Into<u64>, bounds: Bounds) {
        let value = value.into();
        if !bounds.contain(value) {
            let Bounds { min, max } = bounds;
            self.refuse(
                path,
                format!("is {value} but must be between {min} and {max}"),
            );
        }
    }

    pub(super) fn count(&mut self, path: &str, count: usize, bounds: Bounds) {
        let Bounds { min, max } = bounds;
        if !u64::try_from(count).is_ok_and(|count| bounds.contain(count)) {
            self.refuse(
                path,
                format!("has {count} entries but must have between {min} and {max}"),
            );
        }
    }

    pub(super) fn entries(&mut self, path: &str, count: usize, most: u64) {
        if !u64::try_from(count).is_ok_and(|count| count <= most) {
            self.refuse(
                path,
                format!("has {count} entries but must have at most {most}"),
            );
        }
    }

    pub(super) fn less(
        &mut self,
        path: &str,
        value: impl Into<u64>,
        other_path: &str,
        other: impl Into<u64>,
    ) {
        let (value, other) = (value.into(), other.into());
        if value >= other {
            self.refuse(
                path,
                format!("is {value} but must be less than `{other_path}`, which is {other}"),
            );
        }
    }

    pub(super) fn at_most(
        &mut self,
        path: &str,
        value: impl Into<u64>,
        other_path: &str,
        other: impl Into<u64>,
    ) {
        let (value, other) = (value.into(), other.into());
        if value > other {
            self.refuse(
                path,
                format!("is {value} but must be at most `{other_path}`, which is {other}"),
            );
        }
    }

    pub(super) fn unique<'a>(&mut self, path: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for (index, name) in names.enumerate() {
            let first = name.is_empty() || seen.insert(name);
            self.require(
                first,
                &format!("{path}[{index}].name"),
                name,
                format_args!("be a name that no earlier entry of `{path}` has"),
            );
        }
    }

    pub(super) fn refers<'a>(
        &mut self,
        path: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) {
        let known: Vec<_> = known.collect();
        let list: Vec<_> = known.iter().map(|known| shown(known)).collect();
        self.require(
            known.contains(&name),
            path,
            name,
            format_args!("be the name of a transport: one of {}", list.join(", ")),
        );
    }

    pub(super) fn label(&mut self, path: &str, value: &str, most_bytes: u64) {
        self.require(
            is_label(value) && fits(value, most_bytes),
            path,
            value,
            format_args!(
                "be a DNS label: 1 to {most_bytes} lower-case letters, digits and hyphens, with a letter or digit at both ends"
            ),
        );
    }

    pub(super) fn schema(&mut self, path: &str, value: &str) {
        let most = limits::SCHEMA_BYTES;
        self.require(
            is_plain_identifier(value) && fits(value, most),
            path,
            value,
            format_args!(
                "be 1 to {most} lower-case letters, digits and underscores, not starting with a digit"
            ),
        );
        let reserved = matches!(value, "public" | "information_schema") || value.starts_with("pg_");
        self.require(
            !reserved,
            path,
            value,
            "be a schema of its own: not 'public', not 'information_schema', not starting with 'pg_'",
        );
    }

    pub(super) fn secret_name(&mut self, path: &str, value: &str) {
        let most = limits::SECRET_BYTES;
        self.require(
            value.split('.').all(is_label) && fits(value, most),
            path,
            value,
            format_args!(
                "be the name of a Secret: 1 to {most} lower-case letters, digits, hyphens and dots, with a letter or digit at both ends and beside each dot"
            ),
        );
    }

    pub(super) fn secret_key(&mut self, path: &str, value: &str) {
        let most = limits::SECRET_BYTES;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        let holds = !value.is_empty()
            && value != "."
            && !value.starts_with("..")
            && value.bytes().all(allowed)
            && fits(value, most);
        self.require(
            holds,
            path,
            value,
            format_args!(
                "be the key of a Secret: 1 to {most} letters, digits, hyphens, underscores and dots, not '.' and not starting with '..'"
            ),
        );
    }

    pub(super) fn host(&mut self, path: &str, value: &str) {
        let most = limits::HOST_BYTES;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b':');
        self.require(
            !value.is_empty() && value.bytes().all(allowed) && fits(value, most),
            path,
            value,
            format_args!(
                "be a host name or an address: 1 to {most} letters, digits, hyphens, underscores, dots and colons"
            ),
        );
    }

    pub(super) fn quantity(&mut self, path: &str, value: &str) {
        let most = limits::QUANTITY_BYTES;
        self.require(
            is_quantity(value) && fits(value, most),
            path,
            value,
            "be a quantity such as '100m', '2' or '256Mi'",
        );
    }

    pub(super) fn variable(&mut self, path: &str, value: &str) {
        let most = limits::SECRET_BYTES;
        let bytes = value.as_bytes();
        let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
        let holds = bytes.first().is_some_and(|b| letter(*b))
            && bytes.iter().all(|b| letter(*b) || b.is_ascii_digit())
            && fits(value, most);
        self.require(
            holds,
            path,
            value,
            format_args!(
                "be the name of a variable: 1 to {most} letters, digits and underscores, not starting with a digit"
            ),
        );
    }

    pub(super) fn function(&mut self, path: &str, value: &str) {
        let identifier = |part: &str| is_plain_identifier(part) && fits(part, limits::LABEL_BYTES);
        let holds = value
            .split_once('.')
            .is_some_and(|(schema, name)| identifier(schema) && identifier(name));
        self.require(
            holds,
            path,
            value,
            "be the schema and the name of a function with a dot between them, each 1 to 63 lower-case letters, digits and underscores, not starting with a digit",
        );
    }

    pub(super) fn filled(&mut self, path: &str, value: &str, most: u64) {
        self.require(
            !value.is_empty() && fits(value, most),
            path,
            value,
            format_args!("be 1 to {most} bytes"),
        );
    }

    pub(super) fn vhost(&mut self, path: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.filled(path, value, limits::SHORT_STRING_BYTES);
        }
    }

    pub(super) fn bytes(&mut self, path: &str, value: &str, most: u64) {
        if !fits(value, most) {
            let bytes = value.len();
            self.refuse(
                path,
                format!("has {bytes} bytes but must have at most {most}"),
            );
        }
    }
}
