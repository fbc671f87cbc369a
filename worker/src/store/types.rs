//! How values travel that the driver has no type for.
//!
//! Invariant: no statement has a parameter or a column of a type that the driver does not know. It would ask the server
//! about it in between, and behind a transaction pooler that makes the statement vanish that is just being run.

use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgRow, PgTypeInfo, PgValueRef, Postgres};
use sqlx::{Decode, Row as _, Type};

/// Numbers of transactions as a parameter `$n::text[]::xid8[]`.
pub fn xacts(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// The number of a transaction, from a column `xid8send(...)`.
pub fn xact(row: &PgRow, column: usize) -> Result<u64, sqlx::Error> {
    let bytes: &[u8] = row.try_get(column)?;
    let bytes = bytes
        .try_into()
        .map_err(|_| sqlx::Error::Decode(format!("{} bytes are no xid8", bytes.len()).into()))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Numbers of transactions, from a column `...::text[]::bigint[]`.
#[expect(
    clippy::cast_sign_loss,
    reason = "transaction numbers are never negative"
)]
pub fn xacts_of(row: &PgRow, column: usize) -> Result<Vec<u64>, sqlx::Error> {
    let numbers: Vec<i64> = row.try_get(column)?;
    Ok(numbers.into_iter().map(|number| number as u64).collect())
}

/// `timestamptz`, in whole seconds since 1970; what lies before that is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seconds(pub u64);

const TIMESTAMPTZ: Oid = Oid(1184);
/// From 1970 to 2000, where PostgreSQL's time begins.
const MICROSECONDS_TO_2000: i64 = 946_684_800_000_000;

impl Type<Postgres> for Seconds {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl Decode<'_, Postgres> for Seconds {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let since_2000 = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        let since_1970 = since_2000.saturating_add(MICROSECONDS_TO_2000).max(0);
        Ok(Self(since_1970.unsigned_abs() / 1_000_000))
    }
}
