use super::super::roles::RoleNames;
use super::{AppliedNow, Outcome, Registered, Report};

fn report(dry_run: bool) -> Report {
    Report {
        database: "shop".to_owned(),
        schema: "postroom".to_owned(),
        version: 9,
        dry_run,
        owner: "shop_postroom_owner".to_owned(),
        roles: Some(RoleNames::new("shop", "postroom")),
        one_role_because: None,
        created_roles: Vec::new(),
        created_schema: false,
        applied: Vec::new(),
        endpoints: vec![Registered {
            name: "orders".to_owned(),
            outcome: Outcome::Unchanged,
        }],
    }
}

#[test]
fn a_second_run_says_that_there_was_nothing_to_do() {
    assert_eq!(
        report(false).summary(),
        [
            "Nothing to do: schema postroom of database shop is at version 9.",
            "Roles: shop_postroom_owner, shop_postroom_worker, shop_postroom_app, shop_postroom_reader.",
            "Endpoints: orders (unchanged).",
        ]
    );
    let changed = Registered {
        name: "orders".to_owned(),
        outcome: Outcome::Changed,
    };
    let report = Report {
        endpoints: vec![changed],
        ..report(false)
    };
    assert!(
        report.summary()[0].starts_with("Done: "),
        "{:?}",
        report.summary()
    );
}

#[test]
fn a_dry_run_says_what_it_would_do_and_that_it_did_not() {
    let pending = AppliedNow {
        version: 9,
        name: "requests",
        milliseconds: None,
    };
    let report = Report {
        created_roles: vec!["shop_postroom_app".to_owned()],
        applied: vec![pending],
        roles: None,
        owner: "app".to_owned(),
        one_role_because: Some("role app may not create roles".to_owned()),
        ..report(true)
    };
    assert_eq!(
        report.summary(),
        [
            "Would create role shop_postroom_app",
            "Would apply 0009 requests",
            "Nothing was changed: schema postroom of database shop would be at version 9.",
            "One-role mode: everything belongs to role app, because role app may not create roles.",
            "Endpoints: orders (unchanged).",
        ]
    );
}
