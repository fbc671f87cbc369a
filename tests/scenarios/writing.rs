//! Writing messages: who gets which receipt, and what makes two writes the same message.

use anyhow::{Result, ensure};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use crate::sql::{Schema, arrays, count, keys, one, refused, rows, run, write, write_one};

async fn complete_everything(session: &mut PgConnection) -> Result<()> {
    let waiting = keys(session, "orders").await?;
    let arguments = arrays(&waiting, |_| 1);
    let deleted: i64 = one(
        session,
        &format!(
            "select deleted from postroom.complete_outbox_published('{}', 'orders', {arguments})",
            Uuid::new_v4()
        ),
    )
    .await?;
    ensure!(deleted > 0);
    Ok(())
}

/// L-03, L-11, L-13, L-20, L-21, L-26, L-T1, L-T2, L-T5, W-T5.
#[tokio::test]
async fn a_repeated_key_gets_the_first_receipt_again_even_after_the_message_was_published()
-> Result<()> {
    let schema = Schema::start("repeat").await?;
    let mut session = schema.connect().await?;
    let call = "enqueue('orders', 'placed', '{\"n\":1}', key => 'K-1')";
    let first = write_one(&mut session, call).await?;
    ensure!(first.is_new() && first.slot == 0, "{first:?}");
    for _ in 0..2 {
        let again = write_one(&mut session, call).await?;
        ensure!(again.outcome == "AlreadyEnqueued", "{again:?}");
        ensure!(again.names_the_same(&first), "{again:?} {first:?}");
        ensure!(count(&mut session, "outbox").await? <= 1, "no second row");
        if count(&mut session, "outbox").await? == 1 {
            complete_everything(&mut session).await?;
        }
    }
    let other = write_one(
        &mut session,
        "enqueue('orders', 'placed', '{\"n\":1}', key => 'K-2')",
    )
    .await?;
    ensure!(
        other.is_new() && other.id != first.id,
        "equal bodies are not the same intent"
    );
    Ok(())
}

/// L-21: the first write need not be committed yet, only be earlier in the same transaction.
#[tokio::test]
async fn a_repeat_in_the_same_transaction_is_recognised_and_forgotten_with_its_rollback()
-> Result<()> {
    let schema = Schema::start("same_transaction").await?;
    let mut session = schema.connect().await?;
    let call = "enqueue('orders', 'placed', '{}', key => 'K')";
    run(&mut session, "begin").await?;
    ensure!(write_one(&mut session, call).await?.is_new());
    ensure!(!write_one(&mut session, call).await?.is_new());
    run(&mut session, "rollback").await?;
    ensure!(
        write_one(&mut session, call).await?.is_new(),
        "what was rolled back was never accepted"
    );
    Ok(())
}

/// L-04, L-05, L-22, L-T11, L-T12.
#[tokio::test]
async fn strict_refuses_a_repeat_and_with_it_the_whole_transaction() -> Result<()> {
    let schema = Schema::start("strict").await?;
    let mut session = schema.connect().await?;
    run(&mut session, "create table public.business (n int)").await?;
    for identity in ["key => 'K'", "message_id => 'ORDER-7'"] {
        let call = format!("enqueue('orders', 'placed', '{{}}', {identity}, conflict => 'strict')");
        ensure!(write_one(&mut session, &call).await?.is_new());
        run(
            &mut session,
            "begin; insert into public.business values (1)",
        )
        .await?;
        let refusal = refused(&mut session, &format!("select postroom.{call}")).await?;
        ensure!(refusal.code == "PR001", "{refusal:?}");
        ensure!(refusal.message.contains("was stored before"), "{refusal:?}");
        run(&mut session, "commit").await?;
        ensure!(
            count(&mut session, "public.business").await? == 0,
            "no silent repeat"
        );
    }
    ensure!(count(&mut session, "outbox").await? == 2);
    Ok(())
}

/// G8, G-03: type, content type and payload are the meaning.
#[tokio::test]
async fn the_same_identity_with_another_meaning_is_refused_in_both_modes() -> Result<()> {
    let schema = Schema::start("meaning").await?;
    let mut session = schema.connect().await?;
    let calls = [
        "'placed', '{}'",
        "'moved', '{}'",
        "'placed', '{ }'",
        "'placed', '{}', content_type => 'text/plain'",
    ];
    for identity in ["key => 'K'", "message_id => 'ORDER-7'"] {
        for (number, call) in calls.into_iter().enumerate() {
            for mode in ["return_existing", "strict"] {
                let call =
                    format!("postroom.enqueue('orders', {call}, {identity}, conflict => '{mode}')");
                if number == 0 && mode == "return_existing" {
                    run(&mut session, &format!("select {call}")).await?;
                } else if number > 0 {
                    let refusal = refused(&mut session, &format!("select {call}")).await?;
                    ensure!(refusal.code == "PR002", "{call}: {refusal:?}");
                }
            }
        }
    }
    ensure!(count(&mut session, "outbox").await? == 2);
    ensure!(
        write_one(
            &mut session,
            "enqueue('orders', 'placed', '{}', key => 'K', stream => 'elsewhere')"
        )
        .await?
        .outcome
            == "AlreadyEnqueued",
        "where it goes is not what it means"
    );
    Ok(())
}

/// L-15, L-24, L-T13: the third and fifth slot repeat the first; the sixth repeats an earlier call.
#[tokio::test]
async fn a_batch_answers_one_receipt_per_slot_and_stores_each_message_once_in_slot_order()
-> Result<()> {
    let schema = Schema::start("batch").await?;
    let mut session = schema.connect().await?;
    let earlier = write_one(&mut session, "enqueue('orders', 'f', 'six', key => 'old')").await?;
    let slots = r#"[{"type":"z","payload":{"n":1},"key":"zz","stream":"s"}, {"type":"b","payload_base64":"AAH/","stream":"s"},
        {"type":"z","payload":{"n":1},"key":"zz"}, {"type":"d","payload":"plain","key":"aa","stream":"s"},
        {"type":"z","payload":{"n":1},"key":"zz","message_id":"ORDER-9"}, {"type":"f","payload":"six","key":"old"}, {"type":"g","payload":[1],"stream":"s"}]"#;
    let receipts = write(
        &mut session,
        &format!("store_outbox_messages('orders', '{slots}')"),
    )
    .await?;
    let outcomes: Vec<bool> = receipts.iter().map(super::sql::Receipt::is_new).collect();
    ensure!(
        outcomes == [true, true, false, true, false, false, true],
        "{receipts:?}"
    );
    ensure!(
        receipts.iter().map(|receipt| receipt.slot).eq(0..7),
        "{receipts:?}"
    );
    ensure!(
        receipts[2].names_the_same(&receipts[0]) && receipts[4].names_the_same(&receipts[0]),
        "{receipts:?}"
    );
    ensure!(receipts[5].names_the_same(&earlier), "{receipts:?}");
    let stored: Vec<(String, i64, Vec<u8>)> = rows(
        &mut session,
        "select type, id, coalesce(payload_bytes, convert_to(payload, 'UTF8')) from outbox where stream = 's' order by xact, id",
    )
    .await?;
    let types: Vec<&str> = stored.iter().map(|(kind, ..)| kind.as_str()).collect();
    ensure!(
        types == ["z", "b", "d", "g"],
        "keys are remembered in their own order, rows keep the slots': {stored:?}"
    );
    let positions: Vec<i64> = receipts
        .iter()
        .filter(|receipt| receipt.is_new())
        .map(|receipt| receipt.position)
        .collect();
    ensure!(
        stored.iter().map(|(_, id, _)| *id).eq(positions),
        "{stored:?}"
    );
    ensure!(
        stored[1].2 == [0, 1, 255] && stored[2].2 == b"plain" && stored[3].2 == b"[1]",
        "{stored:?}"
    );
    ensure!(
        write(&mut session, "store_outbox_messages('orders', '[]')")
            .await?
            .is_empty(),
        "an empty batch is no mistake"
    );
    Ok(())
}

/// A key that is new for a message that is not: it names the first message from then on, in every slot.
#[tokio::test]
async fn a_new_key_for_a_known_message_id_leads_to_the_first_message() -> Result<()> {
    let schema = Schema::start("second_key").await?;
    let mut session = schema.connect().await?;
    let first = write_one(
        &mut session,
        "enqueue('orders', 'a', 'x', message_id => 'ORDER-1')",
    )
    .await?;
    let slots = r#"[{"type":"a","payload":"x","message_id":"ORDER-1","key":"K"}, {"type":"a","payload":"x","key":"K"}]"#;
    for call in [
        &format!("store_outbox_messages('orders', '{slots}')"),
        "enqueue('orders', 'a', 'x', key => 'K')",
    ] {
        for receipt in write(&mut session, call).await? {
            ensure!(
                !receipt.is_new() && receipt.names_the_same(&first),
                "{receipt:?} {first:?}"
            );
        }
    }
    ensure!(count(&mut session, "outbox").await? == 1);
    Ok(())
}

/// L-06, L-07, W-50, W-51.
#[tokio::test]
async fn generated_ids_are_ordered_by_time_and_foreign_ones_are_stable() -> Result<()> {
    let schema = Schema::start("ids").await?;
    let mut session = schema.connect().await?;
    let mut last = Uuid::nil();
    for _ in 0..20 {
        let receipt =
            write_one(&mut session, "enqueue('orders', 'a', 'x'), pg_sleep(0.002)").await?;
        ensure!(
            receipt.id.get_version_num() == 7 && receipt.id > last,
            "{receipt:?} after {last}"
        );
        last = receipt.id;
    }
    let given = Uuid::new_v4();
    let receipt = write_one(
        &mut session,
        &format!(
            "enqueue('orders', 'a', 'x', message_id => '{}')",
            given.to_string().to_uppercase()
        ),
    )
    .await?;
    ensure!(receipt.is_new() && receipt.id == given, "{receipt:?}");
    ensure!(
        !write_one(
            &mut session,
            &format!("enqueue('orders', 'a', 'x', message_id => '{given}')")
        )
        .await?
        .is_new()
    );
    let foreign = write_one(
        &mut session,
        "enqueue('orders', 'a', 'x', message_id => 'ÖRDER 7/3')",
    )
    .await?;
    ensure!(
        foreign.id.get_version_num() == 8 && foreign.id.get_variant() == uuid::Variant::RFC4122,
        "{foreign:?}"
    );
    ensure!(
        !write_one(
            &mut session,
            "enqueue('orders', 'a', 'x', message_id => ' ÖRDER 7/3 ')"
        )
        .await?
        .is_new(),
        "blanks around it do not count"
    );
    let elsewhere = write_one(
        &mut session,
        "enqueue('loose', 'a', 'x', message_id => 'ÖRDER 7/3')",
    )
    .await?;
    ensure!(
        elsewhere.is_new() && elsewhere.id != foreign.id,
        "an id means something within its endpoint"
    );
    let kept: Vec<(Uuid, Option<String>)> = rows(&mut session, "select message_id, foreign_id from outbox where endpoint = 'orders' order by id desc limit 2").await?;
    ensure!(
        kept == [(foreign.id, Some("ÖRDER 7/3".to_owned())), (given, None)],
        "{kept:?}"
    );
    Ok(())
}

/// L-10, L-23, L-25, L-T3, L-T4.
#[tokio::test]
async fn tenants_do_not_share_keys_and_no_tenant_is_the_empty_one() -> Result<()> {
    let schema = Schema::start("tenants").await?;
    let mut session = schema.connect().await?;
    for identity in ["key => 'REQ-17'", "message_id => 'REQ-17'"] {
        for (tenant, new) in [
            ("'T-A'", true),
            ("'T-B'", true),
            ("null", true),
            ("'  '", false),
            ("''", false),
            ("'T-A'", false),
        ] {
            let call = format!("enqueue('orders', 'a', 'x', {identity}, tenant => {tenant})");
            let receipt = write_one(&mut session, &call).await?;
            ensure!(receipt.is_new() == new, "{call}: {receipt:?}");
        }
    }
    let tenants: Vec<(String,)> =
        rows(&mut session, "select tenant from outbox order by id").await?;
    let tenants: Vec<&str> = tenants.iter().map(|(tenant,)| tenant.as_str()).collect();
    ensure!(
        tenants == ["T-A", "T-B", "", "T-A", "T-B", ""],
        "{tenants:?}"
    );
    Ok(())
}
