//! The folder of the demo, `.demo` in the repository, and the end of everything that was started in it.
//!
//! Invariant: only processes that carry the folder's path in their environment are ended, and only a folder that the
//! demo made is removed. Where it is gets written down before anything is started, so that `down` finds it even after
//! the demo was killed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use postroom_tests::{flavour, run};

/// Beginning of the name of a folder outside the repository.
const PREFIX: &str = "postroom-demo-";

/// The folder in the repository: environment and logs for people, and what `down` needs.
pub(crate) fn folder() -> Result<PathBuf> {
    std::path::absolute(".demo").context("find the current folder")
}

/// The file that holds the path of the servers' folder.
fn record() -> Result<PathBuf> {
    Ok(folder()?.join("where"))
}

/// Makes the folders. From here on everything that the harness starts belongs to the demo.
pub(crate) fn create() -> Result<()> {
    let own = folder()?;
    fs::create_dir(&own).with_context(|| format!("create {}", own.display()))?;
    let servers = place_of_servers(&own)?;
    fs::write(record()?, servers.to_string_lossy().as_bytes())?;
    run::keep_in(&servers)?;
    if servers.parent() != Some(own.as_path()) {
        std::os::unix::fs::symlink(&servers, own.join("servers"))?;
    }
    Ok(())
}

/// Inside the repository, unless the servers' users cannot go there (a clone below /root), or the servers live in a
/// folder of their own that sees only the temporary files.
fn place_of_servers(own: &Path) -> Result<PathBuf> {
    let name = format!("{PREFIX}{}", &run::random_word()[..8]);
    if std::env::var(flavour::VARIABLE).is_ok_and(|flavour| flavour == "trixie") {
        return Ok(std::env::temp_dir().join(name));
    }
    let is_root = fs::metadata("/proc/self")?.uid() == 0;
    if is_root && !everybody_may_pass(own)? {
        return Ok(Path::new("/var/tmp").join(name));
    }
    Ok(own.join("servers"))
}

fn everybody_may_pass(path: &Path) -> Result<bool> {
    for folder in path.ancestors() {
        if fs::metadata(folder)?.mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Ends and removes everything. False: there was nothing.
pub(crate) fn remove() -> Result<bool> {
    let own = folder()?;
    if !own.exists() {
        return Ok(false);
    }
    end_servers()?;
    fs::remove_dir_all(&own).with_context(|| format!("remove {}", own.display()))?;
    Ok(true)
}

/// Ends everything, but keeps the logs, in `.demo/logs`; returns that folder.
pub(crate) fn end_and_keep_logs() -> Result<PathBuf> {
    let logs = folder()?.join("logs");
    fs::create_dir_all(&logs)?;
    if let Some(servers) = recorded()? {
        copy_logs(&servers, &logs)?;
    }
    end_servers()?;
    Ok(logs)
}

fn end_servers() -> Result<()> {
    match recorded()? {
        Some(servers) => run::end(&servers),
        None => Ok(()),
    }
}

/// The folder that was written down, if it is one of ours.
fn recorded() -> Result<Option<PathBuf>> {
    let file = record()?;
    let path = match fs::read_to_string(&file) {
        Ok(text) => PathBuf::from(text.trim()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", file.display())),
    };
    ensure!(
        is_ours(&path),
        "{} names {}, which no demo made: end the servers yourself and remove the file",
        file.display(),
        path.display()
    );
    Ok(Some(path))
}

/// Whether [`place_of_servers`] may have chosen it.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let known = path.ends_with(".demo/servers") || name.starts_with(PREFIX);
    path.is_absolute() && known && !path.components().any(|part| part == Component::ParentDir)
}

/// Logs are the files `log` and `*.log`, one folder down.
fn copy_logs(servers: &Path, logs: &Path) -> Result<()> {
    let Ok(folders) = fs::read_dir(servers) else {
        return Ok(());
    };
    for folder in folders {
        let folder = folder?;
        let Ok(files) = fs::read_dir(folder.path()) else {
            continue;
        };
        for file in files {
            let name = file?.file_name().to_string_lossy().into_owned();
            if folder.path().join(&name).is_file() && (name == "log" || name.ends_with(".log")) {
                let copy = format!("{}-{name}", folder.file_name().to_string_lossy());
                fs::copy(folder.path().join(&name), logs.join(copy))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_that_a_demo_chose_is_ever_removed() {
        for ours in [
            "/srv/postroom/.demo/servers",
            "/var/tmp/postroom-demo-0a1b2c3d",
        ] {
            assert!(is_ours(Path::new(ours)), "{ours}");
        }
        for other in [
            "",
            "/",
            "/srv",
            ".demo/servers",
            "/srv/.demo/servers/../..",
            "/srv/.demo/other",
        ] {
            assert!(!is_ours(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_folder_that_others_may_not_enter_is_noticed() {
        assert!(everybody_may_pass(Path::new("/var/tmp")).unwrap());
        let closed = std::env::temp_dir().join(format!("{PREFIX}{}", run::random_word()));
        fs::create_dir_all(closed.join("inside")).unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&closed, private).unwrap();
        assert!(!everybody_may_pass(&closed.join("inside")).unwrap());
        fs::remove_dir_all(closed).unwrap();
    }
}
