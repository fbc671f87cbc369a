//! Wrong resources do not get past the API server, which says what is wrong.

use anyhow::{Result, ensure};
use postroom_tests::resource::Resource;
use serde_json::{Value, json};

use crate::ground::Ground;
use crate::shared::shared;

/// A mistake, and words that the refusal must have: the field, the value where it helps, and the rule.
struct Mistake {
    name: &'static str,
    make: fn(Resource) -> Resource,
    words: &'static [&'static str],
}

/// The resource with an inbox, `payments`, after `spoil` changed it.
fn with_inbox(resource: Resource, spoil: fn(&mut Value)) -> Resource {
    let mut inbox = json!({"name": "payments", "queue": "payments", "handler": {"sqlFunction": {"name": "app.pay"}}});
    spoil(&mut inbox);
    resource.with("inboxes", json!([inbox]))
}

const MISTAKES: [Mistake; 13] = [
    Mistake {
        name: "a batch of no messages",
        make: |resource| resource.with("outboxes.0.delivery.batchSize", 0),
        words: &[
            "spec.outboxes[0].delivery.batchSize",
            "0",
            "greater than or equal to 1",
        ],
    },
    Mistake {
        name: "a mode that does not exist",
        make: |resource| resource.with("outboxes.0.ordering.mode", "Sometimes"),
        words: &["spec.outboxes[0].ordering.mode", "Sometimes", "PerStream"],
    },
    Mistake {
        name: "a confirm that may take longer than the lease",
        make: |resource| {
            resource
                .with("workers.leaseSeconds", 10)
                .with("outboxes.0.delivery.confirmTimeoutSeconds", 10)
        },
        words: &["confirmTimeoutSeconds", "leaseSeconds", "must be less than"],
    },
    Mistake {
        name: "a schema of the server's own",
        make: |resource| resource.schema("pg_mine"),
        words: &["spec.database.schema", "must not be 'public'"],
    },
    Mistake {
        name: "two outboxes of one name",
        make: |resource| {
            let outbox = postroom_tests::resource::Outbox::new("orders", "shop");
            resource.outbox(outbox)
        },
        words: &["spec.outboxes[1]", "Duplicate value", "orders"],
    },
    Mistake {
        name: "an outbox for a transport that is not there",
        make: |resource| resource.with("outboxes.0.transport", "elsewhere"),
        words: &["transport", "must"],
    },
    Mistake {
        name: "a field that does not exist",
        make: |resource| resource.with("workers.number", 2),
        words: &["spec.workers.number", "unknown field"],
    },
    Mistake {
        name: "no database at all",
        make: |resource| resource.with("database", json!({})),
        words: &[
            "spec.database",
            "exactly one of `secretRef` and `connection` must be given",
        ],
    },
    Mistake {
        name: "no endpoint at all",
        make: |resource| resource.with("outboxes", json!([])),
        words: &["`outboxes`", "`inboxes`", "at least one"],
    },
    Mistake {
        name: "an inbox with two handlers",
        make: |resource| with_inbox(resource, |inbox| inbox["handler"]["pull"] = json!({})),
        words: &[
            "spec.inboxes[0].handler",
            "exactly one of `sqlFunction` and `pull` must be given",
        ],
    },
    Mistake {
        name: "an inbox with the name of an outbox",
        make: |resource| with_inbox(resource, |inbox| inbox["name"] = json!("orders")),
        words: &["`inboxes`", "must not be in `outboxes` too"],
    },
    Mistake {
        name: "a call that may take longer than the grace period",
        make: |resource| {
            with_inbox(resource, |inbox| {
                inbox["handler"]["sqlFunction"]["timeoutSeconds"] = json!(3_600);
            })
        },
        words: &[
            "sqlFunction.timeoutSeconds",
            "at least 5 less than `workers.terminationGracePeriodSeconds`",
        ],
    },
    Mistake {
        name: "a header that is not looked at",
        make: |resource| {
            with_inbox(resource, |inbox| {
                inbox["identity"] = json!({"header": "x-event-id"});
            })
        },
        words: &[
            "spec.inboxes[0].identity",
            "`header` must be given where `source` is 'Header', and only there",
            "'MessageId'",
        ],
    },
];

#[tokio::test]
async fn a_wrong_resource_is_refused_with_field_value_and_rule() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new("refusals").await?;
    for mistake in MISTAKES {
        let wrong = (mistake.make)(ground.resource());
        let said = ground.kubectl.refused(&ground.manifest(&wrong)).await?;
        for word in mistake.words {
            ensure!(
                said.contains(word),
                "{}: the refusal does not say '{word}': {said}",
                mistake.name
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_schema_of_a_resource_cannot_be_changed() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new("immutable").await?;
    ground.apply(&ground.resource()).await?;
    let other = ground.resource().schema("elsewhere");
    let said = ground.kubectl.refused(&ground.manifest(&other)).await?;
    ensure!(said.contains("schema"), "{said}");
    Ok(())
}

/// What was accepted under the old rule would not be recognised under the new one.
#[tokio::test]
async fn the_identity_of_an_inbox_cannot_be_changed() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new("identity").await?;
    ground.apply(&with_inbox(ground.resource(), |_| {})).await?;
    let other = with_inbox(ground.resource(), |inbox| {
        inbox["identity"] = json!({"source": "PayloadSha256"});
    });
    let said = ground.kubectl.refused(&ground.manifest(&other)).await?;
    for word in ["spec.inboxes[0].identity", "must stay 'MessageId'"] {
        ensure!(said.contains(word), "'{word}': {said}");
    }
    let renamed = with_inbox(ground.resource(), |inbox| {
        inbox["identity"] = json!({"source": "PayloadSha256"});
        inbox["name"] = json!("payments-by-body");
    });
    ground.apply(&renamed).await?;
    Ok(())
}

#[tokio::test]
async fn the_examples_are_taken() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new("examples").await?;
    for file in [
        "crds/examples/smallest.yaml",
        "crds/examples/smallest-inbox.yaml",
        "crds/examples/full.yaml",
        "tests/demo/shop.yaml",
    ] {
        let path = format!("{}/../{file}", env!("CARGO_MANIFEST_DIR"));
        ground
            .kubectl
            .output(&["apply", "--dry-run=server", "--filename", &path], "")
            .await
            .and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(
                    // The full example names a namespace of its own.
                    output.status.success() || said.contains("does not match the namespace"),
                    "{file}: {said}"
                );
                Ok(())
            })?;
    }
    Ok(())
}
