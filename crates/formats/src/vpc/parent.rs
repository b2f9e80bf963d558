//! The parent of a differencing image, and its possible names.

use device::{Edge, Result};

use crate::Files;
use crate::kit::Parent;
use crate::kit::fields::{array, be32, be64, load};

use super::header::{Dynamic, Footer};

/// Bytes of a name.
const NAME_MAX: u32 = 4096;

/// The image's names for its parent, the best one first: relative to the image, then others.
/// Windows' separators are converted.
pub(super) fn names(container: &Edge, dynamic: &Dynamic) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for i in 0..8 {
        let at = 576 + 24 * i;
        let (platform, len) = (array::<4>(&dynamic.bytes, at), be32(&dynamic.bytes, at + 8));
        let rank = match &platform {
            b"W2ru" => 0,
            b"W2ku" => 2,
            _ => continue,
        };
        if len == 0 || len > NAME_MAX {
            continue;
        }
        let offset = be64(&dynamic.bytes, at + 16);
        let bytes =
            load(container, "name of its parent", offset, usize::try_from(len).unwrap_or(0))?;
        found.push((rank, text(&bytes, u16::from_le_bytes)));
    }
    let name = dynamic.bytes.get(64..576).unwrap_or_default();
    found.push((1, text(name, u16::from_be_bytes)));
    found.sort_by_key(|(rank, _)| *rank);
    let names = found.into_iter().map(|(_, name)| name.replace('\\', "/"));
    let names = names.map(|name| name.strip_prefix("./").map(str::to_owned).unwrap_or(name));
    Ok(names.filter(|name| !name.is_empty()).collect())
}

/// UTF-16 up to the first zero.
fn text(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> String {
    let units = bytes.chunks_exact(2).map(|pair| unit(array(pair, 0)));
    let units: Vec<_> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16_lossy(&units)
}

pub(super) fn open(container: &Edge, dynamic: &Dynamic, files: &dyn Files) -> Result<Edge> {
    let ids = vec![array(&dynamic.bytes, 40)];
    let parent = Parent { names: names(container, dynamic)?, ids };
    parent.open(super::FORMAT.word, files, |container| Ok(Footer::read(container)?.id))
}
