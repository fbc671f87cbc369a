use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use serde_json::{Value, json};

use super::{Cli, Failure, Outcome};

const FULL: &str = "../crds/examples/full.yaml";

/// A file in the folder for temporary files that goes with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Self {
        let file = format!("postroom-operator-{}-{name}.yaml", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn run(arguments: &[&str]) -> (Result<Outcome, Failure>, String) {
    let all = ["postroom-operator"].iter().chain(arguments);
    let cli = Cli::try_parse_from(all).unwrap();
    let mut out = Vec::new();
    let outcome = cli.run(&mut out);
    (outcome, String::from_utf8(out).unwrap())
}

#[test]
fn the_command_line_is_sound_and_every_command_has_an_example() {
    let mut command = Cli::command();
    command.clone().debug_assert();
    let help = command.render_help().to_string();
    assert!(help.contains("Examples:"), "{help}");
    let subcommands = command.get_subcommands_mut();
    for subcommand in subcommands.filter(|command| command.get_name() != "help") {
        let help = subcommand.render_help().to_string();
        assert!(help.contains("Examples:"), "{help}");
    }
}

#[test]
fn a_wrong_command_line_is_refused_with_usage_and_code_2() {
    for wrong in [&["validate"][..], &["crds", "--sheet"], &["post"], &[]] {
        let error = Cli::try_parse_from(["postroom-operator"].iter().chain(wrong)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{wrong:?}");
        assert!(error.to_string().contains("Usage:"), "{error}");
    }
}

#[test]
fn a_valid_manifest_is_called_valid() {
    let (outcome, out) = run(&["validate", FULL]);
    assert_eq!(outcome.unwrap().exit_code(), 0);
    assert_eq!(out, format!("{FULL}: valid\n"));
}

#[test]
fn a_wrong_manifest_is_reported_line_by_line_with_code_1() {
    let text = std::fs::read_to_string(FULL).unwrap();
    let text = text
        .replace("channels: 2 ", "channels: 99 ")
        .replacen("jitter:", "jittre:", 1);
    let file = Scratch::new("wrong", &text);
    let (outcome, out) = run(&["validate", file.path()]);
    assert_eq!(outcome.unwrap().exit_code(), 1);
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    let start = format!("{}: `spec.outboxes[0].", file.path());
    assert!(lines.iter().all(|line| line.starts_with(&start)), "{out}");
    let expected = "delivery.channels` is 99 but must be between 1 and 16";
    assert!(out.contains(expected), "{out}");
}

#[test]
fn the_json_report_names_field_and_sentence() {
    let (_, out) = run(&["validate", "--output", "json", FULL]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report, json!({"file": FULL, "valid": true, "problems": []}));

    let file = Scratch::new("list", "apiVersion: v1\nkind: List\n");
    let (outcome, out) = run(&["validate", "--output", "json", file.path()]);
    assert_eq!(outcome.unwrap(), Outcome::FoundWrong);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["valid"], false);
    assert_eq!(report["problems"][0]["field"], "kind");
    let sentence = report["problems"][0]["sentence"].as_str().unwrap();
    assert!(
        sentence.starts_with("`kind` is 'List' but must be"),
        "{sentence}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_wrong_use() {
    let (outcome, out) = run(&["validate", "/nowhere/orders.yaml"]);
    let failure = outcome.unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    assert!(
        failure
            .to_string()
            .starts_with("cannot read /nowhere/orders.yaml: "),
        "{failure}"
    );
    assert_eq!(out, "");

    let long = Scratch::new("long", &"# filler\n".repeat(200_000));
    let (outcome, _) = run(&["validate", long.path()]);
    let failure = outcome.unwrap_err().to_string();
    assert!(failure.contains("more than 1572864 bytes"), "{failure}");
}

#[test]
fn the_definitions_are_printed_plain_or_for_the_chart() {
    let (_, plain) = run(&["crds"]);
    let (_, chart) = run(&["crds", "--chart"]);
    assert!(
        plain.starts_with("apiVersion: apiextensions.k8s.io/v1\n"),
        "{plain}"
    );
    assert!(!plain.contains("{{"));
    assert!(chart.contains("{{- if .Values.crds.enabled }}\n"));
}
