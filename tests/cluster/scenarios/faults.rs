//! A wrong Secret shows in the conditions within half a minute, with what to do; nobody needs to help after it is right.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::ground::{BROKER_SECRET, DATABASE_SECRET, Ground};
use crate::load;
use crate::shared::{figure, shared};

const SHOWN: Duration = Duration::from_secs(30);

/// What is wrong with a Secret, and how it must show.
struct Fault {
    test: &'static str,
    secret: &'static str,
    key: &'static str,
    /// The value that the Secret gets instead of this right one; none: there is no Secret.
    value: fn(&str) -> Option<String>,
    condition: &'static str,
    reason: &'static str,
    /// A word that the message must have.
    word: &'static str,
}

/// The fault shows in time and says what it is; then it is put right, and messages arrive.
async fn shows_and_heals(fault: Fault) -> Result<()> {
    let _guard = shared().await?;
    let ground = Ground::new(fault.test).await?;
    let right = match fault.secret {
        DATABASE_SECRET => ground.database_url().to_owned(),
        _ => ground.vhost.amqp_url(),
    };
    match (fault.value)(&right) {
        Some(wrong) => ground.secret(fault.secret, fault.key, &wrong).await?,
        None => {
            ground
                .kubectl
                .run(&["delete", "secret", fault.secret])
                .await?;
        }
    }
    ground.apply(&ground.resource()).await?;
    let (message, after) = ground.wrong(fault.condition, fault.reason).await?;
    figure(&format!(
        "{} shown after {after:.1?}: {message}",
        fault.reason
    ))?;
    ensure!(after < SHOWN, "shown only after {after:?}");
    ensure!(
        message.contains(fault.word),
        "the message does not say '{}': {message}",
        fault.word
    );
    let password = right.split([':', '@']).nth(2).unwrap_or_default();
    ensure!(
        password.len() > 8 && !message.contains(password),
        "the message holds the password"
    );

    ground.secret(fault.secret, "uri", &right).await?;
    ground.ready().await?;
    let pool = ground.pool().await?;
    load::write(&ground, &pool, "healed", 5).await?;
    ground.verdict().await?.require(0)
}

#[tokio::test]
async fn a_secret_that_is_missing() -> Result<()> {
    shows_and_heals(Fault {
        test: "nosecret",
        secret: DATABASE_SECRET,
        key: "uri",
        value: |_| None,
        condition: "DatabaseReachable",
        reason: "SecretNotFound",
        word: DATABASE_SECRET,
    })
    .await
}

#[tokio::test]
async fn a_secret_without_the_key() -> Result<()> {
    shows_and_heals(Fault {
        test: "nokey",
        secret: DATABASE_SECRET,
        key: "address",
        value: |right| Some(right.to_owned()),
        condition: "DatabaseReachable",
        reason: "SecretKeyMissing",
        word: "address",
    })
    .await
}

#[tokio::test]
async fn a_database_host_where_nobody_listens() -> Result<()> {
    shows_and_heals(Fault {
        test: "nohost",
        secret: DATABASE_SECRET,
        key: "uri",
        value: |right| {
            let port = right.rsplit(':').next()?.split('/').next()?.to_owned();
            Some(right.replace(&port, "9"))
        },
        condition: "DatabaseReachable",
        reason: "ConnectionRefused",
        word: "host and port",
    })
    .await
}

#[tokio::test]
async fn a_database_login_with_a_wrong_password() -> Result<()> {
    shows_and_heals(Fault {
        test: "nologin",
        secret: DATABASE_SECRET,
        key: "uri",
        value: |right| {
            let password = right.split([':', '@']).nth(2)?;
            Some(right.replace(password, "wrong"))
        },
        condition: "DatabaseReachable",
        reason: "AuthenticationFailed",
        word: "user and password",
    })
    .await
}

#[tokio::test]
async fn a_virtual_host_that_is_not_there() -> Result<()> {
    shows_and_heals(Fault {
        test: "novhost",
        secret: BROKER_SECRET,
        key: "uri",
        value: |right| {
            let vhost = right.rsplit('/').next()?;
            Some(format!("{}nowhere", right.strip_suffix(vhost)?))
        },
        condition: "TransportsReachable",
        reason: "VhostNotFound",
        word: "nowhere",
    })
    .await
}

#[tokio::test]
async fn a_broker_login_with_a_wrong_password() -> Result<()> {
    shows_and_heals(Fault {
        test: "noaccess",
        secret: BROKER_SECRET,
        key: "uri",
        value: |right| {
            let password = right.split([':', '@']).nth(2)?;
            Some(right.replace(password, "wrong"))
        },
        condition: "TransportsReachable",
        reason: "AccessRefused",
        word: "user and password",
    })
    .await
}
