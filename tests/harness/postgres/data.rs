//! The data folder of a server.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};
use tokio::sync::OnceCell;

use super::PostgresOptions;
use crate::flavour::{Flavour, User};
use crate::{address, run};

const SETTINGS: &str = "
unix_socket_directories = ''
max_connections = 200
max_prepared_transactions = 50
shared_buffers = '64MB'
log_line_prefix = '%m [%p] %q%u@%d '
";

/// The same for all servers of a run, because they start from the same folder.
pub(super) static SUPERUSER_PASSWORD: LazyLock<String> = LazyLock::new(run::random_word);
static TEMPLATE: OnceCell<PathBuf> = OnceCell::const_new();
/// Makes the data folder of a server.
pub(super) async fn create(data: &Path, port: u16, options: &PostgresOptions) -> Result<()> {
    let template = TEMPLATE.get_or_try_init(initialise).await?;
    let copied = run::command("cp")
        .arg("-a")
        .arg(template)
        .arg(data)
        .status()?;
    if !copied.success() {
        bail!("cannot copy {} to {}", template.display(), data.display());
    }
    let address = address::servers();
    let mut settings = format!("{SETTINGS}listen_addresses = '{address}'\nport = {port}\n");
    if let Some(certificate) = &options.tls {
        settings += "ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n";
        copy_for_server(data, &certificate.certificate, "server.crt")?;
        copy_for_server(data, &certificate.key, "server.key")?;
        let hba = data.join("pg_hba.conf");
        fs::write(hba, "hostssl all all all scram-sha-256\n")?;
    } else if !address.is_loopback() {
        let hba = data.join("pg_hba.conf");
        fs::write(hba, "host all all all scram-sha-256\n")?;
    }
    for (name, value) in &options.settings {
        writeln!(settings, "{name} = '{value}'")?;
    }
    let file = data.join("postgresql.conf");
    let defaults = fs::read_to_string(&file)?;
    fs::write(&file, defaults + &settings).context("write postgresql.conf")
}

/// PostgreSQL refuses a key that others can read or that belongs to somebody else.
fn copy_for_server(data: &Path, from: &Path, name: &str) -> Result<()> {
    let to = data.join(name);
    fs::copy(from, &to).with_context(|| format!("copy {}", from.display()))?;
    fs::set_permissions(&to, Permissions::from_mode(0o600))?;
    Flavour::current().give(User::Postgres, &to)
}

/// Makes a data folder once per run; every server starts from a copy, which takes a tenth of the time.
async fn initialise() -> Result<PathBuf> {
    let flavour = Flavour::current();
    let folder = run::new_folder("postgres-template")?;
    let (data, password) = (folder.join("data"), folder.join("password"));
    fs::write(&password, SUPERUSER_PASSWORD.as_str())?;
    for path in [&folder, &password] {
        flavour.give(User::Postgres, path)?;
    }
    let mut command = flavour.command(User::Postgres, &flavour.postgres_program("initdb"))?;
    command
        .args([
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "--no-sync",
        ])
        .arg(format!("--pwfile={}", password.display()))
        .arg("-D")
        .arg(&data);
    let output = tokio::process::Command::from(command)
        .output()
        .await
        .context("run initdb")?;
    if !output.status.success() {
        bail!("initdb: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(data)
}
