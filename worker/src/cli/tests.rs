use clap::{CommandFactory, Parser};

use super::{Cli, Command, Output};

fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["postroom-worker"].iter().chain(arguments))
}

#[test]
fn every_flag_has_a_variable_of_its_own_prefix() {
    for command in Cli::command().get_subcommands() {
        for argument in command.get_arguments() {
            let variable = argument
                .get_env()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            assert!(
                variable.starts_with("POSTROOM_"),
                "{} {}",
                command.get_name(),
                argument.get_id()
            );
        }
    }
}

#[test]
fn every_command_shows_an_example() {
    for command in Cli::command().get_subcommands() {
        let help = command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        let example = format!("postroom-worker {} --resource", command.get_name());
        assert!(help.contains(&example), "{}: {help}", command.get_name());
    }
}

#[test]
fn a_command_needs_a_configuration_or_a_resource_and_not_both() {
    for command in ["run", "migrate", "stats"] {
        assert!(parse(&[command]).is_err(), "{command} without a file");
        assert!(
            parse(&[command, "--config", "a", "--resource", "b"]).is_err(),
            "{command} with two"
        );
        assert!(
            parse(&[command, "--resource", "b"]).is_ok(),
            "{command} with one"
        );
    }
}

#[test]
fn a_wrong_command_line_ends_with_code_2() {
    for arguments in [
        &["walk"][..],
        &["run"],
        &["run", "--resource", "a", "--http-address", "here"],
        &["stats", "--resource", "a", "--log", "a=b=c"],
    ] {
        assert_eq!(
            parse(arguments).unwrap_err().exit_code(),
            2,
            "{arguments:?}"
        );
    }
}

#[test]
fn json_is_short_for_output_json_and_table_has_a_second_name() {
    let output = |arguments: &[&str]| parse(arguments).unwrap().command.output();
    assert_eq!(
        output(&["stats", "--resource", "a", "--json"]),
        Output::Json
    );
    assert_eq!(output(&["stats", "--resource", "a"]), Output::Table);
    assert_eq!(
        output(&["migrate", "--resource", "a", "--output", "text"]),
        Output::Table
    );
}

#[test]
fn the_worker_listens_on_loopback_and_sweeps_unless_told_otherwise() {
    let Command::Run(flags) = parse(&["run", "--resource", "a"]).unwrap().command else {
        panic!("not run")
    };
    assert_eq!(
        (flags.http_address.to_string(), flags.sweep),
        ("127.0.0.1:9464".to_owned(), super::Switch::On)
    );
}
