//! A virtual host per test on a broker that many tests share, with a user who may do everything in it and nothing
//! outside.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ExchangeKind};
use serde_json::json;

use crate::background::best_effort;
use crate::broker::{self, RabbitServer};
use crate::http::Client;
use crate::receiver::Receiver;
use crate::run;

/// A virtual host, removed with its user at the end of the test.
#[derive(Debug)]
pub struct Vhost {
    name: String,
    password: String,
    port: u16,
    tls_port: u16,
    management: Client,
}

/// A queue's kind and arguments; always durable.
#[derive(Debug, Default, Clone)]
pub struct QueueArguments(FieldTable);

impl QueueArguments {
    /// What production should use, and the default of most tests.
    #[must_use]
    pub fn quorum() -> Self {
        Self::classic().with("x-queue-type", AMQPValue::LongString("quorum".into()))
    }

    /// A classic queue.
    #[must_use]
    pub fn classic() -> Self {
        Self::default()
    }

    /// Refuses further messages by a nack once it holds `length`.
    #[must_use]
    pub fn rejecting_above(self, length: i64) -> Self {
        self.with("x-max-length", AMQPValue::LongLongInt(length))
            .with("x-overflow", AMQPValue::LongString("reject-publish".into()))
    }

    /// Adds an argument.
    #[must_use]
    pub fn with(mut self, name: &str, value: AMQPValue) -> Self {
        self.0.insert(name.into(), value);
        self
    }
}

impl Vhost {
    /// Creates it; the name begins with `prefix` and is also the user's.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn create(server: &RabbitServer, prefix: &str) -> Result<Self> {
        Self::named(server, run::unique_name(prefix)).await
    }

    /// The same with this very name, for a server that nobody shares.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn named(server: &RabbitServer, name: String) -> Result<Self> {
        let vhost = Self {
            name,
            password: run::random_word(),
            port: server.port(),
            tls_port: server.tls_port(),
            management: server.management(),
        };
        let Self {
            name,
            password,
            management,
            ..
        } = &vhost;
        management
            .request("PUT", &format!("/api/vhosts/{name}"), Some(&json!({})))
            .await?
            .success()?;
        let user = json!({"password": password, "tags": ""});
        management
            .request("PUT", &format!("/api/users/{name}"), Some(&user))
            .await?
            .success()?;
        vhost.permit(".*", ".*", ".*").await?;
        Ok(vhost)
    }

    /// Changes what the user may configure, write and read, as regular expressions over names.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn permit(&self, configure: &str, write: &str, read: &str) -> Result<()> {
        let path = format!("/api/permissions/{0}/{0}", self.name);
        let rights = json!({"configure": configure, "write": write, "read": read});
        self.management
            .request("PUT", &path, Some(&rights))
            .await?
            .success()
            .map(drop)
    }

    /// Its name, and its user's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The user's password.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The connection string of the user.
    pub fn amqp_url(&self) -> String {
        self.amqp_url_at(self.port)
    }

    /// The same through a proxy at another port.
    pub fn amqp_url_at(&self, port: u16) -> String {
        broker::url(&self.name, &self.password, port, &self.name)
    }

    /// The connection string for TLS, when the broker was started with a certificate.
    pub fn amqps_url(&self) -> String {
        self.amqp_url_at(self.tls_port)
            .replacen("amqp://", "amqps://", 1)
    }

    /// A connection of the user.
    ///
    /// # Errors
    /// When there is none within ten seconds.
    pub async fn connect(&self) -> Result<Connection> {
        broker::connect(&self.amqp_url()).await
    }

    /// Runs `act` with a channel, then closes the connection.
    async fn with_channel<T>(
        &self,
        act: impl AsyncFnOnce(&Channel) -> lapin::Result<T>,
    ) -> Result<T> {
        with_channel(&self.amqp_url(), act).await
    }

    /// Declares a durable exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn declare_exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        self.with_channel(async |channel| exchange(channel, name, kind).await)
            .await
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn delete_exchange(&self, name: &str) -> Result<()> {
        self.with_channel(async |channel| {
            channel
                .exchange_delete(
                    name.into(),
                    lapin::options::ExchangeDeleteOptions::default(),
                )
                .await
        })
        .await
    }

    /// Declares a durable queue.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn declare_queue(&self, name: &str, arguments: &QueueArguments) -> Result<()> {
        self.with_channel(async |channel| queue(channel, name, arguments).await)
            .await
    }

    /// Deletes a queue with all it holds.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn delete_queue(&self, name: &str) -> Result<()> {
        self.with_channel(async |channel| {
            channel
                .queue_delete(name.into(), QueueDeleteOptions::default())
                .await
        })
        .await
        .map(drop)
    }

    /// Binds a queue to an exchange.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) -> Result<()> {
        self.with_channel(async |channel| binding(channel, queue, exchange, routing_key).await)
            .await
    }

    /// A durable topic exchange and a durable queue that gets what matches `binding`.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn declare(
        &self,
        exchange: &str,
        queue: &str,
        arguments: &QueueArguments,
        binding: &str,
    ) -> Result<()> {
        declare(&self.amqp_url(), exchange, queue, arguments, binding).await
    }

    /// How many messages wait in a queue, as the broker knows it now.
    ///
    /// # Errors
    /// When there is no such queue.
    pub async fn depth(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = self
            .with_channel(async |channel| {
                channel
                    .queue_declare(queue.into(), options, FieldTable::default())
                    .await
            })
            .await?;
        Ok(queue.message_count())
    }

    /// Publishes one message through the default exchange and waits for the confirm.
    ///
    /// # Errors
    /// When the broker refuses it.
    pub async fn publish(
        &self,
        queue: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Result<()> {
        self.with_channel(async |channel| {
            channel
                .confirm_select(ConfirmSelectOptions::default())
                .await?;
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            channel
                .basic_publish("".into(), queue.into(), options, body, properties)
                .await?
                .await
        })
        .await
        .map(drop)
    }

    /// Collects everything that arrives in these queues from now on.
    ///
    /// # Errors
    /// When they cannot be consumed.
    pub async fn receive(&self, queues: &[&str]) -> Result<Receiver> {
        Receiver::start(&self.amqp_url(), queues, Duration::from_secs(30)).await
    }
}

/// A durable topic exchange and a durable queue that gets what matches `routing_key`, wherever the URL leads.
///
/// # Errors
/// When the broker refuses.
pub async fn declare(
    url: &str,
    to: &str,
    from: &str,
    arguments: &QueueArguments,
    routing_key: &str,
) -> Result<()> {
    with_channel(url, async |channel| {
        exchange(channel, to, ExchangeKind::Topic).await?;
        queue(channel, from, arguments).await?;
        binding(channel, from, to, routing_key).await
    })
    .await
}

async fn with_channel<T>(
    url: &str,
    act: impl AsyncFnOnce(&Channel) -> lapin::Result<T>,
) -> Result<T> {
    let connection = broker::connect(url).await?;
    let channel = connection.create_channel().await?;
    let answer = act(&channel).await;
    // What the act says counts, not whether the connection could still be closed after it.
    connection.close(200, "OK".into()).await.ok();
    answer.context("RabbitMQ refuses")
}

async fn exchange(channel: &Channel, name: &str, kind: ExchangeKind) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(name.into(), kind, options, FieldTable::default())
        .await
}

async fn queue(channel: &Channel, name: &str, arguments: &QueueArguments) -> lapin::Result<()> {
    let options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(name.into(), options, arguments.0.clone())
        .await
        .map(drop)
}

async fn binding(
    channel: &Channel,
    queue: &str,
    exchange: &str,
    routing_key: &str,
) -> lapin::Result<()> {
    channel
        .queue_bind(
            queue.into(),
            exchange.into(),
            routing_key.into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await
}

impl Drop for Vhost {
    fn drop(&mut self) {
        let (name, management) = (self.name.clone(), self.management.clone());
        best_effort(async move {
            management
                .request("DELETE", &format!("/api/vhosts/{name}"), None)
                .await?
                .success()?;
            management
                .request("DELETE", &format!("/api/users/{name}"), None)
                .await?
                .success()
                .map(drop)
        });
    }
}
