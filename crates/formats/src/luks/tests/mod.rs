//! Vectors of ciphers and hashes, by OpenSSL through Python where no standard has one; and a header
//! by cryptsetup.

use device::model::Model;
use device::{Blocking as _, Edge, Simple};
use runtime::WorkPool;

use super::cipher::{Encryption, Sectors};
use super::hash::Hash;
use super::volume::Volume;
use super::{Header, derive, split};

/// LUKS2 by cryptsetup 2.6.1: `luksFormat --cipher aes-cbc-essiv:sha256 --key-size 128 --pbkdf
/// argon2id --pbkdf-memory 64 --pbkdf-parallel 2 --pbkdf-force-iterations 4 --offset 256`. The
/// passphrase is `open sesame`, and the unused part of the room for keyslots is zeroed.
const HEADER: &[u8] = include_bytes!("cryptsetup.gz");
/// Its key, as `luksDump --dump-volume-key` says.
const KEY: [u8; 16] = 0x9999_745a_aa30_d941_0397_4590_3b5d_d278_u128.to_be_bytes();

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sectors(mode: &str, key: &[u8], size: usize) -> Sectors {
    Sectors::new(Encryption::parse("aes", mode).unwrap(), key, size).unwrap()
}

/// 0, 1 … 255, again and again.
fn plain(len: usize) -> Vec<u8> {
    (0..=255).cycle().take(len).collect()
}

#[test]
fn xts_is_that_of_the_standard() {
    // IEEE 1619, vector 4.
    let key = [
        0x2718_2818_2845_9045_2353_6028_7471_3526_u128.to_be_bytes(),
        0x3141_5926_5358_9793_2384_6264_3383_2795_u128.to_be_bytes(),
    ];
    let mut bytes = plain(512);
    sectors("xts-plain64", &key.concat(), 512).encrypt(&mut bytes, 0);
    let first = "27a7479befa1d476489f308cd4cfa6e2a96e4bbe3208ff25287dd3819616e89c\
                 c78cf7f5e543445f8333d8fa7f560000";
    assert_eq!(hex(&bytes[..48]), first);
}

#[test]
fn sectors_of_all_modes_and_sizes_are_those_of_openssl_and_are_decrypted_again() {
    let key: Vec<u8> = (0..64).collect();
    for (mode, len, size, number, sum) in [
        (
            "xts-plain64",
            64,
            512,
            (1 << 40) + 5,
            "0c78e49673664743d5c3609c9001b3c134f06eef000dd519043e545eb1fef4e9",
        ),
        (
            "xts-plain64:sha256",
            64,
            512,
            (1 << 40) + 5,
            "0c78e49673664743d5c3609c9001b3c134f06eef000dd519043e545eb1fef4e9",
        ),
        (
            "xts-plain64",
            64,
            4096,
            16,
            "bfff69636f883aa42be2140c0a519b0c6414d1c44321898e767c532cdfa70b01",
        ),
        (
            "xts-plain",
            32,
            512,
            (7 << 32) + 5,
            "2906a2adcb083cbf8919e65caab344e1d0811fcf2f108ae9b2ac86fa31243d8f",
        ),
        (
            "cbc-essiv:sha256",
            32,
            512,
            7,
            "ec1394824056ded792683ff1c4fd5bb9a8bf0be71bcf88b402958c9d671240c8",
        ),
        (
            "cbc-plain64",
            24,
            512,
            (1 << 33) + 1,
            "f28a4f4eba0a2f037bc9036eb76c76739e980c072c21151ec1218d3f0c921b58",
        ),
        (
            "cbc-plain",
            16,
            512,
            (1 << 33) + 1,
            "77522174a42529eddcceffa706f6e3bfb620cff51061cd8b06c98996030a1165",
        ),
    ] {
        let cipher = sectors(mode, &key[..len], size);
        let mut bytes = plain(4096);
        cipher.encrypt(&mut bytes, number);
        assert_eq!(hex(&Hash::Sha256.digest(&[&bytes])), sum, "{mode}");
        // As a whole and sector by sector; more than is computed together.
        let mut long = plain(150 * 4096);
        cipher.encrypt(&mut long, number);
        assert!(long[..4096] == bytes[..], "{mode}");
        for (sector, at) in long.chunks_mut(size).zip((0_u64..).step_by(size / 512)) {
            cipher.decrypt(sector, number + at);
        }
        assert!(long == plain(150 * 4096), "{mode}");
        sectors(mode, &key[..len], size).decrypt(&mut bytes, number);
        assert!(bytes == plain(4096), "{mode}");
    }
}

#[test]
fn keys_of_other_lengths_and_other_ciphers_are_refused() {
    for (cipher, mode, len) in [
        ("aes", "xts-plain64", 48),
        ("aes", "xts-plain64", 0),
        ("aes", "xts-plain64", 33),
        ("aes", "cbc-plain64", 64),
        ("aes", "cbc-essiv:sha512", 32),
        ("aes", "xts-essiv:sha256", 64),
        ("aes", "cbc-essiv:whirlpool", 32),
        ("aes", "ctr-plain64", 32),
        ("aes", "xts", 64),
        ("aes", "", 64),
        ("twofish", "xts-plain64", 64),
        ("cipher_null", "ecb", 16),
    ] {
        let encryption = Encryption::parse(cipher, mode);
        let made = encryption.and_then(|found| Sectors::new(found, &vec![1; len], 512).map(drop));
        assert!(made.is_err(), "{cipher}-{mode} {len}");
    }
}

#[test]
fn stripes_are_merged_as_by_cryptsetup_and_what_was_split_is_merged_again() {
    let split: Vec<u8> = (0..200_u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
    for (hash, merged) in [
        (
            Hash::Sha1,
            "301500bfb69d10be548c9a46fb75d8c89d49317f5541eb8c046f30f0bd7591bea0b0a826f41368f4",
        ),
        (
            Hash::Sha256,
            "c8cc4ec300d51076dbaa0d87291b6962f7fccabca04112eba5a3c5406c3fea802c2c17dab1bbfd51",
        ),
        (
            Hash::Sha512,
            "4b59e6342c712fd09797606b6a399db5682391ed145211285c2e8e784374fdf3d513472692c742d0",
        ),
    ] {
        assert_eq!(hex(&split::merge(&split, 40, 5, hash)), merged);
        let mut stripes = split.clone();
        split::split(&plain(40), &mut stripes, hash);
        assert!(stripes[..160] == split[..160]);
        assert_eq!(**split::merge(&stripes, 40, 5, hash), *plain(40));
        stripes[3] ^= 1;
        assert_ne!(**split::merge(&stripes, 40, 5, hash), *plain(40));
    }
}

#[test]
fn pbkdf2_is_that_of_the_standards() {
    // RFC 6070 and RFC 7914.
    let of = |hash: Hash, password: &str, salt: &str, n, len| {
        hex(&hash.pbkdf2(password.as_bytes(), salt.as_bytes(), n, len))
    };
    assert_eq!(
        of(Hash::Sha1, "password", "salt", 2, 20),
        "ea6c014dc72d6f8ccd1ed92ace1d41f0d8de8957"
    );
    assert_eq!(
        of(
            Hash::Sha1,
            "passwordPASSWORDpassword",
            "saltSALTsaltSALTsaltSALTsaltSALTsalt",
            4096,
            25
        ),
        "3d2eec4fe41c849b80c8d83662c0e44a8b291a964cf2f07038"
    );
    assert_eq!(
        of(Hash::Sha256, "passwd", "salt", 1, 64),
        "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc\
         49ca9cccf179b645991664b39d77ef317c71b845b1e30bd509112041d3a19783"
    );
    assert_eq!(
        of(
            Hash::Sha512,
            "passwordPASSWORDpassword",
            "saltSALTsaltSALTsaltSALTsaltSALTsalt",
            4096,
            64
        ),
        "8c0511f4c6e597c6ac6315d8f0362e225f3c501495ba23b868c005174dc4ee71\
         115b59f9e60cd9532fa33e0f75aefe30225c583a186cd82bd4daea9724a3d3b8"
    );
}

/// The header by cryptsetup, and one sector of disk.
fn container() -> Edge {
    let mut bytes = vec![0; (128 << 10) + 512];
    let header = bytes.get_mut(..128 << 10).unwrap();
    libdeflater::Decompressor::new().gzip_decompress(HEADER, header).unwrap();
    let model = Model::new(bytes.len());
    model.write_at(&bytes, 0, false).unwrap();
    Simple::edge(model, &WorkPool::new(1))
}

fn volume(container: &Edge) -> Volume {
    Header::read(container).unwrap().volume().unwrap()
}

#[test]
fn a_passphrase_opens_what_cryptsetup_made_by_argon2id_and_another_does_not() {
    let container = container();
    let volume = volume(&container);
    assert_eq!(volume.segment.size_in(container.info().size).unwrap(), 512);
    assert_eq!(volume.segment.encryption.mode_name(), "cbc-essiv:sha256");
    let key = |passphrase: &[u8]| volume.key(&container, passphrase, derive::MEMORY);
    assert_eq!(**key(b"open sesame").unwrap(), KEY);
    assert_eq!(key(b"open sesame\n").unwrap_err().kind(), device::ErrorKind::NeedsKey);
    // Less memory than the keyslot asks for.
    let refused = volume.key(&container, b"open sesame", 32 << 10).unwrap_err();
    assert_eq!(refused.kind(), device::ErrorKind::Limit);
}
