//! Which servers a run uses: those of the machine, or newer ones from a Debian folder of their own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{fs, os::unix::fs::MetadataExt as _};

use anyhow::{Context as _, Result, bail};

use crate::run;

/// Chooses the flavour: `bookworm` (the default) or `trixie`.
pub const VARIABLE: &str = "POSTROOM_TEST_SERVERS";

/// Mounts what a server needs inside the folder, in a mount namespace that ends with the server, and becomes it. The
/// temporary folder is mounted at its own path, so that paths mean the same inside and outside.
const ENTER: &str = r#"
mount -t proc proc "$POSTROOM_ROOT/proc"
mount --rbind /dev "$POSTROOM_ROOT/dev"
mkdir -p "$POSTROOM_ROOT$POSTROOM_TEMPORARY"
mount --bind "$POSTROOM_TEMPORARY" "$POSTROOM_ROOT$POSTROOM_TEMPORARY"
exec chroot "$POSTROOM_ROOT" setpriv --reuid "$POSTROOM_USER" --regid "$POSTROOM_USER" --init-groups "$@"
"#;

/// The system user that runs a server; neither server likes root.
#[derive(Clone, Copy, Debug)]
pub enum User {
    /// For PostgreSQL and PgBouncer.
    Postgres,
    /// For RabbitMQ.
    Rabbitmq,
}

impl User {
    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// A set of server programs.
#[derive(Debug, Clone)]
pub struct Flavour {
    name: &'static str,
    /// Where the Debian folder is; none for the machine itself.
    root: Option<PathBuf>,
    postgres_bin: &'static str,
}

static CURRENT: LazyLock<Flavour> =
    LazyLock::new(|| Flavour::from_environment().unwrap_or_else(|error| panic!("{error:#}")));

impl Flavour {
    /// The flavour of this run.
    ///
    /// # Panics
    /// When the variable names none, or its programs are not installed.
    pub fn current() -> &'static Self {
        &CURRENT
    }

    fn from_environment() -> Result<Self> {
        let chosen = std::env::var(VARIABLE).unwrap_or_else(|_| "bookworm".to_owned());
        let flavour = match chosen.as_str() {
            "bookworm" => Self {
                name: "bookworm",
                root: None,
                postgres_bin: "/usr/lib/postgresql/15/bin",
            },
            "trixie" => Self {
                name: "trixie",
                root: Some(trixie_folder()?),
                postgres_bin: "/usr/lib/postgresql/17/bin",
            },
            other => bail!("{VARIABLE} is '{other}': use bookworm or trixie"),
        };
        let initdb = flavour.outside(&flavour.postgres_program("initdb"));
        if !initdb.is_file() {
            bail!(
                "{} is missing: run tests/services/install.sh {}",
                initdb.display(),
                flavour.name
            );
        }
        if flavour.root.is_some() && !is_root()? {
            bail!("the trixie flavour needs root, because it enters a chroot");
        }
        Ok(flavour)
    }

    /// `bookworm` or `trixie`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The path of a PostgreSQL program, as the flavour itself sees it.
    pub fn postgres_program(&self, name: &str) -> String {
        format!("{}/{name}", self.postgres_bin)
    }

    /// A command of this flavour that runs as `user` with an environment of its own.
    ///
    /// # Errors
    /// When it cannot be told whether we are root.
    pub fn command(&self, user: User, program: &str) -> Result<Command> {
        let mut command = match (&self.root, is_root()?) {
            (Some(root), _) => {
                let mut command = run::command("unshare");
                command.args([
                    "--mount",
                    "--propagation",
                    "private",
                    "sh",
                    "-euc",
                    ENTER,
                    "sh",
                ]);
                command
                    .env_clear()
                    .env("POSTROOM_ROOT", root)
                    .env("POSTROOM_TEMPORARY", std::env::temp_dir());
                command
            }
            (None, true) => {
                let mut command = run::command("setpriv");
                command
                    .args([
                        "--reuid",
                        user.name(),
                        "--regid",
                        user.name(),
                        "--init-groups",
                    ])
                    .env_clear();
                command
            }
            (None, false) => {
                let mut command = run::command(program);
                command.env_clear();
                return Ok(environment(command, user));
            }
        };
        command.arg(program);
        Ok(environment(command, user))
    }

    /// Gives a file or folder to the user that will use it.
    ///
    /// # Errors
    /// When the user does not exist or the owner cannot be changed.
    pub fn give(&self, user: User, path: &Path) -> Result<()> {
        if !is_root()? {
            return Ok(());
        }
        let (uid, gid) = self.numbers(user)?;
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
            .with_context(|| format!("give {} to {}", path.display(), user.name()))
    }

    /// The numbers of a user differ between the machine and the Debian folder.
    fn numbers(&self, user: User) -> Result<(u32, u32)> {
        let file = self.outside("/etc/passwd");
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let line = text
            .lines()
            .find(|line| line.split(':').next() == Some(user.name()));
        let fields: Vec<&str> = line
            .with_context(|| format!("no user {} in {}", user.name(), file.display()))?
            .split(':')
            .collect();
        Ok((fields[2].parse()?, fields[3].parse()?))
    }

    /// Where a path of the flavour is for this process.
    pub fn outside(&self, path: &str) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.trim_start_matches('/')),
            None => PathBuf::from(path),
        }
    }
}

fn environment(mut command: Command, user: User) -> Command {
    command
        .env(run::MARKER, run::folder())
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("LANG", "C.UTF-8")
        .env("LC_ALL", "C.UTF-8")
        .env("POSTROOM_USER", user.name())
        .current_dir("/");
    command
}

fn trixie_folder() -> Result<PathBuf> {
    let cache = match std::env::var_os("POSTROOM_CACHE") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(
            std::env::var_os("HOME").context("neither POSTROOM_CACHE nor HOME is set")?,
        )
        .join(".cache/postroom"),
    };
    let root = cache.join("trixie");
    if !root.join(".postroom-complete").is_file() {
        bail!(
            "{} is missing or not complete: run tests/services/install.sh trixie",
            root.display()
        );
    }
    Ok(root)
}

fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self").context("read /proc/self")?.uid() == 0)
}
