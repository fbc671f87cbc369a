//! The demo, short: it comes to its end, what it says about looking around works, and nothing of it stays.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use postroom_tests::{flavour, launch, run};

use crate::workspace::root;

/// A command of this test in the demo's folder, with the servers that this run uses.
fn command(program: impl AsRef<std::ffi::OsStr>, folder: &Path) -> Command {
    let mut command = run::command(program);
    command
        .current_dir(folder)
        .env_remove(launch::BINARY_VARIABLE);
    command.env(flavour::VARIABLE, flavour::Flavour::current().name());
    command
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

/// Processes that carry the demo's folder in their environment.
fn processes_of(servers: &str) -> Vec<String> {
    let mark = format!("{}={servers}", run::MARKER);
    let entries = fs::read_dir("/proc").expect("/proc can be read");
    let carries = |path: &Path| {
        let environment = fs::read(path.join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| carries(path))
        .map(|path| path.display().to_string())
        .collect()
}

/// G1, G2, G3 with a worker killed, as somebody sees who tries Postroom for the first time.
#[test]
fn the_demo_comes_to_its_end_can_be_looked_at_and_leaves_nothing_behind() -> Result<()> {
    let folder = run::new_folder("demo")?;
    fs::create_dir(folder.join("tests"))?;
    std::os::unix::fs::symlink(root().join("tests/demo"), folder.join("tests/demo"))?;
    let program = launch::neighbour("postroom-demo")?;

    let up = command(&program, &folder)
        .args(["up", "--seconds", "4"])
        .output()
        .context("start postroom-demo: build it with 'make build'")?;
    ensure!(up.status.success(), "{}", text(&up));
    for line in ["missing", "unexpected", "out of order"] {
        let right = |shown: &str| shown.contains(line) && shown.contains(" 0  ok");
        ensure!(text(&up).lines().any(right), "{line}: {}", text(&up));
    }
    ensure!(!text(&up).contains('\x1b'), "no colours without a terminal");

    let look = "source .demo/env; postroom-worker stats; psql \"$DATABASE_URL\" -Atc 'select count(*) > 0 from orders'";
    let looked = command("bash", &folder).args(["-euc", look]).output()?;
    let seen = text(&looked);
    ensure!(
        looked.status.success() && seen.contains("ENDPOINT") && seen.ends_with("t\n"),
        "{seen}"
    );

    let servers = fs::read_to_string(folder.join(".demo/where"))?;
    ensure!(
        processes_of(&servers).len() >= 4,
        "servers and workers go on"
    );
    let down = command(&program, &folder).arg("down").output()?;
    ensure!(down.status.success(), "{}", text(&down));
    ensure!(
        processes_of(&servers).is_empty(),
        "they have ended: {:?}",
        processes_of(&servers)
    );
    ensure!(!folder.join(".demo").exists() && !Path::new(&servers).exists());
    Ok(())
}
