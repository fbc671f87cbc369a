//! A Secret that is mounted as a folder, with one file for each key; and the URLs that can be made of it.

use std::fs;
use std::path::{Path, PathBuf};

use postroom_crds::worker_config::Login;

use super::Server;
use crate::reason::Reason;

/// A mounted Secret that has something in it.
pub(super) struct Folder {
    path: PathBuf,
    keys: Vec<String>,
}

impl Folder {
    /// The Secret at `path`. An empty folder is where a Secret would be.
    pub(super) fn open(path: &str) -> Result<Self, Reason> {
        let names = fs::read_dir(path).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        // The kubelet's own folder and link begin with two dots.
        let mut keys: Vec<_> = names.filter(|name| !name.starts_with("..")).collect();
        keys.sort_unstable();
        if keys.is_empty() {
            return Err(Reason::new(
                "SecretNotFound",
                format!("the Secret '{}' does not exist or is empty", name_of(path)),
                "Create the Secret, or name another one in the resource.",
            ));
        }
        Ok(Self {
            path: path.into(),
            keys,
        })
    }

    /// The names of its keys.
    pub(super) fn keys(self) -> Vec<String> {
        self.keys
    }

    /// Its URL, or one made of its parts.
    pub(super) fn url(&self, server: Server) -> Result<String, Reason> {
        match server {
            Server::Database => match self.value(&["uri"]) {
                Some(url) => Ok(url),
                None => self.database_url(),
            },
            // The messaging topology operator keeps the URL of the management interface under `uri`.
            Server::Broker => match ["uri", "connection_string"]
                .into_iter()
                .filter_map(|key| self.value(&[key]))
                .find(|url| url.starts_with("amqp"))
            {
                Some(url) => Ok(url),
                None => self.broker_url(),
            },
        }
    }

    /// The URL of the server in `login`, with the login of this Secret.
    pub(super) fn login(&self, login: &Login) -> Result<String, Reason> {
        let (user, password) = self.credentials()?;
        Ok(database(
            &user,
            &password,
            &login.host,
            &login.port.to_string(),
            &login.database,
        ))
    }

    fn database_url(&self) -> Result<String, Reason> {
        let (user, password) = self.credentials()?;
        let host = self.needed(&["host"])?;
        let port = self.value(&["port"]).unwrap_or_else(|| "5432".to_owned());
        let name = self.needed(&["dbname", "database"])?;
        Ok(database(&user, &password, &host, &port, &name))
    }

    fn broker_url(&self) -> Result<String, Reason> {
        let (user, password) = self.credentials()?;
        let host = host(&self.needed(&["host"])?);
        let port = self.value(&["port"]).unwrap_or_else(|| "5672".to_owned());
        Ok(format!(
            "amqp://{}:{}@{host}:{port}",
            encoded(&user),
            encoded(&password)
        ))
    }

    fn credentials(&self) -> Result<(String, String), Reason> {
        Ok((
            self.needed(&["username", "user"])?,
            self.needed(&["password"])?,
        ))
    }

    /// The first of `keys` that is there and not empty.
    fn value(&self, keys: &[&str]) -> Option<String> {
        let read = |key: &&str| fs::read_to_string(Path::new(&self.path).join(key)).ok();
        let text = keys.iter().find_map(read)?;
        let text = text.trim_end_matches(['\n', '\r']);
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn needed(&self, keys: &[&str]) -> Result<String, Reason> {
        self.value(keys).ok_or_else(|| {
            Reason::new(
                "SecretKeyMissing",
                format!(
                    "the Secret '{}' has no connection URL under 'uri', nor '{}' to make one; it has {}",
                    name_of(&self.path.to_string_lossy()),
                    keys.join("' or '"),
                    self.keys.join(", ")
                ),
                "Name the key that holds the connection URL in the resource, or add it to the Secret.",
            )
        })
    }
}

/// A Secret is mounted under its own name.
pub(super) fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn database(user: &str, password: &str, server: &str, port: &str, name: &str) -> String {
    format!(
        "postgres://{}:{}@{}:{port}/{}",
        encoded(user),
        encoded(password),
        host(server),
        encoded(name)
    )
}

/// An address with colons goes into brackets.
fn host(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// Percent-encoded, so that nothing in it can end its part of the URL.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use postroom_crds::worker_config::{Login, Source};

    use crate::reason::Reason;
    use crate::secret::{Server, read};

    /// A folder as a kubelet mounts it, gone with the value.
    struct Mounted(PathBuf);

    impl Mounted {
        fn new(name: &str, entries: &[(&str, &str)]) -> Self {
            let folder = format!("postroom-secret-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(folder);
            fs::create_dir_all(path.join("..data")).unwrap();
            for (key, value) in entries {
                fs::write(path.join(key), value).unwrap();
            }
            Self(path)
        }

        fn path(&self) -> String {
            self.0.to_str().unwrap().to_owned()
        }

        fn url(&self, server: Server) -> Result<String, Reason> {
            read(&Source::Secret(self.path()), server)
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    #[test]
    fn a_url_that_is_there_is_taken() {
        let secret = Mounted::new("uri", &[("uri", "postgres://a\n"), ("host", "other")]);
        assert_eq!(secret.url(Server::Database).unwrap(), "postgres://a");
    }

    #[test]
    fn a_url_is_made_of_parts_and_nothing_in_them_can_end_a_part() {
        let parts = [
            ("host", "db"),
            ("user", "app"),
            ("password", "p@ss/w:rd"),
            ("dbname", "shop"),
        ];
        let secret = Mounted::new("parts", &parts);
        assert_eq!(
            secret.url(Server::Database).unwrap(),
            "postgres://app:p%40ss%2Fw%3Ard@db:5432/shop"
        );
        let login = Login {
            secret: secret.path(),
            host: "fd00::1".to_owned(),
            port: 6432,
            database: "a b".to_owned(),
        };
        assert_eq!(
            read(&Source::Login(login), Server::Database).unwrap(),
            "postgres://app:p%40ss%2Fw%3Ard@[fd00::1]:6432/a%20b"
        );
    }

    #[test]
    fn the_url_of_a_management_interface_is_not_taken_for_a_broker() {
        let cluster = [
            ("uri", "https://rmq:15671"),
            ("connection_string", "amqp://u:p@rmq:5672/"),
        ];
        let secret = Mounted::new("broker", &cluster);
        assert_eq!(secret.url(Server::Broker).unwrap(), "amqp://u:p@rmq:5672/");
        let parts = [("username", "u"), ("password", "p"), ("host", "rmq")];
        let secret = Mounted::new("broker-parts", &parts);
        assert_eq!(secret.url(Server::Broker).unwrap(), "amqp://u:p@rmq:5672");
    }

    #[test]
    fn a_secret_that_is_missing_is_told_from_a_key_that_is() {
        let empty = Mounted::new("empty", &[]);
        assert_eq!(
            empty.url(Server::Database).unwrap_err().code,
            "SecretNotFound"
        );
        let other = Mounted::new("other", &[("url", "postgres://hunter2@db")]);
        let reason = other.url(Server::Database).unwrap_err();
        assert_eq!(reason.code, "SecretKeyMissing");
        assert!(reason.message.ends_with("it has url"), "{reason}");
        assert!(!reason.to_string().contains("hunter2"));
        let file = Source::File(format!("{}/uri", other.path()));
        let reason = read(&file, Server::Database).unwrap_err();
        assert_eq!(reason.code, "SecretKeyMissing");
        let file = Source::File(format!("{}/uri", empty.path()));
        let reason = read(&file, Server::Database).unwrap_err();
        assert_eq!(reason.code, "SecretNotFound");
    }
}
