//! Disks in images of containers (containerDisk): a directory in OCI's layout, and a tar of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blackbox::launch::Serve;
use blackbox::run::{ferry, ours, run, text};
use blackbox::temp::TempDir;
use serde_json::{Value, json};

/// A layout that is made file by file, as the tools make it.
struct Layout {
    temp: TempDir,
    manifests: Vec<Value>,
}

fn sha256(path: &Path) -> String {
    let sum = run(Command::new("sha256sum").arg(path));
    format!("sha256:{}", sum.succeeded().split(' ').next().unwrap())
}

impl Layout {
    fn new() -> Self {
        let temp = TempDir::new();
        fs::create_dir_all(temp.join("oci/blobs/sha256")).unwrap();
        fs::write(temp.join("oci/oci-layout"), "{\"imageLayoutVersion\":\"1.0.0\"}").unwrap();
        Self { temp, manifests: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.join(name)
    }

    fn name(&self, name: &str) -> String {
        text(&self.path(name)).to_owned()
    }

    /// Adds a blob: what is said of it.
    fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let file = self.temp.file("blob", bytes);
        let digest = sha256(&file);
        fs::copy(file, self.blob_path(&digest)).unwrap();
        json!({"mediaType": kind, "digest": digest, "size": bytes.len()})
    }

    fn blob_path(&self, digest: &str) -> PathBuf {
        self.path("oci/blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
    }

    /// A layer with these files, packed by the option of tar.
    fn layer(&self, pack: &str, files: &[(&str, &[u8])]) -> Value {
        let tree = self.path("tree");
        let _ = fs::remove_dir_all(&tree);
        for (name, bytes) in files {
            fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
            fs::write(tree.join(name), bytes).unwrap();
        }
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&tree).arg(pack).arg("-cf").arg(self.path("layer.tar")).arg(".");
        run(&mut tar).succeeded();
        let kind = "application/vnd.oci.image.layer.v1.tar";
        self.blob(kind, &fs::read(self.path("layer.tar")).unwrap())
    }

    /// Adds an image, and writes the index.
    fn image(&mut self, tag: &str, arch: &str, layers: &[Value]) -> Value {
        let config = self.blob("application/vnd.oci.image.config.v1+json", b"{}");
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let mut said = self.blob(kind, manifest.to_string().as_bytes());
        said["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        said["platform"] = json!({"os": "linux", "architecture": arch});
        self.manifests.push(said.clone());
        self.index();
        said
    }

    fn index(&self) {
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        fs::write(self.path("oci/index.json"), index.to_string()).unwrap();
    }

    /// Copies the disk of this name: what is said, if that fails.
    fn converted(&self, words: &[&str], name: &str) -> Result<Vec<u8>, String> {
        let out = self.path("out.raw");
        let _ = fs::remove_file(&out);
        let said = run(ours(words.iter().copied()).arg(name).arg(&out));
        if said.status.success() {
            return Ok(fs::read(out).unwrap());
        }
        assert!(!out.exists(), "{name}: {}", said.stderr);
        Err(said.stderr)
    }
}

/// A disk, and a qcow2 image of it.
fn disk(layout: &Layout) -> (Vec<u8>, Vec<u8>) {
    let (raw, image) = (layout.name("disk.raw"), layout.name("disk.qcow2"));
    ferry(["copy", "-q", "sparse-random:9M?seed=4&percent=60&runlength=100K", &raw]).succeeded();
    ferry(["convert", "-f", "raw", "-O", "qcow2", &raw, &image]).succeeded();
    (fs::read(raw).unwrap(), fs::read(image).unwrap())
}

#[test]
fn the_disk_of_an_image_is_read_from_its_layout_however_that_is_packed() {
    for pack in ["-v", "-z", "--zstd"] {
        let mut layout = Layout::new();
        let (raw, image) = disk(&layout);
        let base = layout.layer("-v", &[("etc/os-release", b"x"), ("boot/vm.img", b"no disk")]);
        let layer = layout.layer(pack, &[("disk/vm", &image)]);
        layout.image("v1", "amd64", &[base, layer]);
        let oci = layout.name("oci");
        let named = format!("oci:{oci}");
        for name in [named.clone(), format!("{named}/:v1"), format!("{named}?arch=amd64")] {
            assert!(layout.converted(&["convert"], &name).unwrap() == raw, "{pack} {name}");
        }
        for words in [&["convert", "-f", "qcow2"][..], &["copy", "-q", "-f", "qcow2"]] {
            assert!(layout.converted(words, &named).unwrap() == raw, "{pack} {words:?}");
        }
        // Without a format it is copied as it is in there.
        assert!(layout.converted(&["copy", "-q"], &named).unwrap() == image, "{pack}");
        let shown = ferry(["info", &named]);
        assert!(shown.succeeded().contains("file format: qcow2"), "{shown:?}");
        // As `docker save` and skopeo pack it.
        let tar = layout.name("image.tar");
        let mut packed = Command::new("tar");
        let files = ["blobs", "index.json", "oci-layout"];
        run(packed.args(["-C", &oci, "-cf", &tar]).args(files)).succeeded();
        assert!(layout.converted(&["convert"], &tar).unwrap() == raw, "{pack}");
        assert!(layout.converted(&["convert"], &format!("oci:{tar}:v1")).unwrap() == raw);
        let words = ["convert", "--sandbox=require"];
        assert!(layout.converted(&words, &named).unwrap() == raw, "{pack}, in a sandbox");
    }
}

/// What is damaged is found before a byte of it is handed out.
#[test]
fn no_byte_is_taken_from_what_is_not_what_its_digest_says() {
    let mut layout = Layout::new();
    let (_, image) = disk(&layout);
    let layer = layout.layer("-z", &[("disk/vm", &image)]);
    let manifest = layout.image("v1", "amd64", std::slice::from_ref(&layer));
    let name = format!("oci:{}", layout.name("oci"));
    layout.converted(&["convert"], &name).unwrap();
    let config = sha256(&layout.temp.file("config", b"{}"));
    let blobs = [&layer, &manifest].map(|blob| blob["digest"].as_str().unwrap().to_owned());
    for digest in blobs.into_iter().chain([config]) {
        let path = layout.blob_path(&digest);
        let right = fs::read(&path).unwrap();
        for at in [0, right.len() / 2, right.len() - 1] {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            fs::write(&path, &wrong).unwrap();
            for words in [&["convert"][..], &["copy", "-q"], &["copy", "-q", "-f", "qcow2"]] {
                let said = layout.converted(words, &name).unwrap_err();
                assert!(said.contains("is not what its digest says"), "{said}");
                assert_eq!(said.lines().count(), 1, "{said}");
            }
        }
        fs::write(&path, &right[..right.len() - 1]).unwrap();
        let said = layout.converted(&["convert"], &name).unwrap_err();
        assert!(said.contains("bytes, and not"), "{said}");
        fs::remove_file(&path).unwrap();
        layout.converted(&["convert"], &name).unwrap_err();
        fs::write(&path, right).unwrap();
    }
    layout.converted(&["convert"], &name).unwrap();
}

#[test]
fn the_uppermost_layer_decides_and_what_it_removes_is_gone() {
    let mut layout = Layout::new();
    let (raw, image) = disk(&layout);
    let old = layout.layer("-v", &[("disk/old", b"another disk")]);
    let new = layout.layer("-v", &[("disk/new", &image)]);
    let both = layout.layer("-v", &[("disk/new", &image), ("disk/other", b"x")]);
    let gone = layout.layer("-v", &[("disk/.wh.old", b"")]);
    let opaque = layout.layer("-v", &[("disk/.wh..wh..opq", b"")]);
    let folder = layout.layer("-v", &[(".wh.disk", b"")]);
    let none = layout.layer("-v", &[("etc/passwd", b"")]);
    for (tag, layers) in [
        ("new", &[&old, &new, &none][..]),
        ("gone", &[&old, &gone]),
        ("opaque", &[&old, &opaque]),
        ("folder", &[&old, &folder]),
        ("both", &[&both]),
        ("none", &[&none]),
        ("empty", &[]),
    ] {
        let layers: Vec<Value> = layers.iter().map(|layer| (*layer).clone()).collect();
        layout.image(tag, "amd64", &layers);
    }
    let name = |rest: &str| format!("oci:{}{rest}", layout.name("oci"));
    assert!(layout.converted(&["convert"], &name(":new")).unwrap() == raw);
    assert!(layout.converted(&["convert"], &name(":both?entry=./disk/new")).unwrap() == raw);
    for (rest, said) in [
        (":gone", "not a containerDisk"),
        (":opaque", "not a containerDisk"),
        (":folder", "not a containerDisk"),
        (":none", "not a containerDisk"),
        (":empty", "not a containerDisk"),
        (":both", "entry= names one of `./disk/new`, `./disk/other`"),
        (":both?entry=vm", "no layer of the image has a file `vm`"),
        (":other", "there is none of the tag `other`"),
        (":new?arch=s390x", "there is none for s390x"),
        ("", "the layout has several images; tag= names one of `new`, `gone`"),
        ("?nothing=1", "there is no parameter `nothing`"),
    ] {
        let failed = layout.converted(&["convert"], &name(rest)).unwrap_err();
        assert!(failed.contains(said), "{rest}: {failed}");
        assert_eq!(failed.lines().count(), 1, "{rest}: {failed}");
    }
}

#[test]
fn documents_that_make_no_sense_are_refused() {
    let mut layout = Layout::new();
    let (_, image) = disk(&layout);
    let layer = layout.layer("-v", &[("disk/vm", &image)]);
    let right = layout.image("v1", "amd64", &[layer]);
    let name = format!("oci:{}", layout.name("oci"));
    let with = |key: &str, value: Value| {
        let mut said = right.clone();
        said[key] = value;
        json!({"manifests": [said]}).to_string()
    };
    let many = json!({"manifests": vec![right.clone(); 2000]}).to_string();
    let itself = layout.blob("index", json!({"manifests": []}).to_string().as_bytes());
    for index in [
        String::new(),
        "{".to_owned(),
        "[".repeat(100_000),
        json!({"manifests": {}}).to_string(),
        json!({"manifests": []}).to_string(),
        json!({"manifests": [7]}).to_string(),
        json!({"manifests": [itself]}).to_string(),
        with("digest", "sha256:../../../../etc/passwd".into()),
        with("digest", format!("sha256:{}", "A".repeat(64)).into()),
        with("digest", format!("sha512:{}", "a".repeat(128)).into()),
        with("digest", Value::Null),
        with("size", (-1).into()),
        with("size", u64::MAX.into()),
        with("size", (5 << 20).into()),
        many,
        format!("{{\"manifests\":[],\"x\":\"{}\"}}", "y".repeat(5 << 20)),
    ] {
        fs::write(layout.path("oci/index.json"), &index).unwrap();
        let said = layout.converted(&["convert"], &name).unwrap_err();
        let shown: String = index.chars().take(80).collect();
        assert_eq!(said.lines().count(), 1, "{shown}: {said}");
    }
    // A link does not lead out of the layout.
    layout.index();
    layout.converted(&["convert"], &name).unwrap();
    let digest = right["digest"].as_str().unwrap();
    let away = layout.path("away");
    fs::rename(layout.blob_path(digest), &away).unwrap();
    std::os::unix::fs::symlink(&away, layout.blob_path(digest)).unwrap();
    layout.converted(&["convert"], &name).unwrap_err();
}

/// The image in it is untrusted: it names no file, not even one of the layout.
#[test]
fn an_image_in_an_image_names_no_file() {
    let mut layout = Layout::new();
    disk(&layout);
    let base = layout.name("oci/base.raw");
    fs::copy(layout.path("disk.raw"), &base).unwrap();
    let over = layout.name("over.qcow2");
    ferry(["create", "-q", "-f", "qcow2", "-b", &base, "-F", "raw", &over]).succeeded();
    let layer = layout.layer("-v", &[("disk/vm", &fs::read(&over).unwrap())]);
    layout.image("v1", "amd64", &[layer]);
    let name = format!("oci:{}", layout.name("oci"));
    for words in [&["convert"][..], &["convert", "-f", "qcow2", "--allow-external=chain"]] {
        layout.converted(words, &name).unwrap_err();
    }
}

#[test]
fn an_image_is_served_and_never_written() {
    let mut layout = Layout::new();
    let (raw, image) = disk(&layout);
    let layer = layout.layer("-z", &[("disk/vm", &image)]);
    layout.image("v1", "amd64", &[layer]);
    let name = format!("oci:{}", layout.name("oci"));
    let server = Serve::device([&name]).option("--format=qcow2").start();
    let copied = layout.name("copied.raw");
    ferry(["copy", "-q", &server.uri(""), &copied]).succeeded();
    assert!(fs::read(&copied).unwrap() == raw);
    for words in [
        &["copy", "-q", &copied, &name][..],
        &["resize", "-f", "qcow2", &name, "1G"],
        &["convert", "-n", "-O", "qcow2", &copied, &name],
    ] {
        let said = run(&mut ours(words.iter().copied()));
        assert!(!said.status.success() && said.stderr.lines().count() == 1, "{said:?}");
    }
}
