//! Sessions and content that mean harm: look-alikes in the search path, and text that looks like code.

use anyhow::{Context as _, Result, ensure};
use postroom_tests::ledger::Outcome;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::setup::{OUTBOX, Postroom};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Key, Schema, arrays, count, keys, login, refused, run};

/// Look-alikes of what our statements use without saying from where, or might. Each one that is called leaves a mark by
/// failing. They fit the types better than the real ones wherever those convert.
const TRAPS: &str = "
create function trap.sprung() returns void language plpgsql as $$ begin raise exception 'trap sprung'; end $$;
create function trap.set_bit(bytea, int, int) returns bytea language plpgsql as $$ begin perform trap.sprung(); return $1; end $$;
create function trap.get_byte(bytea, int) returns int language plpgsql as $$ begin perform trap.sprung(); return 1; end $$;
create function trap.int_and(bigint, int) returns bigint language plpgsql as $$ begin perform trap.sprung(); return 1; end $$;
create operator trap.& (function = trap.int_and, leftarg = bigint, rightarg = int);
create function trap.times(numeric, int) returns numeric language plpgsql as $$ begin perform trap.sprung(); return 1; end $$;
create operator trap.* (function = trap.times, leftarg = numeric, rightarg = int);
create function trap.same(text, text) returns boolean language plpgsql as $$ begin perform trap.sprung(); return true; end $$;
create operator trap.= (function = trap.same, leftarg = text, rightarg = text);
create operator trap.<> (function = trap.same, leftarg = text, rightarg = text);
create function trap.glue(text, text) returns text language plpgsql as $$ begin perform trap.sprung(); return $1; end $$;
create operator trap.|| (function = trap.glue, leftarg = text, rightarg = text);
create function trap.more(int, int) returns boolean language plpgsql as $$ begin perform trap.sprung(); return true; end $$;
create operator trap.> (function = trap.more, leftarg = int, rightarg = int);
create function trap.nextval(regclass) returns bigint language plpgsql as $$ begin perform trap.sprung(); return 1; end $$;
create function trap.gen_random_uuid() returns uuid language plpgsql as $$ begin perform trap.sprung(); return null; end $$;
create function trap.clock_timestamp() returns timestamptz language plpgsql as $$ begin perform trap.sprung(); return null; end $$;
create function trap.pg_current_xact_id() returns xid8 language plpgsql as $$ begin perform trap.sprung(); return '1'; end $$;
create function trap.stream_key(text, text, text) returns text language plpgsql as $$ begin perform trap.sprung(); return ''; end $$;
create function trap.message_id_of(text, text) returns uuid language plpgsql as $$ begin perform trap.sprung(); return null; end $$;
create function trap.sha256(bytea) returns bytea language plpgsql as $$ begin perform trap.sprung(); return $1; end $$;
create type trap.xid8 as enum ('evil');
create type trap.receipt as (evil int);
";
const TABLES: [&str; 8] = [
    "endpoint",
    "outbox",
    "deferral",
    "lease",
    "worker",
    "dead_letter",
    "setting",
    "message_position",
];

async fn set_traps(session: &mut PgConnection, schema: &str) -> Result<()> {
    let text = format!(
        "create schema if not exists {schema}; grant usage on schema {schema} to public;{}",
        TRAPS.replace("trap.", &format!("{schema}."))
    );
    run(session, &text).await?;
    for table in TABLES {
        run(
            session,
            &format!(
                "create table {schema}.{table} (evil int); grant all on {schema}.{table} to public"
            ),
        )
        .await?;
    }
    Ok(())
}

/// Sets a search path, with temporary look-alikes.
async fn mislead(session: &mut PgConnection, path: &str) -> Result<()> {
    run(session, &format!("set search_path = {path}")).await?;
    for table in TABLES {
        run(
            session,
            &format!("create temporary table if not exists {table} (evil pg_catalog.int4)"),
        )
        .await?;
    }
    Ok(())
}

/// Five messages, all ways of writing; and one that is refused by our own check.
async fn write_all_ways(app: &mut PgConnection, number: usize) -> Result<()> {
    for write in [
        "insert into postroom.outbox (endpoint, type, payload) values ('loose', 'a', 'x')",
        "insert into postroom.outbox (endpoint, type, stream, tenant, payload, available_at) values ('orders', 'a', 's', 't', 'x', 'infinity')",
        &format!(
            "do $$ begin perform postroom.enqueue('orders', 'a', 'x', stream => 's', key => 'K{number}'); end $$"
        ),
        &format!(
            "do $$ begin perform postroom.enqueue('orders', 'a', 'x', message_id => 'M{number}', delay => '1 hour'); end $$"
        ),
        &format!(
            r#"do $$ begin perform postroom.store_outbox_messages('orders', '[{{"type":"b","payload":1,"stream":"s","key":"L{number}"}}]'); end $$"#
        ),
        "do $$ begin perform postroom.explain_message('M0'); end $$",
    ] {
        run(app, write).await?;
    }
    let nowhere =
        "insert into postroom.outbox (endpoint, type, payload) values ('nowhere', 'a', 'x')";
    ensure!(refused(app, nowhere).await?.code == "PR004");
    Ok(())
}

/// Everything a worker does; one message is completed.
async fn work_all_ways(worker: &mut PgConnection, key: &Key) -> Result<()> {
    let id = Uuid::from_u128(1);
    let settle = arrays(std::slice::from_ref(key), |_| i64::MAX);
    for call in [
        format!("perform postroom.claim_work('{id}', 'h', 'v', '1 hour', '{{orders,loose}}')"),
        "perform postroom.fetch_outbox_batch('orders', '{0,1,2}', '{0,0,0}', '{0,0,0}', '{5}', 10, 1000)".to_owned(),
        "perform postroom.poll_outbox()".to_owned(),
        "perform postroom.perform_maintenance()".to_owned(),
        format!("perform postroom.defer_messages('{id}', 'orders', {settle}, '{{1 h}}', '{{t}}', '{{t}}', '{{r}}', '{{e}}')"),
        format!("perform postroom.bury_messages('{id}', 'orders', {settle}, '{{t}}', '{{r}}', '{{e}}')"),
        format!("perform postroom.complete_outbox_published('{id}', 'orders', {settle})"),
    ] {
        run(worker, &format!("do $$ begin {call}; end $$")).await?;
    }
    run(worker, "table postroom.backlog; table postroom.blocked_stream; table postroom.lease_holder; table postroom.dead_letter_summary").await
}

/// S8: with look-alikes before, behind and instead of everything, also among the temporary objects.
#[tokio::test]
async fn a_hostile_search_path_and_look_alikes_change_nothing() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let schema = Schema::start("hostile").await?;
    let mut admin = schema.connect().await?;
    set_traps(&mut admin, "public").await?;
    set_traps(&mut admin, "evil").await?;
    let (_, mut app) = login(server, &schema.database, "app").await?;
    let (_, mut worker) = login(server, &schema.database, "worker").await?;
    let paths = [
        "public",
        "evil, public, postroom",
        "evil, pg_catalog, postroom",
        "pg_temp, evil, pg_catalog",
        "postroom, evil",
        "''",
    ];
    for (number, path) in paths.into_iter().enumerate() {
        mislead(&mut app, path).await?;
        mislead(&mut worker, path).await?;
        let before = count(&mut admin, "outbox").await?;
        write_all_ways(&mut app, number)
            .await
            .with_context(|| path.to_owned())?;
        ensure!(count(&mut admin, "outbox").await? == before + 5, "{path}");
        let waiting = keys(&mut admin, "orders").await?;
        work_all_ways(&mut worker, &waiting[0])
            .await
            .with_context(|| path.to_owned())?;
        ensure!(
            count(&mut admin, "outbox").await? == before + 4,
            "one was completed: {path}"
        );
    }
    ensure!(count(&mut admin, "lease where owner is not null").await? == 128);
    for table in TABLES {
        let caught = count(&mut admin, &format!("public.{table}")).await?
            + count(&mut admin, &format!("evil.{table}")).await?;
        ensure!(caught == 0, "{table}");
    }
    // The traps are armed: this is what happens to a statement that does not say what it means.
    let refusal = refused(
        &mut app,
        "set search_path = evil, public; select 1::bigint & 63",
    )
    .await?;
    ensure!(refusal.message == "trap sprung", "{refusal:?}");
    Ok(())
}

/// S9: everything a message carries arrives as it was written.
#[tokio::test]
async fn content_is_never_interpreted() -> Result<()> {
    const NASTY: [&str; 9] = [
        "'; drop schema postroom cascade; --",
        "$1 $$ $body$ %s %I %n {0} {{x}} ${HOME} `id`",
        "@schema@.outbox @app@",
        "\\x00 \\' \\\\ E'\\n'",
        "<script>&amp;\u{202e}</script>",
        "null",
        "../../etc/passwd\r\nX-Header: 1",
        "{type}.{stream}",
        "Robert');--\u{1f4a3}\u{7f}",
    ];
    let postroom = Postroom::start("content", |resource| resource).await?;
    let worker = postroom.worker().await?;
    let mut session = postroom.connect().await?;
    for text in NASTY {
        let mut draft = postroom.ledger.begin();
        let id: Uuid = sqlx::query_scalar("select message_id from postroom.enqueue($1, $2::text, $2::text, stream => $2::text, tenant => $2::text, key => $2::text, message_id => $2::text, headers => jsonb_build_object('x-own', $2::text, $2::text, $2::text), correlation_id => $2::text, routing_key => $2::text)")
            .bind(OUTBOX).bind(text).fetch_one(&mut session).await?;
        draft.wrote(Some(text), id, text.as_bytes());
        draft.end(Outcome::Committed);
    }
    postroom.verdict(crate::sql::PATIENCE).await?.require(0)?;
    for received in postroom.receiver.received() {
        let text = received.text();
        ensure!(NASTY.contains(&text.as_str()), "{text}");
        ensure!(
            received.routing_key == text
                && received.header("x-own").as_deref() == Some(&text)
                && received.header("x-postroom-stream").as_deref() == Some(&text),
            "{received:?}"
        );
        ensure!(
            received.header("x-postroom-tenant").as_deref() == Some(&text)
                && received.header("x-postroom-idempotency-key").as_deref() == Some(&text),
            "{received:?}"
        );
        ensure!(
            received
                .properties
                .kind()
                .as_ref()
                .map(|kind| kind.as_str())
                == Some(&text)
                && received.header(&text).as_deref() == Some(&text),
            "{received:?}"
        );
    }
    drop(worker);
    Ok(())
}
