use postroom_crds::manifest::Manifest;
use postroom_crds::resolve::Where;
use postroom_crds::worker_config::WorkerConfig;

use super::files::MIGRATIONS;
use super::found::{Applied, Found};
use super::plan::pending;
use super::{judge_version, newest_version};

/// The configuration of a small resource.
pub(super) fn config() -> WorkerConfig {
    let manifest =
        Manifest::from_yaml(include_str!("../../../crds/examples/smallest.yaml")).unwrap();
    WorkerConfig::from_resource(&manifest, Where::Environment).unwrap()
}

fn with_applied(applied: impl IntoIterator<Item = Applied>) -> Found {
    Found {
        database: "shop".to_owned(),
        user: "app".to_owned(),
        may_create_roles: false,
        may_create_schema: true,
        roles: Vec::new(),
        schema: None,
        applied: applied.into_iter().collect(),
        endpoints: Vec::new(),
    }
}

fn applied() -> impl Iterator<Item = Applied> {
    MIGRATIONS.iter().map(|migration| Applied {
        version: migration.version,
        checksum: migration.checksum(),
    })
}

#[test]
fn what_is_applied_is_not_applied_again_and_the_rest_goes_on_in_order() {
    let versions = |found: &Found| {
        pending(found)
            .unwrap()
            .iter()
            .map(|migration| migration.version)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        versions(&with_applied([])),
        (1..=newest_version()).collect::<Vec<_>>()
    );
    assert_eq!(
        versions(&with_applied(applied().take(5))),
        (6..=newest_version()).collect::<Vec<_>>()
    );
    assert_eq!(versions(&with_applied(applied())), [0; 0]);
}

#[test]
fn a_schema_of_a_newer_program_is_refused() {
    let newer = Applied {
        version: newest_version() + 1,
        checksum: String::new(),
    };
    let reason = pending(&with_applied(applied().chain([newer]))).unwrap_err();
    assert_eq!(reason.code, "SchemaAhead");
    assert!(reason.message.starts_with("PR007: "), "{reason}");
}

#[test]
fn a_migration_whose_text_changed_after_it_was_applied_is_refused_by_name() {
    let edited = Applied {
        version: 2,
        checksum: "0".repeat(16),
    };
    let reason = pending(&with_applied(applied().take(1).chain([edited]))).unwrap_err();
    assert_eq!(reason.code, "MigrationChanged");
    assert!(reason.message.contains("0002_writers.sql"), "{reason}");
}

#[test]
fn a_worker_starts_on_its_own_version_only() {
    let code = |version: u32| judge_version(version).map_err(|reason| reason.code);
    assert_eq!(code(newest_version()), Ok(()));
    assert_eq!(code(newest_version() - 1), Err("SchemaNotReady"));
    assert_eq!(code(newest_version() + 1), Err("SchemaAhead"));
}
