//! Who may do what: the whole matrix from the catalogue, and the whole flow with exactly these rights.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use postroom_tests::ledger::Outcome;
use postroom_tests::postgres::PostgresServer;
use postroom_tests::setup::{OUTBOX, Postroom};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{PATIENCE, Schema, login, one, refused, rows, run, write_one};

/// Functions that applications may call, by name.
const FOR_APPLICATIONS: [&str; 16] = [
    "begin_request",
    "canonical_meaning",
    "canonical_text",
    "complete_inbox",
    "enqueue",
    "enqueue_bytes",
    "explain_message",
    "explain_request",
    "fail_inbox",
    "finish_request",
    "new_message_id",
    "record_delivery",
    "request_outcome",
    "store_inbox_messages",
    "store_outbox_messages",
    "take_inbox",
];
/// What a handler enqueues is written by the worker that runs it: it may write what applications may.
const FOR_WORKERS: [&str; 32] = [
    "begin_request",
    "bury_messages",
    "canonical_meaning",
    "canonical_text",
    "claim_work",
    "clear_handled",
    "complete_inbox_handled",
    "complete_outbox_published",
    "defer_messages",
    "deregister_worker",
    "enqueue",
    "enqueue_bytes",
    "explain_message",
    "explain_request",
    "fetch_inbox_batch",
    "fetch_outbox_batch",
    "finish_request",
    "hold_partitions",
    "inbox_handler",
    "new_message_id",
    "perform_maintenance",
    "poll_outbox",
    "record_delivery",
    "register_endpoint",
    "register_retention",
    "release_work",
    "request_outcome",
    "run_inbox_handler",
    "store_inbox_messages",
    "store_outbox_messages",
    "stream_key",
    "take_inbox_message",
];
/// What a plain INSERT needs.
const WRITES: [&str; 7] = [
    "insert outbox",
    "usage message_position",
    "usage schema",
    "select column endpoint.name",
    "select column endpoint.direction",
    "select column endpoint.ordering",
    "select column endpoint.max_message_bytes",
];
const FOR_READERS: [&str; 3] = ["explain_message", "explain_request", "stream_key"];
const TO_LOOK_AT: [&str; 10] = [
    "backlog",
    "blocked_stream",
    "dead_letter_summary",
    "deduplication_bucket",
    "deduplication_memory",
    "lease_holder",
    "request_bucket",
    "request_memory",
    "schema_version",
    "setting",
];

/// Everything that `login` may do in the schema, as `verb object`.
const MATRIX: &str = "
    select verb || ' ' || c.relname from pg_class c, unnest(array['select', 'insert', 'update', 'delete', 'truncate', 'references', 'trigger']) verb
        where c.relnamespace = 'postroom'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') and has_table_privilege($1, c.oid, verb)
    union select verb || ' column ' || c.relname || '.' || a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid, unnest(array['select', 'insert', 'update', 'references']) verb
        where c.relnamespace = 'postroom'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f') and a.attnum > 0 and not a.attisdropped
        and has_column_privilege($1, c.oid, a.attnum, verb) and not has_table_privilege($1, c.oid, verb)
    union select verb || ' ' || c.relname from pg_class c, unnest(array['usage', 'select', 'update']) verb
        where c.relnamespace = 'postroom'::regnamespace and c.relkind = 'S' and has_sequence_privilege($1, c.oid, verb)
    union select 'execute ' || p.proname from pg_proc p where p.pronamespace = 'postroom'::regnamespace and has_function_privilege($1, p.oid, 'execute')
    union select verb || ' schema' from unnest(array['usage', 'create']) verb where has_schema_privilege($1, 'postroom', verb)
    union select 'usage type ' || t.typname from pg_type t where t.typnamespace = 'postroom'::regnamespace and t.typname in ('receipt', 'message_slot', 'fetched') and has_type_privilege($1, t.oid, 'usage')";

fn expected(role: &str) -> BTreeSet<String> {
    let execute = |names: &[&str]| {
        names
            .iter()
            .map(|name| format!("execute {name}"))
            .collect::<Vec<_>>()
    };
    let select = TO_LOOK_AT.map(|name| format!("select {name}"));
    let usage = "usage schema".to_owned();
    match role {
        "app" => execute(&FOR_APPLICATIONS)
            .into_iter()
            .chain(WRITES.map(str::to_owned))
            .collect(),
        "worker" => execute(&FOR_WORKERS)
            .into_iter()
            .chain(select)
            .chain(WRITES.map(str::to_owned))
            .collect(),
        "reader" => execute(&FOR_READERS)
            .into_iter()
            .chain(select)
            .chain([usage])
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// S6: each role, each object, each verb. `nobody` is a login without any role: what it may is what PUBLIC may.
#[tokio::test]
async fn each_role_may_do_exactly_what_it_is_for_and_public_nothing() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let schema = Schema::start("matrix").await?;
    let mut admin = schema.connect().await?;
    let nobody = format!("{}_nobody", schema.database.name());
    run(
        &mut admin,
        &format!("create role {nobody} login password 'secret'"),
    )
    .await?;
    for role in ["worker", "app", "reader", "nobody"] {
        let name = if role == "nobody" {
            nobody.clone()
        } else {
            login(server, &schema.database, role).await?;
            format!("{}_login", schema.role(role))
        };
        let found: Vec<(String,)> =
            rows(&mut admin, &MATRIX.replace("$1", &format!("'{name}'"))).await?;
        let found: BTreeSet<String> = found.into_iter().map(|(right,)| right).collect();
        let expected = expected(role);
        ensure!(
            found == expected,
            "{role}: too much {:?}, too little {:?}",
            found.difference(&expected),
            expected.difference(&found)
        );
    }
    let exposed: Vec<(String,)> = rows(&mut admin, "select p.proname::text from pg_proc p where pronamespace = 'postroom'::regnamespace and prosecdef \
        and not exists (select from unnest(proconfig) c where c like 'search_path=postroom, pg_temp')").await?;
    ensure!(
        exposed.is_empty(),
        "functions that act as the owner with somebody else's search path: {exposed:?}"
    );
    Ok(())
}

/// What the matrix says is what the server does.
#[tokio::test]
async fn what_a_login_has_no_right_to_is_refused() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let schema = Schema::start("refused_rights").await?;
    let mut admin = schema.connect().await?;
    let receipt = write_one(&mut admin, "enqueue('orders', 'a', 'secret', key => 'K')").await?;
    let everybody = [
        "select * from postroom.outbox",
        "select * from postroom.inbox",
        "select * from postroom.message",
        "delete from postroom.outbox",
        "update postroom.outbox set payload = 'x'",
        "truncate postroom.outbox",
        "select * from postroom.dead_letter",
        "select * from postroom.request",
        "select * from postroom.idempotency_key",
        "insert into postroom.idempotency_key_0 select",
        "select * from postroom.message_deduplication_0",
        "update postroom.lease set owner = null",
        "insert into postroom.endpoint (name) values ('x')",
        "update postroom.setting set value = '1'",
        "create table postroom.mine ()",
        "drop schema postroom cascade",
        "select postroom.adopt_server()",
        "select postroom.put_messages('outbox', 'orders', '{}')",
        "select postroom.turn_deduplication_ring()",
        "select * from postroom.parked_message",
        "alter table postroom.outbox disable trigger fill",
    ];
    let workers_only = [
        "select postroom.claim_work(gen_random_uuid(), 'h', 'v', '5 s', '{orders}')",
        "select * from postroom.fetch_outbox_batch('orders', '{0}', '{0}', '{0}', '{}', 1, 1)",
        "select * from postroom.fetch_inbox_batch('payments', '{0}', '{0}', '{0}', '{}', 1, 1)",
        "select postroom.take_inbox_message('payments', 0::smallint, '0', 0, gen_random_uuid())",
        "select postroom.perform_maintenance()",
        "select postroom.register_endpoint('evil', 'Outbox', 'None', 'Skip', 'Hold', 1, false, '{}', '', 1)",
        "select * from postroom.poll_outbox()",
    ];
    let writers_only = [
        "insert into postroom.outbox (endpoint, type, payload) values ('orders', 'a', 'x')",
        "select postroom.enqueue('orders', 'a', 'x')",
        "select postroom.store_outbox_messages('orders', '[]')",
        "select nextval('postroom.message_position')",
    ];
    let takers_only = [
        "select postroom.take_inbox('payments')",
        "select postroom.complete_inbox('payments', '{}')",
    ];
    let lookers_only = [
        "select * from postroom.backlog",
        "select * from postroom.setting",
        "select * from postroom.schema_version",
    ];
    for (role, more) in [
        ("app", [&workers_only[..], &lookers_only]),
        ("worker", [&takers_only[..], &[]]),
        ("reader", [&workers_only[..], &writers_only]),
    ] {
        let (_, mut session) = login(server, &schema.database, role).await?;
        for statement in everybody.iter().chain(more.into_iter().flatten()) {
            let refusal = refused(&mut session, statement).await?;
            ensure!(refusal.code == "42501", "{role}: {statement}: {refusal:?}");
            ensure!(!refusal.message.contains("secret"), "{refusal:?}");
        }
    }
    let left: String = one(&mut admin, "select payload from outbox").await?;
    ensure!(left == "secret" && receipt.is_new());
    Ok(())
}

/// Plain inserts and calls, both in one transaction.
async fn write_all_ways(app: &mut PgConnection, postroom: &Postroom) -> Result<()> {
    for n in 0..20 {
        let mut draft = postroom.ledger.begin();
        run(app, "begin").await?;
        let id: Uuid = Uuid::now_v7();
        run(app, &format!("insert into postroom.outbox (endpoint, type, stream, message_id, payload) values ('{OUTBOX}', 'a', 's', '{id}', 'plain {n}')")).await?;
        draft.wrote(Some("s"), id, format!("plain {n}").as_bytes());
        let receipt = write_one(
            app,
            &format!("enqueue('{OUTBOX}', 'a', 'call {n}', stream => 's', key => 'K{n}')"),
        )
        .await?;
        draft.wrote(Some("s"), receipt.id, format!("call {n}").as_bytes());
        run(app, "commit").await?;
        draft.end(Outcome::Committed);
    }
    Ok(())
}

/// W-46, contracts 1: the application logs in as a member of the application role only, the worker of the worker role only.
#[tokio::test]
async fn the_whole_flow_works_with_exactly_these_rights() -> Result<()> {
    let server = PostgresServer::shared().await?;
    let postroom = Postroom::start("rights_flow", |resource| resource).await?;
    let (worker_url, mut as_worker) = login(server, &postroom.database, "worker").await?;
    let (_, mut app) = login(server, &postroom.database, "app").await?;
    let (_, mut reader) = login(server, &postroom.database, "reader").await?;
    let launch = |command: &str| postroom.launch(command).database_url(&worker_url);
    let worker = launch("run").start()?;
    worker.ready(PATIENCE).await?;
    write_all_ways(&mut app, &postroom).await?;
    let late = write_one(
        &mut app,
        &format!("enqueue('{OUTBOX}', 'a', 'later', available_at => 'infinity')"),
    )
    .await?;
    postroom.verdict(PATIENCE).await?.require(0)?;
    worker
        .wait_stats(
            "only the scheduled one is left",
            PATIENCE,
            |status, stats| {
                status == 200
                    && stats["endpoints"][0]["pending"] == 0
                    && stats["endpoints"][0]["deferred"] == 1
            },
        )
        .await?;
    let text = launch("stats").succeed().await?;
    ensure!(text.contains(OUTBOX), "{text}");
    let text = postroom
        .launch("explain")
        .arguments(&[&late.id.to_string()])
        .database_url(&worker_url)
        .succeed()
        .await?;
    ensure!(text.contains("scheduled"), "{text}");
    for view in [
        "backlog",
        "blocked_stream",
        "lease_holder",
        "request_bucket",
        "dead_letter_summary",
        "deduplication_memory",
    ] {
        run(&mut reader, &format!("select * from postroom.{view}")).await?;
        run(&mut as_worker, &format!("select * from postroom.{view}")).await?;
    }
    run(
        &mut as_worker,
        "select * from postroom.perform_maintenance()",
    )
    .await?;
    let output = launch("migrate").output().await?;
    ensure!(
        output.status.code() == Some(4),
        "a worker's login cannot migrate: {output:?}"
    );
    worker.sigterm()?;
    ensure!(
        worker.wait_exit(PATIENCE).await?.success(),
        "it may also leave in good order"
    );
    Ok(())
}
