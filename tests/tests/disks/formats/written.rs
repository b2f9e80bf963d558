//! Images that are served and written where they lie: what is left when the server ends.

use std::path::Path;

use blackbox::launch::Serve;
use blackbox::nbd::{cmd, tflag};
use blackbox::peers::peer;
use blackbox::run::{program, run, text};
use blackbox::session::{Mode, Request};
use blackbox::temp::{TempDir, pattern};

/// The options of an image of which each is served.
const OPTIONS: &[&str] =
    &["compat=1.1", "extended_l2=on", "data_file=NAME", "data_file=NAME,data_file_raw=on"];
const SIZE: usize = 3 << 20;

fn qemu_img(words: &[&str]) {
    run(&mut program(&peer("qemu-img").unwrap(), words)).succeeded();
}

fn is_disk(image: &Path, raw: &Path) {
    qemu_img(&["check", "-q", "-f", "qcow2", text(image)]);
    qemu_img(&["compare", "-q", "-f", "raw", "-F", "qcow2", text(raw), text(image)]);
}

#[test]
fn all_that_was_written_is_in_the_image_when_the_server_stops_and_all_that_was_flushed_when_killed()
{
    if peer("qemu-img").is_none() {
        return;
    }
    let temp = TempDir::new();
    for (n, options) in OPTIONS.iter().enumerate() {
        let (image, raw) = (temp.join(&format!("image{n}")), temp.join(&format!("raw{n}")));
        let data = temp.join(&format!("data{n}"));
        let options = options.replace("NAME", text(&data));
        let create = ["create", "-q", "-f", "qcow2", "-o", &options, text(&image)];
        qemu_img(&[&create[..], &[&SIZE.to_string()]].concat());
        let serve = || {
            let serve = Serve::file(&image).option("--format").option("qcow2");
            serve.option("--allow-external").option(text(temp.path())).start()
        };
        let mut bytes = pattern(n as u64, SIZE);
        let server = serve();
        let mut session = server.session(Mode::Structured, "");
        assert!(!session.has(tflag::READ_ONLY), "{options}");
        for (n, piece) in bytes.chunks(300_000).enumerate() {
            session.write(n as u64 * 300_000, piece);
        }
        let zeroed = Request::new(cmd::WRITE_ZEROES, 65_536, 700_000);
        assert_eq!(session.error_of(&zeroed), 0, "{options}");
        bytes[65_536..765_536].fill(0);
        assert!(server.stop().success(), "{options}");
        std::fs::write(&raw, &bytes).unwrap();
        is_disk(&image, &raw);

        let server = serve();
        let mut session = server.session(Mode::Structured, "");
        session.write(1_000_000, &[9; 5000]);
        bytes[1_000_000..1_005_000].fill(9);
        session.flush();
        server.kill();
        std::fs::write(&raw, &bytes).unwrap();
        is_disk(&image, &raw);
    }
}
