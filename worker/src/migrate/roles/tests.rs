use super::super::found::{Found, FoundRole, FoundSchema};
use super::{Mode, RoleNames, decide};

fn names() -> RoleNames {
    RoleNames::new("shop", "postroom")
}

fn login() -> Found {
    Found {
        database: "shop".to_owned(),
        user: "app".to_owned(),
        may_create_roles: false,
        may_create_schema: true,
        roles: Vec::new(),
        schema: None,
        applied: Vec::new(),
        endpoints: Vec::new(),
    }
}

fn schema(owner: &str, installed: bool) -> FoundSchema {
    FoundSchema {
        owner: owner.to_owned(),
        may_act: true,
        may_join: false,
        installed,
        occupied: installed,
    }
}

fn roles(may_act: bool) -> Vec<FoundRole> {
    names()
        .all()
        .map(|name| FoundRole {
            name: name.to_owned(),
            may_act,
            may_join: false,
        })
        .into()
}

/// Owner of the objects, or the code of the refusal.
fn owner(found: &Found) -> String {
    match decide(found, &names()) {
        Ok(Mode::Roles) => names().owner,
        Ok(Mode::OneRole { owner, .. }) => owner,
        Err(reason) => reason.code.to_owned(),
    }
}

#[test]
fn roles_are_named_after_database_and_schema() {
    assert_eq!(
        names().all(),
        [
            "shop_postroom_owner",
            "shop_postroom_worker",
            "shop_postroom_app",
            "shop_postroom_reader"
        ]
    );
}

#[test]
fn long_names_are_cut_to_what_the_server_keeps_and_stay_apart() {
    let fits = RoleNames::new(&"d".repeat(47), "postroom");
    assert_eq!(
        (fits.worker.len(), fits.worker.as_str()),
        (63, format!("{}_postroom_worker", "d".repeat(47)).as_str())
    );
    let (a, b) = (
        RoleNames::new(&"d".repeat(48), "postroom"),
        RoleNames::new(&"d".repeat(49), "postroom"),
    );
    assert!(
        a.all().iter().chain(&b.all()).all(|name| name.len() <= 63),
        "{a:?} {b:?}"
    );
    assert_ne!(a.owner, b.owner);
    let umlauts = RoleNames::new(&"ü".repeat(31), "postroom");
    assert!(
        umlauts.all().iter().all(|name| name.len() <= 63),
        "{umlauts:?}"
    );
}

#[test]
fn a_database_with_a_reserved_prefix_still_gets_roles() {
    assert_eq!(
        RoleNames::new("pg_shop", "postroom").app,
        "db_pg_shop_postroom_app"
    );
}

#[test]
fn who_may_create_roles_gets_them_and_who_may_not_owns_everything() {
    let creator = Found {
        may_create_roles: true,
        ..login()
    };
    assert_eq!(owner(&creator), "shop_postroom_owner");
    assert_eq!(owner(&login()), "app");
}

#[test]
fn prepared_roles_are_used_by_a_member_only() {
    assert_eq!(
        owner(&Found {
            roles: roles(true),
            ..login()
        }),
        "shop_postroom_owner"
    );
    assert_eq!(
        owner(&Found {
            roles: roles(false),
            ..login()
        }),
        "app"
    );
}

#[test]
fn a_prepared_empty_schema_is_handed_to_the_owner_role_where_that_may_be() {
    let prepared = Found {
        may_create_roles: true,
        schema: Some(schema("app", false)),
        ..login()
    };
    assert_eq!(owner(&prepared), "shop_postroom_owner");
    assert_eq!(
        owner(&Found {
            may_create_schema: false,
            ..prepared
        }),
        "app"
    );
}

#[test]
fn a_migrated_schema_keeps_its_owner_even_under_a_mightier_login() {
    let one_role = Found {
        may_create_roles: true,
        schema: Some(schema("app", true)),
        ..login()
    };
    assert_eq!(owner(&one_role), "app");
    let with_roles = Found {
        roles: roles(true),
        schema: Some(schema("shop_postroom_owner", true)),
        ..login()
    };
    assert_eq!(owner(&with_roles), "shop_postroom_owner");
}

#[test]
fn what_cannot_be_done_is_refused_before_anything_is_changed() {
    assert_eq!(
        owner(&Found {
            may_create_schema: false,
            ..login()
        }),
        "PermissionDenied"
    );
    let of_others = FoundSchema {
        occupied: true,
        ..schema("app", false)
    };
    assert_eq!(
        owner(&Found {
            schema: Some(of_others),
            ..login()
        }),
        "SchemaTaken"
    );
    let not_ours = FoundSchema {
        may_act: false,
        ..schema("dba", true)
    };
    assert_eq!(
        owner(&Found {
            schema: Some(not_ours),
            ..login()
        }),
        "PermissionDenied"
    );
    let owned_by_role = Found {
        roles: roles(false),
        schema: Some(schema("shop_postroom_owner", true)),
        ..login()
    };
    assert_eq!(owner(&owned_by_role), "PermissionDenied");
}
