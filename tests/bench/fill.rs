//! What waits in the outbox when a measurement begins.

use anyhow::Result;
use sqlx::postgres::PgConnection;

use crate::bed::{self, HOT, ORDINARY, OUTBOX};
use crate::progress::Progress;

/// Bytes of each body.
const BODY_BYTES: usize = 430;
/// Rows of one transaction.
const BATCH: u32 = 10_000;

/// What is written, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// Messages without a stream.
    Plain(u32),
    /// Messages of so many streams, by seeded chance.
    Streams(u32, u32),
    /// Messages of one stream, of a type of their own.
    Hot(u32),
}

impl What {
    fn count(self) -> u32 {
        match self {
            Self::Plain(count) | Self::Streams(count, _) | Self::Hot(count) => count,
        }
    }

    /// Type and stream, as SQL.
    fn columns(self) -> (&'static str, String) {
        match self {
            Self::Plain(_) => (ORDINARY, "null".to_owned()),
            Self::Streams(_, streams) => {
                (ORDINARY, format!("'s' || floor(random() * {streams})::int"))
            }
            Self::Hot(_) => (HOT, "'hot'".to_owned()),
        }
    }
}

/// Writes it, then lets the server write its buffers, so that it does not do that later.
pub(crate) async fn fill(
    session: &mut PgConnection,
    what: What,
    progress: &Progress,
) -> Result<()> {
    let (kind, stream) = what.columns();
    let count = what.count();
    bed::execute(session, "select setseed(0.42)").await?;
    let mut done = 0;
    while done < count {
        let (first, last) = (done + 1, count.min(done + BATCH));
        let insert = format!(
            "insert into postroom.outbox (endpoint, type, stream, payload) \
             select '{OUTBOX}', '{kind}', {stream}, rpad('{{\"number\": ' || n || ', \"text\": \"', {}, 'x') || '\"}}' from generate_series({first}, {last}) n",
            BODY_BYTES - 2
        );
        bed::execute(session, &insert).await?;
        done = last;
        progress.update(&format!("{done} of {count} messages written"));
    }
    bed::execute(session, "checkpoint").await.map(drop)
}

/// The same bodies, in memory.
pub(crate) fn bodies(count: u32) -> impl Iterator<Item = Vec<u8>> {
    (1..=count).map(|number| {
        let text = format!("{{\"number\": {number}, \"text\": \"");
        let mut body = text.into_bytes();
        body.resize(BODY_BYTES - 2, b'x');
        body.extend_from_slice(b"\"}");
        body
    })
}
