use postroom_crds::SCHEMA_VERSION;
use serde_json::json;

use super::{
    SMALLEST, at, complaining, failure, healthy, job, job_name, kinds, known, migrated, planned,
    reason, resource, said, settings, smallest, well, worker,
};
use crate::observe::{Observed, PodSeen};
use crate::plan::children::Kind;
use crate::plan::plan;
use crate::stats::Scope;

fn attempt(job: &str, code: &str, exit_code: i32) -> PodSeen {
    PodSeen {
        name: format!("{job}-1"),
        job: Some(job.to_owned()),
        ending: true,
        failure: Some(failure(code, exit_code)),
        ..PodSeen::default()
    }
}

fn failed(code: &str, exit_code: i32) -> Observed {
    let resource = smallest();
    Observed {
        jobs: vec![job(&resource, Some(("Failed", 1_000)))],
        migrators: vec![attempt(&job_name(&resource), code, exit_code)],
        ..Observed::default()
    }
}

#[test]
fn a_running_job_is_left_alone() {
    let resource = smallest();
    let seen = Observed {
        jobs: vec![job(&resource, None)],
        ..Observed::default()
    };
    let plan = planned(&resource, &seen);
    assert!(!kinds(&plan).contains(&Kind::Job) && plan.removals.is_empty());
    assert!(!kinds(&plan).contains(&Kind::Deployment));
    assert_eq!(reason(&plan.status, "Ready"), "False Reconciling");
    assert_eq!(
        reason(&plan.status, "SchemaUpToDate"),
        "False MigrationRunning"
    );
}

#[test]
fn what_was_migrated_is_remembered_when_the_job_is_gone() {
    let status = migrated(&smallest());
    let schema = status.schema.clone().unwrap();
    assert_eq!(schema.last_job_name, Some(job_name(&smallest())));
    let plan = planned(&known(status), &Observed::default());
    assert!(!kinds(&plan).contains(&Kind::Job));
    assert!(kinds(&plan).contains(&Kind::Deployment));
    assert_eq!(plan.status.schema, Some(schema));
}

#[test]
fn a_failed_job_is_made_again_after_a_pause_that_depends_on_its_cause() {
    for (code, exit_code, pause) in [("ConnectionRefused", 3, 30), ("PermissionDenied", 4, 120)] {
        let seen = failed(code, exit_code);
        let before = plan(&smallest(), &seen, &settings(), at(1_000 + pause - 1));
        assert!(before.removals.is_empty() && !kinds(&before).contains(&Kind::Job));
        let after = plan(&smallest(), &seen, &settings(), at(1_000 + pause));
        assert_eq!(after.removals[0].uid, "the-job");
        assert_eq!(after.removals[0].name, job_name(&smallest()));
    }
}

#[test]
fn a_failure_is_told_with_its_cause_and_what_to_do() {
    let refused = planned(&smallest(), &failed("ConnectionRefused", 3)).status;
    assert_eq!(reason(&refused, "SchemaUpToDate"), "False MigrationFailed");
    assert_eq!(
        reason(&refused, "DatabaseReachable"),
        "False ConnectionRefused"
    );
    assert_eq!(reason(&refused, "Ready"), "False DatabaseUnreachable");
    let denied = planned(&smallest(), &failed("PermissionDenied", 4)).status;
    assert_eq!(reason(&denied, "SchemaUpToDate"), "False PermissionDenied");
    assert_eq!(reason(&denied, "DatabaseReachable"), "True Connected");
    let (_, _, message) = said(&denied, "SchemaUpToDate");
    assert!(
        message.starts_with("PermissionDenied: it was seen. Do this. "),
        "{message}"
    );
    assert_eq!(reason(&denied, "Stalled"), "True PermissionDenied");
}

#[test]
fn an_attempt_that_is_repeated_already_tells_why() {
    let resource = smallest();
    let seen = Observed {
        jobs: vec![job(&resource, None)],
        migrators: vec![attempt(&job_name(&resource), "SecretNotFound", 2)],
        ..Observed::default()
    };
    let status = planned(&resource, &seen).status;
    assert_eq!(reason(&status, "DatabaseReachable"), "False SecretNotFound");
    assert_eq!(reason(&status, "Ready"), "False InvalidReference");
}

#[test]
fn a_job_that_left_no_words_is_told_by_its_own() {
    let seen = Observed {
        migrators: Vec::new(),
        ..failed("", 0)
    };
    let (_, _, message) = said(&planned(&smallest(), &seen).status, "SchemaUpToDate");
    assert!(
        message.starts_with("BackoffLimitExceeded: too often."),
        "{message}"
    );
}

#[test]
fn a_manual_migration_waits_for_its_version() {
    let manual = |approved: Option<u32>| {
        resource(SMALLEST, |document| {
            document["spec"]["migrations"] = json!({"policy": "Manual"});
            if let Some(version) = approved {
                document["spec"]["migrations"]["approvedVersion"] = json!(version);
            }
        })
    };
    for too_old in [None, Some(SCHEMA_VERSION - 1)] {
        let plan = planned(&manual(too_old), &Observed::default());
        assert!(!kinds(&plan).contains(&Kind::Job) && !kinds(&plan).contains(&Kind::Deployment));
        assert_eq!(
            reason(&plan.status, "SchemaUpToDate"),
            "False AwaitingApproval"
        );
        assert_eq!(reason(&plan.status, "Ready"), "False SchemaNotReady");
    }
    let approved = planned(&manual(Some(SCHEMA_VERSION)), &Observed::default());
    assert!(kinds(&approved).contains(&Kind::Job));
}

#[test]
fn without_migrations_workers_start_and_tell_what_they_found() {
    let mut disabled = smallest();
    disabled.spec.migrations.policy =
        postroom_crds::inbox_outbox::migrations::MigrationPolicy::Disabled;
    let (_, seen) = well();
    let plan = planned(&disabled, &seen);
    assert!(!kinds(&plan).contains(&Kind::Job) && kinds(&plan).contains(&Kind::Deployment));
    assert_eq!(
        reason(&plan.status, "SchemaUpToDate"),
        "True MigrationsDisabled"
    );
    let behind = Observed {
        workers: vec![worker("a", complaining(Scope::Database, "SchemaNotReady"))],
        ..seen
    };
    let status = planned(&disabled, &behind).status;
    assert_eq!(reason(&status, "SchemaUpToDate"), "False SchemaNotReady");
}

#[test]
fn a_schema_that_has_gone_is_made_again() {
    let (resource, seen) = well();
    let lost = Observed {
        workers: vec![worker("a", complaining(Scope::Database, "SchemaNotReady"))],
        ..seen
    };
    // The migration was done at 500.
    let early = plan(&resource, &lost, &settings(), at(559));
    assert!(!kinds(&early).contains(&Kind::Job));
    let later = plan(&resource, &lost, &settings(), at(560));
    assert!(kinds(&later).contains(&Kind::Job));
    let with_old_job = Observed {
        jobs: vec![job(&resource, Some(("Complete", 500)))],
        ..lost
    };
    let later = plan(&resource, &with_old_job, &settings(), at(560));
    assert_eq!(later.removals[0].uid, "the-job");
}

#[test]
fn an_old_migration_of_another_release_is_of_no_account() {
    let mut status = migrated(&smallest());
    if let Some(schema) = &mut status.schema {
        schema.last_job_name = Some("orders-migrate-6-00000000".to_owned());
        schema.version = Some(6);
    }
    let seen = Observed {
        workers: vec![worker("a", healthy())],
        ..Observed::default()
    };
    let plan = planned(&known(status), &seen);
    assert!(kinds(&plan).contains(&Kind::Job) && !kinds(&plan).contains(&Kind::Deployment));
    assert_eq!(plan.status.schema.unwrap().version, Some(6));
}

#[test]
fn a_job_of_an_earlier_spec_that_still_tries_goes_and_an_ended_one_keeps_its_log() {
    let before = smallest();
    let after = resource(SMALLEST, |document| {
        document["spec"]["outboxes"][0]["exchange"] = json!("other");
    });
    let with_old = |condition| Observed {
        jobs: vec![job(&before, condition)],
        ..Observed::default()
    };
    let plan = planned(&after, &with_old(None));
    assert_eq!(plan.removals[0].name, job_name(&before));
    assert!(kinds(&plan).contains(&Kind::Job));
    for ended in ["Complete", "Failed"] {
        let plan = planned(&after, &with_old(Some((ended, 500))));
        assert_eq!(plan.removals, [], "{ended}");
    }
}
