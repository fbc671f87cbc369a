use postroom_crds::names::ANNOTATION_CONFIG_HASH;
use postroom_crds::worker_config::WorkerConfig;
use serde_json::{Value, json};

use super::{FULL, child, job_name, kinds, known, migrated, planned, resource, smallest, well};
use crate::observe::Observed;
use crate::plan::children::Kind;
use crate::plan::{Plan, Settings, plan};

/// The plan for the full example, all its children included.
fn full(change: impl FnOnce(&mut Value)) -> Vec<Value> {
    let fresh = resource(FULL, change);
    let first = planned(&fresh, &Observed::default());
    let status = migrated(&fresh);
    let later = planned(
        &postroom_crds::inbox_outbox::InboxOutbox {
            status: Some(status),
            ..fresh
        },
        &Observed::default(),
    );
    let objects = [first, later].into_iter().flat_map(|plan| plan.children);
    objects.map(|child| child.object).collect()
}

fn pods(plan: &Plan) -> Vec<Value> {
    let with_pods = plan
        .children
        .iter()
        .filter_map(|child| child.object.pointer("/spec/template").cloned());
    with_pods.collect()
}

fn both_pods() -> [Value; 2] {
    let first = planned(&resource(FULL, |_| {}), &Observed::default());
    let (done, seen) = well();
    let second = planned(&done, &seen);
    [pods(&first).remove(0), pods(&second).remove(0)]
}

#[test]
fn the_schema_comes_before_the_workers() {
    let first = planned(&smallest(), &Observed::default());
    assert_eq!(
        kinds(&first),
        [
            Kind::ServiceAccount,
            Kind::ConfigMap,
            Kind::Job,
            Kind::PodDisruptionBudget
        ]
    );
    let done = known(migrated(&smallest()));
    let second = planned(&done, &Observed::default());
    assert_eq!(
        kinds(&second),
        [
            Kind::ServiceAccount,
            Kind::ConfigMap,
            Kind::PodDisruptionBudget,
            Kind::Deployment
        ]
    );
}

#[test]
fn every_child_belongs_to_the_resource_and_goes_with_it() {
    for object in full(|_| {}) {
        let metadata = &object["metadata"];
        let name = &metadata["name"];
        assert_eq!(metadata["namespace"], "shop", "{name}");
        assert_eq!(metadata["ownerReferences"][0]["uid"], "the-uid", "{name}");
        assert_eq!(metadata["ownerReferences"][0]["controller"], true, "{name}");
        let labels = &metadata["labels"];
        assert_eq!(labels["app.kubernetes.io/instance"], "orders", "{name}");
        assert_eq!(
            labels["app.kubernetes.io/managed-by"], "postroom-operator",
            "{name}"
        );
    }
}

#[test]
fn pods_pass_the_restricted_standard_and_get_no_token() {
    for pod in both_pods() {
        let spec = &pod["spec"];
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(
            spec["securityContext"]["seccompProfile"]["type"],
            "RuntimeDefault"
        );
        let context = &spec["containers"][0]["securityContext"];
        assert_eq!(
            context,
            &json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
        );
        assert!(spec.get("hostNetwork").is_none() && spec.get("initContainers").is_none());
    }
}

#[test]
fn secrets_are_folders_that_may_be_missing_and_never_variables() {
    for pod in both_pods() {
        let container = &pod["spec"]["containers"][0];
        for variable in container["env"].as_array().unwrap() {
            assert!(variable.get("valueFrom").is_none(), "{variable}");
        }
        for mount in container["volumeMounts"].as_array().unwrap() {
            assert!(mount.get("subPath").is_none(), "{mount}");
            assert_eq!(mount["readOnly"], true, "{mount}");
        }
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let secrets = volumes.iter().filter_map(|volume| volume.get("secret"));
        assert!(secrets.clone().count() > 0);
        assert!(secrets.clone().all(|secret| secret["optional"] == true));
    }
}

fn mounted(pod: &Value) -> Vec<&str> {
    let volumes = pod["spec"]["volumes"].as_array().unwrap().iter();
    let names = volumes.filter_map(|volume| volume.pointer("/secret/secretName")?.as_str());
    names.collect()
}

#[test]
fn a_migration_gets_the_secrets_of_the_database_and_no_others() {
    let first = planned(&resource(FULL, |_| {}), &Observed::default());
    assert_eq!(
        mounted(&pods(&first)[0]),
        ["orders-db-ca", "orders-db-client", "orders-db-owner"]
    );
}

#[test]
fn workers_do_not_get_the_login_of_migrations() {
    let fresh = resource(FULL, |_| {});
    let done = postroom_crds::inbox_outbox::InboxOutbox {
        status: Some(migrated(&fresh)),
        ..fresh
    };
    let plan = planned(&done, &Observed::default());
    assert_eq!(
        mounted(&pods(&plan)[0]),
        [
            "audit-rabbitmq",
            "orders-db-app",
            "orders-db-ca",
            "orders-db-client",
            "orders-rabbitmq",
            "rabbitmq-ca",
            "rabbitmq-client"
        ]
    );
}

#[test]
fn the_configuration_is_one_that_a_worker_takes() {
    let plan = planned(&resource(FULL, |_| {}), &Observed::default());
    let text = child(&plan, Kind::ConfigMap).object["data"]["config.json"]
        .as_str()
        .unwrap();
    let config = WorkerConfig::from_json(text).unwrap();
    assert_eq!((config.name.as_str(), config.generation), ("orders", 3));
}

fn template(change: impl FnOnce(&mut Value)) -> Value {
    full(change)
        .into_iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap()["spec"]["template"]
        .clone()
}

#[test]
fn scaling_rolls_no_worker_and_needs_no_migration() {
    let scale = |document: &mut Value| {
        document["metadata"]["generation"] = json!(4);
        document["spec"]["workers"]["replicas"] = json!(9);
    };
    assert_eq!(template(scale), template(|_| {}));
    assert_eq!(
        job_name(&resource(FULL, scale)),
        job_name(&resource(FULL, |_| {}))
    );
}

#[test]
fn a_changed_endpoint_rolls_the_workers_after_a_migration_of_its_own() {
    let hash =
        |template: Value| template["metadata"]["annotations"][ANNOTATION_CONFIG_HASH].clone();
    for (pointer, value) in [
        ("/spec/outboxes/0/exchange", json!("other")),
        ("/spec/inboxes/0/queue", json!("other")),
        (
            "/spec/inboxes/1/handler",
            json!({"sqlFunction": {"name": "a.b"}}),
        ),
        ("/spec/inboxes", json!([])),
    ] {
        let change = |document: &mut Value| *document.pointer_mut(pointer).unwrap() = value.clone();
        assert_ne!(hash(template(change)), hash(template(|_| {})), "{pointer}");
        assert_ne!(
            job_name(&resource(FULL, change)),
            job_name(&resource(FULL, |_| {})),
            "{pointer}"
        );
    }
}

#[test]
fn another_image_is_another_migration() {
    let newer = Settings {
        worker_image: "registry.example.com/postroom:2".to_owned(),
        ..super::settings()
    };
    let plan = plan(&smallest(), &Observed::default(), &newer, super::at(0));
    assert_ne!(child(&plan, Kind::Job).name, job_name(&smallest()));
}

/// What the worker's configuration does not carry, a child does.
#[test]
fn a_change_of_any_field_for_the_cluster_changes_a_child() {
    let before = full(|_| {});
    let pod = "/spec/workers/podTemplate";
    let changes = [
        ("/spec/migrations/activeDeadlineSeconds", json!(901)),
        ("/spec/migrations/backoffLimit", json!(4)),
        ("/spec/migrations/ttlSecondsAfterFinished", json!(86_401)),
        ("/spec/workers/replicas", json!(3)),
        ("/spec/workers/resources/requests/cpu", json!("101m")),
        ("/spec/workers/resources/requests/memory", json!("65Mi")),
        ("/spec/workers/resources/limits/cpu", json!("3")),
        ("/spec/workers/resources/limits/memory", json!("257Mi")),
        ("/spec/workers/podDisruptionBudget/enabled", json!(false)),
        ("/spec/workers/podDisruptionBudget/maxUnavailable", json!(2)),
        (&format!("{pod}/metadata/labels"), json!({"a": "b"})),
        (&format!("{pod}/metadata/annotations"), json!({"a": "b"})),
        (&format!("{pod}/spec/nodeSelector"), json!({"a": "b"})),
        (&format!("{pod}/spec/tolerations/0/key"), json!("other")),
        (
            &format!("{pod}/spec/tolerations/0/operator"),
            json!("Exists"),
        ),
        (&format!("{pod}/spec/tolerations/0/value"), json!("other")),
        (
            &format!("{pod}/spec/tolerations/0/effect"),
            json!("NoSchedule"),
        ),
        (
            &format!("{pod}/spec/tolerations/0/tolerationSeconds"),
            json!(301),
        ),
        (&format!("{pod}/spec/affinity"), json!({"podAffinity": {}})),
        (
            &format!("{pod}/spec/topologySpreadConstraints/0/maxSkew"),
            json!(2),
        ),
        (
            &format!("{pod}/spec/topologySpreadConstraints/0/topologyKey"),
            json!("zone"),
        ),
        (
            &format!("{pod}/spec/topologySpreadConstraints/0/whenUnsatisfiable"),
            json!("DoNotSchedule"),
        ),
        (&format!("{pod}/spec/priorityClassName"), json!("other")),
        (
            &format!("{pod}/spec/imagePullSecrets/0/name"),
            json!("other"),
        ),
        (&format!("{pod}/spec/env/0/name"), json!("OTHER")),
        (&format!("{pod}/spec/env/0/value"), json!("other")),
    ];
    for (pointer, value) in changes {
        let after = full(|document| {
            *document
                .pointer_mut(pointer)
                .unwrap_or_else(|| panic!("no {pointer}")) = value.clone();
        });
        assert_ne!(after, before, "{pointer} has no effect");
    }
}

#[test]
fn a_budget_that_is_switched_off_goes_unless_it_is_somebody_elses() {
    let off = resource(FULL, |document| {
        document["spec"]["workers"]["podDisruptionBudget"]["enabled"] = json!(false);
    });
    let budget = |owner: &str| {
        let owner =
            json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": owner, "controller": true});
        let object = json!({"metadata": {"name": "orders-worker", "uid": "the-budget", "ownerReferences": [owner]}});
        Observed {
            disruption_budget: Some(std::sync::Arc::new(serde_json::from_value(object).unwrap())),
            ..Observed::default()
        }
    };
    let ours = planned(&off, &budget("the-uid"));
    assert_eq!(ours.removals[0].uid, "the-budget");
    assert!(!kinds(&ours).contains(&Kind::PodDisruptionBudget));
    assert_eq!(planned(&off, &budget("another")).removals, []);
}
