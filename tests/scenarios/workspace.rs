//! Rules of the workspace: who may depend on whom, which licences, which duplicates, what lies at the top.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

const LICENCES: [&str; 9] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

const TOP_LEVEL: [&str; 11] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "charts",
    "crds",
    "migrations",
    "operator",
    "tests",
    "worker",
];

/// The packages of the build for this platform, as cargo sees them.
pub(crate) static METADATA: LazyLock<Value> = LazyLock::new(|| {
    let text = cargo(&[
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        "x86_64-unknown-linux-gnu",
    ]);
    serde_json::from_str(&text).expect("cargo metadata prints JSON")
});

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package lies in the workspace")
        .to_owned()
}

fn cargo(arguments: &[&str]) -> String {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(arguments)
        .args(["--locked", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "cargo {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("cargo prints UTF-8")
}

/// The names of everything a package is built with, itself included.
fn dependencies(package: &str) -> BTreeSet<String> {
    let tree = cargo(&[
        "tree", "-p", package, "-e", "normal", "--prefix", "none", "--format", "{p}",
    ]);
    let names: BTreeSet<String> = tree
        .lines()
        .filter_map(|line| Some(line.split_whitespace().next()?.to_owned()))
        .collect();
    assert!(names.contains(package), "{package} is in its own tree");
    names
}

/// It only looks for files with certificates.
const NO_CRYPTO_LIBRARY: &str = "openssl-probe";

fn assert_without(package: &str, forbidden: &[&str]) {
    let names = dependencies(package);
    let found: Vec<_> = names
        .iter()
        .filter(|name| {
            *name != NO_CRYPTO_LIBRARY
                && forbidden
                    .iter()
                    .any(|word| *name == word || name.starts_with(&format!("{word}-")))
        })
        .collect();
    assert!(
        found.is_empty(),
        "{package} must not depend on {found:?}; see with 'cargo tree -p {package} -i {}'",
        found[0]
    );
}

#[test]
fn the_worker_does_not_know_kubernetes() {
    assert_without("postroom-worker", &["kube", "k8s-openapi", "schemars"]);
}

#[test]
fn the_operator_does_not_know_databases_and_brokers() {
    assert_without(
        "postroom-operator",
        &[
            "sqlx",
            "tokio-postgres",
            "lapin",
            "amq-protocol",
            "postroom-worker",
            "postroom-tests",
        ],
    );
}

#[test]
fn the_contracts_do_no_input_and_output() {
    assert_without(
        "postroom-crds",
        &["tokio", "sqlx", "lapin", "axum", "reqwest"],
    );
}

#[test]
fn nobody_depends_on_the_tests() {
    for package in ["postroom-crds", "postroom-worker"] {
        assert_without(package, &["postroom-tests", "postroom-operator"]);
    }
}

#[test]
fn the_rule_about_dependencies_finds_what_is_there() {
    let names = dependencies("postroom-worker");
    assert!(
        names.contains("sqlx") && names.contains("lapin"),
        "{names:?}"
    );
}

#[test]
fn no_package_brings_another_tls_or_crypto_library() {
    for package in ["postroom-worker", "postroom-operator"] {
        assert_without(
            package,
            &[
                "openssl",
                "openssl-sys",
                "native-tls",
                "aws-lc-rs",
                "aws-lc-sys",
            ],
        );
    }
}

fn packages() -> &'static [Value] {
    METADATA["packages"]
        .as_array()
        .expect("cargo metadata lists packages")
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

#[test]
fn every_package_has_a_licence_we_may_use() {
    let refused: Vec<_> = packages()
        .iter()
        .filter(|package| !may_be_used(text(package, "license")))
        .map(|package| {
            format!(
                "{} {}: '{}'",
                text(package, "name"),
                text(package, "version"),
                text(package, "license")
            )
        })
        .collect();
    assert!(packages().len() > 100, "all packages are looked at");
    assert!(
        refused.is_empty(),
        "licences that are not on the list: {refused:#?}"
    );
}

#[test]
fn every_package_comes_from_the_registry_or_from_here() {
    let strange: Vec<_> = packages()
        .iter()
        .filter(|package| {
            !(package["source"].is_null() || text(package, "source").starts_with("registry+"))
        })
        .map(|package| text(package, "id"))
        .collect();
    assert!(strange.is_empty(), "{strange:#?}");
}

#[test]
fn licence_expressions_are_read_right() {
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-3.0 OR MIT",
        "(MIT OR GPL-3.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(may_be_used(good), "{good}");
    }
    for bad in [
        "",
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(MIT OR ISC) AND GPL-3.0",
        "GPL-3.0 OR (MIT AND LGPL-2.1)",
        "MIT WITH strings-attached",
    ] {
        assert!(!may_be_used(bad), "{bad}");
    }
}

/// One of the alternatives is allowed in all its parts. AND binds tighter than OR.
fn may_be_used(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ")
        .replace(" WITH ", "_WITH_");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let allowed = any_of(&mut rest);
    allowed && rest.is_empty()
}

fn any_of(words: &mut &[&str]) -> bool {
    let mut allowed = all_of(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        allowed |= all_of(words);
    }
    allowed
}

fn all_of(words: &mut &[&str]) -> bool {
    let mut allowed = one(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        allowed &= one(words);
    }
    allowed
}

fn one(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let allowed = any_of(words);
            if let [")", rest @ ..] = *words {
                *words = rest;
            }
            allowed
        }
        [name, rest @ ..] => {
            *words = rest;
            LICENCES.contains(&name.replace("_WITH_", " WITH ").as_str())
        }
        [] => false,
    }
}

#[test]
fn packages_in_two_versions_are_exactly_those_with_a_reason() {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages() {
        versions
            .entry(text(package, "name"))
            .or_default()
            .insert(text(package, "version"));
    }
    let found: BTreeSet<&str> = versions
        .iter()
        .filter(|(_, versions)| versions.len() > 1)
        .map(|(name, _)| *name)
        .collect();
    let list =
        std::fs::read_to_string(root().join("tests/duplicates.txt")).expect("the list is there");
    let mut allowed = BTreeSet::new();
    for line in list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
    {
        let (name, reason) = line.split_once(": ").unwrap_or((line, ""));
        assert!(
            !reason.is_empty(),
            "'{name}' in tests/duplicates.txt has no reason"
        );
        allowed.insert(name);
    }
    let unexplained: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(
        unexplained.is_empty() && gone.is_empty(),
        "tests/duplicates.txt: without a reason {unexplained:?}, no longer there {gone:?}"
    );
}

#[test]
fn the_top_level_holds_nothing_but_what_it_is_meant_to() {
    let expected: BTreeSet<String> = TOP_LEVEL.iter().map(|name| (*name).to_owned()).collect();
    let found: BTreeSet<String> = std::fs::read_dir(root())
        .expect("the workspace can be read")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn every_member_obeys_the_lints_of_the_workspace() {
    let workspace =
        std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    assert!(
        workspace.contains("unsafe_code = \"forbid\""),
        "unsafe code is forbidden"
    );
    for member in ["crds", "operator", "worker", "tests"] {
        let manifest = std::fs::read_to_string(root().join(member).join("Cargo.toml"))
            .expect("a member has a manifest");
        assert!(
            manifest.contains("[lints]\nworkspace = true"),
            "{member}/Cargo.toml lacks '[lints] workspace = true'"
        );
    }
}
