//! fio's nbd engine against our server, which verifies every block it wrote.

use blackbox::MIB;
use blackbox::dice::seeds;
use blackbox::launch::{Serve, Server};
use blackbox::peers::{peer, skip};
use blackbox::run::text;
use blackbox::temp::TempDir;

use super::{peer_ok, peer_run};

/// Random writes by `jobs` connections, each verified in full.
fn verified(server: &Server, jobs: u32, block: &str, options: &[&str]) {
    let Some(fio) = peer("fio") else { return };
    if !peer_ok(&fio, ["--enghelp"]).contains("nbd") {
        skip("needs fio with the nbd engine");
        return;
    }
    let temp = TempDir::new();
    let uri = server.uri("");
    let mut args = vec![
        "--name=verify".to_owned(),
        "--ioengine=nbd".to_owned(),
        format!("--uri={uri}"),
        "--rw=randwrite".to_owned(),
        format!("--bs={block}"),
        "--iodepth=16".to_owned(),
        "--verify=crc32c".to_owned(),
        "--verify_fatal=1".to_owned(),
        "--randrepeat=1".to_owned(),
        "--size=16M".to_owned(),
        // Each job has a part of its own on the one export.
        "--offset_increment=16M".to_owned(),
        format!("--numjobs={jobs}"),
        "--thread".to_owned(),
        "--group_reporting".to_owned(),
        format!("--aux-path={}", temp.path().display()),
        "--output-format=terse".to_owned(),
    ];
    args.extend(options.iter().map(|o| (*o).to_owned()));
    let outcome = peer_run(&fio, &args);
    outcome.succeeded();
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(!said.contains("verify:"), "{said}");
}

#[test]
fn fio_verifies_two_jobs_on_one_multi_conn_export() {
    verified(&Serve::memory("64M").start(), 2, "4k", &[]);
}

#[test]
fn fio_verifies_random_writes_to_a_file() {
    let temp = TempDir::new();
    let path = temp.sparse_file("disk", 64 * MIB);
    verified(&Serve::file(&path).start(), 2, "64k", &[]);
}

#[test]
fn fio_verifies_mixed_block_sizes_with_trims_and_syncs() {
    verified(&Serve::memory("64M").start(), 2, "512-128k", &["--bsrange=512-128k", "--fsync=64"]);
}

/// In the long form, for all seeds: minutes each.
#[test]
fn fio_verifies_images_that_are_written_in_their_place_with_trims_and_syncs() {
    let Some(qemu_img) = peer("qemu-img") else { return };
    let temp = TempDir::new();
    for (n, (format, options)) in [
        ("qcow2", "cluster_size=64k"),
        ("qcow2", "extended_l2=on"),
        ("vdi", "static=off"),
        ("vpc", "subformat=dynamic"),
        ("vhdx", "block_size=1M"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vmdk", "subformat=twoGbMaxExtentSparse"),
    ]
    .into_iter()
    .enumerate()
    {
        let image = temp.join(&format!("{n}.{format}"));
        peer_ok(&qemu_img, ["create", "-q", "-f", format, "-o", options, text(&image), "64M"]);
        let serve = Serve::file(&image).option("--format").option(format);
        let server = serve.option("--allow-external").option(text(temp.path())).start();
        for seed in seeds() {
            // A trim and the write after it must not be in flight together.
            let trims = ["--rw=randtrimwrite", "--serialize_overlap=1", "--fsync=100"];
            let seed = format!("--randseed={seed}");
            verified(&server, 1, "16k", &[&trims[..], &[&*seed]].concat());
        }
        assert!(server.stop().success(), "{format}, {options}");
        if format != "vpc" {
            peer_ok(&qemu_img, ["check", "-q", "-f", format, text(&image)]);
        }
    }
}
