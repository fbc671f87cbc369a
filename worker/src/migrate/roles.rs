//! The roles of a schema: their names, and whether this login can have them.
//!
//! Invariant: objects belong to one role, the owner, from the first migration on; a later migration acts as that role,
//! whoever logs in.

use serde::Serialize;

use super::files::fingerprint;
use super::found::{Found, FoundSchema};
use crate::reason::Reason;

/// PostgreSQL cuts longer names.
const NAME_BYTES: usize = 63;
/// Bytes of the longest ending, `_worker` or `_reader`.
const ENDING_BYTES: usize = 7;

/// Names of the roles of one schema. Roles are shared by all databases of a server, so the database is part of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RoleNames {
    /// Owns schema and objects.
    pub owner: String,
    /// What workers may do.
    pub worker: String,
    /// What applications may do.
    pub app: String,
    /// What people may look at.
    pub reader: String,
}

impl RoleNames {
    /// The names for a schema of a database. Too long a stem is cut and told apart by a hash.
    pub fn new(database: &str, schema: &str) -> Self {
        let stem = stem(&format!("{database}_{schema}"));
        Self {
            owner: format!("{stem}_owner"),
            worker: format!("{stem}_worker"),
            app: format!("{stem}_app"),
            reader: format!("{stem}_reader"),
        }
    }

    /// All four.
    pub fn all(&self) -> [&str; 4] {
        [&self.owner, &self.worker, &self.app, &self.reader]
    }
}

fn stem(whole: &str) -> String {
    // The server keeps names that begin so for itself.
    let whole = if whole.starts_with("pg_") {
        format!("db_{whole}")
    } else {
        whole.to_owned()
    };
    if whole.len() + ENDING_BYTES <= NAME_BYTES {
        return whole;
    }
    let hash = format!("_{:016x}", fingerprint(&whole));
    let mut cut = NAME_BYTES - ENDING_BYTES - hash.len();
    while !whole.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}{hash}", &whole[..cut])
}

/// Who owns the objects, and whether the other roles exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    /// The four roles.
    Roles,
    /// The owner alone, for this reason.
    OneRole {
        /// Owner of everything.
        owner: String,
        /// Why there are no others.
        because: String,
    },
}

/// Decides who owns the schema. What exists is never taken away from its owner, save an empty schema that was made for us.
pub(super) fn decide(found: &Found, names: &RoleNames) -> Result<Mode, Reason> {
    let hindrance = hindrance(found, names);
    match &found.schema {
        None if !found.may_create_schema => Err(Reason::new(
            "PermissionDenied",
            format!(
                "role {} may not create a schema in database {}",
                found.user, found.database
            ),
            "Run `grant create on database ... to ...` as the owner of the database, or migrate with another login.",
        )),
        None => Ok(mode(hindrance, &found.user)),
        Some(schema) if !schema.installed && schema.occupied => Err(Reason::new(
            "SchemaTaken",
            "the schema exists and holds objects of something else",
            "Name a schema of its own under spec.database.schema.",
        )),
        Some(schema) if schema.owner == names.owner => match hindrance {
            None => Ok(Mode::Roles),
            Some(because) => Err(not_the_owner(schema, &because)),
        },
        Some(schema) if !schema.may_act => {
            let because = format!("role {} is not a member of it", found.user);
            Err(not_the_owner(schema, &because))
        }
        Some(schema) if schema.installed => Ok(Mode::OneRole {
            owner: schema.owner.clone(),
            because: format!(
                "the schema was first migrated by role {}, which owns it",
                schema.owner
            ),
        }),
        Some(schema) if !found.may_create_schema => Ok(Mode::OneRole {
            owner: schema.owner.clone(),
            because: format!(
                "role {} may not create schemas, so the prepared one keeps its owner",
                found.user
            ),
        }),
        Some(schema) => Ok(mode(hindrance, &schema.owner)),
    }
}

fn mode(hindrance: Option<String>, owner: &str) -> Mode {
    match hindrance {
        None => Mode::Roles,
        Some(because) => Mode::OneRole {
            owner: owner.to_owned(),
            because,
        },
    }
}

/// Why the four roles cannot be had.
fn hindrance(found: &Found, names: &RoleNames) -> Option<String> {
    let missing = found.missing(names);
    if !missing.is_empty() && !found.may_create_roles {
        let which = if missing.len() == names.all().len() {
            String::new()
        } else {
            format!(", and {} do not exist", missing.join(", "))
        };
        return Some(format!("role {} may not create roles{which}", found.user));
    }
    let owner = found.roles.iter().find(|role| role.name == names.owner)?;
    let reachable = owner.may_act || owner.may_join;
    (!reachable).then(|| format!("role {} is not a member of {}", found.user, names.owner))
}

fn not_the_owner(schema: &FoundSchema, because: &str) -> Reason {
    Reason::new(
        "PermissionDenied",
        format!("the schema belongs to role {}: {because}", schema.owner),
        "Migrate with the login that migrated first, or grant the owner role to this login.",
    )
}

#[cfg(test)]
mod tests;
