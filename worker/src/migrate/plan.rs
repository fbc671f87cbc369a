//! What a migration will do, decided from what there is.
//!
//! Invariant: what cannot end well is refused here, before anything is changed.

use postroom_crds::worker_config::WorkerConfig;

use super::execution::{LOOK, within};
use super::files::{MIGRATIONS, Migration};
use super::found::{self, Found, look};
use super::report::{AppliedNow, Outcome, Registered, Report};
use super::roles::{Mode, RoleNames, decide};
use super::script::Target;
use super::{ahead, newest_version};
use crate::database::Link;
use crate::reason::Reason;

/// What there is, and what will be done.
pub(super) struct Plan {
    pub(super) found: Found,
    pub(super) names: RoleNames,
    pub(super) mode: Mode,
    pub(super) pending: Vec<&'static Migration>,
}

/// Looks, and refuses what cannot end well.
pub(super) async fn plan(link: &mut Link<'_>, config: &WorkerConfig) -> Result<Plan, Reason> {
    let server = within(LOOK, found::server_version(link)).await?;
    if server < found::OLDEST_SERVER {
        return Err(Reason::new(
            "ServerTooOld",
            format!("the server is PostgreSQL {}", server / 10_000),
            "Use PostgreSQL 14 or newer.",
        ));
    }
    let (found, names) = within(LOOK, look(link, &config.schema)).await?;
    let mode = decide(&found, &names)?;
    let pending = pending(&found)?;
    Ok(Plan {
        found,
        names,
        mode,
        pending,
    })
}

/// The migrations to apply; none may have changed since it was applied.
pub(super) fn pending(found: &Found) -> Result<Vec<&'static Migration>, Reason> {
    let newest = found
        .applied
        .iter()
        .map(|applied| applied.version)
        .max()
        .unwrap_or_default();
    if newest > newest_version() {
        return Err(ahead(newest));
    }
    let mut pending = Vec::new();
    for migration in &MIGRATIONS {
        match found
            .applied
            .iter()
            .find(|applied| applied.version == migration.version)
        {
            None => pending.push(migration),
            Some(applied) if applied.checksum == migration.checksum() => {}
            Some(_) => {
                return Err(Reason::new(
                    "MigrationChanged",
                    format!(
                        "migration {} was applied with another text than this program has",
                        migration.file()
                    ),
                    "Migrate with the program that applied it, or a later release of the same line; for a test database, drop the schema.",
                ));
            }
        }
    }
    Ok(pending)
}

impl Plan {
    pub(super) fn owner(&self) -> &str {
        match &self.mode {
            Mode::Roles => &self.names.owner,
            Mode::OneRole { owner, .. } => owner,
        }
    }

    pub(super) fn target<'a>(&'a self, config: &'a WorkerConfig) -> Target<'a> {
        let names = (self.mode == Mode::Roles).then_some(&self.names);
        Target {
            schema: &config.schema,
            owner: self.owner(),
            names,
            timeouts: &config.migration,
        }
    }

    /// Roles that have to be created.
    pub(super) fn missing_roles(&self) -> Vec<&str> {
        if self.mode == Mode::Roles {
            self.found.missing(&self.names)
        } else {
            Vec::new()
        }
    }

    /// What will be done; the real run overwrites what it learns.
    pub(super) fn report(&self, config: &WorkerConfig, dry_run: bool) -> Report {
        let (roles, because) = match &self.mode {
            Mode::Roles => (Some(self.names.clone()), None),
            Mode::OneRole { because, .. } => (None, Some(because.clone())),
        };
        let known = |name: &str| self.found.endpoints.iter().any(|(known, _)| known == name);
        let outcome = |name: &str| {
            if known(name) {
                Outcome::Present
            } else {
                Outcome::Added
            }
        };
        Report {
            database: self.found.database.clone(),
            schema: config.schema.clone(),
            version: newest_version(),
            dry_run,
            owner: self.owner().to_owned(),
            roles,
            one_role_because: because,
            created_roles: self
                .missing_roles()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            created_schema: self.found.schema.is_none(),
            applied: self
                .pending
                .iter()
                .map(|m| AppliedNow {
                    version: m.version,
                    name: m.name,
                    milliseconds: None,
                })
                .collect(),
            endpoints: config
                .outboxes
                .iter()
                .map(|o| Registered {
                    name: o.name.clone(),
                    outcome: outcome(&o.name),
                })
                .collect(),
        }
    }
}
