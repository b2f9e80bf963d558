//! Checks 1 to 5: greetings, cut and old.

use blackbox::MIB;
use blackbox::fake::{Peer, Script, Step, greeting, option_reply};
use blackbox::nbd::{Message, NBDMAGIC, OLDSTYLE, opt, rep, tflag};
use blackbox::session::Mode;

use super::{copy_fails, copy_is_right, verb, verb_named};

#[test]
fn client_check_01_a_greeting_cut_at_any_byte() {
    for cut in 0..18 {
        let fake = Script::new(MIB)
            .on_connect(move |peer| {
                peer.send(&greeting(3)[..cut]);
                Step::Close
            })
            .start();
        verb("info", &fake).failed();
        fake.finish();
    }
}

#[test]
fn client_check_01_a_greeting_of_something_else() {
    let greetings: [&[u8]; 4] =
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", &[0; 200], &[0xff; 200]];
    for text in greetings {
        let fake = Script::new(MIB)
            .on_connect(move |peer| {
                peer.send(text);
                Step::Close
            })
            .start();
        for name in ["info", "list"] {
            verb(name, &fake).failed();
        }
        copy_fails(&fake);
    }
}

#[test]
fn client_check_01_a_server_that_hangs_up_after_any_option() {
    for option in [opt::EXTENDED_HEADERS, opt::STRUCTURED_REPLY, opt::SET_META_CONTEXT, opt::GO] {
        for cut in [0, 1, 8, 19] {
            let fake = Script::new(MIB)
                .mode(Mode::Structured)
                .on_option(move |peer, asked, _| {
                    // Ours may ask INFO where another asks GO.
                    let asked = if asked == opt::INFO { opt::GO } else { asked };
                    if asked != option {
                        return Step::Honest;
                    }
                    peer.send(&option_reply(asked, rep::ACK, &[])[..cut]);
                    Step::Close
                })
                .start();
            copy_fails(&fake);
        }
    }
}

#[test]
fn client_check_02_unknown_handshake_bits_are_ignored_and_not_echoed() {
    let fake = Script { handshake: 0xfffc | 3, ..Script::new(MIB) }.start();
    verb("info", &fake).succeeded();
    copy_is_right(&fake);
    let record = fake.finish();
    assert!(record.client_flags.iter().all(|flags| flags & !3 == 0), "{:x?}", record.client_flags);
}

#[test]
fn client_check_03_without_fixed_newstyle_only_export_name() {
    // The fake blames any other option.
    let fake = Script { handshake: 0, ..Script::new(MIB) }.mode(Mode::Simple).start();
    verb("info", &fake).succeeded();
    copy_is_right(&fake);
    assert!(fake.finish().haggled(opt::EXPORT_NAME));
    // There is no way to list: a clear failure.
    verb("list", &fake).failed();
    fake.finish();
}

#[test]
fn client_check_03_tls_wanted_but_not_fixed_newstyle() {
    let fake = Script { handshake: 0, ..Script::new(MIB) }.start();
    let uri = fake.uri("").replace("nbd+unix", "nbds+unix");
    blackbox::run::run(&mut blackbox::run::ours(["info", &uri])).failed();
    // It failed before it sent the name, or anything else, in the clear.
    assert_eq!(fake.finish().options, []);
}

/// Greets as a server of the oldest kind, with these bits in the high half of the flags.
fn oldstyle(peer: &mut Peer, size: u64, high: u32) -> Step {
    let flags = tflag::HAS_FLAGS | tflag::SEND_FLUSH;
    let head = Message::new().u64(NBDMAGIC).u64(OLDSTYLE).u64(size);
    peer.send(&head.u32(u32::from(flags) | high << 16).bytes(&[0; 124]).0);
    peer.terms.flags = flags;
    Step::Done
}

#[test]
fn client_check_04_oldstyle_works_without_a_name() {
    let start = || Script::new(MIB).on_connect(|peer| oldstyle(peer, MIB, 0)).start();
    verb("info", &start()).succeeded();
    // Another one: the first may not have seen yet that its client has gone.
    copy_is_right(&start());
}

#[test]
fn client_check_04_oldstyle_has_no_names_and_no_tls() {
    let fake = Script::new(MIB).on_connect(|peer| oldstyle(peer, MIB, 0)).start();
    verb_named("info", &fake, "name").failed();
    let uri = fake.uri("").replace("nbd+unix", "nbds+unix");
    blackbox::run::run(&mut blackbox::run::ours(["info", &uri])).failed();
    verb("list", &fake).failed();
    assert_eq!(fake.finish().options, []);
}

#[test]
fn client_check_04_oldstyle_with_unknown_bits_is_refused() {
    // As qemu and libnbd do: the high bits must be zero. Ignoring them is tolerated.
    let fake = Script::new(MIB).on_connect(|peer| oldstyle(peer, MIB, 0x8000)).start();
    super::copy_is_right_or_fails(&fake);
}

#[test]
fn client_check_04_oldstyle_cut_at_any_byte() {
    for cut in [17, 24, 27, 28, 100, 151] {
        let fake = Script::new(MIB)
            .on_connect(move |peer| {
                let head = Message::new().u64(NBDMAGIC).u64(OLDSTYLE).u64(MIB);
                peer.send(&head.u32(1).bytes(&[0; 124]).0[..cut]);
                Step::Close
            })
            .start();
        verb("info", &fake).failed();
    }
}

#[test]
fn client_check_05_without_no_zeroes_the_padding_is_read() {
    // GO is unknown, so the size comes with EXPORT_NAME and 124 bytes of padding.
    for handshake in [1, 3] {
        let script = Script { handshake, go: rep::UNSUP, ..Script::new(MIB) };
        let fake = script.mode(Mode::Structured).start();
        verb("info", &fake).succeeded();
        copy_is_right(&fake);
        assert!(fake.finish().haggled(opt::EXPORT_NAME));
    }
}
