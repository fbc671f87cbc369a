//! The backlog as text.

use crate::store::Backlog;

const HEAD: [&str; 7] = [
    "ENDPOINT",
    "PENDING",
    "IN FLIGHT",
    "DEFERRED",
    "PARKED",
    "DEAD",
    "OLDEST",
];

/// A table with a head, one line for each endpoint.
pub(super) fn of(backlog: &[Backlog]) -> String {
    if backlog.is_empty() {
        return "No endpoint is registered in this schema.".to_owned();
    }
    let rows: Vec<[String; 7]> = [HEAD.map(str::to_owned)]
        .into_iter()
        .chain(backlog.iter().map(cells))
        .collect();
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let lines: Vec<String> = rows.iter().map(|row| padded(row, &widths)).collect();
    lines.join("\n")
}

/// Names to the left, numbers to the right.
fn padded(row: &[String; 7], widths: &[usize; 7]) -> String {
    let numbers = row
        .iter()
        .zip(widths)
        .skip(1)
        .map(|(cell, width)| format!("{cell:>width$}"));
    let name = format!("{:<1$}", row[0], widths[0]);
    [name]
        .into_iter()
        .chain(numbers)
        .collect::<Vec<_>>()
        .join("  ")
}

fn cells(row: &Backlog) -> [String; 7] {
    let name = if row.paused {
        format!("{} (paused)", row.endpoint)
    } else {
        row.endpoint.clone()
    };
    let numbers = [
        row.pending,
        row.in_flight,
        row.deferred,
        row.parked,
        row.dead,
    ]
    .map(|number| number.to_string());
    let [pending, in_flight, deferred, parked, dead] = numbers;
    [name, pending, in_flight, deferred, parked, dead, age(row)]
}

/// One endpoint as a line of `name=value`.
pub(super) fn line(row: &Backlog) -> String {
    let cells = cells(row);
    let rest = HEAD
        .iter()
        .zip(&cells)
        .skip(1)
        .map(|(name, cell)| format!("{}={cell}", name.to_ascii_lowercase().replace(' ', "_")));
    [cells[0].clone()]
        .into_iter()
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ")
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an age, cut to whole seconds and to zero where clocks differ"
)]
fn age(row: &Backlog) -> String {
    match row
        .oldest_pending_age_seconds
        .map(|seconds| seconds.max(0.0) as u64)
    {
        None => "-".to_owned(),
        Some(s) if s < 60 => format!("{s}s"),
        Some(s) if s < 3_600 => format!("{}m{:02}s", s / 60, s % 60),
        Some(s) if s < 86_400 => format!("{}h{:02}m", s / 3_600, s / 60 % 60),
        Some(s) => format!("{}d{:02}h", s / 86_400, s / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::{line, of};
    use crate::store::Backlog;

    fn row(endpoint: &str, pending: i64, age: Option<f64>, paused: bool) -> Backlog {
        Backlog {
            endpoint: endpoint.to_owned(),
            direction: "Outbox".to_owned(),
            pending,
            in_flight: 2,
            deferred: 3,
            parked: 4,
            dead: 5,
            oldest_pending_time: None,
            oldest_pending_age_seconds: age,
            paused,
        }
    }

    #[test]
    fn names_stand_left_and_numbers_right() {
        assert_eq!(
            of(&[
                row("orders", 1_234_567, Some(3_725.9), false),
                row("audit", 0, None, true)
            ]),
            "ENDPOINT        PENDING  IN FLIGHT  DEFERRED  PARKED  DEAD  OLDEST\n\
             orders          1234567          2         3       4     5   1h02m\n\
             audit (paused)        0          2         3       4     5       -"
        );
        assert_eq!(of(&[]), "No endpoint is registered in this schema.");
    }

    #[test]
    fn a_line_carries_the_names_of_its_values() {
        assert_eq!(
            line(&row("orders", 1, Some(59.9), false)),
            "orders pending=1 in_flight=2 deferred=3 parked=4 dead=5 oldest=59s"
        );
        assert!(line(&row("orders", 1, Some(90_061.0), false)).ends_with("oldest=1d01h"));
        assert!(
            line(&row("orders", 1, Some(-2.0), false)).ends_with("oldest=0s"),
            "a clock that ran ahead"
        );
    }
}
