//! Images of containers. Three parts, an index, a manifest and a layer, become a layout in a tar in
//! which the index names the manifest and the manifest the layer by their digests: a wrong digest
//! would hide all that is behind it.

use sha2::{Digest, Sha256};

use crate::{image, mended};

/// Stands between the parts.
const BETWEEN: &[u8] = b"\n--\n";
/// The config that a manifest may name.
const CONFIG: &[u8] = b"{}";

pub(crate) fn run(bytes: &[u8]) {
    image::run("oci", bytes);
    image::run("oci", &layout(bytes));
}

/// The parts as a layout in a tar.
fn layout(bytes: &[u8]) -> Vec<u8> {
    let (index, rest) = split(bytes);
    let (manifest, layer) = split(rest);
    let manifest = naming(manifest, layer);
    let index = naming(index, &manifest);
    let blobs =
        [CONFIG, layer, &manifest].map(|blob| (format!("blobs/sha256/{}", hex(blob)), blob));
    let mut tar = Vec::new();
    for (name, bytes) in blobs.iter().map(|(name, blob)| (&**name, *blob)) {
        member(name, bytes, &mut tar);
    }
    member("index.json", &index, &mut tar);
    tar.resize(tar.len() + 1024, 0);
    mended::tar(&tar).unwrap_or(tar)
}

/// What is before the first mark, and behind it.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let at = bytes.windows(BETWEEN.len()).position(|at| at == BETWEEN);
    at.map_or((bytes, &[]), |at| (&bytes[..at], &bytes[at + BETWEEN.len()..]))
}

/// A document that names `blob` where it has `@DIGEST` and `@SIZE`.
fn naming(document: &[u8], blob: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(document);
    text.replace("@DIGEST", &hex(blob)).replace("@SIZE", &blob.len().to_string()).into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends a file to an archive; the sum of its header is made right later.
fn member(name: &str, bytes: &[u8], tar: &mut Vec<u8>) {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[124..135].copy_from_slice(format!("{:011o}", bytes.len()).as_bytes());
    header[156] = b'0';
    header[257..262].copy_from_slice(b"ustar");
    tar.extend_from_slice(&header);
    tar.extend_from_slice(bytes);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_corpus_are_an_image_with_a_disk() {
        for name in ["plain", "packed"] {
            let path = format!("{}/../../fuzz/corpus/oci/{name}", env!("CARGO_MANIFEST_DIR"));
            let (container, _, context) = image::container(&layout(&std::fs::read(path).unwrap()));
            let mut params = device::Params::default();
            params.set("arch", "amd64").unwrap();
            let opening =
                formats::Opening { params: &params, files: &formats::Closed, context: &context };
            let disk = (formats::format("oci").unwrap().open)(container, &opening).unwrap();
            assert_eq!(disk.info().size, 512, "{name}");
        }
    }
}
