//! What the README files claim: cited tests, make targets and linked files exist, the manifest is valid, the SQL works.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postroom_tests::launch;
use postroom_tests::setup::Postroom;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::workspace::root;

/// Words that have to stand in the paragraph of a strong claim.
const QUALIFIERS: [&str; 4] = ["effect", "scope", "boundary", "window"];

fn readmes() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the workspace can be read") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if name == "README.md" {
                files.push(path);
            }
        }
    }
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between single backticks, and every line of a block of code.
fn code(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            found.push(line.trim());
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// The fenced block of a language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let begin = format!("```{language}\n");
    let (_, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no block of {language}"));
    rest.split_once("\n```").map_or(rest, |(inside, _)| inside)
}

/// `file::name` of a scenario.
fn citation(word: &str) -> Option<(&str, &str)> {
    let (module, name) = word.split_once("::")?;
    let plain = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let is_sentence = name.matches('_').count() >= 3;
    (plain(module) && plain(name) && is_sentence).then_some((module, name))
}

/// Whether a file of the scenarios has this test.
fn has_test(module: &str, name: &str) -> bool {
    let file = root().join("tests/scenarios").join(format!("{module}.rs"));
    let text = fs::read_to_string(file).unwrap_or_default();
    let head = format!("fn {name}(");
    let mut marked = false;
    for line in text.lines() {
        let line = line.trim();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if line.contains("fn ") {
            if marked && line.contains(&head) {
                return true;
            }
            marked = false;
        }
    }
    false
}

#[test]
fn every_test_that_a_readme_cites_exists() {
    let mut cited = 0;
    for file in readmes() {
        let text = read(&file);
        for (module, name) in code(&text).into_iter().filter_map(citation) {
            cited += 1;
            assert!(
                has_test(module, name),
                "{} cites {module}::{name}, and there is no such test",
                file.display()
            );
        }
    }
    assert!(cited >= 10, "the citations are found: {cited}");
    assert!(!has_test("docs", "a_test_that_nobody_wrote"));
    assert!(!has_test("docs", "has_test"), "a function is no test");
}

/// The targets of a Makefile.
fn targets() -> BTreeSet<String> {
    let makefile = read(&root().join("Makefile"));
    let heads = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '.', '#', ' ']));
    heads
        .filter_map(|line| line.split_once(':'))
        .filter(|(_, rest)| !rest.starts_with('='))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

#[test]
fn every_make_target_that_a_readme_names_exists() {
    let targets = targets();
    let mut named = BTreeSet::new();
    for file in readmes() {
        let text = read(&file);
        for line in code(&text) {
            let Some(word) = line
                .strip_prefix("make ")
                .and_then(|rest| rest.split_whitespace().next())
            else {
                continue;
            };
            if word.starts_with('#') {
                continue;
            }
            assert!(
                targets.contains(word),
                "{} names 'make {word}'; there are {targets:?}",
                file.display()
            );
            named.insert(word.to_owned());
        }
    }
    assert!(
        named.contains("demo") && named.contains("demo-down") && named.contains("test"),
        "the targets are found: {named:?}"
    );
}

#[test]
fn every_file_that_a_readme_links_to_exists() {
    let mut linked = 0;
    for file in readmes() {
        let text = read(&file);
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") {
                continue;
            }
            linked += 1;
            let target = file.parent().expect("a file lies in a folder").join(path);
            assert!(target.exists(), "{} links to {path}", file.display());
        }
    }
    assert!(linked >= 6, "the links are found: {linked}");
}

/// The paragraphs that claim something was done once and no more, without saying what, where, until where, how long.
fn bare_claims(text: &str) -> Vec<&str> {
    let claims = |paragraph: &&str| {
        let plain = paragraph
            .to_lowercase()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        let strong = plain.replace('-', " ").contains("exactly once");
        strong && !QUALIFIERS.iter().all(|word| plain.contains(word))
    };
    text.split("\n\n").filter(claims).collect()
}

#[test]
fn exactly_once_is_never_claimed_without_effect_scope_boundary_and_window() {
    for file in readmes() {
        let text = read(&file);
        let bare = bare_claims(&text);
        assert!(bare.is_empty(), "{}: {bare:?}", file.display());
    }
    assert_eq!(bare_claims("Fine.\n\nWe deliver exactly\nonce.").len(), 1);
    assert_eq!(bare_claims("Exactly-once!").len(), 1);
    assert!(
        bare_claims("Exactly once: effect a, scope b, boundary c, window d.").is_empty(),
        "a claim with all four is none to complain about"
    );
}

/// Whether `postroom-operator validate` takes a manifest, and what it says.
fn validate(manifest: &str) -> Result<(bool, String)> {
    let mut child = Command::new(launch::neighbour("postroom-operator")?)
        .args(["validate", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start postroom-operator: build it with 'make build'")?;
    let mut input = child.stdin.take().context("its standard input")?;
    input.write_all(manifest.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output.status.success(), said))
}

#[test]
fn the_manifests_of_readme_and_demo_are_valid_and_the_smallest_has_nothing_to_spare() -> Result<()>
{
    let readme = read(&root().join("README.md"));
    let smallest = block(&readme, "yaml");
    for manifest in [smallest, &read(&root().join("tests/demo/shop.yaml"))] {
        let (valid, said) = validate(manifest)?;
        ensure!(valid, "{manifest}\n{said}");
    }
    for line in [
        "      name: orders-db-app\n",
        "      exchange: shop",
        "  name: orders\n",
    ] {
        let less = smallest.replacen(line, "", 1);
        ensure!(less != smallest, "the manifest has no line {line:?}");
        let (valid, _) = validate(&less)?;
        ensure!(!valid, "it is valid without {line:?} as well");
    }
    Ok(())
}

#[tokio::test]
async fn the_sql_of_the_readme_sends_a_message() -> Result<()> {
    let readme = read(&root().join("README.md"));
    let sql = block(&readme, "sql").to_owned();
    let postroom = Postroom::start("readme", |resource| resource).await?;
    let mut session = postroom.connect().await?;
    session
        .execute("create table public.orders (customer text, total int)")
        .await?;
    session.execute(AssertSqlSafe(sql)).await?;
    let _worker = postroom.worker().await?;
    let received = postroom
        .receiver
        .wait_for(1, Duration::from_secs(60))
        .await?;
    ensure!(received.len() == 1, "one message: {received:?}");
    ensure!(received[0].text() == r#"{"total": 120}"#);
    ensure!(received[0].header("x-postroom-stream").as_deref() == Some("ada"));
    Ok(())
}

/// W-06: each case that the documents behind this system name is named by a scenario that shows it.
#[test]
fn every_named_case_has_a_scenario() {
    let mut scenarios = String::new();
    for entry in fs::read_dir(root().join("tests/scenarios")).expect("the scenarios are there") {
        scenarios.push_str(&read(&entry.expect("an entry").path()));
    }
    let named: BTreeSet<&str> = scenarios
        .lines()
        .filter_map(|line| line.trim().strip_prefix("/// "))
        .flat_map(|line| line.split([' ', ',', ':', '.']))
        .collect();
    let cases = (1..=14).map(|number| format!("L-T{number}"));
    let cases = cases.chain((1..=8).map(|number| format!("W-T{number}")));
    let missing: Vec<String> = cases
        .filter(|case| !named.contains(case.as_str()))
        .collect();
    assert!(missing.is_empty(), "no scenario names {missing:?}");
}
