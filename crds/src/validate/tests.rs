mod inboxes;

use serde_json::{Value, json};

use crate::manifest::tests::{assert_each, broken, with};

#[test]
fn a_number_out_of_bounds_is_refused_with_field_value_and_bounds() {
    let delivery = "/spec/outboxes/0/delivery";
    for (field, low, high, rule) in [
        ("batchSize", 0, 5_001, "between 1 and 5000"),
        ("maxInFlight", 0, 50_001, "between 1 and 50000"),
        ("channels", 0, 17, "between 1 and 16"),
        ("maxIdlePollMilliseconds", 1, 60_001, "between 2 and 60000"),
        (
            "maxMessageBytes",
            1_023,
            134_217_729,
            "between 1024 and 134217728",
        ),
        (
            "maxInFlightBytes",
            65_535,
            1_073_741_825,
            "between 65536 and 1073741824",
        ),
        ("confirmTimeoutSeconds", 0, 600, "between 1 and 599"),
    ] {
        for value in [low, high] {
            let found = with(&format!("{delivery}/{field}"), &json!(value));
            let expected =
                format!("`spec.outboxes[0].delivery.{field}` is {value} but must be {rule}");
            assert!(found.contains(&expected), "{found:?} lacks: {expected}");
        }
    }
    assert_each(&[
        (
            "/spec/outboxes/0/delivery/channels",
            json!(99),
            "`spec.outboxes[0].delivery.channels` is 99 but must be between 1 and 16",
        ),
        (
            "/spec/outboxes/0/retry/maxAttempts",
            json!(10_001),
            "`spec.outboxes[0].retry.maxAttempts` is 10001 but must be between 0 and 10000",
        ),
        (
            "/spec/transports/1/rabbitmq/heartbeatSeconds",
            json!(4),
            "`spec.transports[1].rabbitmq.heartbeatSeconds` is 4 but must be between 5 and 600",
        ),
        (
            "/spec/workers/leaseSeconds",
            json!(601),
            "`spec.workers.leaseSeconds` is 601 but must be between 5 and 600",
        ),
        (
            "/spec/workers/terminationGracePeriodSeconds",
            json!(3_601),
            "`spec.workers.terminationGracePeriodSeconds` is 3601 but must be between 10 and 3600",
        ),
    ]);
}

#[test]
fn names_that_a_cluster_would_refuse_are_refused() {
    let label = "lower-case letters, digits and hyphens, with a letter or digit at both ends";
    for (pointer, path, most) in [
        ("/metadata/name", "metadata.name", 52),
        ("/metadata/namespace", "metadata.namespace", 63),
        ("/spec/outboxes/0/name", "spec.outboxes[0].name", 63),
    ] {
        for name in [
            "",
            "Orders",
            "-orders",
            "orders-",
            "or_ders",
            "or.ders",
            "örders",
            &"a".repeat(64),
        ] {
            let expected =
                format!("`{path}` is '{name}' but must be a DNS label: 1 to {most} {label}");
            assert_eq!(with(pointer, &json!(name)), [expected]);
        }
    }
    assert_eq!(with("/metadata/name", &json!("a".repeat(52))), [""; 0]);
    assert_eq!(with("/metadata/name", &json!("a".repeat(53))).len(), 1);
}

#[test]
fn a_schema_name_must_be_plain_and_its_own() {
    let rule =
        "must be 1 to 40 lower-case letters, digits and underscores, not starting with a digit";
    let own = "must be a schema of its own: not 'public', not 'information_schema', not starting with 'pg_'";
    for (name, rule) in [
        ("Postroom", rule),
        ("1st", rule),
        ("a-b", rule),
        ("", rule),
        ("x\";drop", rule),
        (&"s".repeat(41), rule),
        ("public", own),
        ("pg_outbox", own),
        ("information_schema", own),
    ] {
        let shown = name.escape_debug();
        assert_eq!(
            with("/spec/database/schema", &json!(name)),
            [format!("`spec.database.schema` is '{shown}' but {rule}")]
        );
    }
    for name in ["_private", "p2", "pgx", &"s".repeat(40)] {
        assert_eq!(
            with("/spec/database/schema", &json!(name)),
            [""; 0],
            "{name}"
        );
    }
}

#[test]
fn a_secret_key_cannot_leave_its_folder() {
    for key in ["", ".", "..", "../other/uri", "a/b", "..data", "a b"] {
        let found = with("/spec/database/secretRef/key", &json!(key));
        let expected = format!(
            "`spec.database.secretRef.key` is '{key}' but must be the key of a Secret: 1 to 253 letters, digits, hyphens, underscores and dots, not '.' and not starting with '..'"
        );
        assert_eq!(found, [expected]);
    }
    for name in ["", "..", "a..b", "../x", "A", "a_b"] {
        let found = with("/spec/database/secretRef/name", &json!(name));
        assert_eq!(found.len(), 1, "{name}");
        assert!(
            found[0].contains("must be the name of a Secret"),
            "{found:?}"
        );
    }
}

#[test]
fn rules_between_fields_name_both() {
    assert_each(&[
        (
            "/spec/outboxes/0/delivery/confirmTimeoutSeconds",
            json!(15),
            "`spec.outboxes[0].delivery.confirmTimeoutSeconds` is 15 but must be less than `spec.workers.leaseSeconds`, which is 15",
        ),
        (
            "/spec/outboxes/0/retry/initialDelaySeconds",
            json!(301),
            "`spec.outboxes[0].retry.initialDelaySeconds` is 301 but must be at most `spec.outboxes[0].retry.maxDelaySeconds`, which is 300",
        ),
        (
            "/spec/outboxes/0/delivery/maxMessageBytes",
            json!(33_554_433),
            "`spec.outboxes[0].delivery.maxMessageBytes` is 33554433 but must be at most `spec.outboxes[0].delivery.maxInFlightBytes`, which is 33554432",
        ),
        (
            "/spec/outboxes/1/name",
            json!("orders"),
            "`spec.outboxes[1].name` is 'orders' but must be a name that no earlier entry of `spec.outboxes` has",
        ),
        (
            "/spec/outboxes/1/transport",
            json!("mian"),
            "`spec.outboxes[1].transport` is 'mian' but must be the name of a transport: one of 'main', 'audit'",
        ),
        (
            "/spec/database/tls/mode",
            json!("Require"),
            "`spec.database.tls.caSecretRef` is given but must be left out unless `mode` is 'VerifyCA' or 'VerifyFull'",
        ),
        (
            "/spec/transports/1/rabbitmq/tls",
            json!({"mode": "Disable", "clientCertificateSecretRef": {"name": "x"}}),
            "`spec.transports[1].rabbitmq.tls.clientCertificateSecretRef` is given but must be left out where `mode` is 'Disable'",
        ),
        (
            "/spec/transports/1/rabbitmq/tls",
            json!({"mode": "Require"}),
            "`spec.transports[1].rabbitmq.tls.mode` is 'Require' but must be 'Disable' or 'VerifyFull' for a broker",
        ),
    ]);
}

#[test]
fn a_transport_may_be_left_out_only_where_there_is_one() {
    let left_out = broken(|manifest| {
        let outbox = manifest.pointer_mut("/spec/outboxes/0").unwrap();
        outbox.as_object_mut().unwrap().remove("transport");
    });
    assert_eq!(
        left_out,
        [
            "`spec.outboxes[0].transport` is left out but must be given where there are several transports: one of 'main', 'audit'"
        ]
    );
}

#[test]
fn lists_have_a_first_and_a_last_size() {
    let transport = json!({"name": "t", "rabbitmq": {"secretRef": {"name": "s"}}});
    let nine: Vec<Value> = (0..9)
        .map(|n| {
            let mut transport = transport.clone();
            transport["name"] = json!(format!("t{n}"));
            transport
        })
        .collect();
    let found = with("/spec/transports", &json!(nine));
    let expected = "`spec.transports` has 9 entries but must have between 1 and 8";
    assert!(found.contains(&expected.to_owned()), "{found:?}");
    for list in ["outboxes", "inboxes"] {
        let endpoints = vec![json!({"name": "a"}); 33];
        let found = with(&format!("/spec/{list}"), &json!(endpoints));
        let expected = format!("`spec.{list}` has 33 entries but must have between 0 and 32");
        assert!(found.contains(&expected), "{found:?}");
    }
}

#[test]
fn one_of_the_two_lists_is_enough_but_one_there_must_be() {
    assert_eq!(with("/spec/outboxes", &json!([])), [""; 0]);
    assert_eq!(with("/spec/inboxes", &json!([])), [""; 0]);
    let neither = broken(|manifest| {
        let spec = manifest["spec"].as_object_mut().unwrap();
        spec.retain(|field, _| !field.ends_with("boxes"));
    });
    assert_eq!(
        neither,
        [
            "`spec.outboxes` is empty, and so is `spec.inboxes`, but there must be at least one outbox or inbox"
        ]
    );
}

#[test]
fn retention_is_a_duration_long_enough() {
    let form = "one to three whole numbers of at most five digits with the unit h, m or s each, such as '720h' or '1h30m'";
    for (field, value, rule) in [
        ("deduplication", "30d", form),
        ("deduplication", "59m", "between '1h' and '87600h'"),
        ("deduplication", "99999h", "between '1h' and '87600h'"),
        ("requests", "59m", "between '1h' and '87600h'"),
        ("dead", "", form),
        ("dead", "0s", "between '1m' and '87600h'"),
    ] {
        assert_eq!(
            with(&format!("/spec/retention/{field}"), &json!(value)),
            [format!(
                "`spec.retention.{field}` is '{value}' but must be {rule}"
            )]
        );
    }
}

#[test]
fn routing_keys_and_headers_keep_their_rules() {
    let members = "'{type}', '{stream}', '{tenant}' and '{header.NAME}'";
    assert_each(&[
        (
            "/spec/outboxes/0/routingKey",
            json!("order.{typ}"),
            &format!(
                "`spec.outboxes[0].routingKey` is 'order.{{typ}}' but must hold only {members} between braces, not '{{typ}}'"
            ),
        ),
        (
            "/spec/outboxes/0/routingKey",
            json!("k".repeat(256)),
            "`spec.outboxes[0].routingKey` has 256 bytes but must have at most 255",
        ),
        (
            "/spec/outboxes/0/exchange",
            json!("e".repeat(256)),
            "`spec.outboxes[0].exchange` has 256 bytes but must have at most 255",
        ),
        (
            "/spec/outboxes/0/headers/X-Postroom-Tenant",
            json!("a"),
            "`spec.outboxes[0].headers` has the name 'X-Postroom-Tenant' but names must not start with 'x-postroom-', which is kept for Postroom",
        ),
        (
            "/spec/outboxes/0/headers/",
            json!("a"),
            "`spec.outboxes[0].headers` has the name '' but names must have 1 to 255 bytes",
        ),
        (
            "/spec/outboxes/0/headers/x",
            json!("v".repeat(1_025)),
            "`spec.outboxes[0].headers['x']` has 1025 bytes but must have at most 1024",
        ),
    ]);
    let many: serde_json::Map<_, _> = (0..33).map(|n| (format!("h{n}"), json!(""))).collect();
    assert_eq!(
        with("/spec/outboxes/0/headers", &many.into()),
        ["`spec.outboxes[0].headers` has 33 entries but must have at most 32"]
    );
}

#[test]
fn the_database_is_named_in_exactly_one_way() {
    let server =
        json!({"host": "db", "database": "shop", "credentialsSecretRef": {"name": "login"}});
    assert_eq!(
        with("/spec/database/connection", &server),
        [
            "`spec.database.secretRef` is given beside `spec.database.connection` but exactly one of the two must be given"
        ]
    );
    let neither = broken(|manifest| {
        let database = manifest.pointer_mut("/spec/database").unwrap();
        database.as_object_mut().unwrap().remove("secretRef");
    });
    assert_eq!(
        neither,
        [
            "`spec.database.secretRef` is left out, and so is `spec.database.connection`, but exactly one of the two must be given"
        ]
    );
    let by_address = |member: &str, value: Value| {
        broken(|manifest| {
            let database = manifest.pointer_mut("/spec/database").unwrap();
            database.as_object_mut().unwrap().remove("secretRef");
            database["connection"] = server.clone();
            database["connection"][member] = value;
        })
    };
    assert_eq!(by_address("port", json!(5432)), [""; 0]);
    for (member, value, rule) in [
        ("port", json!(0), "is 0 but must be between 1 and 65535"),
        (
            "host",
            json!("db/x"),
            "is 'db/x' but must be a host name or an address: 1 to 253 letters, digits, hyphens, underscores, dots and colons",
        ),
        ("database", json!(""), "is '' but must be 1 to 63 bytes"),
    ] {
        let expected = format!("`spec.database.connection.{member}` {rule}");
        assert_eq!(by_address(member, value), [expected]);
    }
}

#[test]
fn behind_a_transaction_pooler_migrations_need_a_way_of_their_own() {
    let pooled = |policy: &str| {
        broken(|manifest| {
            let spec = &mut manifest["spec"];
            spec["database"]["pool"]["poolerMode"] = json!("Transaction");
            spec["migrations"] = json!({ "policy": policy });
            let database = spec["database"].as_object_mut().unwrap();
            database.remove("migrationSecretRef");
        })
    };
    assert_eq!(pooled("Disabled"), [""; 0]);
    assert_eq!(
        pooled("Automatic"),
        [
            "`spec.database.migrationSecretRef` is left out but must be given where `spec.database.pool.poolerMode` is 'Transaction' and `spec.migrations.policy` is not 'Disabled'"
        ]
    );
}

#[test]
fn migrations_and_workers_keep_their_bounds() {
    assert_each(&[
        (
            "/spec/migrations/policy",
            json!("Automatic"),
            "`spec.migrations.approvedVersion` is given but must be left out unless `policy` is 'Manual'",
        ),
        (
            "/spec/migrations/activeDeadlineSeconds",
            json!(29),
            "`spec.migrations.activeDeadlineSeconds` is 29 but must be between 30 and 86400",
        ),
        (
            "/spec/workers/replicas",
            json!(65),
            "`spec.workers.replicas` is 65 but must be between 0 and 64",
        ),
        (
            "/spec/workers/podDisruptionBudget/maxUnavailable",
            json!(0),
            "`spec.workers.podDisruptionBudget.maxUnavailable` is 0 but must be between 1 and 64",
        ),
        (
            "/spec/workers/resources/limits/memory",
            json!("256MB"),
            "`spec.workers.resources.limits.memory` is '256MB' but must be a quantity such as '100m', '2' or '256Mi'",
        ),
    ]);
    for quantity in ["100m", "2", "0.5", "1.5Gi", "256Mi"] {
        let found = with("/spec/workers/resources/requests/cpu", &json!(quantity));
        assert_eq!(found, [""; 0], "{quantity}");
    }
}

#[test]
fn a_pod_template_cannot_take_the_names_of_postroom() {
    let pod = "/spec/workers/podTemplate";
    let path = "spec.workers.podTemplate";
    assert_each(&[
        (
            &format!("{pod}/metadata/labels"),
            json!({"app.kubernetes.io/name": "other"}),
            &format!(
                "`{path}.metadata.labels` has the name 'app.kubernetes.io/name' but names must not start with 'app.kubernetes.io/', 'postroom.dev/' or 'batch.kubernetes.io/' and must not be 'pod-template-hash'"
            ),
        ),
        (
            &format!("{pod}/metadata/annotations"),
            json!({"postroom.dev/config-hash": "0"}),
            &format!(
                "`{path}.metadata.annotations` has the name 'postroom.dev/config-hash' but names must not start with 'postroom.dev/'"
            ),
        ),
        (
            &format!("{pod}/spec/env/0/name"),
            json!("1ST"),
            &format!(
                "`{path}.spec.env[0].name` is '1ST' but must be the name of a variable: 1 to 253 letters, digits and underscores, not starting with a digit"
            ),
        ),
        (
            &format!("{pod}/spec/topologySpreadConstraints/0/maxSkew"),
            json!(0),
            &format!(
                "`{path}.spec.topologySpreadConstraints[0].maxSkew` is 0 but must be between 1 and 64"
            ),
        ),
        (
            &format!("{pod}/spec/hostNetwork"),
            json!(true),
            &format!(
                "`{path}.spec.hostNetwork` is not a known field; allowed here are `nodeSelector`, `tolerations`, `affinity`, `topologySpreadConstraints`, `priorityClassName`, `imagePullSecrets`, `env`"
            ),
        ),
    ]);
}
