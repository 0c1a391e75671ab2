//! One coding each, on the libraries that know them.

use std::fmt;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::{Coding, Fault};

/// A decoder, and where it stands.
pub(super) enum Format {
    Gzip(Decompress),
    Deflate(Deflate),
    Brotli(Box<Brotli>),
    Zstd(DCtx<'static>),
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// What was made of an input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) read: usize,
    pub(super) written: usize,
    /// The coding ends with the last byte that was read, and all of it is given.
    pub(super) ended: bool,
}

impl Format {
    pub(super) fn new(coding: Coding) -> Format {
        match coding {
            Coding::Gzip => Format::Gzip(Decompress::new_gzip(DEFLATE_WINDOW_LOG)),
            Coding::Deflate => Format::Deflate(Deflate::Unknown(Vec::new())),
            // Strict: without the windows of up to 1 GiB that RFC 7932 does not have.
            Coding::Brotli => Format::Brotli(Box::new(BrotliState::new_strict(
                StandardAlloc::default(),
                StandardAlloc::default(),
                StandardAlloc::default(),
            ))),
            Coding::Zstd => {
                let mut context = DCtx::create();
                // Fails only for a size that the library does not have.
                let _ = context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_LOG));
                Format::Zstd(context)
            }
        }
    }

    /// Bytes that its window and tables may take.
    pub(super) fn held(&self) -> usize {
        match self {
            Format::Gzip(_) | Format::Deflate(_) => DEFLATE_HELD,
            Format::Brotli(_) => BROTLI_HELD,
            Format::Zstd(_) => ZSTD_HELD,
        }
    }

    /// Decodes on. What is decoded is given at once: with an output that is not full, nothing is held back.
    pub(super) fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Done, Fault> {
        match self {
            Format::Gzip(inflate) => step(inflate, input, output),
            Format::Deflate(deflate) => deflate.decode(input, output),
            Format::Brotli(state) => {
                let (mut left, mut read, mut room, mut written) = (input.len(), 0, output.len(), 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut read,
                    input,
                    &mut room,
                    &mut written,
                    output,
                    &mut 0,
                    state,
                );
                match result {
                    BrotliResult::ResultFailure => Err(Fault::Corrupt),
                    BrotliResult::ResultSuccess => Ok(Done { read, written, ended: true }),
                    BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {
                        Ok(Done { read, written, ended: false })
                    }
                }
            }
            Format::Zstd(context) => {
                let (mut from, mut to) = (InBuffer::around(input), OutBuffer::around(output));
                let left = context.decompress_stream(&mut to, &mut from).map_err(|_| Fault::Corrupt)?;
                Ok(Done { read: from.pos(), written: to.pos(), ended: left == 0 })
            }
        }
    }

    /// What follows an end, given its first byte: gzip and zstd may begin again.
    pub(super) fn begin_again(&mut self, first: u8) -> Result<(), Fault> {
        match (self, first) {
            (Format::Gzip(inflate), 0x1f) => {
                inflate.reset(true);
                Ok(())
            }
            // A frame, or one that is skipped (RFC 8878, section 3.1).
            (Format::Zstd(_), 0x28 | 0x50..=0x5f) => Ok(()),
            _ => Err(Fault::Trailing),
        }
    }
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Gzip(_) => "Gzip",
            Format::Deflate(_) => "Deflate",
            Format::Brotli(_) => "Brotli",
            Format::Zstd(_) => "Zstd",
        })
    }
}

/// Two formats under one name.
pub(super) enum Deflate {
    /// Which of them cannot be told from these bytes.
    Unknown(Vec<u8>),
    Known(Decompress),
}

impl Deflate {
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<Done, Fault> {
        match self {
            Deflate::Known(inflate) => step(inflate, input, output),
            Deflate::Unknown(start) => {
                let read = input.len().min(ENOUGH - start.len());
                start.extend_from_slice(&input[..read]);
                if start.len() < ENOUGH {
                    return Ok(Done { read, written: 0, ended: false });
                }
                let mut inflate = Decompress::new(is_zlib(start)?);
                // So few bytes give less than an output holds.
                let done = step(&mut inflate, start, output)?;
                let unread = ENOUGH - done.read;
                if unread > read {
                    return Err(Fault::Trailing);
                }
                *self = Deflate::Known(inflate);
                Ok(Done { read: read - unread, ..done })
            }
        }
    }
}

/// Whether the bytes begin with the header of zlib (RFC 1950, section 2.2).
fn is_zlib(start: &[u8]) -> Result<bool, Fault> {
    let [method, flags, high, not_low, not_high] = start else { return Ok(false) };
    let is_header =
        method & 0xf == 8 && method >> 4 <= 7 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31);
    // Such a header begins a stored block as well, whose length comes again inverted (RFC 1951, section 3.2.4).
    let is_stored = *not_low == !flags && *not_high == !high;
    if is_header && is_stored { Err(Fault::Ambiguous) } else { Ok(is_header) }
}

fn step(inflate: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<Done, Fault> {
    let (before_in, before_out) = (inflate.total_in(), inflate.total_out());
    let status = inflate.decompress(input, output, FlushDecompress::None).map_err(|_| Fault::Corrupt)?;
    // Both are at most the lengths given.
    let count = |now: u64, before: u64| usize::try_from(now - before).unwrap_or_default();
    Ok(Done {
        read: count(inflate.total_in(), before_in),
        written: count(inflate.total_out(), before_out),
        ended: status == Status::StreamEnd,
    })
}

/// RFC 1951, section 2: 32 KiB.
const DEFLATE_WINDOW_LOG: u8 = 15;
/// RFC 9659, section 3: 8 MiB.
const ZSTD_WINDOW_LOG: u32 = 23;
/// The window, and tables.
const DEFLATE_HELD: usize = 64 << 10;
/// RFC 7932, section 9.1: a window of up to 16 MiB; tables of up to 1 MiB.
const BROTLI_HELD: usize = 17 << 20;
/// The window and a block.
const ZSTD_HELD: usize = (8 << 20) + (512 << 10);
/// Bytes that tell which `deflate` it is. A JSON-RPC message has more.
const ENOUGH: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deflate_that_could_be_either_is_neither() {
        assert_eq!(is_zlib(&[0x78, 0x9c, 1, 2, 3]), Ok(true));
        assert_eq!(is_zlib(&[0x78, 0x9d, 1, 2, 3]), Ok(false));
        assert_eq!(is_zlib(&[0x79, 0x9c, 1, 2, 3]), Ok(false));
        assert_eq!(is_zlib(&[0x78, 0x9c, 1, 0x63, 0xfe]), Err(Fault::Ambiguous));
    }
}
