//! What is written into a sample and read out of it: the same work that `sluice perf exchange_lat`
//! does with a tensor. Pure; knows nothing of how samples cross.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
pub const PAGE_BYTES: usize = 4096;
pub const LINE_BYTES: usize = 64;

/// A well mixed number out of any (splitmix64's finalizer).
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(GOLDEN);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The one word of a sample that changes with each step: where, and to which value.
pub struct StepWord {
    at: usize,
    value: u64,
}

impl StepWord {
    /// Requires: `bytes` is at least 8.
    pub fn of(seed: u64, step: u64, bytes: usize) -> Self {
        let random = mixed(seed ^ step.wrapping_mul(0xd134_2543_de82_ef95));
        let words = (bytes / 8) as u128;
        let index = ((u128::from(random) * words) >> 64) as usize;
        Self { at: index * 8, value: mixed(random) }
    }
    pub fn write(&self, sample: &mut [u8]) {
        sample[self.at..self.at + 8].copy_from_slice(&self.value.to_ne_bytes());
    }
    pub fn matches(&self, sample: &[u8]) -> bool {
        sample[self.at..self.at + 8] == self.value.to_ne_bytes()
    }
}

/// What the receiver reads of a sample in the timed part, beside its word.
#[derive(Clone, Copy, PartialEq)]
pub enum Touch {
    Word,
    Page,
    Line,
}

/// A load from every `stride`th byte; the sum, so that nobody can leave the reading out.
pub fn read(touch: Touch, sample: &[u8]) -> u64 {
    let stride = match touch {
        Touch::Word => return 0,
        Touch::Page => PAGE_BYTES,
        Touch::Line => LINE_BYTES,
    };
    sample.iter().step_by(stride).map(|&byte| u64::from(byte)).sum()
}

fn word(index: usize, seed: u64) -> u64 {
    (index as u64).wrapping_mul(GOLDEN).wrapping_add(mixed(seed))
}

/// Writes every byte, so that a wrong, stale or missing word is seen.
pub fn fill(sample: &mut [u8], seed: u64) {
    for (index, bytes) in sample.chunks_mut(8).enumerate() {
        let length = bytes.len();
        bytes.copy_from_slice(&word(index, seed).to_ne_bytes()[..length]);
    }
}

/// Words that are not those of fill().
pub fn mismatches(sample: &[u8], seed: u64) -> u64 {
    let wrong = |(index, bytes): &(usize, &[u8])| **bytes != word(*index, seed).to_ne_bytes()[..bytes.len()];
    sample.chunks(8).enumerate().filter(wrong).count() as u64
}
