//! The device contract: extents, places, lanes, abilities, the edge.
