//! What came of it: median and range of the repetitions, beside the target.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::Sizes;
use crate::cases::{Case, Figure, Target};
use crate::machine::About;

/// From here on the use of the machine by others is worth a word.
const DISTURBED: f64 = 0.05;

/// All results so far.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    about: About,
    sizes: Sizes,
    lines: Vec<Line>,
    /// Share of the machine that others used, for each measured case.
    others: Vec<Others>,
}

#[derive(Debug, Serialize)]
struct Line {
    case: Case,
    figure: &'static str,
    unit: &'static str,
    values: Vec<f64>,
    median: f64,
    target: Option<Target>,
    met: Option<bool>,
}

#[derive(Debug, Serialize)]
struct Others {
    case: Case,
    share: f64,
}

impl Report {
    pub(crate) fn new(about: About, sizes: Sizes) -> Self {
        Self {
            about,
            sizes,
            lines: Vec::new(),
            others: Vec::new(),
        }
    }

    /// Adds what one repetition of a case has brought.
    pub(crate) fn add(&mut self, case: Case, figures: &[Figure], others: f64) {
        self.others.push(Others {
            case,
            share: others,
        });
        for (place, figure) in figures.iter().enumerate() {
            // By place, because a name such as "the same" may stand in a case twice.
            let known = self.lines.iter().filter(|line| line.case == case).count();
            if known <= place {
                self.lines.push(Line {
                    case,
                    figure: figure.name,
                    unit: figure.unit,
                    values: Vec::new(),
                    median: 0.0,
                    target: figure.target,
                    met: None,
                });
            }
            let mut lines = self.lines.iter_mut().filter(|line| line.case == case);
            if let Some(line) = lines.nth(place) {
                line.add(figure.value);
            }
        }
    }

    /// Writes everything as JSON.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("write the results as JSON")?;
        fs::write(path, text + "\n").with_context(|| format!("write {}", path.display()))
    }

    /// Everything, for people.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<11} {:<42} {:>10} {:<5} {:>21}  {:<9} met\n",
            "case", "figure", "median", "", "range", "target"
        );
        for line in &self.lines {
            // Writing to a text cannot fail.
            writeln!(text, "{}", line.text().trim_end()).ok();
        }
        text + &self.verdict()
    }

    fn verdict(&self) -> String {
        let judged = self.lines.iter().filter_map(|line| line.met);
        let (met, missed) = judged.fold((0, 0), |(met, missed), is_met| {
            if is_met {
                (met + 1, missed)
            } else {
                (met, missed + 1)
            }
        });
        let mut text = format!("\n{met} targets met, {missed} missed.");
        let highest = self
            .others
            .iter()
            .max_by(|a, b| a.share.total_cmp(&b.share));
        if let Some(highest) = highest {
            let sum: f64 = self.others.iter().map(|others| others.share).sum();
            let mean = sum / self.others.len() as f64;
            write!(
                text,
                " Others used {:.0} % of this machine's processors meanwhile, at most {:.0} % (during {}).",
                mean * 100.0,
                highest.share * 100.0,
                highest.case.name()
            )
            .ok();
            if highest.share > DISTURBED {
                text += "\nThat is too much to trust a rate, a ratio of rates or a delay. Processor times suffer least.";
            }
        }
        text
    }
}

impl Line {
    fn add(&mut self, value: f64) {
        self.values.push(value);
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        self.median = if sorted.len().is_multiple_of(2) {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        } else {
            sorted[middle]
        };
        self.met = self.target.map(|target| target.is_met_by(self.median));
    }

    fn text(&self) -> String {
        let least = self.values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self
            .values
            .iter()
            .copied()
            .fold(f64::NEG_INFINITY, f64::max);
        let range = format!("{} to {}", number(least), number(most));
        let target = match self.target {
            None => String::new(),
            Some(Target::AtLeast(least)) => format!(">= {least}"),
            Some(Target::AtMost(most)) => format!("<= {most}"),
        };
        let met = match self.met {
            None => "",
            Some(true) => "yes",
            Some(false) => "NO",
        };
        format!(
            "{:<11} {:<42} {:>10} {:<5} {range:>21}  {target:<9} {met}",
            self.case.name(),
            self.figure,
            number(self.median),
            self.unit,
        )
    }
}

/// With three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(target: Option<Target>) -> Line {
        Line {
            case: Case::Drain,
            figure: "rate, to that of the bare loop",
            unit: "",
            values: Vec::new(),
            median: 0.0,
            target,
            met: None,
        }
    }

    #[test]
    fn the_median_is_judged_and_not_the_best_repetition() {
        let mut line = line(Some(Target::AtLeast(0.75)));
        for (value, median, met) in [(0.9, 0.9, true), (0.5, 0.7, false), (0.76, 0.76, true)] {
            line.add(value);
            assert!((line.median - median).abs() < 1e-9);
            assert_eq!(line.met, Some(met));
        }
        let text = line.text();
        assert!(
            text.contains("0.500 to 0.900") && text.ends_with(">= 0.75   yes"),
            "{text}"
        );
    }

    #[test]
    fn a_figure_without_a_target_is_neither_met_nor_missed() {
        let mut line = line(None);
        line.add(12_345.6);
        assert_eq!(line.met, None);
        assert!(line.text().contains("12346"), "{}", line.text());
    }
}
