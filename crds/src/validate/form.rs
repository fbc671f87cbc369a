//! What texts look like.

pub(super) fn fits(value: &str, most_bytes: u64) -> bool {
    u64::try_from(value.len()).is_ok_and(|bytes| bytes <= most_bytes)
}

pub(super) fn is_label(value: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = value.as_bytes();
    bytes.first().is_some_and(|b| plain(*b))
        && bytes.last().is_some_and(|b| plain(*b))
        && bytes.iter().all(|b| plain(*b) || *b == b'-')
}

/// Digits, perhaps a fraction, perhaps a suffix.
pub(super) fn is_quantity(value: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let end = value
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(value.len());
    let (number, suffix) = value.split_at(end);
    let number = match number.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(number),
    };
    let suffixes = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    number && suffixes.contains(&suffix)
}

pub(super) fn is_plain_identifier(value: &str) -> bool {
    let letter = |b: u8| b.is_ascii_lowercase() || b == b'_';
    let bytes = value.as_bytes();
    bytes.first().is_some_and(|b| letter(*b))
        && bytes.iter().all(|b| letter(*b) || b.is_ascii_digit())
}
