//! What is an id, and what is none.

use super::*;

fn rule(source: IdentitySource, header: Option<&str>) -> Rule {
    Rule {
        source,
        header: header.map(str::to_owned),
        ..Rule::default()
    }
}

fn with_header(name: &str, value: AMQPValue) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert(name.into(), value);
    BasicProperties::default().with_headers(headers)
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

fn by_message_id(id: &str) -> Result<Identity, NoIdentity> {
    let properties = BasicProperties::default().with_message_id(id.into());
    identify(&rule(IdentitySource::MessageId, None), &properties, b"")
}

fn foreign(id: &str) -> Result<Identity, NoIdentity> {
    Ok(Identity::Foreign(id.to_owned()))
}

#[test]
fn a_uuid_is_one_only_in_the_form_with_hyphens_and_any_other_text_is_the_senders_own() {
    let id = Uuid::from_u128(7);
    for form in [
        id.to_string(),
        id.to_string().to_uppercase(),
        format!("  {id} "),
    ] {
        assert_eq!(by_message_id(&form), Ok(Identity::Uuid(id)), "{form}");
    }
    for form in [
        id.simple().to_string(),
        id.urn().to_string(),
        id.braced().to_string(),
    ] {
        assert_eq!(by_message_id(&form), foreign(&form));
    }
    assert_eq!(by_message_id(" A-17 "), foreign("A-17"));
    assert_eq!(by_message_id("\tA\u{a0}"), foreign("\tA\u{a0}"));
    assert_eq!(by_message_id(&"ä".repeat(127)), foreign(&"ä".repeat(127)));
}

#[test]
fn a_missing_or_blank_id_is_missing_and_one_that_cannot_be_stored_is_bad() {
    for blank in ["", "   ", "\t\n"] {
        assert!(
            matches!(by_message_id(blank), Err(NoIdentity::Missing(why)) if why.contains("blank")),
            "{blank:?}"
        );
    }
    let none = identify(
        &rule(IdentitySource::MessageId, None),
        &BasicProperties::default(),
        b"",
    );
    assert!(matches!(none, Err(NoIdentity::Missing(why)) if why.contains("message_id")));
    assert!(matches!(by_message_id("a\0b"), Err(NoIdentity::Bad(_))));
    let long = with_header("id", text(&"x".repeat(256)));
    let rule = rule(IdentitySource::Header, Some("id"));
    let problem = identify(&rule, &long, b"");
    assert!(
        matches!(problem, Err(NoIdentity::Bad(why)) if why.contains("256") && why.contains("255"))
    );
    for value in [
        AMQPValue::LongLongInt(7),
        AMQPValue::LongString(vec![0xff].into()),
        AMQPValue::ByteArray(vec![65].into()),
    ] {
        let problem = identify(&rule, &with_header("id", value), b"");
        assert!(matches!(problem, Err(NoIdentity::Bad(why)) if why.contains("'id' is not text")));
    }
    for none in [
        with_header("other", text("x")),
        with_header("id", AMQPValue::Void),
    ] {
        assert!(matches!(
            identify(&rule, &none, b""),
            Err(NoIdentity::Missing(_))
        ));
    }
}

#[test]
fn the_id_of_a_cloud_event_is_found_in_its_headers_or_in_its_body() {
    let rule = rule(IdentitySource::CloudEventId, None);
    for name in ["cloudEvents:id", "cloudEvents_id", "ce-id"] {
        let properties = with_header(name, text("e-1")).with_message_id("other".into());
        assert_eq!(
            identify(&rule, &properties, b"{}"),
            foreign("e-1"),
            "{name}"
        );
    }
    let structured = BasicProperties::default()
        .with_content_type("Application/CloudEvents+JSON; charset=utf-8".into());
    let body = br#"{"specversion": "1.0", "data": {"id": "inner"}, "id": "e-\u0032"}"#;
    assert_eq!(identify(&rule, &structured, body), foreign("e-2"));
    for (body, missing) in [
        ("{}", true),
        (r#"{"id": ""}"#, true),
        (r#"{"id": 7}"#, false),
        ("nonsense", false),
        ("\u{0}", false),
    ] {
        let problem = identify(&rule, &structured, body.as_bytes()).unwrap_err();
        assert_eq!(
            matches!(problem, NoIdentity::Missing(_)),
            missing,
            "{body}: {problem:?}"
        );
    }
    let json = BasicProperties::default().with_content_type("application/json".into());
    let problem = identify(&rule, &json, br#"{"id": "e-1"}"#);
    assert!(
        matches!(problem, Err(NoIdentity::Missing(_))),
        "{problem:?}"
    );
}

#[test]
fn the_digest_is_that_of_the_body_and_of_nothing_else() {
    let rule = rule(IdentitySource::PayloadSha256, None);
    let properties = with_header("a", text("b")).with_message_id("m".into());
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(identify(&rule, &properties, b""), foreign(empty));
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(
        identify(&rule, &BasicProperties::default(), b"abc"),
        foreign(abc)
    );
}
