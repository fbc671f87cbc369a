//! References to Secrets of the same namespace, and the TLS block that uses them.
//!
//! Invariant: a reference names a Secret and a key, and never carries a value.

#![cfg_attr(
    feature = "kube",
    expect(
        unreachable_pub,
        reason = "the derive for schemas copies each struct into a function body"
    )
)]

use serde::{Deserialize, Serialize};

#[cfg(feature = "kube")]
use crate::limits;

/// A key of a Secret that holds a connection URL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretRef {
    /// Name of the Secret, in the namespace of this resource.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_NAME_PATTERN)))]
    pub name: String,

    /// Key that holds the URL. Left out, `uri` or what stands in for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_KEY_PATTERN)))]
    pub key: Option<String>,
}

/// A key of a Secret that holds certificates of authorities, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CaSecretRef {
    /// Name of the Secret, in the namespace of this resource.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_NAME_PATTERN)))]
    pub name: String,

    /// Key that holds the certificates.
    #[serde(default = "ca_key")]
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_KEY_PATTERN)))]
    pub key: String,
}

fn ca_key() -> String {
    "ca.crt".to_owned()
}

/// A Secret that holds a login: keys `username` (or `user`) and `password`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LoginSecretRef {
    /// Name of the Secret, in the namespace of this resource.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_NAME_PATTERN)))]
    pub name: String,
}

/// A Secret of the type `kubernetes.io/tls`: keys `tls.crt` and `tls.key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientCertificateSecretRef {
    /// Name of the Secret, in the namespace of this resource.
    #[cfg_attr(feature = "kube", schemars(length(min = 1, max = limits::SECRET_BYTES), regex(pattern = limits::SECRET_NAME_PATTERN)))]
    pub name: String,
}

/// How a connection is protected. The block wins over what the connection URL says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(kube::KubeSchema))]
#[cfg_attr(
    feature = "kube",
    x_kube(
        validation = kube::core::Rule::new("!has(self.caSecretRef) || self.mode in ['VerifyCA', 'VerifyFull']").message("`caSecretRef` must be left out unless `mode` is 'VerifyCA' or 'VerifyFull'"),
        validation = kube::core::Rule::new("!has(self.clientCertificateSecretRef) || self.mode != 'Disable'").message("`clientCertificateSecretRef` must be left out where `mode` is 'Disable'")
    )
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tls {
    /// `Disable`: no TLS. `Require`: encrypted, any certificate. `VerifyCA`: the certificate comes from a
    /// trusted authority. `VerifyFull`: and it names the host.
    #[serde(default)]
    pub mode: TlsMode,

    /// Authorities to trust besides the built-in ones. Only with `VerifyCA` and `VerifyFull`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<CaSecretRef>,

    /// Certificate and key that the worker shows to the server. Not with `Disable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificate_secret_ref: Option<ClientCertificateSecretRef>,
}

/// The four levels of protection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "kube", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "kube", schemars(inline))]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// Encrypted; any certificate is taken.
    Require,
    /// The certificate comes from a trusted authority.
    #[serde(rename = "VerifyCA")]
    VerifyCa,
    /// The certificate comes from a trusted authority and names the host.
    #[default]
    VerifyFull,
}
