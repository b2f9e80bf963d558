//! The program under the names of other tools: what each becomes, and that it is no less safe.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use blackbox::peers::{diskferry, peer};
use blackbox::run::{Job, Outcome, pid_in, program, run, text};
use blackbox::temp::TempDir;
use blackbox::wait_for;
use rustix::process::{Signal, kill_process};

/// Links with the names of tools.
struct Names(TempDir);

impl Names {
    fn new() -> Self {
        let temp = TempDir::new();
        for name in ["qemu-img", "qemu-nbd", "nbdkit", "nbdcopy", "nbdinfo", "nbdsh"] {
            symlink(diskferry(), temp.join(name)).unwrap();
        }
        Self(temp)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn run(&self, name: &str, words: &[&str]) -> Outcome {
        run(program(&self.path(name), words).current_dir(self.0.path()))
    }
}

#[test]
fn each_name_says_its_version_and_speaks_under_its_name() {
    let names = Names::new();
    for (name, version) in [
        ("qemu-img", "qemu-img version 11."),
        ("qemu-nbd", "qemu-nbd 11."),
        ("nbdkit", "nbdkit 1."),
        ("nbdcopy", "nbdcopy 1."),
        ("nbdinfo", "nbdinfo 1."),
        ("nbdsh", "nbdsh 1."),
    ] {
        let told = names.run(name, &["--version"]);
        assert!(told.succeeded().starts_with(version), "{told:?}");
        let told = names.run(name, &["--no-such-option"]);
        assert!(told.stderr.starts_with(&format!("{name}: ")), "{told:?}");
        assert!(!told.status.success());
    }
    names.run("nbdcopy", &["pattern:1M", "raw"]).succeeded();
    assert_eq!(names.run("nbdinfo", &["--size", "raw"]).succeeded(), "1048576\n");
    let served = ["-U", "-", "memory", "1M", "--run", "nbdinfo --size \"$uri\""];
    let served = names.run("nbdkit", &served);
    assert!(served.succeeded().contains("1048576"), "{served:?}");
}

#[test]
fn as_qemu_nbd_it_serves_an_image_as_its_callers_ask_for_it() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let names = Names::new();
    let (socket, pid, image) = (names.path("socket"), names.path("pid"), names.path("image"));
    let (socket, pid_file) = (text(&socket).to_owned(), text(&pid).to_owned());
    run(&mut program(&qemu_img, ["create", "-q", "-f", "qcow2", text(&image), "8M"])).succeeded();
    // virt-v2v's.
    let words =
        ["-t", "--shared=0", "--discard=unmap", "--pid-file", &pid_file, "--socket", &socket];
    names
        .run("qemu-nbd", &[&words[..], &["--format", "qcow2", "--fork", "image"]].concat())
        .succeeded();
    let uri = format!("nbd+unix:///?socket={socket}");
    let write = ["-f", "raw", "-c", "write -P 5 1M 64k", &uri];
    run(&mut program(&qemu_io, write)).succeeded();
    assert!(names.run("qemu-nbd", &["-L", "-k", &socket]).succeeded().contains("export=\"\""));
    kill_process(pid_in(&pid), Signal::TERM).unwrap();
    wait_for("the server has ended", || !pid.exists());
    run(&mut program(&qemu_img, ["check", "-q", text(&image)])).succeeded();
    let read = ["-f", "qcow2", "-r", "-c", "read -P 5 1M 64k", text(&image)];
    assert!(!run(&mut program(&qemu_io, read)).succeeded().contains("failed"));
    let guessed = names.run("qemu-nbd", &["-k", &socket, "image"]);
    assert!(guessed.stderr.contains("add -f FORMAT"), "{guessed:?}");
    // imageio's; without -t it ends with its last client.
    let words = ["--export-name=x", "--shared=8", "--read-only", "--cache=none", "--aio=native"];
    let rest =
        ["--detect-zeroes=unmap", "--allocation-depth", "-f", "qcow2", "-k", &socket, "image"];
    let mut command = program(&names.path("qemu-nbd"), [&words[..], &rest].concat());
    let job = Job::start(command.current_dir(names.0.path()));
    wait_for("it listens", || names.path("socket").exists());
    let uri = format!("nbd+unix:///x?socket={socket}");
    let write = ["-f", "raw", "-c", "write -P 6 1M 64k", &uri];
    assert!(!run(&mut program(&qemu_io, write)).status.success(), "it is read-only");
    run(&mut program(&qemu_img, ["info", &uri])).succeeded();
    assert!(job.wait().status.success());
}

#[test]
fn as_qemu_nbd_it_serves_a_node_with_tls_and_compresses() {
    let (Some(qemu_img), Some(qemu_io)) = (peer("qemu-img"), peer("qemu-io")) else { return };
    let names = Names::new();
    let (socket, pid, image) = (names.path("socket"), names.path("pid"), names.path("image"));
    let here = text(names.0.path()).to_owned();
    run(&mut program(&qemu_img, ["create", "-q", "-f", "qcow2", text(&image), "8M"])).succeeded();
    std::fs::write(names.path("keys.psk"), "u:0123456789abcdef0123456789abcdef\n").unwrap();
    // virt-v2v's -oo compressed, and TLS.
    let object = format!("tls-creds-psk,id=t,endpoint=server,dir={here}");
    let node = format!("driver=compress,file.driver=qcow2,file.file.filename={}", text(&image));
    let words = ["--object", &object, "--tls-creds", "t", "-t", "--fork", "--pid-file", "pid"];
    let socket_words = ["-k", text(&socket), "-x", "e", "--image-opts", &node];
    names.run("qemu-nbd", &[&words[..], &socket_words].concat()).succeeded();
    let object = format!("tls-creds-psk,id=c,endpoint=client,username=u,dir={here}");
    let server = format!("server.type=unix,server.path={}", text(&socket));
    let client = format!("driver=nbd,{server},export=e,tls-creds=c,tls-hostname=x");
    let write = ["--object", &object, "--image-opts", "-c", "write -P 5 1M 1M", &client];
    run(&mut program(&qemu_io, write)).succeeded();
    let read = |program_of: &PathBuf, to: &str| {
        let words = ["convert", "--object", &object, "--image-opts", "-O", "raw", &client, to];
        run(program(program_of, words).current_dir(names.0.path())).succeeded();
        std::fs::read(names.path(to)).unwrap()
    };
    let theirs = read(&qemu_img, "theirs");
    assert!(theirs[1 << 20..2 << 20].iter().all(|byte| *byte == 5));
    assert!(read(&names.path("qemu-img"), "ours") == theirs);
    let listed = ["-L", "-k", text(&socket), "--object", &object, "--tls-creds", "c"];
    assert!(names.run("qemu-nbd", &listed).succeeded().contains("export=\"e\""));
    kill_process(pid_in(&pid), Signal::TERM).unwrap();
    wait_for("the server has ended", || !pid.exists());
    let checked = ["check", "--output=json", "-f", "qcow2", text(&image)];
    let checked = run(&mut program(&qemu_img, checked));
    assert!(checked.succeeded().contains("\"compressed-clusters\": 16"), "{checked:?}");
    // A device of the kernel that is not there.
    for (words, said) in [
        (&["--connect=/dev/none", "-f", "qcow2", "image"][..], "Failed to open /dev/none"),
        (&["-d", "/dev/none"], "Cannot open /dev/none"),
    ] {
        let told = names.run("qemu-nbd", words);
        assert_eq!(told.status.code(), Some(1), "{told:?}");
        assert!(told.stderr.contains(said) && told.stderr.lines().count() == 1, "{told:?}");
    }
}

#[test]
fn an_overlay_lies_over_an_export_that_the_user_names() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let names = Names::new();
    let (socket, pid) = (names.path("socket"), names.path("pid"));
    run(&mut program(&qemu_img, ["create", "-q", "-f", "raw", text(&names.path("base")), "3M"]))
        .succeeded();
    let serve = ["-r", "-t", "-e", "0", "-f", "raw", "--fork", "--pid-file", text(&pid)];
    names
        .run("qemu-nbd", &[&serve[..], &["-k", text(&socket), "-x", "e", "base"]].concat())
        .succeeded();
    let uri = format!("nbd+unix:///e?socket={}", text(&socket));
    let old = format!("nbd:unix:{}:exportname=e", text(&socket));
    let json = format!(
        r#"json:{{"driver":"nbd","server":{{"type":"unix","path":"{}"}},"export":"e"}}"#,
        text(&socket)
    );
    for (base, overlay) in [(&uri, "one"), (&old, "two"), (&json, "three")] {
        let words = ["create", "-f", "qcow2", "-F", "raw", "-b", base, overlay];
        names.run("qemu-img", &words).succeeded();
        let info =
            run(program(&qemu_img, ["info", "-f", "qcow2", overlay]).current_dir(names.0.path()));
        assert!(info.succeeded().contains("3145728 bytes"), "{info:?}");
        // What the image names itself leads nowhere.
        let convert = names.run("qemu-img", &["convert", "-f", "qcow2", overlay, "out"]);
        assert_eq!(convert.status.code(), Some(1), "{convert:?}");
        names.run("qemu-img", &["convert", "-f", "raw", "-O", "raw", base, "out"]).succeeded();
    }
    kill_process(pid_in(&pid), Signal::TERM).unwrap();
}

#[test]
fn under_the_name_of_qemu_img_a_guess_opens_nothing_that_the_image_names() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let names = Names::new();
    for words in [
        &["create", "-q", "-f", "raw", "base", "1M"][..],
        &["create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "image"],
    ] {
        run(program(&qemu_img, words).current_dir(names.0.path())).succeeded();
    }
    let convert =
        |words: &[&str]| names.run("qemu-img", &[&["convert"], words, &["image", "out"]].concat());
    let guessed = convert(&[]);
    assert_eq!(guessed.status.code(), Some(1));
    assert!(guessed.stderr.contains("name it with -f FORMAT"), "{guessed:?}");
    convert(&["-f", "qcow2"]).succeeded();
    // Elsewhere than beside it, nothing is opened even then.
    std::fs::create_dir(names.path("below")).unwrap();
    let words = ["rebase", "-u", "-f", "qcow2", "-b", "../base", "-F", "raw", "below/image"];
    std::fs::rename(names.path("image"), names.path("below/image")).unwrap();
    run(program(&qemu_img, words).current_dir(names.0.path())).succeeded();
    let outside = names.run("qemu-img", &["convert", "-f", "qcow2", "below/image", "out"]);
    assert_eq!(outside.status.code(), Some(1), "{outside:?}");
    // For a caller whose words are what they are, its environment says what may be opened.
    let allowed = |directory: &str| {
        let mut program = Command::new(names.path("qemu-img"));
        program.args(["convert", "below/image", "out"]).current_dir(names.0.path());
        run(program.env("DISKFERRY_ALLOW_EXTERNAL", directory))
    };
    assert_eq!(allowed("below").status.code(), Some(1));
    assert_eq!(allowed("").status.code(), Some(1));
    allowed(names.0.path().to_str().unwrap()).succeeded();
}
