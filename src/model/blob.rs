//! Where an expert's three matrices lie in its blob.

use std::ops::Range;

/// Each part of a blob, and each blob, begins at a multiple of this many bytes.
pub const BLOB_ALIGNMENT: usize = 256;

/// One matrix within a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobPart {
    /// Where it begins in the blob, in bytes.
    pub offset: usize,
    /// Its bytes, without padding.
    pub bytes: usize,
}

/// The layout of every expert blob of one layer: `gate | up | down`, each part padded to [`BLOB_ALIGNMENT`]. Layers may
/// differ, since their tensors may have different types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobLayout {
    /// The gate matrix.
    pub gate: BlobPart,
    /// The up matrix.
    pub up: BlobPart,
    /// The down matrix.
    pub down: BlobPart,
    /// Bytes of a blob with all padding: what a copy moves and a slot holds.
    pub bytes: usize,
}

impl BlobPart {
    /// The part's bytes within the blob.
    pub fn range(self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }
}

impl BlobLayout {
    /// The layout of parts of these sizes in bytes.
    pub fn new(gate: usize, up: usize, down: usize) -> Self {
        let mut end = 0_usize;
        let mut place = |bytes: usize| {
            let part = BlobPart { offset: end, bytes };
            end = (end + bytes).next_multiple_of(BLOB_ALIGNMENT);
            part
        };
        let (gate, up, down) = (place(gate), place(up), place(down));
        Self { gate, up, down, bytes: end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_padded_and_do_not_touch() {
        let blob = BlobLayout::new(1, 256, 300);
        assert_eq!(blob.gate.range(), 0..1);
        assert_eq!(blob.up.range(), 256..512);
        assert_eq!(blob.down.range(), 512..812);
        assert_eq!(blob.bytes, 1024);
    }
}
