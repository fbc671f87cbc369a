//! The migrations, as compiled in.
//!
//! Invariant: a file that a released worker has applied never changes; its checksum in the database would differ.

/// One migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Its number; they are applied in this order.
    pub version: u32,
    /// Its name, for people.
    pub name: &'static str,
    /// Its text, with placeholders.
    pub text: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $name,
            text: include_str!(concat!("../../../migrations/", $file)),
        }
    };
}

/// All migrations, oldest first.
pub const MIGRATIONS: [Migration; 9] = [
    migration!(1, "tables", "0001_tables.sql"),
    migration!(2, "writers", "0002_writers.sql"),
    migration!(3, "claiming", "0003_claiming.sql"),
    migration!(4, "reading", "0004_reading.sql"),
    migration!(5, "settling", "0005_settling.sql"),
    migration!(6, "upkeep", "0006_upkeep.sql"),
    migration!(7, "views", "0007_views.sql"),
    migration!(8, "inbox", "0008_inbox.sql"),
    migration!(9, "requests", "0009_requests.sql"),
];

/// Who may do what; applied anew after every migration.
pub(super) const RIGHTS: &str = include_str!("../../../migrations/rights.sql");

impl Migration {
    /// Notices an edit of the text, nothing more.
    pub fn checksum(&self) -> String {
        format!("{:016x}", fingerprint(self.text))
    }

    /// The name of its file.
    pub fn file(&self) -> String {
        format!("{:04}_{}.sql", self.version, self.name)
    }
}

/// FNV-1a with 64 bits: short, and the same in every version of this program.
pub(super) fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{MIGRATIONS, RIGHTS, fingerprint};

    #[test]
    fn the_table_names_exactly_the_files_of_the_folder_in_their_order() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
        let mut found: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".sql"))
            .collect();
        found.sort_unstable();
        let mut expected: Vec<_> = MIGRATIONS.iter().map(super::Migration::file).collect();
        expected.push("rights.sql".to_owned());
        assert_eq!(found, expected);
        for migration in &MIGRATIONS {
            assert_eq!(
                fs::read_to_string(folder.join(migration.file())).unwrap(),
                migration.text,
                "{}",
                migration.file()
            );
        }
    }

    #[test]
    fn the_operator_is_told_the_version_of_this_worker() {
        assert_eq!(
            super::super::newest_version(),
            postroom_crds::SCHEMA_VERSION
        );
    }

    #[test]
    fn versions_count_from_one_without_a_gap() {
        let versions: Vec<_> = MIGRATIONS
            .iter()
            .map(|migration| migration.version)
            .collect();
        assert_eq!(
            versions,
            (1..=super::super::newest_version()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn no_file_decides_about_its_own_transaction_or_its_time_outs() {
        for text in MIGRATIONS
            .iter()
            .map(|migration| migration.text)
            .chain([RIGHTS])
        {
            for line in text.lines() {
                let word = line.to_ascii_lowercase();
                assert!(
                    !["begin;", "commit;", "rollback;"].contains(&word.as_str()),
                    "{line}"
                );
                assert!(!(word.starts_with("set ") && line.ends_with(';')), "{line}");
            }
        }
    }

    #[test]
    fn the_fingerprint_is_the_published_function() {
        assert_eq!(fingerprint(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fingerprint("foobar"), 0x8594_4171_f739_67e8);
    }
}
