//! Copies and servers in each mode, on every file system.

use super::*;
use blackbox::launch::Serve;

#[test]
fn a_copy_is_the_source_in_every_mode_and_leaves_what_the_mode_says() {
    if !has_tools() {
        return;
    }
    let len = 70 * MIB + 1234;
    for (kind, ground, ..) in &grounds() {
        let source = cold_or_hot(ground, kind, "source", len);
        for (from, to) in
            [("auto", "auto"), ("none", "none"), ("direct", "direct"), ("none", "direct")]
        {
            let target = ground.join("target");
            copy(&[], named(&source, from), named(&target, to)).succeeded();
            let left = (resident(&source), resident(&target));
            if *kind != "tmpfs" {
                // Of `auto` what is short may stay, up to an eighth of what is free.
                let most = if to == "auto" { 8 * PAGES } else { 64 };
                assert!(left.0 <= 64 && left.1 <= most, "{kind}, {from} to {to}: {left:?} stay");
            }
            assert!(is_same(&source, &target), "{kind}, {from} to {to}");
            std::fs::remove_file(&target).unwrap();
            drop_unless_in_memory(kind, &source);
        }
    }
}

fn cold_or_hot(ground: &Path, kind: &str, name: &str, len: u64) -> PathBuf {
    if kind == "tmpfs" {
        let path = ground.join(name);
        run(ours(["copy", &format!("random:{len}?seed=5")]).arg(&path)).succeeded();
        return path;
    }
    cold(ground, name, len)
}

fn drop_unless_in_memory(kind: &str, path: &Path) {
    if kind != "tmpfs" {
        drop_pages(path);
    }
}

#[test]
fn a_sparse_file_stays_sparse_in_every_mode() {
    for (kind, ground, ..) in &grounds() {
        let source = ground.join("source");
        let file = std::fs::File::create(&source).unwrap();
        file.set_len(200 * MIB + 7).unwrap();
        for at in [0, 5 * MIB + 3, 64 * MIB, 199 * MIB + 4095, 200 * MIB] {
            std::os::unix::fs::FileExt::write_all_at(&file, &[9; 7], at).unwrap();
        }
        for mode in ["none", "direct", "auto"] {
            let target = ground.join("target");
            copy(&[], named(&source, mode), named(&target, mode)).succeeded();
            let allocated = blackbox::launch::allocated(&target);
            assert!(allocated < 4 * MIB, "{kind}, {mode}: {allocated} bytes");
            assert!(is_same(&source, &target), "{kind}, {mode}");
            std::fs::remove_file(&target).unwrap();
        }
    }
}

#[test]
fn a_served_file_leaves_few_pages_and_what_was_there_stays() {
    if !has_tools() {
        return;
    }
    let temp = TempDir::new();
    let path = cold(temp.path(), "disk", 256 * MIB);
    // Another program uses the first 16 MiB.
    run(ours(["cache", "warm", "--length", "16M"]).arg(&path)).succeeded();
    for mode in ["none", "direct"] {
        let parameter = format!("cache={mode}");
        let words = [OsString::from("file"), path.clone().into(), parameter.into()];
        let server = Serve::device(words).option("-r").start();
        copy(&[], server.uri(""), "null:").succeeded();
        copy(&["--requests", "1", "--threads", "1"], server.uri(""), "null:").succeeded();
        // Several clients read short blocks side by side: the system reads ahead of each.
        let clients = ["0", "64M", "128M", "192M"].map(|at| {
            let part = format!("offset?offset={at}&range=64M");
            let words = ["copy", "--request-size", "16K", "--source-filter", &part];
            ours(words).arg(server.uri("")).arg("null:").spawn().unwrap()
        });
        assert!(clients.into_iter().all(|mut client| client.wait().unwrap().success()));
        // What was there, the windows, and what the system reads ahead of two threads of each
        // client, 8 MiB where a disk says so. Without windows it would be the whole file.
        let most = (16 + 16 + 4 * 2 * 8) * PAGES;
        assert!(resident(&path) <= most, "{mode}: {} while it is served", resident(&path));
        assert!(server.stop().success());
        let left = resident(&path);
        let least = 16 * PAGES * 95 / 100;
        assert!(left >= least, "{mode}: {left} of {} pages were there before", 16 * PAGES);
        assert!(
            left <= 17 * PAGES,
            "{mode}: {left} pages are left, {} were there before",
            16 * PAGES
        );
    }
}

#[test]
fn a_target_without_room_is_an_error_in_every_mode() {
    let Some(small) = Mounted::new("ext4", 64 * MIB) else { return };
    for mode in ["none", "direct", "auto"] {
        let target = small.join("target");
        let outcome = copy(&[], "random:200M?seed=1", named(&target, mode));
        let line = outcome.failed();
        assert!(line.contains("No space left"), "{mode}: {line}");
        assert!(!target.exists(), "{mode}: half a file stays");
    }
}

#[test]
fn images_and_block_devices_are_copied_in_every_mode() {
    let temp = TempDir::new();
    let source = temp.join("source");
    run(ours(["copy", "sparse-random:40M?seed=3&percent=40"]).arg(&source)).succeeded();
    let device = blackbox::storage::Loop::over(&temp.sparse_file("backing", 40 * MIB), &[]);
    for mode in ["none", "direct", "auto"] {
        let image = temp.join("image.qcow2");
        let mut convert = ours(["convert", "-O", "qcow2"]);
        run(convert.arg(named(&source, mode)).arg(named(&image, mode))).succeeded();
        run(ours(["compare", "-f", "raw", "-F", "qcow2"]).arg(&source).arg(&image)).succeeded();
        let back = temp.join("back");
        run(ours(["convert", "-f", "qcow2", "-O", "raw"])
            .arg(named(&image, mode))
            .arg(named(&back, mode)))
        .succeeded();
        assert!(is_same(&source, &back), "{mode}");
        for path in [&image, &back] {
            std::fs::remove_file(path).unwrap();
        }
        if let Some(device) = &device {
            copy(&[], named(&source, mode), named(device.path(), mode)).succeeded();
            run(ours(["compare"]).arg(&source).arg(device.path())).succeeded();
        }
    }
}
