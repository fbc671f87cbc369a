use super::super::files::{MIGRATIONS, RIGHTS};
use super::super::roles::RoleNames;
use super::super::tests::config;
use super::{Target, identifier, literal, whole};

#[test]
fn names_and_texts_are_quoted_whatever_they_contain() {
    assert_eq!(identifier("my\"db"), "\"my\"\"db\"");
    assert_eq!(literal("it's"), "'it''s'");
}

#[test]
fn every_placeholder_is_filled_in() {
    let sql = whole(&config(), "shop");
    assert_eq!(
        sql.matches("@schema@").count()
            + sql.matches("@worker@").count()
            + sql.matches("@app@").count(),
        0
    );
    assert!(!sql.contains("@owner@") && !sql.contains("@reader@"));
    assert!(sql.contains(
        "create schema if not exists \"postroom\" authorization \"shop_postroom_owner\";"
    ));
    assert!(sql.contains("to \"shop_postroom_app\";"));
}

#[test]
fn in_one_role_mode_no_migration_needs_a_role_and_everybody_else_loses_all_rights() {
    let config = config();
    let target = Target {
        schema: "postroom",
        owner: "app",
        names: None,
        timeouts: &config.migration,
    };
    let code = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with("--"))
            .collect::<String>()
    };
    for migration in &MIGRATIONS {
        let sql = code(&target.migration(migration).sql);
        assert!(
            !["@worker@", "@app@", "@reader@"]
                .iter()
                .any(|name| sql.contains(name)),
            "{}",
            migration.name
        );
    }
    let rights = target.rights().sql;
    assert!(
        !rights.contains('@') && !rights.contains("grant"),
        "{rights}"
    );
    assert_eq!(rights.matches("from public;").count(), 5);
    assert_eq!(RIGHTS.matches("from public").count(), 5);
}

#[test]
fn each_step_is_one_transaction_with_time_outs_and_a_migration_carries_its_own_row() {
    let names = RoleNames::new("shop", "postroom");
    let config = config();
    let target = Target {
        schema: "postroom",
        owner: &names.owner,
        names: Some(&names),
        timeouts: &config.migration,
    };
    let step = target.migration(&MIGRATIONS[0]);
    assert!(step.sql.starts_with("begin;\n") && step.sql.ends_with("commit;\n"));
    assert!(
        step.sql.contains("set local lock_timeout = '5s';")
            && step
                .sql
                .contains("set local search_path = \"postroom\", pg_temp;")
    );
    assert!(step.sql.contains(
        "insert into schema_version (version, name, checksum, worker_version) values (1, 'tables', "
    ));
    let sql = whole(&config, "shop");
    assert_eq!(
        sql.matches("insert into schema_version").count(),
        MIGRATIONS.len()
    );
    assert_eq!(
        sql.lines().filter(|line| *line == "begin;").count(),
        MIGRATIONS.len() + 5
    );
    assert_eq!(
        sql.lines().filter(|line| *line == "commit;").count(),
        MIGRATIONS.len() + 5
    );
}
