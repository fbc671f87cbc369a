//! A message as no library would write it, byte by byte.

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::vhost::Vhost;

/// Ends every frame.
const END: u8 = 0xce;

/// Publishes a message with these flags and properties, as they go over the wire, through the default exchange.
///
/// # Errors
/// When the broker ends the connection.
pub async fn publish(
    vhost: &Vhost,
    port: u16,
    queue: &str,
    flags: u16,
    properties: &[u8],
) -> Result<()> {
    let mut socket = TcpStream::connect((crate::address::servers(), port)).await?;
    socket.write_all(b"AMQP\0\0\x09\x01").await?;
    expect(&mut socket, 10, 10).await?;
    let login = format!("\0{}\0{}", vhost.name(), vhost.password());
    let start = [
        &table(&[])[..],
        &short("PLAIN"),
        &long(login.as_bytes()),
        &short("en_US"),
    ];
    method(&mut socket, 0, 10, 11, &start.concat()).await?;
    expect(&mut socket, 10, 30).await?;
    method(&mut socket, 0, 10, 31, &[0, 10, 0, 2, 0, 0, 0, 0]).await?;
    let open = [&short(vhost.name())[..], &[0, 0]].concat();
    method(&mut socket, 0, 10, 40, &open).await?;
    expect(&mut socket, 10, 41).await?;
    method(&mut socket, 1, 20, 10, &[0]).await?;
    expect(&mut socket, 20, 11).await?;
    // With confirms, so that the message is known to be there.
    method(&mut socket, 1, 85, 10, &[0]).await?;
    expect(&mut socket, 85, 11).await?;
    let publish = [&[0, 0][..], &short(""), &short(queue), &[0]].concat();
    method(&mut socket, 1, 60, 40, &publish).await?;
    let mut header = vec![0, 60, 0, 0];
    header.extend(2_u64.to_be_bytes());
    header.extend(flags.to_be_bytes());
    header.extend(properties);
    frame(&mut socket, 2, 1, &header).await?;
    frame(&mut socket, 3, 1, b"{}").await?;
    expect(&mut socket, 60, 80).await
}

/// A text with one byte of length.
pub fn short(text: &str) -> Vec<u8> {
    short_bytes(text.as_bytes())
}

/// The same of bytes that may be no text.
///
/// # Panics
/// When it is too long: a mistake in the test.
pub fn short_bytes(bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("at most 255 bytes");
    [&[length][..], bytes].concat()
}

/// Bytes with four bytes of length.
///
/// # Panics
/// When it is too long: a mistake in the test.
pub fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("less than 4 GB");
    [&length.to_be_bytes()[..], bytes].concat()
}

/// A table of names, as bytes, and values with their types.
pub fn table(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let entries: Vec<u8> = entries
        .iter()
        .flat_map(|(name, value)| [short_bytes(name), value.to_vec()].concat())
        .collect();
    long(&entries)
}

async fn method(
    socket: &mut TcpStream,
    channel: u16,
    class: u16,
    id: u16,
    arguments: &[u8],
) -> Result<()> {
    let payload = [&class.to_be_bytes()[..], &id.to_be_bytes(), arguments].concat();
    frame(socket, 1, channel, &payload).await
}

async fn frame(socket: &mut TcpStream, kind: u8, channel: u16, payload: &[u8]) -> Result<()> {
    let frame = [&[kind][..], &channel.to_be_bytes(), &long(payload), &[END]];
    socket
        .write_all(&frame.concat())
        .await
        .context("write a frame")
}

/// Reads one frame, which must be this method.
async fn expect(socket: &mut TcpStream, class: u16, id: u16) -> Result<()> {
    let mut head = [0; 7];
    socket.read_exact(&mut head).await.context("read a frame")?;
    let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let mut rest = vec![0; length as usize + 1];
    socket.read_exact(&mut rest).await?;
    let found = [
        u16::from_be_bytes([rest[0], rest[1]]),
        u16::from_be_bytes([rest[2], rest[3]]),
    ];
    ensure!(
        head[0] == 1 && found == [class, id],
        "frame {}: method {found:?}, not {class} {id}: {}",
        head[0],
        String::from_utf8_lossy(&rest)
    );
    Ok(())
}
