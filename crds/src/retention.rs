//! Retention durations, such as `720h` or `1h30m`.

/// Seconds of a duration; none if `text` is not one.
///
/// The text is one to three whole numbers of up to five digits, each with its unit: `h`, `m` or `s`.
pub fn seconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut sum = 0;
    for part in 0.. {
        if rest.is_empty() {
            return (part > 0).then_some(sum);
        }
        if part == 3 {
            return None;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().ok().filter(|_| digits <= 5)?;
        let unit = match rest.as_bytes().get(digits)? {
            b'h' => 3_600,
            b'm' => 60,
            b's' => 1,
            _ => return None,
        };
        sum += number * unit;
        rest = &rest[digits + 1..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn a_duration_is_the_sum_of_its_parts() {
        for (text, expected) in [
            ("720h", 2_592_000),
            ("1h30m", 5_400),
            ("1h1m1s", 3_661),
            ("0s", 0),
            ("99999h", 359_996_400),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_has_no_seconds() {
        for text in [
            "", "h", "12", "1d", "1 h", "-1h", "+1h", "1h2", "100000h", "1h1m1s1s", "1.5h", "１h",
        ] {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
