//! `offset`: shows a range of a disk as a disk.

use device::{param, values};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "offset",
    summary: "exposes a range of the disk as a disk",
    params: &[
        param("offset", "SIZE", "where it starts (default 0)"),
        param("range", "SIZE", "how long it is (default up to the end)"),
    ],
    example: "serve --filter=offset memory 1M offset=64K range=100 --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, _| {
        let start = values::size(params, "offset")?.unwrap_or(0);
        let rest = below.info().size.saturating_sub(start);
        let len = values::size(params, "range")?.unwrap_or(rest);
        device::part(below, start, len)
    },
    ..FilterKind::PLAIN
};

#[cfg(test)]
mod tests {
    use trial::BlockingCalls as _;

    use device::{Extent, ZeroFlags};

    use crate::kit::tested::{blank, put};

    #[test]
    fn a_range_ends_with_the_disk_unless_it_is_said_where() {
        let over = |words: &[&str]| put("offset", blank(1000), words);
        assert_eq!(over(&["offset=1000"]).unwrap().info().size, 0);
        assert_eq!(over(&["offset=100"]).unwrap().info().size, 900);
        assert_eq!(over(&["offset=100", "range=900"]).unwrap().info().size, 900);
    }

    #[test]
    fn nothing_outside_the_range_is_changed_and_places_and_maps_move() {
        let memory = devices::Named::parse("memory:1M").unwrap();
        let memory =
            memory.open(&devices::OpenOptions::read_write(), &runtime::Context::default()).unwrap();
        memory.write_at(&[1; 65536], 0, false).unwrap();
        let disk = put("offset", memory.clone(), &["offset=8192", "range=16384"]).unwrap();
        disk.zero(0, 16384, ZeroFlags { may_unmap: true, ..ZeroFlags::default() }).unwrap();
        disk.write(&[2; 4096], 4096, false).unwrap();
        assert!(disk.write(&[2; 1], 16384, false).is_err());
        let mut map: Vec<Extent> = Vec::new();
        disk.resolve(0, 16384, 9, &mut map).unwrap();
        let seen: Vec<_> = map.iter().map(|e| (e.start, e.len, e.kind.reads_zero())).collect();
        assert_eq!(seen, [(0, 4096, true), (4096, 4096, false), (8192, 8192, true)]);
        let mut byte = [0];
        let place = disk.info().flat.as_ref().unwrap().advanced(4096);
        rustix::io::pread(place.fd(), &mut byte, place.offset()).unwrap();
        assert_eq!(byte, [2]);
        let mut all = vec![0; 65536];
        memory.read_at(&mut all, 0).unwrap();
        assert!(all[..8192].iter().chain(&all[8192 + 16384..]).all(|b| *b == 1));
    }
}
