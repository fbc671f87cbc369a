//! What the database has before a migration.
//!
//! Invariant: looking changes nothing, not even when it has to join the owner role to be allowed to look.

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Executor, Row};

use super::roles::RoleNames;
use super::script::identifier;
use crate::database::Link;

/// Oldest server that is supported, as `server_version_num` says it.
pub(super) const OLDEST_SERVER: i32 = 140_000;

/// Whether this login may become the role with oid `%`; since PostgreSQL 16 a membership may lack just that.
const MAY_ACT: &str = "pg_has_role(current_user, %, case when current_setting('server_version_num')::int >= 160000 then 'SET' else 'MEMBER' end)";
/// Whether this login may make itself a member of the role with oid `%`. Before PostgreSQL 16 whoever may create roles may.
const MAY_JOIN: &str = "(pg_has_role(current_user, %, 'MEMBER WITH ADMIN OPTION') or current_setting('server_version_num')::int < 160000 \
    and (select rolcreaterole from pg_roles where rolname = current_user))";

/// What the database has.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// Name of the database.
    pub(super) database: String,
    /// The login.
    pub(super) user: String,
    /// Whether it may create roles.
    pub(super) may_create_roles: bool,
    /// Whether it may create schemas.
    pub(super) may_create_schema: bool,
    /// Those of the four roles that exist.
    pub(super) roles: Vec<FoundRole>,
    /// The schema, if it exists.
    pub(super) schema: Option<FoundSchema>,
    /// What is applied.
    pub(super) applied: Vec<Applied>,
    /// Name and time of change of each registered endpoint.
    pub(super) endpoints: Vec<(String, String)>,
}

/// A role that exists.
#[derive(Debug, Clone)]
pub(super) struct FoundRole {
    /// Its name.
    pub(super) name: String,
    /// Whether the login may become it.
    pub(super) may_act: bool,
    /// Whether the login may make itself a member.
    pub(super) may_join: bool,
}

/// A schema that exists.
#[derive(Debug, Clone)]
pub(super) struct FoundSchema {
    /// Its owner.
    pub(super) owner: String,
    /// Whether the login may become the owner.
    pub(super) may_act: bool,
    /// Whether the login may make itself a member of the owner.
    pub(super) may_join: bool,
    /// Whether a migration has been here.
    pub(super) installed: bool,
    /// Whether it holds anything.
    pub(super) occupied: bool,
}

/// A migration that is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Applied {
    /// Its number.
    pub(super) version: u32,
    /// Checksum of the text that was applied.
    pub(super) checksum: String,
}

impl Found {
    /// Those of the four roles that do not exist.
    pub(super) fn missing<'a>(&self, names: &'a RoleNames) -> Vec<&'a str> {
        let exists = |name: &&str| self.roles.iter().any(|role| role.name == **name);
        names
            .all()
            .into_iter()
            .filter(|name| !exists(name))
            .collect()
    }
}

/// Number of the server's version.
pub(super) async fn server_version(link: &mut Link<'_>) -> Result<i32, sqlx::Error> {
    let row = link
        .connection
        .fetch_one("select current_setting('server_version_num')::int")
        .await?;
    row.try_get(0)
}

/// Looks at login, roles and schema, and into the schema where it is ours.
pub(super) async fn look(
    link: &mut Link<'_>,
    schema: &str,
) -> Result<(Found, RoleNames), sqlx::Error> {
    let query = link.query(
        "select current_database()::text, current_user::text, rolsuper or rolcreaterole, has_database_privilege(current_database(), 'CREATE') \
         from pg_roles where rolname = current_user",
    );
    let row = link.connection.fetch_one(query).await?;
    let database: String = row.try_get(0)?;
    let names = RoleNames::new(&database, schema);
    let mut found = Found {
        database,
        user: row.try_get(1)?,
        may_create_roles: row.try_get(2)?,
        may_create_schema: row.try_get(3)?,
        roles: roles(link, &names).await?,
        schema: find_schema(link, schema).await?,
        applied: Vec::new(),
        endpoints: Vec::new(),
    };
    if let Some(there) = found
        .schema
        .clone()
        .filter(|there| there.installed && (there.may_act || there.may_join))
    {
        look_inside(link, &there, &mut found).await?;
    }
    Ok((found, names))
}

async fn roles(link: &mut Link<'_>, names: &RoleNames) -> Result<Vec<FoundRole>, sqlx::Error> {
    let text = format!(
        "select rolname::text, {}, {} from pg_roles where rolname = any ($1)",
        MAY_ACT.replace('%', "oid"),
        MAY_JOIN.replace('%', "oid")
    );
    let all: Vec<String> = names.all().map(str::to_owned).into();
    let query = link.query(&text).bind(all);
    let rows = link.connection.fetch_all(query).await?;
    let role = |row: &PgRow| {
        Ok(FoundRole {
            name: row.try_get(0)?,
            may_act: row.try_get(1)?,
            may_join: row.try_get(2)?,
        })
    };
    rows.iter().map(role).collect()
}

async fn find_schema(
    link: &mut Link<'_>,
    schema: &str,
) -> Result<Option<FoundSchema>, sqlx::Error> {
    let text = format!(
        "select pg_get_userbyid(nspowner)::text, {}, {}, \
            exists (select from pg_class c where c.relnamespace = n.oid and c.relname = 'schema_version'), \
            exists (select from pg_class c where c.relnamespace = n.oid) or exists (select from pg_proc p where p.pronamespace = n.oid) \
         from pg_namespace n where nspname = $1",
        MAY_ACT.replace('%', "nspowner"),
        MAY_JOIN.replace('%', "nspowner"),
    );
    let query = link.query(&text).bind(schema.to_owned());
    let row = link.connection.fetch_optional(query).await?;
    let there = |row: PgRow| {
        Ok(FoundSchema {
            owner: row.try_get(0)?,
            may_act: row.try_get(1)?,
            may_join: row.try_get(2)?,
            installed: row.try_get(3)?,
            occupied: row.try_get(4)?,
        })
    };
    row.map(there).transpose()
}

/// Reads as the owner, in a transaction that is rolled back.
async fn look_inside(
    link: &mut Link<'_>,
    there: &FoundSchema,
    found: &mut Found,
) -> Result<(), sqlx::Error> {
    link.connection.execute("begin").await?;
    let read = read_as_owner(link, there, found).await;
    link.connection.execute("rollback").await?;
    read
}

async fn read_as_owner(
    link: &mut Link<'_>,
    there: &FoundSchema,
    found: &mut Found,
) -> Result<(), sqlx::Error> {
    let owner = identifier(&there.owner);
    if !there.may_act {
        link.connection
            .execute(AssertSqlSafe(format!("grant {owner} to current_user")))
            .await?;
    }
    link.connection
        .execute(AssertSqlSafe(format!("set local role {owner}")))
        .await?;
    let query =
        link.query("select version, checksum from @schema@.schema_version order by version");
    for row in link.connection.fetch_all(query).await? {
        let version = u32::try_from(row.try_get::<i32, _>(0)?).unwrap_or_default();
        found.applied.push(Applied {
            version,
            checksum: row.try_get(1)?,
        });
    }
    if !found.applied.is_empty() {
        found.endpoints = endpoints(link).await?;
    }
    Ok(())
}

/// Name and time of change of each registered endpoint.
pub(super) async fn endpoints(link: &mut Link<'_>) -> Result<Vec<(String, String)>, sqlx::Error> {
    let query = link.query("select name, written_at::text from @schema@.endpoint order by name");
    let rows = link.connection.fetch_all(query).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
        .collect()
}
