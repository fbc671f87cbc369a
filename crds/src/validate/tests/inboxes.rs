use serde_json::{Value, json};

use crate::manifest::tests::{assert_each, broken, with};

#[test]
fn the_numbers_of_an_inbox_keep_their_bounds() {
    for (field, low, high, rule) in [
        ("consumer/prefetch", 0, 10_001, "between 1 and 10000"),
        ("consumer/batchSize", 0, 5_001, "between 1 and 5000"),
        (
            "consumer/maxBatchDelayMilliseconds",
            -1,
            1_001,
            "between 0 and 1000",
        ),
        (
            "consumer/maxMessageBytes",
            1_023,
            134_217_729,
            "between 1024 and 134217728",
        ),
        (
            "handler/sqlFunction/timeoutSeconds",
            0,
            3_601,
            "between 1 and 3600",
        ),
        ("handler/sqlFunction/concurrency", 0, 65, "between 1 and 64"),
        (
            "handler/sqlFunction/batchSize",
            0,
            1_001,
            "between 1 and 1000",
        ),
        ("retry/maxAttempts", -1, 10_001, "between 0 and 10000"),
    ] {
        for value in [low, high] {
            let found = with(&format!("/spec/inboxes/0/{field}"), &json!(value));
            let path = field.replace('/', ".");
            let rule = match value {
                -1 => "a whole number between 0 and",
                _ => rule,
            };
            let expected = format!("`spec.inboxes[0].{path}` is {value} but must be {rule}");
            let says_so = |sentence: &String| sentence.starts_with(&expected);
            assert!(found.iter().any(says_so), "{found:?} lacks: {expected}");
        }
    }
    assert_eq!(
        with("/spec/inboxes/1/tenant/segment", &json!(128)),
        ["`spec.inboxes[1].tenant.segment` is 128 but must be between 0 and 127"]
    );
}

#[test]
fn a_name_belongs_to_one_endpoint_whatever_its_direction() {
    assert_each(&[
        (
            "/spec/inboxes/1/name",
            json!("payments"),
            "`spec.inboxes[1].name` is 'payments' but must be a name that no earlier entry of `spec.inboxes` has",
        ),
        (
            "/spec/inboxes/1/name",
            json!("audit-trail"),
            "`spec.inboxes[1].name` is 'audit-trail' but must be a name that no entry of `spec.outboxes` has",
        ),
    ]);
}

#[test]
fn an_inbox_names_its_queue_its_types_and_its_transport() {
    let inbox = "/spec/inboxes/0";
    assert_each(&[
        (
            &format!("{inbox}/queue"),
            json!(""),
            "`spec.inboxes[0].queue` is '' but must be 1 to 255 bytes",
        ),
        (
            &format!("{inbox}/types/1"),
            json!(""),
            "`spec.inboxes[0].types[1]` is '' but must be 1 to 255 bytes",
        ),
        (
            &format!("{inbox}/types"),
            json!(vec!["t"; 257]),
            "`spec.inboxes[0].types` has 257 entries but must have at most 256",
        ),
        (
            &format!("{inbox}/transport"),
            json!("mian"),
            "`spec.inboxes[0].transport` is 'mian' but must be the name of a transport: one of 'main', 'audit'",
        ),
        (
            &format!("{inbox}/consumer/batchSize"),
            json!(501),
            "`spec.inboxes[0].consumer.batchSize` is 501 but must be at most `spec.inboxes[0].consumer.prefetch`, which is 500",
        ),
    ]);
    let left_out = broken(|manifest| {
        let inbox = manifest.pointer_mut("/spec/inboxes/0").unwrap();
        inbox.as_object_mut().unwrap().remove("transport");
    });
    assert_eq!(
        left_out,
        [
            "`spec.inboxes[0].transport` is left out but must be given where there are several transports: one of 'main', 'audit'"
        ]
    );
}

#[test]
fn a_source_has_its_own_members_and_no_others() {
    let replaced = |part: &str, value: Value| with(&format!("/spec/inboxes/0/{part}"), &value);
    for part in ["identity", "stream", "tenant"] {
        let missing = replaced(part, json!({"source": "Header"}));
        let expected = format!(
            "`spec.inboxes[0].{part}.header` is left out but must be given where `source` is 'Header'"
        );
        assert_eq!(missing, [expected]);
        let empty = replaced(part, json!({"source": "Header", "header": ""}));
        let expected = format!("`spec.inboxes[0].{part}.header` is '' but must be 1 to 255 bytes");
        assert_eq!(empty, [expected]);
    }
    for (part, source) in [
        ("identity", "MessageId"),
        ("identity", "CloudEventId"),
        ("identity", "PayloadSha256"),
        ("stream", "None"),
        ("stream", "RoutingKey"),
        ("tenant", "None"),
    ] {
        assert_eq!(replaced(part, json!({ "source": source })), [""; 0]);
        let found = replaced(part, json!({"source": source, "header": "x"}));
        let expected = format!(
            "`spec.inboxes[0].{part}.header` is given but must be left out unless `source` is 'Header'"
        );
        assert_eq!(found, [expected]);
    }
    for (source, member, value, other) in [
        ("RoutingKeySegment", "segment", json!(0), "Static"),
        ("Static", "value", json!("acme"), "RoutingKeySegment"),
    ] {
        let path = format!("spec.inboxes[0].tenant.{member}");
        assert_eq!(
            replaced("tenant", json!({"source": source, member: value})),
            [""; 0]
        );
        assert_eq!(
            replaced("tenant", json!({ "source": source })),
            [format!(
                "`{path}` is left out but must be given where `source` is '{source}'"
            )]
        );
        let found = replaced("tenant", json!({"source": other, member: value}));
        let expected =
            format!("`{path}` is given but must be left out unless `source` is '{source}'");
        assert!(found.contains(&expected), "{found:?}");
    }
}

#[test]
fn a_tenant_can_be_required_only_of_the_message_and_is_not_blank() {
    for tenant in [
        json!({"source": "None", "required": true}),
        json!({"source": "Static", "value": "acme", "required": true}),
    ] {
        assert_eq!(
            with("/spec/inboxes/0/tenant", &tenant),
            [
                "`spec.inboxes[0].tenant.required` is true but must be false unless `source` is 'Header' or 'RoutingKeySegment'"
            ]
        );
    }
    assert_eq!(
        with("/spec/inboxes/2/tenant/value", &json!("  ")),
        [
            "`spec.inboxes[2].tenant.value` has only spaces, which is no tenant, but must have another character"
        ]
    );
}

#[test]
fn an_inbox_has_exactly_one_handler() {
    let function = json!({"name": "app.f"});
    for (handler, rest) in [
        (json!({}), "has neither `sqlFunction` nor `pull`"),
        (
            json!({"sqlFunction": function, "pull": {}}),
            "has both `sqlFunction` and `pull`",
        ),
    ] {
        let expected =
            format!("`spec.inboxes[0].handler` {rest} but must have exactly one of the two");
        assert_eq!(with("/spec/inboxes/0/handler", &handler), [expected]);
    }
    let refused = with("/spec/inboxes/0/handler/http", &json!({}));
    assert_eq!(
        refused,
        [
            "`spec.inboxes[0].handler.http` is not a known field; allowed here are `sqlFunction`, `pull`"
        ]
    );
}

#[test]
fn a_function_is_named_with_its_schema_and_without_quotes() {
    let pointer = "/spec/inboxes/0/handler/sqlFunction/name";
    let rule = "be the schema and the name of a function with a dot between them, each 1 to 63 lower-case letters, digits and underscores, not starting with a digit";
    for name in [
        "",
        "handle",
        "app.",
        ".handle",
        "app.handle.it",
        "App.handle",
        "app.handle()",
        "app.1st",
        "app. handle",
        "\"app\".handle",
        &format!("app.{}", "f".repeat(64)),
    ] {
        let shown = name.escape_debug();
        let expected =
            format!("`spec.inboxes[0].handler.sqlFunction.name` is '{shown}' but must {rule}");
        assert_eq!(with(pointer, &json!(name)), [expected]);
    }
    for name in ["a.b", "_app.handle_2", &format!("app.{}", "f".repeat(63))] {
        assert_eq!(with(pointer, &json!(name)), [""; 0], "{name}");
    }
}

/// A call that is still running when the worker must end would be tried again for ever.
#[test]
fn the_grace_period_is_longer_than_the_longest_call() {
    let pointer = "/spec/inboxes/0/handler/sqlFunction/timeoutSeconds";
    assert_eq!(with(pointer, &json!(55)), [""; 0]);
    assert_eq!(
        with(pointer, &json!(56)),
        [
            "`spec.inboxes[0].handler.sqlFunction.timeoutSeconds` is 56 but must be at least 5 less than `spec.workers.terminationGracePeriodSeconds`, which is 60"
        ]
    );
}
