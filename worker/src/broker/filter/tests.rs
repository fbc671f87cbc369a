//! What goes through as it is, and what is made harmless.

use super::*;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, 0, 1][..], &length, payload, &[0xce]].concat()
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()][..], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [
        &u32::try_from(bytes.len()).unwrap().to_be_bytes()[..],
        bytes,
    ]
    .concat()
}

fn deliver(routing_key: &[u8]) -> Vec<u8> {
    let place = [
        &short(b"tag")[..],
        &[0; 9],
        &short(b"shop"),
        &short(routing_key),
    ]
    .concat();
    frame(1, &[&[0, 60, 0, 60][..], &place].concat())
}

fn header(flags: u16, properties: &[u8]) -> Vec<u8> {
    let start = [
        &[0, 60, 0, 0][..],
        &7_u64.to_be_bytes(),
        &flags.to_be_bytes(),
    ]
    .concat();
    frame(2, &[&start[..], properties].concat())
}

/// All properties, with a table of every type.
fn properties(text: &[u8], name: &[u8]) -> Vec<u8> {
    let table = [
        &short(name)[..],
        b"V",
        &short(b"t"),
        b"t\x01",
        &short(b"b"),
        b"b\x01",
        &short(b"s"),
        b"s\0\x01",
        &short(b"I"),
        b"I\0\0\0\x01",
        &short(b"l"),
        b"l\0\0\0\0\0\0\0\x01",
        &short(b"D"),
        b"D\x02\0\0\0\x01",
        &short(b"S"),
        b"S",
        &long(b"\xff\0"),
        &short(b"x"),
        b"x",
        &long(b"\xff"),
        &short(b"F"),
        b"F",
        &long(&[&short(name)[..], b"V"].concat()),
        &short(b"A"),
        b"A",
        &long(
            &[
                &b"F"[..],
                &long(&[&short(name)[..], b"T\0\0\0\0\0\0\0\x01"].concat()),
            ]
            .concat(),
        ),
    ]
    .concat();
    let text = short(text);
    [
        &text[..],
        &text,
        &long(&table),
        &[2],
        &[3],
        &text,
        &text,
        &text,
        &text,
        &[0; 8],
        &text,
        &text,
        &text,
        &text,
    ]
    .concat()
}

/// The same bytes, however they are cut up.
fn through(bytes: &[u8], cut: usize) -> Vec<u8> {
    let mut harmless = Harmless::default();
    let mut out = Vec::new();
    let mut taken = [0; 50];
    let mut take = |harmless: &mut Harmless, out: &mut Vec<u8>| {
        loop {
            let count = harmless.take(&mut taken);
            if count == 0 {
                break;
            }
            out.extend(&taken[..count]);
        }
    };
    for piece in bytes.chunks(cut) {
        harmless.room()[..piece.len()].copy_from_slice(piece);
        harmless.came(piece.len());
        take(&mut harmless, &mut out);
    }
    harmless.came(0);
    take(&mut harmless, &mut out);
    out
}

fn becomes(bytes: &[u8], expected: &[u8]) {
    for cut in [1, 2, 3, 7, 100, CHUNK] {
        assert!(through(bytes, cut) == expected, "cut into pieces of {cut}");
    }
}

#[test]
fn frames_that_can_be_read_go_through_as_they_are_in_pieces_of_any_size() {
    let bytes = [
        frame(1, &[0, 10, 0, 10, 0, 9]),
        deliver("ä".as_bytes()),
        header(0xfffc, &properties("ä".as_bytes(), b"name")),
        frame(3, &[0xff; 1_000]),
        frame(8, &[]),
        deliver(b""),
        header(0, &[]),
    ]
    .concat();
    becomes(&bytes, &bytes);
    let large = [frame(3, &vec![7; 3 * CHUNK]), deliver(b"next")].concat();
    assert!(through(&large, CHUNK) == large);
    let refused = b"AMQP\0\0\x09\x01 and anything after it";
    becomes(refused, refused);
    becomes(&bytes[..bytes.len() - 3], &bytes[..bytes.len() - 3]);
}

#[test]
fn bytes_that_are_no_text_become_nul_at_the_same_length_wherever_a_text_is_expected() {
    let bad = [
        deliver(b"caf\xe9\xe4."),
        header(0xfffc, &properties(b"\xc3(\xf0\x9f", b"n\xff")),
    ]
    .concat();
    let good = [
        deliver(b"caf\0\0."),
        header(0xfffc, &properties(b"\0(\0\0", b"n\0")),
    ]
    .concat();
    becomes(&bad, &good);
    let returned = |key: &[u8]| {
        let place = [&[1, 56][..], &short(key), &short(key), &short(key)].concat();
        frame(1, &[&[0, 60, 0, 50][..], &place].concat())
    };
    becomes(&returned(b"\xff"), &returned(b"\0"));
    let other = frame(1, &[&[0, 60, 0, 21][..], &short(b"\xff")].concat());
    becomes(&other, &other);
}

#[test]
fn what_nests_too_deep_becomes_bytes_and_what_does_not_stays() {
    let nested = |levels: usize, kind: &[u8]| {
        (0..levels).fold(b"V".to_vec(), |value, _| {
            let inner = if kind == b"F" {
                [&short(b"k")[..], &value].concat()
            } else {
                value
            };
            [kind, &long(&inner)].concat()
        })
    };
    let deep = |value: &[u8]| header(1 << 13, &long(&[&short(b"deep")[..], value].concat()));
    for kind in [b"A", b"F"] {
        let fits = deep(&nested(40, kind));
        becomes(&fits, &fits);
        let bytes = deep(&nested(5_000, kind));
        let out = through(&bytes, CHUNK);
        let changed: Vec<_> = bytes.iter().zip(&out).filter(|(a, b)| a != b).collect();
        assert_eq!(changed, [(&kind[0], &b'x')]);
    }
}

#[test]
fn what_is_not_understood_goes_through_as_it_is() {
    for bytes in [
        header(1 << 13, &[0, 0, 0, 9, 1]),
        header(1 << 13, &long(&[&short(b"odd")[..], b"?"].concat())),
        header(1 << 15, &[200, 0xff]),
        header(
            1 << 13,
            &long(&[&short(b"a")[..], b"A\xff\xff\xff\xff"].concat()),
        ),
        frame(1, &[0]),
        frame(2, &[]),
        frame(1, &[0, 60, 0, 60, 250]),
        [frame(1, &vec![0; MOST]), deliver(b"x")].concat(),
    ] {
        assert!(through(&bytes, CHUNK / 2) == bytes);
    }
}
