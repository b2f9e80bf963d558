//! Plugins wherever a disk is named: verbs, filters, formats, help.

use blackbox::run::{ours, run};
use blackbox::temp::TempDir;

use super::{Host, WITNESS, beside, has_peers, scene};

#[test]
fn verbs_take_a_plugin_as_any_disk() {
    let Some(temp) = scene(&[]) else { return };
    let library = temp.join(WITNESS);
    let disk = |words: &str| format!("plugin:{}?size=1M{words}", library.display());
    let raw = temp.join("two.raw").display().to_string();
    run(&mut ours(["copy", &disk("&export-name=two"), &raw])).succeeded();
    assert_eq!(std::fs::read(&raw).unwrap(), vec![b'x'; 1 << 20]);
    run(&mut ours(["copy", &raw, &disk("&export-name=one")])).succeeded();
    run(&mut ours(["compare", &raw, &disk("&export-name=two")])).succeeded();
    let map = run(&mut ours(["map", &disk("")]));
    assert!(map.succeeded().contains("hole"), "{map:?}");
    let info = run(&mut ours(["info", &disk("")]));
    assert!(info.succeeded().contains("1048576"), "{info:?}");
    let refused = run(&mut ours(["copy", &disk("&export-name=none"), &raw]));
    assert!(refused.failed().contains("there is no disk 'none'"), "{refused:?}");
}

#[test]
fn filters_and_formats_stand_over_a_plugin() {
    let Some(temp) = scene(&[]) else { return };
    let command = "nbdcopy \"$uri\" - | cksum";
    for words in [
        "--filter=cow",
        "--filter=cache",
        "--filter=readahead",
        "--filter=offset offset=512 range=4096",
        "--filter=log logfile=/dev/null",
    ] {
        for model in ["model=0", "model=3"] {
            let words = format!("{words} size=1M {model}");
            let [theirs, ours] = Host::BOTH.map(|host| beside(host, &temp, &words, command));
            assert_eq!(theirs.outcome.succeeded(), ours.outcome.succeeded(), "{words}");
        }
    }
}

#[test]
fn a_name_of_the_clients_choice_is_not_served_where_a_filter_keeps_bytes_of_one_disk() {
    let Some(temp) = scene(&[]) else { return };
    let two = "nbdcopy \"${uri%%\\?*}two?${uri#*\\?}\" - | cksum";
    let open = beside(Host::Ours, &temp, "", two);
    open.outcome.succeeded();
    let kept = beside(Host::Ours, &temp, "--filter=cow", two);
    assert!(kept.outcome.stderr.contains("there is no export"), "{:?}", kept.outcome);
}

#[test]
fn help_and_dump_are_the_plugins_own() {
    let Some(temp) = scene(&[]) else { return };
    let [theirs, ours] = Host::BOTH
        .map(|host| host.line(temp.path(), "SERVER ./nbdkit-witness-plugin.so --dump-plugin"));
    assert_eq!(theirs.succeeded(), ours.succeeded());
    assert!(ours.stdout.contains("witness_says=hello\n") && ours.stdout.contains("has_pread=1\n"));
    let [theirs, ours] =
        Host::BOTH.map(|host| host.line(temp.path(), "SERVER --help ./nbdkit-witness-plugin.so"));
    // Behind its own.
    assert!(theirs.succeeded().ends_with(ours.succeeded()), "{ours:?}");
    let version = Host::Ours.line(temp.path(), "SERVER --version ./nbdkit-witness-plugin.so");
    assert!(version.succeeded().contains("witness 7.8\n"), "{version:?}");
}

#[test]
fn a_built_in_device_wins_over_a_plugin_of_its_name() {
    if !has_peers() {
        return;
    }
    let temp = TempDir::new();
    let own = Host::Ours.line(temp.path(), "SERVER memory --dump-plugin");
    assert!(!own.succeeded().contains("struct_size="), "{own:?}");
    let plugin = Host::Ours.line(temp.path(), "SERVER plugin:memory --dump-plugin");
    assert!(plugin.succeeded().contains("struct_size="), "{plugin:?}");
}

#[test]
fn the_sandbox_is_off_with_a_plugin_in_the_process_with_a_note() {
    let Some(temp) = scene(&[]) else { return };
    let free = beside(Host::Ours, &temp, "", "true");
    free.outcome.succeeded();
    assert!(free.outcome.stderr.contains("there is no sandbox"), "{:?}", free.outcome);
    let off = beside(Host::Ours, &temp, "--sandbox=off", "true");
    assert!(!off.outcome.stderr.contains("sandbox"), "{:?}", off.outcome);
    let refused = beside(Host::Ours, &temp, "--sandbox=require", "true");
    assert!(refused.outcome.failed().contains("isolate=true"), "{:?}", refused.outcome);
}
