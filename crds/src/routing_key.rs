//! Templates of routing keys, such as `order.{type}`.
//!
//! Invariant: a template that was read can be filled from any message; what a message does not
//! have is empty text.

use crate::problem::shown;

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text as it stands.
    Text(String),
    /// The message's type.
    Type,
    /// The message's stream.
    Stream,
    /// The message's tenant.
    Tenant,
    /// The message's header of this name.
    Header(String),
}

/// A template in pieces, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// The pieces; no two texts follow each other.
    pub parts: Vec<Part>,
}

/// What can stand between braces, as sentences say it.
const MEMBERS: &str = "'{type}', '{stream}', '{tenant}' and '{header.NAME}'";

impl Template {
    /// Reads a template. The error continues a sentence that starts with the field's path.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find(['{', '}']) {
            let (before, from_brace) = rest.split_at(open);
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let Some(close) = from_brace.find('}').filter(|&close| close > 0) else {
                return Err(unbalanced(text));
            };
            parts.push(member(text, &from_brace[1..close])?);
            rest = &from_brace[close + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Self { parts })
    }
}

fn unbalanced(text: &str) -> String {
    format!(
        "is {} but must have a closing brace for every opening one and no others; braces hold {MEMBERS}",
        shown(text)
    )
}

fn member(text: &str, name: &str) -> Result<Part, String> {
    if name.contains('{') {
        return Err(unbalanced(text));
    }
    match (name, name.strip_prefix("header.")) {
        ("type", _) => Ok(Part::Type),
        ("stream", _) => Ok(Part::Stream),
        ("tenant", _) => Ok(Part::Tenant),
        (_, Some(header)) if !header.is_empty() => Ok(Part::Header(header.to_owned())),
        _ => Err(format!(
            "is {} but must hold only {MEMBERS} between braces, not {}",
            shown(text),
            shown(&format!("{{{name}}}"))
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, Template};

    #[test]
    fn a_template_is_read_into_its_parts_in_order() {
        let template = Template::parse("order.{type}.{header.x-region}{tenant}{stream}!").unwrap();
        assert_eq!(
            template.parts,
            [
                Part::Text("order.".to_owned()),
                Part::Type,
                Part::Text(".".to_owned()),
                Part::Header("x-region".to_owned()),
                Part::Tenant,
                Part::Stream,
                Part::Text("!".to_owned()),
            ]
        );
        assert_eq!(Template::parse("").unwrap().parts, []);
    }

    #[test]
    fn a_template_with_a_wrong_member_or_brace_is_refused() {
        for text in [
            "{typ}",
            "{}",
            "{header.}",
            "{type",
            "type}",
            "{{type}}",
            "}{",
            "{Type}",
        ] {
            let refusal = Template::parse(text).unwrap_err();
            assert!(refusal.contains("'{header.NAME}'"), "{text}: {refusal}");
        }
    }
}
