//! What stands between the socket and the AMQP library, so that no message can end the connection or the process.
//!
//! The library takes short strings for UTF-8 and ends the whole connection over one that is not, again and again, because
//! the broker delivers it again. It reads nested headers by recursion, and a few ten thousand levels, which fit into
//! one frame, overflow its stack. Here such a frame is changed in place, at the same length: bytes that are no text become
//! NUL, for which a delivery is refused later, and what nests too deep becomes an array of bytes.
//!
//! Invariant: frames that the library can read go through as they are.

mod frame;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::io::{AsyncRead, AsyncWrite};

/// Type of frame, channel, length.
const HEAD: usize = 7;
/// A longer frame of properties is not looked at: the broker sends none, since it keeps to the agreed size.
const MOST: usize = 1 << 20;
/// How much is read at once.
const CHUNK: usize = 64 << 10;

/// A stream from the broker whose frames are looked at.
#[derive(Debug)]
pub(super) struct Filtered<S> {
    stream: S,
    harmless: Harmless,
    ended: bool,
}

impl<S> Filtered<S> {
    /// Looks at what comes from `stream`.
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            harmless: Harmless::default(),
            ended: false,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Filtered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            let given = this.harmless.take(out);
            if given > 0 || out.is_empty() || this.ended {
                return Poll::Ready(Ok(given));
            }
            let room = this.harmless.room();
            let read = ready!(Pin::new(&mut this.stream).poll_read(context, room))?;
            this.ended = read == 0;
            this.harmless.came(read);
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Filtered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_close(context)
    }
}

/// Bytes on their way: those that may go on, then those of a frame that is not complete.
#[derive(Debug, Default)]
struct Harmless {
    buffer: Vec<u8>,
    /// Where the bytes begin that are not handed out yet.
    start: usize,
    /// Where the bytes end that may be.
    looked_at: usize,
    /// Where the bytes end that have come.
    end: usize,
    /// So many bytes of the present frame need no look.
    passing: usize,
    /// This is not AMQP: nothing is looked at.
    foreign: bool,
}

impl Harmless {
    /// Hands out what may go on.
    fn take(&mut self, out: &mut [u8]) -> usize {
        let count = out.len().min(self.looked_at - self.start);
        out[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
        self.start += count;
        count
    }

    /// Where the next bytes go.
    fn room(&mut self) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.looked_at -= self.start;
        self.start = 0;
        if self.buffer.len() < self.end + CHUNK {
            self.buffer.resize(self.end + CHUNK, 0);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes have come; none is the end, and what is left of a frame goes on as it is.
    fn came(&mut self, count: usize) {
        self.end += count;
        if count == 0 {
            self.looked_at = self.end;
        }
        while self.looked_at < self.end && self.advance() {}
    }

    /// Looks at the next frame or piece; false when it has to wait for more.
    fn advance(&mut self) -> bool {
        let left = self.end - self.looked_at;
        if self.foreign || self.passing > 0 {
            let passed = if self.foreign {
                left
            } else {
                left.min(self.passing)
            };
            self.passing = self.passing.saturating_sub(passed);
            self.looked_at += passed;
            return true;
        }
        if left < HEAD {
            // The broker says what it speaks, and nothing else, when it does not speak this version.
            self.foreign = self.buffer[self.looked_at] == b'A';
            return self.foreign;
        }
        let head = &self.buffer[self.looked_at..self.looked_at + HEAD];
        let length = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let whole = HEAD + length + 1;
        match frame::Kind::of(head[0]) {
            Some(kind) if whole <= MOST => {
                if left < whole {
                    return false;
                }
                let payload = self.looked_at + HEAD..self.looked_at + HEAD + length;
                frame::make_harmless(kind, &mut self.buffer[payload]);
                self.looked_at += whole;
            }
            Some(_) => self.passing = whole,
            None if frame::is_known(head[0]) => self.passing = whole,
            None => self.foreign = true,
        }
        true
    }
}

#[cfg(test)]
mod tests;
