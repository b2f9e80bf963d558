//! Geometries, compared with the format's specification and QEMU, and images that are written.

mod writing;

use super::header::{Geometry, LARGEST_GEOMETRY};

#[test]
fn geometries_are_those_of_the_specification() {
    // As `qemu-img create -f vpc` makes them.
    for (mib, sectors) in [(1, 2108), (10, 20536), (100, 204_816), (1024, 2_097_648)] {
        let geometry = Geometry::around(mib * 2048);
        assert_eq!(geometry.sectors(), sectors, "{mib} MiB: {geometry:?}");
    }
    assert_eq!(Geometry::around(1 << 33).sectors(), LARGEST_GEOMETRY);
    assert!(Geometry::around(0).sectors() < 200);
}
