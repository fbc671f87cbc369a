//! What a migration did, or would do, for people and for programs.

use std::io::{Write, stdout};

use serde::Serialize;

use super::roles::RoleNames;
use crate::cli::Output;

/// What a migration did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Database.
    pub database: String,
    /// Schema.
    pub schema: String,
    /// Version of the schema now, or after a real run.
    pub version: u32,
    /// True where nothing was changed on purpose.
    pub dry_run: bool,
    /// Owner of the objects.
    pub owner: String,
    /// The roles; none in one-role mode.
    pub roles: Option<RoleNames>,
    /// Why there are no roles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_role_because: Option<String>,
    /// Roles that were created.
    pub created_roles: Vec<String>,
    /// Whether the schema was created.
    pub created_schema: bool,
    /// Migrations that were applied.
    pub applied: Vec<AppliedNow>,
    /// The endpoints of the resource.
    pub endpoints: Vec<Registered>,
}

/// A migration that was applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedNow {
    /// Its number.
    pub version: u32,
    /// Its name.
    pub name: &'static str,
    /// How long it took; none if it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<u64>,
}

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Registered {
    /// Its name.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of registering an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// It is new.
    Added,
    /// Its settings changed.
    Changed,
    /// It was as it should be.
    Unchanged,
    /// A newer generation of the resource has registered it; it was left alone.
    Newer,
    /// It is there; a dry run does not compare settings.
    Present,
}

impl Outcome {
    fn word(self, dry_run: bool) -> &'static str {
        match self {
            Self::Added if dry_run => "to be added",
            Self::Added => "added",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::Newer => "left as a newer generation of the resource wrote it",
            Self::Present => "registered, to be compared",
        }
    }
}

impl Report {
    /// Whether anything was, or would be, created or applied.
    pub fn is_empty(&self) -> bool {
        let settled = |endpoint: &Registered| {
            matches!(
                endpoint.outcome,
                Outcome::Unchanged | Outcome::Newer | Outcome::Present
            )
        };
        self.created_roles.is_empty()
            && !self.created_schema
            && self.applied.is_empty()
            && self.endpoints.iter().all(settled)
    }

    /// The closing lines.
    pub fn summary(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.dry_run {
            lines.extend(self.pending());
        }
        let done = match (self.is_empty(), self.dry_run) {
            (true, true) => "No migration is pending",
            (true, false) => "Nothing to do",
            (false, true) => "Nothing was changed",
            (false, false) => "Done",
        };
        let verb = if self.dry_run && !self.applied.is_empty() {
            "would be"
        } else {
            "is"
        };
        lines.push(format!(
            "{done}: schema {} of database {} {verb} at version {}.",
            self.schema, self.database, self.version
        ));
        lines.push(self.owners());
        let endpoints = self.endpoints.iter().map(|endpoint| {
            format!(
                "{} ({})",
                endpoint.name,
                endpoint.outcome.word(self.dry_run)
            )
        });
        lines.push(format!(
            "Endpoints: {}.",
            endpoints.collect::<Vec<_>>().join(", ")
        ));
        lines
    }

    fn pending(&self) -> Vec<String> {
        let roles = self
            .created_roles
            .iter()
            .map(|name| format!("Would create role {name}"));
        let schema = self
            .created_schema
            .then(|| format!("Would create schema {}", self.schema));
        let migrations = self
            .applied
            .iter()
            .map(|migration| format!("Would apply {:04} {}", migration.version, migration.name));
        roles.chain(schema).chain(migrations).collect()
    }

    fn owners(&self) -> String {
        match &self.roles {
            Some(names) => format!("Roles: {}.", names.all().join(", ")),
            None => format!(
                "One-role mode: everything belongs to role {}, because {}.",
                self.owner,
                self.one_role_because.as_deref().unwrap_or("it always did")
            ),
        }
    }
}

/// Says what happens while it happens; programs get one document at the end instead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Voice(pub(super) Output);

impl Voice {
    /// One line for people.
    pub(super) fn say(self, line: &str) {
        if self.0 == Output::Table {
            // A reader that went away must not stop a migration half-way.
            drop(writeln!(stdout(), "{line}"));
        }
    }

    /// The end.
    pub(super) fn close(self, report: &Report) {
        match self.0 {
            Output::Table => report.summary().iter().for_each(|line| self.say(line)),
            Output::Json => drop(writeln!(stdout(), "{}", serde_json::json!(report))),
        }
    }
}

#[cfg(test)]
mod tests;
