//! The files, ports and environment of one broker.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::RabbitOptions;
use crate::flavour::{Flavour, User};
use crate::{address, ports, run};

const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

/// Where the packages keep the broker, in a folder that bears its version.
const LIBRARY: &str = "/usr/lib/rabbitmq/lib";

/// The only plugin that is on, and those it needs. A broker looks into every plugin it could turn on, which takes
/// longer than the rest of its start, so it is shown no others.
const PLUGINS: [&str; 4] = [
    "rabbitmq_management",
    "rabbitmq_management_agent",
    "rabbitmq_web_dispatch",
    "rabbitmq_prelaunch",
];

#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) amqp: u16,
    pub(super) amqps: u16,
    pub(super) management: u16,
    distribution: u16,
    names: u16,
}

/// Everything about a broker but its processes.
#[derive(Debug)]
pub(super) struct Node {
    folder: PathBuf,
    name: String,
    pub(super) ports: Ports,
    /// Of the administrator.
    pub(super) password: String,
}

impl Node {
    /// Chooses ports and writes the configuration.
    pub(super) fn create(options: &RabbitOptions) -> Result<Self> {
        let folder = run::new_folder("rabbit")?;
        Flavour::current().give(User::Rabbitmq, &folder)?;
        let ports = Ports {
            amqp: ports::free()?,
            amqps: ports::free()?,
            management: ports::free()?,
            distribution: ports::free()?,
            names: ports::free()?,
        };
        let node = Self {
            name: format!("{}@localhost", run::unique_name("postroom")),
            folder,
            ports,
            password: run::random_word(),
        };
        node.configure(options)?;
        node.choose_plugins()?;
        Ok(node)
    }

    /// A path in its folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The service that Erlang nodes find each other by.
    pub(super) fn name_service(&self) -> Result<Command> {
        let mut command = Flavour::current().command(User::Rabbitmq, "/usr/bin/epmd")?;
        command
            .env("ERL_EPMD_PORT", self.ports.names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1");
        Ok(command)
    }

    fn configure(&self, options: &RabbitOptions) -> Result<()> {
        let address = address::servers();
        let mut lines = format!(
            "listeners.tcp.1 = {address}:{}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {}\n\
             default_user = postroom\ndefault_pass = {}\ndisk_free_limit.absolute = 50MB\nvm_memory_high_watermark.relative = 0.6\n\
             log.console = true\nlog.console.level = info\nlog.file = false\n",
            self.ports.amqp, self.ports.management, self.password
        );
        if let Some(certificate) = &options.tls {
            for (from, to) in [
                (&certificate.certificate, "server.crt"),
                (&certificate.key, "server.key"),
                (&certificate.authority, "ca.crt"),
            ] {
                let to = self.folder.join(to);
                fs::copy(from, &to)?;
                Flavour::current().give(User::Rabbitmq, &to)?;
            }
            let at = self.folder.display();
            write!(
                lines,
                "listeners.ssl.1 = {address}:{}\nssl_options.cacertfile = {at}/ca.crt\nssl_options.certfile = {at}/server.crt\n\
                 ssl_options.keyfile = {at}/server.key\nssl_options.verify = verify_none\n",
                self.ports.amqps
            )?;
        }
        for line in &options.settings {
            writeln!(lines, "{line}")?;
        }
        for (name, text) in [
            ("rabbitmq.conf", lines.as_str()),
            ("enabled_plugins", "[rabbitmq_management].\n"),
            ("environment.conf", ""),
        ] {
            let file = self.folder.join(name);
            fs::write(&file, text)?;
            Flavour::current().give(User::Rabbitmq, &file)?;
        }
        Ok(())
    }

    /// A folder of links to the plugins it shall see, and to the libraries that lie among them.
    fn choose_plugins(&self) -> Result<()> {
        let chosen = self.folder.join("plugins");
        fs::create_dir(&chosen)?;
        let library = Flavour::current().outside(LIBRARY);
        let entry = fs::read_dir(&library)?
            .next()
            .with_context(|| format!("{} is empty", library.display()))?;
        let version = entry?.file_name();
        for entry in fs::read_dir(library.join(&version).join("plugins"))? {
            let name = entry?.file_name();
            let text = name.to_string_lossy();
            let plugin = text.split('-').next().unwrap_or_default();
            if !plugin.starts_with("rabbitmq_") || PLUGINS.contains(&plugin) {
                let inside = Path::new(LIBRARY)
                    .join(&version)
                    .join("plugins")
                    .join(&name);
                std::os::unix::fs::symlink(inside, chosen.join(&name))?;
            }
        }
        Ok(())
    }

    /// One of the broker's programs, told which node it is about.
    pub(super) fn program(&self, name: &str) -> Result<Command> {
        let mut command =
            Flavour::current().command(User::Rabbitmq, &format!("{PROGRAMS}/{name}"))?;
        let at = |path: &str| self.folder.join(path);
        let loopback = "-kernel inet_dist_use_interface {127,0,0,1}";
        command
            .env("HOME", &self.folder)
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_DIST_PORT", self.ports.distribution.to_string())
            .env("ERL_EPMD_PORT", self.ports.names.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_LOG_BASE", at("log"))
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config"))
            .env("RABBITMQ_CONF_ENV_FILE", at("environment.conf"))
            .env("RABBITMQ_PLUGINS_DIR", at("plugins"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
            .env("RABBITMQ_PID_FILE", at("pid"))
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", loopback)
            .env("RABBITMQ_CTL_ERL_ARGS", loopback)
            // The start script then becomes the server instead of staying as its parent, so that the process we know
            // is the one to signal.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        Ok(command)
    }
}
