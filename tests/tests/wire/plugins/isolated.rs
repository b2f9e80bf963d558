//! `isolate=true`: a plugin in a process of its own, and its end.

use blackbox::run::{ours, run};

use super::{Host, WITNESS, beside, python, scene};

/// Reads, crashes the plugin, and comes again.
const CRASH: &str = r#"
h.connect_uri(uri)
attempt(lambda: len(h.pread(512, 0)))
attempt(lambda: len(h.pread(512, 4096)))
attempt(lambda: len(h.pread(512, 0)))
def again():
    g = nbd.NBD()
    g.connect_uri(uri)
    return len(g.pread(512, 0))
attempt(again)
attempt(again)
"#;

#[test]
fn a_plugin_that_crashes_is_an_error_of_its_export_logged_once() {
    let Some(temp) = scene(&[]) else { return };
    let ours = python(Host::Ours, &temp, "isolate=true crash=4096", CRASH);
    let said: Vec<_> = ours.outcome.succeeded().lines().collect();
    assert_eq!(said[0], "512");
    assert!(said[1..].iter().all(|line| line.starts_with("error")), "{said:?}");
    let told = ours.outcome.stderr.matches("its process has ended (signal: 11").count();
    assert!(told >= 1, "{}", ours.outcome.stderr);
    let once = ours
        .outcome
        .stderr
        .lines()
        .filter(|line| {
            line.ends_with("its process has ended (signal: 11 (SIGSEGV) (core dumped))")
                || line.ends_with("its process has ended (signal: 11 (SIGSEGV))")
        })
        .count();
    assert_eq!(once, 1, "{}", ours.outcome.stderr);
}

#[test]
fn with_restart_the_next_client_gets_a_new_process() {
    let Some(temp) = scene(&[]) else { return };
    let ours = python(Host::Ours, &temp, "isolate=true restart=true crash=4096", CRASH);
    let said: Vec<_> = ours.outcome.succeeded().lines().collect();
    assert_eq!((said[0], said[3], said[4]), ("512", "512", "512"), "{said:?}");
    assert!(said[1].starts_with("error") && said[2].starts_with("error"), "{said:?}");
}

#[test]
fn debug_flags_and_verbosity_reach_it_also_out_of_a_sandbox() {
    let Some(temp) = scene(&[]) else { return };
    for sandbox in ["", "--sandbox=require"] {
        let words = format!("1M isolate=true -v -D witness.level=3 {sandbox}");
        let told = beside(Host::Ours, &temp, &words, "nbdinfo --size \"$uri\"");
        assert_eq!(told.outcome.succeeded(), "1048576\n");
        let is_set = |line: &String| line == "config_complete level=3";
        assert!(told.log.iter().any(is_set), "{:#?}", told.log);
        assert!(
            told.outcome.stderr.contains("a socket of the service manager"),
            "{}",
            told.outcome.stderr
        );
        assert!(!told.outcome.stderr.contains("-D"), "{}", told.outcome.stderr);
    }
}

#[test]
fn an_isolated_plugin_is_what_it_is_without() {
    let Some(temp) = scene(&[]) else { return };
    let look = "nbdinfo --json \"$uri\" | grep -v uri; nbdinfo --map \"$uri\"; nbdcopy \"$uri\" - | cksum; nbdinfo --list \"$uri\" | grep ^export";
    for model in ["model=0", "model=1", "model=3"] {
        let [here, apart] = ["", "isolate=true"]
            .map(|how| beside(Host::Ours, &temp, &format!("1M {model} {how}"), look));
        assert_eq!(here.outcome.succeeded(), apart.outcome.succeeded());
        assert!(apart.log.iter().any(|line| line == "unload"), "{:#?}", apart.log);
    }
}

#[test]
fn a_server_of_an_isolated_plugin_is_confined() {
    let Some(temp) = scene(&[]) else { return };
    let look = "nbdinfo --size \"$uri\"";
    let ours = beside(Host::Ours, &temp, "1M isolate=true --sandbox=require", look);
    assert_eq!(ours.outcome.succeeded(), "1048576\n");
}

#[test]
fn a_copy_of_an_isolated_plugin_and_a_second_one_with_other_parameters() {
    let Some(temp) = scene(&[]) else { return };
    let library = temp.join(WITNESS);
    let disk = |words: &str| format!("plugin:{}?isolate=true&{words}", library.display());
    let same = run(&mut ours(["compare", &disk("size=64K"), &disk("size=128K")]));
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    let raw = temp.join("raw").display().to_string();
    run(&mut ours(["copy", &disk("size=1M&export-name=two"), &raw])).succeeded();
    assert_eq!(std::fs::read(&raw).unwrap(), vec![b'x'; 1 << 20]);
    let refused = run(&mut ours(["copy", &disk("colour=red"), &raw]));
    assert!(refused.stderr.contains("unknown parameter 'colour'"), "{refused:?}");
    let restart =
        run(&mut ours(["copy", &format!("plugin:{}?restart=true", library.display()), &raw]));
    assert!(restart.refused().contains("isolate=true"), "{restart:?}");
}
