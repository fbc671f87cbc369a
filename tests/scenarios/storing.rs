//! Storing deliveries: each once, whatever comes how often, in which batch, beside which other session.

use anyhow::{Context as _, Result, ensure};
use sqlx::postgres::PgConnection;

use crate::inboxes::{Delivery, Right, receive, start, store};
use crate::sql::{Schema, count, one, refusal, run};

/// What two sessions store at the same moment: the same thousand ids, one of them backwards.
fn thousand() -> Vec<Delivery> {
    (0..1_000)
        .map(|n| Delivery::new(&format!("m-{n}"), &n.to_string()).stream(&format!("s{}", n % 9)))
        .collect()
}

/// T-25, G8, G-03: it is never a repeat; both digests are kept, once however often it comes.
#[tokio::test]
async fn the_same_id_or_key_with_another_meaning_is_kept_apart_once() -> Result<()> {
    let schema = start("store_conflict").await?;
    let mut session = schema.connect().await?;
    let first = Delivery::new("A", "1");
    let other = Delivery::new("A", "2");
    ensure!(
        receive(
            &mut session,
            "tasks",
            &[first.clone(), other.clone(), first.clone()]
        )
        .await?
            == ["Accepted", "Conflict", "AlreadyAccepted"]
    );
    for _ in 0..3 {
        let outcomes = receive(&mut session, "tasks", &[other.clone(), first.clone()]).await?;
        ensure!(outcomes == ["Conflict", "AlreadyAccepted"], "{outcomes:?}");
    }
    let typed = Delivery {
        kind: "b".to_owned(),
        ..first.clone()
    };
    ensure!(receive(&mut session, "tasks", &[typed]).await? == ["Conflict"]);
    let keyed = Delivery::new("B", "1").key("K");
    ensure!(receive(&mut session, "tasks", &[keyed]).await? == ["Accepted"]);
    let keyed = Delivery::new("C", "2").key("K");
    for _ in 0..2 {
        ensure!(
            receive(&mut session, "tasks", std::slice::from_ref(&keyed)).await? == ["Conflict"]
        );
    }
    let digest = |body: &str| format!("encode(message_digest('a', 'text/plain', '{body}'), 'hex')");
    let both = format!(
        "dead_letter where reason = 'Conflict' and error like '%' || {} || '%' || {} || '%'",
        digest("1"),
        digest("2")
    );
    ensure!(count(&mut session, &both).await? == 2, "both digests");
    ensure!(
        count(&mut session, "dead_letter").await? == 3,
        "the other body, the other type, the other key"
    );
    ensure!(
        count(&mut session, "inbox where payload = '1'").await? == 2
            && count(&mut session, "inbox").await? == 2
    );
    Ok(())
}

/// L-43, L-T10: what cannot be accepted is kept once; nothing is remembered of it.
#[tokio::test]
async fn a_refused_delivery_is_kept_once_and_its_neighbours_are_accepted() -> Result<()> {
    let schema = start("store_refused").await?;
    let mut session = schema.connect().await?;
    let refused = Delivery {
        foreign: None,
        refusal: Some("MissingIdentity".to_owned()),
        ..Delivery::new("", "who knows")
    };
    let batch = [
        Delivery::new("A", "1"),
        refused.clone(),
        Delivery::new("B", "2"),
        refused,
    ];
    ensure!(
        receive(&mut session, "tasks", &batch).await?
            == ["Accepted", "Refused", "Accepted", "Refused"]
    );
    ensure!(
        receive(&mut session, "tasks", &batch).await?
            == ["AlreadyAccepted", "Refused", "AlreadyAccepted", "Refused"]
    );
    ensure!(
        count(
            &mut session,
            "dead_letter where reason = 'MissingIdentity' and payload = 'who knows'"
        )
        .await?
            == 1
    );
    ensure!(
        count(&mut session, "message_deduplication").await? == 2
            && count(&mut session, "inbox").await? == 2
    );
    Ok(())
}

/// L-42: a sender's key is remembered beside the id; either makes a repeat.
#[tokio::test]
async fn a_trusted_key_makes_a_repeat_under_any_id() -> Result<()> {
    let schema = start("store_keys").await?;
    let mut session = schema.connect().await?;
    let batch = [
        Delivery::new("A", "1").key("K"),
        Delivery::new("B", "1").key("K"),
        Delivery::new("C", "1"),
        Delivery::new("D", "1").key("K").tenant("T"),
    ];
    let expected = ["Accepted", "AlreadyAccepted", "Accepted", "Accepted"];
    ensure!(receive(&mut session, "tasks", &batch).await? == expected);
    ensure!(
        receive(&mut session, "tasks", &batch)
            .await?
            .iter()
            .all(|outcome| outcome == "AlreadyAccepted")
    );
    ensure!(
        count(&mut session, "inbox").await? == 3
            && count(&mut session, "idempotency_key").await? == 2
    );
    Ok(())
}

/// L-T3, L-T4, L-25, F24: tenants and inboxes share nothing; no tenant, or a blank one, is the empty one.
#[tokio::test]
async fn tenants_and_inboxes_of_one_schema_share_no_memory() -> Result<()> {
    let schema = start("store_apart").await?;
    let mut session = schema.connect().await?;
    let one = Delivery::new("A", "1");
    let batch = [
        one.clone(),
        one.clone().tenant("T"),
        one.clone().tenant("U"),
        one.clone().tenant("  "),
        one.tenant(""),
    ];
    let expected = [
        "Accepted",
        "Accepted",
        "Accepted",
        "AlreadyAccepted",
        "AlreadyAccepted",
    ];
    for inbox in ["tasks", "payments"] {
        ensure!(
            receive(&mut session, inbox, &batch).await? == expected,
            "{inbox}"
        );
    }
    ensure!(count(&mut session, "inbox").await? == 6);
    let ids = count(
        &mut session,
        "(select distinct endpoint, message_id from inbox) i",
    )
    .await?;
    ensure!(
        ids == 2,
        "a foreign id means something within its inbox: {ids}"
    );
    Ok(())
}

/// Both sessions go off at one instant, when a third gives an advisory lock back.
async fn race(schema: &Schema, level: &str, call: Call) -> Result<(usize, usize)> {
    let mut starter = schema.connect().await?;
    run(&mut starter, "select pg_advisory_lock(4711)").await?;
    let racer = |backwards: bool| async move {
        let mut session = schema.connect().await?;
        run(
            &mut session,
            &format!("set default_transaction_isolation = '{level}'"),
        )
        .await?;
        let mut batch = thousand();
        if backwards {
            batch.reverse();
        }
        run(&mut session, "select pg_advisory_lock_shared(4711)").await?;
        let mut accepted = 0;
        for part in batch.chunks(250) {
            loop {
                match call.make(&mut session, part).await {
                    Ok(outcomes) => {
                        accepted += outcomes
                            .iter()
                            .filter(|outcome| *outcome == "Accepted")
                            .count();
                        break;
                    }
                    Err(error) => {
                        let refused = refusal(error)?;
                        ensure!(refused.code == "40001", "{refused:?}");
                    }
                }
            }
        }
        Ok(accepted)
    };
    let (a, b, ()) = tokio::try_join!(racer(false), racer(true), async {
        let mut observer = schema.connect().await?;
        crate::sql::until(&mut observer, "select count(*) = 2 from pg_locks where locktype = 'advisory' and objid = 4711 and not granted").await?;
        run(&mut starter, "select pg_advisory_unlock(4711)").await
    })?;
    Ok((a, b))
}

/// How a race stores: as it should, or looking first and inserting then.
#[derive(Debug, Clone, Copy)]
enum Call {
    Real,
    LooksFirst,
}

impl Call {
    async fn make(
        self,
        session: &mut PgConnection,
        batch: &[Delivery],
    ) -> sqlx::Result<Vec<String>> {
        if matches!(self, Self::Real) {
            return Ok(store(session, Right::default(), "loose", batch)
                .await?
                .unwrap_or_default());
        }
        let ids: Vec<&str> = batch
            .iter()
            .filter_map(|one| one.foreign.as_deref())
            .collect();
        sqlx::query_scalar("select wrong.store($1)")
            .bind(ids)
            .fetch_all(session)
            .await
    }
}

/// F25, T-17, W-25: the unique key decides, in both levels; nobody dead-locks though one goes backwards.
#[tokio::test]
async fn two_sessions_with_the_same_thousand_ids_accept_each_once() -> Result<()> {
    for level in ["read committed", "repeatable read"] {
        let schema = start("store_race").await?;
        let (a, b) = race(&schema, level, Call::Real).await?;
        ensure!(a + b == 1_000, "{level}: {a} and {b}");
        let mut session = schema.connect().await?;
        ensure!(count(&mut session, "inbox").await? == 1_000, "{level}");
        ensure!(count(&mut session, "(select distinct message_id from inbox) i").await? == 1_000);
    }
    Ok(())
}

/// Red control: a store that looks an identity up, and inserts where it finds none, is caught by the same race.
#[tokio::test]
async fn a_store_that_looks_identities_up_instead_of_enforcing_them_is_caught() -> Result<()> {
    let schema = start("red_lookup").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "create schema wrong; create table wrong.seen (id text); create table wrong.inbox (id text);
        create function wrong.store(ids text[]) returns setof text language plpgsql as $$
        declare i text;
        begin
            foreach i in array ids loop
                if exists (select from wrong.seen s where s.id = i) then
                    return next 'AlreadyAccepted';
                else
                    insert into wrong.seen values (i);
                    insert into wrong.inbox values (i);
                    return next 'Accepted';
                end if;
            end loop;
        end $$").await?;
    for _ in 0..5 {
        let (a, b) = race(&schema, "read committed", Call::LooksFirst).await?;
        let stored = count(&mut session, "wrong.inbox").await?;
        if a + b > 1_000 && stored > 1_000 {
            return Ok(());
        }
        run(&mut session, "truncate wrong.seen, wrong.inbox").await?;
    }
    anyhow::bail!("it was never caught")
}

/// Red control: one that takes a conflict for a repeat loses a message without a trace, which the check of digests shows.
#[tokio::test]
async fn a_store_that_takes_a_conflict_for_a_repeat_is_caught() -> Result<()> {
    let schema = start("red_conflict").await?;
    let mut session = schema.connect().await?;
    let pair = [Delivery::new("A", "1"), Delivery::new("A", "2")];
    let traces = async |session: &mut PgConnection| -> Result<i64> {
        Ok(count(session, "inbox").await? + count(session, "dead_letter").await?)
    };
    receive(&mut session, "tasks", &pair).await?;
    ensure!(
        traces(&mut session).await? == 2,
        "every meaning is kept somewhere"
    );
    // The same with a digest that is blind for the body.
    let source: String = one(&mut session, "select pg_get_functiondef(p.oid) from pg_proc p where pronamespace = 'postroom'::regnamespace and proname = 'store_inbox_messages' and pronargs > 2").await?;
    let blind = source.replace(
        "|| coalesce(u.bytes, convert_to(u.payload, 'UTF8'))) as digest",
        ") as digest",
    );
    ensure!(
        blind != source,
        "the digest is where this test looks for it"
    );
    run(&mut session, &blind).await?;
    run(
        &mut session,
        "truncate inbox, dead_letter, message_deduplication",
    )
    .await?;
    receive(&mut session, "tasks", &pair).await?;
    ensure!(
        traces(&mut session).await? == 1,
        "the second meaning is gone without a trace, and this test sees it"
    );
    Ok(())
}

/// A turn of the ring needs the lock alone; sessions that go on accepting put it off for moments, and nothing comes twice.
#[tokio::test]
async fn the_memory_turns_under_load_and_no_repeat_gets_through() -> Result<()> {
    for level in ["read committed", "repeatable read"] {
        let schema = start("store_turn").await?;
        let (mut keeper, done) = (schema.connect().await?, tokio::sync::Notify::new());
        let receiver = |offset: usize| {
            let schema = &schema;
            async move {
                let mut session = schema.connect().await?;
                run(
                    &mut session,
                    &format!("set default_transaction_isolation = '{level}'"),
                )
                .await?;
                let mut accepted = 0;
                for round in 0..150 {
                    let from = (round / 3 + offset) * 10; // each id three times here, and in the other session too
                    let batch: Vec<Delivery> = (from..from + 10)
                        .map(|n| Delivery::new(&format!("m-{n}"), "x"))
                        .collect();
                    loop {
                        match store(&mut session, Right::default(), "loose", &batch).await {
                            Ok(outcomes) => {
                                accepted += outcomes
                                    .context("it may")?
                                    .iter()
                                    .filter(|outcome| *outcome == "Accepted")
                                    .count();
                                break;
                            }
                            Err(error) => {
                                let refused = refusal(error)?;
                                ensure!(refused.code == "40001", "{refused:?}");
                            }
                        }
                    }
                }
                Ok::<_, anyhow::Error>(accepted)
            }
        };
        let work = async {
            let both = tokio::try_join!(receiver(0), receiver(1));
            done.notify_one();
            both
        };
        let turns = async {
            let mut turns = 0;
            loop {
                // Never more than three turns: a fourth would rightly forget.
                if turns < 3 {
                    run(&mut keeper, "update deduplication_bucket set opened_at = opened_at - interval '10 days 1 hour' where current").await?;
                    turns += one::<i64>(&mut keeper, "select coalesce(sum(rows), 0)::bigint from perform_maintenance() where task = 'deduplication_buckets'").await?;
                }
                if tokio::time::timeout(std::time::Duration::from_millis(100), done.notified())
                    .await
                    .is_ok()
                {
                    return Ok(turns);
                }
            }
        };
        let ((a, b), turns) = tokio::try_join!(work, turns)?;
        let mut session = schema.connect().await?;
        ensure!(turns > 0, "{level}: it turned meanwhile");
        ensure!(
            a + b == 510 && count(&mut session, "inbox").await? == 510,
            "{level}: {a} and {b} of 510 ids"
        );
    }
    Ok(())
}

/// Nothing may fail because of what a message contains: the broker would deliver it again for ever.
#[tokio::test]
async fn no_content_makes_a_batch_fail() -> Result<()> {
    let schema = start("store_content").await?;
    let mut session = schema.connect().await?;
    let long = "ä".repeat(127);
    let deep = format!("{{\"h\": {}1{}}}", "[".repeat(500), "]".repeat(500));
    let odd = "'; drop table inbox; --\u{feff}\u{202e}\\0 $1 @schema@";
    let batch = [
        Delivery {
            text: None,
            bytes: Some((0..=255).collect()),
            ..Delivery::new("bytes", "")
        },
        Delivery {
            kind: String::new(),
            ..Delivery::new("no type", "")
        },
        Delivery {
            kind: long.clone(),
            ..Delivery::new(&long, &long)
        }
        .stream(&long)
        .tenant(&long),
        Delivery {
            headers: Some(deep),
            ..Delivery::new("deep", "x")
        },
        Delivery {
            headers: Some("{\"a\": \"\\ud83d\\ude00\", \"$bytes\": 1e400}".to_owned()),
            ..Delivery::new("odd headers", "x")
        },
        Delivery::new(odd, odd).stream(odd).tenant(odd),
        Delivery::new("big", &"x".repeat(1 << 20)),
        Delivery::new("01a23027-5568-7914-87cb", "like a uuid"),
    ];
    for outcome in ["Accepted", "AlreadyAccepted"] {
        let outcomes = receive(&mut session, "tasks", &batch).await?;
        ensure!(outcomes.iter().all(|one| one == outcome), "{outcomes:?}");
    }
    let kept: Vec<u8> = one(
        &mut session,
        "select payload_bytes from inbox where foreign_id = 'bytes'",
    )
    .await?;
    ensure!(kept.len() == 256 && count(&mut session, "inbox").await? == 8);
    // The same one by one, beside a refusal and with keys.
    let keyed: Vec<Delivery> = batch
        .into_iter()
        .enumerate()
        .map(|(n, one)| one.key(&format!("{n}{}", "k".repeat(250))))
        .collect();
    ensure!(
        receive(&mut session, "payments", &keyed)
            .await?
            .iter()
            .all(|one| one == "Accepted")
    );
    let refused: Vec<Delivery> = keyed
        .into_iter()
        .map(|one| Delivery {
            refusal: Some("Oversize".to_owned()),
            ..one
        })
        .collect();
    ensure!(
        receive(&mut session, "tasks", &refused)
            .await?
            .iter()
            .all(|one| one == "Refused")
    );
    Ok(())
}
