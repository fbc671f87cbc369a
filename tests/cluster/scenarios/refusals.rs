//! Wrong resources do not get past the API server, which says what is wrong.

use anyhow::{Result, ensure};
use postroom_tests::resource::Resource;
use serde_json::json;

use crate::ground::Ground;
use crate::shared::shared;

/// A mistake, and words that the refusal must have: the field, the value where it helps, and the rule.
struct Mistake {
    name: &'static str,
    make: fn(Resource) -> Resource,
    words: &'static [&'static str],
}

const MISTAKES: [Mistake; 8] = [
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

#[tokio::test]
async fn the_examples_are_taken() -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new("examples").await?;
    for file in [
        "crds/examples/smallest.yaml",
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
