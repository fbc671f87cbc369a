//! Somebody who sends messages to a queue as other programs do, and waits until the broker has them.

use anyhow::{Result, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection};

/// A message to send.
#[derive(Debug, Clone)]
pub struct Parcel {
    /// Everything but the body.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
    headers: FieldTable,
}

impl Parcel {
    /// A message without anything but a body.
    pub fn bare(body: impl Into<Vec<u8>>) -> Self {
        Self {
            properties: BasicProperties::default().with_delivery_mode(2),
            body: body.into(),
            headers: FieldTable::default(),
        }
    }

    /// A message with id, type and content type.
    pub fn new(id: &str, body: impl Into<Vec<u8>>) -> Self {
        let bare = Self::bare(body);
        let properties = bare
            .properties
            .with_message_id(id.into())
            .with_type("order.placed".into())
            .with_content_type("application/json".into());
        Self { properties, ..bare }
    }

    /// Changes the properties.
    #[must_use]
    pub fn with(self, change: impl FnOnce(BasicProperties) -> BasicProperties) -> Self {
        Self {
            properties: change(self.properties),
            ..self
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: AMQPValue) -> Self {
        self.headers.insert(name.into(), value);
        self
    }

    /// Adds a header that is text.
    #[must_use]
    pub fn text_header(self, name: &str, value: &str) -> Self {
        self.header(name, AMQPValue::LongString(value.into()))
    }

    /// The stream.
    #[must_use]
    pub fn stream(self, stream: &str) -> Self {
        self.text_header("x-postroom-stream", stream)
    }
}

/// Somebody who sends, and waits for confirms.
#[derive(Debug)]
pub struct Sender {
    channel: Channel,
    _connection: Connection,
}

impl Sender {
    /// Connects.
    ///
    /// # Errors
    /// When the broker refuses.
    pub async fn connect(url: &str) -> Result<Self> {
        let connection = crate::broker::connect(url).await?;
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(Self {
            channel,
            _connection: connection,
        })
    }

    /// Sends to a queue, in this order, and waits until the broker has everything.
    ///
    /// # Errors
    /// When it refuses any of it.
    pub async fn send(&self, queue: &str, parcels: impl IntoIterator<Item = Parcel>) -> Result<()> {
        self.publish("", queue, parcels).await
    }

    /// The same to an exchange.
    ///
    /// # Errors
    /// When it refuses any of it.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        parcels: impl IntoIterator<Item = Parcel>,
    ) -> Result<()> {
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let mut confirms = Vec::new();
        for parcel in parcels {
            let properties = parcel.properties.with_headers(parcel.headers);
            let publish = self.channel.basic_publish(
                exchange.into(),
                routing_key.into(),
                options,
                &parcel.body,
                properties,
            );
            confirms.push(publish.await?);
        }
        for confirm in confirms {
            let confirm = confirm.await?;
            ensure!(
                matches!(confirm, lapin::Confirmation::Ack(None)),
                "the broker has not taken a message: {confirm:?}"
            );
        }
        Ok(())
    }
}
