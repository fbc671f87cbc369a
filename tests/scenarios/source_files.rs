//! Rules about the source files: each one is compiled, and none is too long to be read in one go.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::{METADATA, root};

const MOST_LINES: usize = 500;

const MEMBERS: [&str; 4] = ["crds", "operator", "worker", "tests"];

fn rust_files(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace can be read") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.insert(path);
        }
    }
}

fn all_files() -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for member in MEMBERS {
        rust_files(&root().join(member), &mut files);
    }
    files
}

/// Where compilation begins: the main file of every library, program, test and build script.
fn roots() -> Vec<PathBuf> {
    let packages = METADATA["packages"]
        .as_array()
        .expect("cargo metadata lists packages");
    let ours = packages
        .iter()
        .filter(|package| package["source"].is_null());
    let targets = ours.flat_map(|package| {
        package["targets"]
            .as_array()
            .expect("a package lists targets")
    });
    targets
        .map(|target| PathBuf::from(target["src_path"].as_str().expect("a target has a file")))
        .collect()
}

/// The files that the `mod` lines of `file` name.
fn children(file: &Path, is_root: bool) -> Vec<PathBuf> {
    let text = fs::read_to_string(file).expect("a source file can be read");
    let folder = file.parent().expect("a file lies in a folder");
    let own = if is_root || file.ends_with("mod.rs") {
        folder.to_owned()
    } else {
        file.with_extension("")
    };
    let mut children = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(given) = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            path = Some(folder.join(given));
        }
        let Some(name) = module_name(line) else {
            continue;
        };
        let file = own.join(format!("{name}.rs"));
        children.push(path.take().unwrap_or(if file.exists() {
            file
        } else {
            own.join(name).join("mod.rs")
        }));
    }
    children
}

/// `name` of a line such as `pub(crate) mod name;`.
fn module_name(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix("pub") {
        Some(rest) => rest
            .trim_start()
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(rest, |(_, rest)| rest),
        None => line,
    };
    rest.trim_start().strip_prefix("mod ")?.strip_suffix(';')
}

#[test]
fn no_source_file_is_silently_left_out() {
    let mut reached = BTreeSet::new();
    let mut next: Vec<(PathBuf, bool)> = roots().into_iter().map(|file| (file, true)).collect();
    while let Some((file, is_root)) = next.pop() {
        if reached.insert(file.clone()) {
            next.extend(
                children(&file, is_root)
                    .into_iter()
                    .map(|child| (child, false)),
            );
        }
    }
    let files = all_files();
    let forgotten: Vec<_> = files.difference(&reached).collect();
    assert!(files.len() > 20, "the files are found: {}", files.len());
    assert!(
        forgotten.is_empty(),
        "no 'mod' line names these files: {forgotten:#?}"
    );
}

#[test]
fn module_lines_are_recognised() {
    for line in [
        "mod a;",
        "pub mod a;",
        "pub(crate) mod a;",
        "pub(in crate::b) mod a;",
    ] {
        assert_eq!(module_name(line), Some("a"), "{line}");
    }
    for line in ["mod a {", "// mod a;", "use mod_a;", "model a;"] {
        assert_eq!(module_name(line), None, "{line}");
    }
}

#[test]
fn no_source_file_is_too_long() {
    let length = |file: &PathBuf| {
        fs::read_to_string(file)
            .expect("a source file can be read")
            .lines()
            .count()
    };
    let long: Vec<_> = all_files()
        .into_iter()
        .map(|file| (length(&file), file))
        .filter(|(lines, _)| *lines > MOST_LINES)
        .collect();
    assert!(long.is_empty(), "longer than {MOST_LINES} lines: {long:#?}");
}
