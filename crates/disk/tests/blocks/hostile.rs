//! Untrusted images: each ends in one error, or in a disk that can be read, and in nothing else.

use device::Edge;

use crate::support::{Place, all, make, open, pattern};

const KINDS: &[(&str, &[&str])] = &[
    ("vdi", &[]),
    ("vdi", &["static=on"]),
    ("vpc", &[]),
    ("vpc", &["subformat=fixed"]),
    ("vhdx", &["block_size=1M"]),
    ("vhdx", &["subformat=fixed", "block_size=1M"]),
];

/// A small generator that is the same each time.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed * 2 + 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 8).unwrap() % n
    }
}

/// Reads what can be read of it, and its map.
fn use_it(disk: &Edge) {
    let size = disk.info().size;
    let mut bytes = vec![0; 4096];
    for at in [0, size / 3, size / 2, size.saturating_sub(4096)] {
        let len = usize::try_from(4096.min(size - at)).unwrap();
        let _ = disk.read(&mut bytes[..len], at);
        let mut found = Vec::new();
        let _ = disk.resolve(at, size - at, 16, &mut found);
    }
}

#[test]
fn thousands_of_mutations_end_in_an_error_or_a_disk() {
    let place = Place::new();
    for (format, options) in KINDS {
        let path = place.path("image");
        make(&path, format, options, &pattern((2 << 20) + 512, 3));
        let good = std::fs::read(&path).unwrap();
        let mut dice = Dice::new(good.len() as u64);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let head = good.len().min(4096);
        let tables = good.iter().take(4 << 20).enumerate().filter(|(_, b)| **b != 0);
        let worth: Vec<_> = tables.map(|(at, _)| at).take(20_000).collect();
        for _ in 0..500 {
            // Headers and tables are worth breaking.
            let at = if dice.below(4) == 0 {
                good.len() - 1 - dice.below(1024)
            } else {
                worth[dice.below(worth.len())]
            };
            let width = [1, 2, 4, 8][dice.below(4)].min(good.len() - at);
            let byte = [0, 1, 0x7f, 0x80, 0xff, dice.below(256)][dice.below(6)];
            let bad = vec![u8::try_from(byte).unwrap(); width];
            rustix::io::pwrite(&file, &bad, at as u64).unwrap();
            if let Ok(disk) = open(&path, format) {
                use_it(&disk);
            }
            let container = open(&path, "raw").unwrap();
            let context = runtime::Context::default();
            let described = (disk::format(format).unwrap().describe)(&container, &context);
            if let Err(e) = described {
                assert!(!e.to_string().contains('\n'));
            }
            rustix::io::pwrite(&file, &good[at..at + width], at as u64).unwrap();
        }
        assert!(!all(&open(&path, format).unwrap()).is_empty(), "it is as it was");
        // What is cut off, anywhere.
        for _ in 0..100 {
            let len = if dice.below(2) == 0 { dice.below(head) } else { dice.below(good.len()) };
            std::fs::write(&path, &good[..len]).unwrap();
            if let Ok(disk) = open(&path, format) {
                use_it(&disk);
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
