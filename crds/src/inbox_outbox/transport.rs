//! The brokers of an `InboxOutbox`.

use serde::{Deserialize, Serialize};

use super::reference::{SecretRef, Tls};
#[cfg(feature = "kube")]
use crate::limits;

/// A message broker, by the name endpoints use for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Transport {
    /// Name of the transport, unique in this resource.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::LABEL_BYTES), regex(pattern = limits::LABEL_PATTERN)))]
    pub name: String,

    /// A RabbitMQ broker.
    pub rabbitmq: Rabbitmq,
}

/// A RabbitMQ broker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("!has(self.tls) || self.tls.mode in ['Disable', 'VerifyFull']").message(kube::core::Message::Expression(r#""`tls.mode` is '" + self.tls.mode + "' but must be 'Disable' or 'VerifyFull' for a broker""#.to_owned()))
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rabbitmq {
    /// Where the connection URL (`amqp://` or `amqps://`) is. Without a key: `uri` or `connection_string`,
    /// or else a URL made of `host`, `port`, `username`, `password`, as the RabbitMQ cluster operator writes them.
    pub secret_ref: SecretRef,

    /// Virtual host. Left out, the URL's counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SHORT_STRING_BYTES)))]
    pub vhost: Option<String>,

    /// Protection of the connection: `Disable` or `VerifyFull`. Left out, the URL's scheme counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// Seconds between signs of life on the connection.
    #[serde(default = "default_heartbeat")]
    #[cfg_attr(feature = "kube", schemars(range(min = limits::HEARTBEAT_SECONDS.min, max = limits::HEARTBEAT_SECONDS.max)))]
    pub heartbeat_seconds: u32,
}

fn default_heartbeat() -> u32 {
    30
}
