//! Undoing codings one in the other, a piece at a time.
//!
//! Every step gives a bounded piece, so that a small input can neither fill the memory nor keep a thread, and what is
//! decoded is given at once, so that no event waits for the next.

use super::format::Format;
use super::{Codings, Fault};

/// Bytes that one step gives at most.
pub const STEP: usize = 16 * 1024;

/// Undoes the codings of one content; make a new one for each message.
#[derive(Debug)]
pub struct Decoder {
    /// From the one that was applied last to the first.
    layers: Vec<Layer>,
    limit: usize,
    /// What a step has given.
    room: Box<[u8]>,
}

/// One coding.
#[derive(Debug)]
struct Layer {
    format: Format,
    input: Vec<u8>,
    /// How much of the input is used.
    at: usize,
    /// There may be more to give without more input.
    is_full: bool,
    /// The coding is at its end.
    is_ended: bool,
    /// Bytes given since the allowance was renewed.
    given: usize,
}

impl Decoder {
    /// For a content of these codings. None of them may give more than `limit` bytes, unless that is
    /// [renewed](Decoder::renew).
    pub fn new(codings: Codings, limit: usize) -> Result<Decoder, Fault> {
        if codings.unknown {
            return Err(Fault::Unknown);
        }
        let layers = codings.known.iter().rev().flatten().map(|coding| Layer {
            format: Format::new(*coding),
            input: Vec::new(),
            at: 0,
            is_full: false,
            is_ended: false,
            given: 0,
        });
        Ok(Decoder { layers: layers.collect(), limit, room: vec![0; STEP].into() })
    }

    /// Adds bytes of the coded content. They are kept until they are used: [`Decoder::step`] first.
    pub fn push(&mut self, coded: &[u8]) {
        if let Some(layer) = self.layers.first_mut() {
            layer.input.extend_from_slice(coded);
        }
    }

    /// Whether a step would do anything.
    pub fn has_more(&self) -> bool {
        self.layers.iter().any(Layer::has_more)
    }

    /// Takes one step: adds at most [`STEP`] bytes to the end of the content, maybe none.
    pub fn step(&mut self, content: &mut Vec<u8>) -> Result<(), Fault> {
        // The last one first, so that little is held between two.
        let Some(index) = self.layers.iter().rposition(Layer::has_more) else { return Ok(()) };
        let (before, after) = self.layers.split_at_mut(index + 1);
        let Some(layer) = before.last_mut() else { return Ok(()) };
        let written = layer.step(&mut self.room, self.limit)?;
        let out = after.first_mut().map_or(content, |next| &mut next.input);
        out.extend_from_slice(&self.room[..written]);
        Ok(())
    }

    /// Bytes that it may have allocated.
    pub fn held(&self) -> usize {
        let layers = self.layers.iter().map(|layer| layer.input.capacity() + layer.format.held());
        layers.sum::<usize>() + self.room.len()
    }

    /// The content may end here.
    pub fn finish(&self) -> Result<(), Fault> {
        if self.layers.iter().all(|layer| layer.is_ended) { Ok(()) } else { Err(Fault::Truncated) }
    }

    /// From here on the limit counts anew.
    pub fn renew(&mut self) {
        self.layers.iter_mut().for_each(|layer| layer.given = 0);
    }
}

impl Layer {
    fn has_more(&self) -> bool {
        self.is_full || self.at < self.input.len()
    }

    /// Decodes into the room, and tells how much of it is filled.
    fn step(&mut self, room: &mut [u8], limit: usize) -> Result<usize, Fault> {
        let input = &self.input[self.at..];
        if let (true, Some(first)) = (self.is_ended, input.first()) {
            self.format.begin_again(*first)?;
        }
        let done = self.format.decode(input, room)?;
        if done.read == 0 && done.written == 0 && !done.ended && !input.is_empty() {
            return Err(Fault::Corrupt);
        }
        self.at += done.read;
        if self.at == self.input.len() {
            self.input.clear();
            self.input.shrink_to(STEP);
            self.at = 0;
        }
        self.is_ended = done.ended;
        self.is_full = done.written == room.len() && !done.ended;
        self.given = self.given.saturating_add(done.written);
        if self.given > limit { Err(Fault::Oversized) } else { Ok(done.written) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn little_is_held_between_two_codings() {
        let gzip = |content: &[u8]| {
            let mut writer = GzEncoder::new(Vec::new(), Compression::default());
            writer.write_all(content).unwrap();
            writer.finish().unwrap()
        };
        let mut codings = Codings::default();
        codings.read(b"gzip, gzip");
        let mut decoder = Decoder::new(codings, usize::MAX).unwrap();
        decoder.push(&gzip(&gzip(&[0; 8 << 20]).repeat(20)));
        let mut content = Vec::new();
        while decoder.has_more() {
            decoder.step(&mut content).unwrap();
            content.clear();
            let [_, inner] = &decoder.layers[..] else { panic!("two layers") };
            assert!(inner.input.len() <= STEP, "{}", inner.input.len());
        }
        decoder.finish().unwrap();
    }
}
