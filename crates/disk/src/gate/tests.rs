#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use crate::OpenOptions;

/// A directory of its own, removed in the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("diskferry-gate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(path.join("images/deep")).unwrap();
        for name in ["secret", "images/top", "images/base", "images/deep/base"] {
            std::fs::write(path.join(name), name).unwrap();
        }
        Self(path)
    }

    fn gate(&self, image: &str, external: External) -> ImageGate {
        let named = Named::parse(self.0.join(image).to_str().unwrap()).unwrap();
        let image = Image { external, ..Image::default() };
        ImageGate::of(&named, &image, &OpenOptions::read_only(), &Context::default())
    }

    fn beneath(&self, image: &str) -> ImageGate {
        self.gate(image, External::Beneath(self.0.join("images")))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(gate: &ImageGate, name: &str) -> Result<String> {
    open_as(gate, name, Role::Data)
}

fn open_as(gate: &ImageGate, name: &str, role: Role) -> Result<String> {
    let edge = gate.open(&Reference { name, role, format: None })?;
    let mut bytes = vec![0; usize::try_from(edge.info().size).unwrap()];
    edge.read(&mut bytes, 0)?;
    Ok(String::from_utf8(bytes).unwrap())
}

fn refusal(gate: &ImageGate, name: &str) -> (ErrorKind, String) {
    let error = open(gate, name).unwrap_err();
    (error.kind(), error.to_string())
}

#[test]
fn nothing_is_opened_that_was_not_allowed() {
    let directory = Directory::new("nothing");
    for role in [Role::Backing, Role::Data, Role::DataFile, Role::Part] {
        let gate = directory.gate("images/top", External::Nothing);
        let error = open_as(&gate, "base", role).unwrap_err().to_string();
        assert!(error.contains("--allow-external"), "{error}");
    }
}

#[test]
fn names_are_looked_up_beside_the_image_and_beneath_the_directory() {
    let directory = Directory::new("beneath");
    let (top, deep) = (directory.beneath("images/top"), directory.beneath("images/deep/base"));
    assert_eq!(open(&top, "base").unwrap(), "images/base");
    assert_eq!(open(&top, "deep/base").unwrap(), "images/deep/base");
    assert_eq!(open(&deep, "../base").unwrap(), "images/base");
    let absolute = directory.0.join("images/base");
    assert_eq!(open(&top, absolute.to_str().unwrap()).unwrap(), "images/base");
    for outside in ["../secret", "deep/../../secret", "/etc/hostname", "../images/../secret"] {
        assert_eq!(refusal(&top, outside).0, ErrorKind::Denied, "{outside}");
    }
    assert_eq!(refusal(&top, "missing").0, ErrorKind::NotFound);
}

#[test]
fn no_link_is_followed_beneath_a_directory() {
    let directory = Directory::new("links");
    symlink("../secret", directory.0.join("images/link")).unwrap();
    symlink("..", directory.0.join("images/up")).unwrap();
    let gate = directory.beneath("images/top");
    for name in ["link", "up/secret", "up/images/base"] {
        let (kind, text) = refusal(&gate, name);
        assert_eq!(kind, ErrorKind::Denied, "{text}");
    }
    let trusted = directory.gate("images/top", External::Chain);
    assert_eq!(open(&trusted, "link").unwrap(), "secret");
}

#[test]
fn only_the_path_of_a_file_is_a_name() {
    let directory = Directory::new("schemes");
    let gate = directory.gate("images/top", External::Chain);
    for name in ["nbd://localhost/x", "json:{\"driver\":\"file\"}", "http://x/y", "fd:3"] {
        let (kind, text) = refusal(&gate, name);
        assert_eq!(kind, ErrorKind::Denied, "{text}");
        assert!(text.contains("on the command line"), "{text}");
    }
    std::fs::write(directory.0.join("images/a:b"), "colon").unwrap();
    assert_eq!(open(&gate, "./a:b").unwrap(), "colon");
    let (_, text) = refusal(&gate, "");
    assert!(text.contains("without a name"), "{text}");
}

#[test]
fn nothing_that_acts_when_it_is_opened_is_opened() {
    let directory = Directory::new("acts");
    let gate = directory.gate("images/top", External::Chain);
    let pipe = directory.0.join("images/pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    for (name, what) in [("pipe", "pipe"), ("/dev/zero", "character"), ("deep", "directory")] {
        let (_, text) = refusal(&gate, name);
        assert!(text.contains(what), "{text}");
    }
}

#[test]
fn a_chain_ends() {
    let directory = Directory::new("chain");
    let mut gate = directory.gate("images/top", External::Chain);
    let error = open(&gate, "top").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    for n in 0..DEEPEST - 1 {
        let path = directory.0.join(format!("images/{n}"));
        std::fs::write(&path, "").unwrap();
        gate = gate.beside(Named::parse(path.to_str().unwrap()).unwrap()).unwrap();
    }
    assert_eq!(open(&gate, "top").unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(open(&gate, "base").unwrap_err().kind(), ErrorKind::Limit);
}

#[test]
fn a_backing_image_that_looks_like_one_is_not_guessed_at() {
    let directory = Directory::new("guess");
    let gate = directory.gate("images/top", External::Chain);
    assert_eq!(open_as(&gate, "base", Role::Backing).unwrap(), "images/base");
    let error = gate
        .open(&Reference { name: "base", role: Role::Backing, format: Some("nonsense") })
        .unwrap_err();
    assert!(error.to_string().contains("there is no format"), "{error}");
}

#[test]
fn a_file_that_is_made_appears_when_it_is_complete_and_goes_if_it_never_is() {
    let directory = Directory::new("appears");
    let path = directory.0.join("images/new");
    let named = Named::parse(path.to_str().unwrap()).unwrap();
    let creation = Creation { appears: true, ..Creation::of(4096, OpenOptions::read_write()) };
    let make = || named.create(&creation, &Context::default()).unwrap();
    drop(make());
    assert!(!path.exists());
    let created = make();
    assert!(!path.exists());
    created.edge.device().finish().unwrap();
    let made = created.made.unwrap();
    made.appear().unwrap();
    made.appear().unwrap();
    assert_eq!(length(&path), 4096);
    assert!(made.remove());
    assert!(!path.exists());
    let created = make();
    std::fs::write(&path, "another's").unwrap();
    let made = created.made.unwrap();
    assert_eq!(made.appear().unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert!(made.remove(), "nothing is left of it");
    assert_eq!(std::fs::read(&path).unwrap(), b"another's");
}

#[test]
fn a_container_is_emptied_grows_and_has_its_length_in_the_end() {
    let directory = Directory::new("grows");
    let path = directory.0.join("images/base");
    let named = Named::parse(path.to_str().unwrap()).unwrap();
    let new = Creation::of(1 << 40, OpenOptions::read_write());
    let creation = Creation { grows: true, appears: true, ..new };
    let created = named.create(&creation, &Context::default()).unwrap();
    assert_eq!((length(&path), created.holds), (0, devices::Holds::Zeroes));
    let edge = created.edge.clone();
    edge.write(b"12345", 1000, false).unwrap();
    created.edge.device().resize(1003).unwrap();
    created.edge.device().finish().unwrap();
    assert_eq!(length(&path), 1003);
    assert_eq!(&std::fs::read(&path).unwrap()[999..], b"\x00123");
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}
