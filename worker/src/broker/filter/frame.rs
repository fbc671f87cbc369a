//! The frames that carry what senders write: who delivers what, and the properties of a message.

/// A frame that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A method, among them that a message is delivered or returned.
    Method,
    /// The properties of a message.
    Header,
}

/// What nests deeper is no table to the library, but bytes. Deliveries with headers much less deep are refused.
const DEEPEST: usize = 40;
/// The class of methods that has to do with messages.
const BASIC: [u8; 2] = [0, 60];
const DELIVER: [u8; 2] = [0, 60];
const RETURN: [u8; 2] = [0, 50];

impl Kind {
    pub(super) fn of(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Method),
            2 => Some(Self::Header),
            _ => None,
        }
    }
}

/// Whether this is a frame of AMQP that needs no look: a part of a body, a sign of life.
pub(super) fn is_known(kind: u8) -> bool {
    matches!(kind, 3 | 8)
}

/// Changes in place what the library could not read. What is not understood stays as it is.
pub(super) fn make_harmless(kind: Kind, payload: &mut [u8]) {
    let mut bytes = Bytes { rest: payload };
    // An answer of none is the end of what is there.
    let _ = match kind {
        Kind::Method => method(&mut bytes),
        Kind::Header => header(&mut bytes),
    };
}

fn method(bytes: &mut Bytes<'_>) -> Option<()> {
    if bytes.array()? != BASIC {
        return None;
    }
    match bytes.array()? {
        DELIVER => {
            bytes.short_string()?;
            bytes.skip(8 + 1)?;
        }
        RETURN => {
            bytes.skip(2)?;
            bytes.short_string()?;
        }
        _ => return None,
    }
    bytes.short_string()?;
    bytes.short_string()
}

/// What a flag of the properties stands for, from the highest bit on.
#[derive(Clone, Copy)]
enum Field {
    Text,
    Table,
    Skip(usize),
}

const FIELDS: [Field; 14] = [
    Field::Text,    // content type
    Field::Text,    // content encoding
    Field::Table,   // headers
    Field::Skip(1), // delivery mode
    Field::Skip(1), // priority
    Field::Text,    // correlation id
    Field::Text,    // reply to
    Field::Text,    // expiration
    Field::Text,    // message id
    Field::Skip(8), // timestamp
    Field::Text,    // type
    Field::Text,    // user id
    Field::Text,    // app id
    Field::Text,    // cluster id
];

fn header(bytes: &mut Bytes<'_>) -> Option<()> {
    if bytes.array()? != BASIC {
        return None;
    }
    bytes.skip(2 + 8)?;
    let flags = u16::from_be_bytes(bytes.array()?);
    for (number, field) in FIELDS.into_iter().enumerate() {
        if flags & (1 << (15 - number)) == 0 {
            continue;
        }
        match field {
            Field::Text => bytes.short_string()?,
            Field::Table => {
                let length = bytes.length()?;
                table(&mut bytes.part(length)?, 0)?;
            }
            Field::Skip(count) => bytes.skip(count)?,
        }
    }
    Some(())
}

fn table(bytes: &mut Bytes<'_>, depth: usize) -> Option<()> {
    while !bytes.rest.is_empty() {
        bytes.short_string()?;
        value(bytes, depth)?;
    }
    Some(())
}

fn value(bytes: &mut Bytes<'_>, depth: usize) -> Option<()> {
    let kind = bytes.rest.first_mut()?;
    let nested = matches!(kind, b'A' | b'F');
    if nested && depth >= DEEPEST {
        // Both are a length and so many bytes.
        *kind = b'x';
    }
    let [kind] = bytes.array()?;
    match kind {
        b't' | b'b' | b'B' => bytes.skip(1),
        b's' | b'U' | b'u' => bytes.skip(2),
        b'I' | b'i' | b'f' => bytes.skip(4),
        b'L' | b'l' | b'd' | b'T' => bytes.skip(8),
        b'D' => bytes.skip(5),
        b'V' => Some(()),
        b'S' | b'x' => {
            let length = bytes.length()?;
            bytes.skip(length)
        }
        b'F' => {
            let length = bytes.length()?;
            table(&mut bytes.part(length)?, depth + 1)
        }
        b'A' => {
            let length = bytes.length()?;
            let mut items = bytes.part(length)?;
            while !items.rest.is_empty() {
                value(&mut items, depth + 1)?;
            }
            Some(())
        }
        _ => None,
    }
}

/// The bytes that are still to be looked at.
struct Bytes<'a> {
    rest: &'a mut [u8],
}

impl<'a> Bytes<'a> {
    fn part(&mut self, length: usize) -> Option<Bytes<'a>> {
        let rest = std::mem::take(&mut self.rest);
        let (part, rest) = rest.split_at_mut_checked(length)?;
        self.rest = rest;
        Some(Bytes { rest: part })
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.part(length).map(drop)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.part(N)?
            .rest
            .try_into()
            .ok()
            .map(|array: &mut [u8; N]| *array)
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.array()?)).ok()
    }

    /// A text with one byte of length: what is no text in it becomes NUL.
    fn short_string(&mut self) -> Option<()> {
        let [length] = self.array()?;
        let text = self.part(length.into())?.rest;
        while let Err(problem) = std::str::from_utf8(text) {
            let from = problem.valid_up_to();
            let wrong = problem.error_len().unwrap_or(text.len() - from);
            text[from..from + wrong].fill(0);
        }
        Some(())
    }
}
