//! Which headers are valid, and images that are written.

mod writing;

use super::header::{Header, Kind};
use crate::kit::fields::put;

fn good() -> Vec<u8> {
    let header = Header {
        kind: Kind::Dynamic,
        map: 512,
        data: 1 << 20,
        size: 10 << 20,
        block: 1 << 20,
        blocks: 10,
        allocated: 3,
    };
    header.encode()
}

#[test]
fn valid_headers_are_read_and_invalid_ones_are_refused() {
    let header = Header::decode(&good()).unwrap();
    assert_eq!((header.size, header.allocated, header.place(2)), (10 << 20, 3, Some(3 << 20)));
    let wrong: [(usize, u32, &str); 11] = [
        (64, 0, "no signature"),
        (68, 0x2_0000, "version 2.0"),
        (76, 4, "stands over others"),
        (340, 100, "sectors"),
        (344, 512, "its map lies"),
        (360, 4096, "512 bytes"),
        (376, 3 << 20, "blocks are not"),
        (380, 512, "in front of each"),
        (384, 9, "as long as its disk"),
        (424, 1, "stands over another"),
        (452, 1, "stands over another"),
    ];
    for (at, number, said) in wrong {
        let mut bad = good();
        put(&mut bad, at, &number.to_le_bytes());
        let error = Header::decode(&bad).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    let mut odd = good();
    put(&mut odd, 368, &1001_u64.to_le_bytes());
    assert_eq!(Header::decode(&odd).unwrap().size, 1024);
}
