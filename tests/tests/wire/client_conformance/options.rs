//! Checks 6 to 21: replies to options.

use std::io::Write;

use blackbox::MIB;
use blackbox::fake::{ALL_FLAGS, Fake, Peer, Script, Step, option_reply};
use blackbox::nbd::{Message, OPTION_REPLY, cmd, err, info, opt, rep, tflag};
use blackbox::session::Mode;

use super::{copy_fails, copy_is_right, copy_is_right_or_fails, verb, verb_named};

/// A fake that answers INFO and GO by this hook.
fn at_go(hook: impl Fn(&mut Peer, u32) -> Step + Send + Sync + 'static) -> Fake {
    at_go_of(Script::new(MIB), hook)
}

fn at_go_of(script: Script, hook: impl Fn(&mut Peer, u32) -> Step + Send + Sync + 'static) -> Fake {
    let script = script.on_option(move |peer, option, _| match option {
        opt::INFO | opt::GO => hook(peer, option),
        _ => Step::Honest,
    });
    script.start()
}

#[test]
fn client_check_06_go_unsupported_falls_back_to_export_name() {
    for mode in [Mode::Simple, Mode::Structured] {
        let fake = Script { go: rep::UNSUP, ..Script::new(MIB) }.mode(mode).start();
        verb("info", &fake).succeeded();
        copy_is_right(&fake);
        assert!(fake.finish().haggled(opt::EXPORT_NAME));
    }
}

#[test]
fn client_check_06_go_unsupported_under_extended_headers_never_falls_back() {
    // The fake blames EXPORT_NAME after extended headers. Starting over without them is fine.
    let fake = Script { go: rep::UNSUP, ..Script::new(MIB) }.mode(Mode::Extended).start();
    copy_is_right_or_fails(&fake);
}

#[test]
fn client_check_06_an_unknown_export_is_final() {
    let errors =
        [rep::UNKNOWN, rep::POLICY, rep::INVALID, rep::BLOCK_SIZE_REQD, rep::SHUTDOWN, 0xffff_0000];
    for go in errors {
        let fake = Script { go, ..Script::new(MIB) }.start();
        let outcome = verb_named("info", &fake, "wanted");
        let line = outcome.failed();
        if go == rep::UNKNOWN {
            assert!(line.contains("wanted"), "the export should be named: {line}");
        }
        assert!(!fake.record().haggled(opt::EXPORT_NAME), "fell back after {go:#x}");
        copy_fails(&fake);
    }
}

#[test]
fn client_check_06_an_unknown_export_is_followed_by_abort() {
    let fake = Script { go: rep::UNKNOWN, ..Script::new(MIB) }.start();
    verb("info", &fake).failed();
    fake.wait_until("ABORT", |record| record.haggled(opt::ABORT));
    fake.finish();
}

#[test]
fn client_check_07_refused_reply_forms_mean_simple_replies() {
    for refusal in [rep::UNSUP, rep::POLICY, rep::INVALID, rep::PLATFORM] {
        let script = Script { structured: refusal, extended: refusal, ..Script::new(MIB) };
        let fake = script.start();
        verb("info", &fake).succeeded();
        // Without block status there is no map: all data, or a clear refusal.
        let map = verb("map", &fake);
        if !map.status.success() {
            map.failed();
        }
        copy_is_right(&fake);
    }
}

#[test]
fn client_check_07_refused_contexts_mean_no_block_status() {
    for refusal in [rep::UNSUP, rep::POLICY, rep::INVALID, rep::UNKNOWN, rep::TOO_BIG] {
        for mode in [Mode::Structured, Mode::Extended] {
            let fake = Script { contexts: refusal, ..Script::new(MIB) }.mode(mode).start();
            // The fake blames BLOCK_STATUS without a context.
            copy_is_right(&fake);
        }
    }
}

#[test]
fn client_check_08_a_reply_with_a_wrong_magic_or_option() {
    let replies = [
        Message::new().u64(OPTION_REPLY + 1).u32(opt::GO).u32(rep::ACK).u32(0).0,
        option_reply(opt::LIST, rep::ACK, &[]),
        option_reply(0, rep::ACK, &[]),
        vec![0; 20],
        vec![0xff; 20],
    ];
    for reply in replies {
        let fake = at_go(move |peer, _| {
            peer.send(&reply);
            Step::Done
        });
        verb("info", &fake).failed();
        copy_fails(&fake);
    }
}

#[test]
fn client_check_09_a_reply_of_4_gib_is_not_believed() {
    for kind in [rep::ACK, rep::INFO, rep::UNSUP, 77] {
        let fake = at_go(move |peer, option| {
            peer.send(&Message::new().u64(OPTION_REPLY).u32(option).u32(kind).u32(u32::MAX).0);
            // Bytes as long as they are taken, up to 64 MiB.
            let part = vec![0; 1 << 20];
            for _ in 0..64 {
                if peer.stream.write_all(&part).is_err() {
                    break;
                }
            }
            Step::Close
        });
        verb("info", &fake).fits_in(128 * MIB).failed();
        fake.finish();
    }
}

/// Sends the same bytes until the client hangs up, or 64 MiB went.
fn endless(peer: &mut Peer, bytes: &[u8]) -> Step {
    let part = bytes.repeat(1 + 65536 / bytes.len());
    for _ in 0..1024 {
        if peer.stream.write_all(&part).is_err() {
            break;
        }
    }
    // A client still listening then gets no end of it either: it must give up by itself, or
    // see the close as an error.
    Step::Close
}

#[test]
fn client_check_10_endless_information_is_capped() {
    for id in [info::NAME, info::DESCRIPTION, 0x7777] {
        let fake = at_go(move |peer, option| {
            let data = Message::new().u16(id).bytes(&[b'x'; 100]).0;
            endless(peer, &option_reply(option, rep::INFO, &data))
        });
        verb("info", &fake).fits_in(128 * MIB).failed();
        fake.finish();
    }
}

#[test]
fn client_check_10_endless_lists_are_capped() {
    let script = Script::new(MIB).on_option(|peer, option, _| {
        if option != opt::LIST {
            return Step::Honest;
        }
        let data = Message::new().counted(b"export").bytes(b"and so on").0;
        endless(peer, &option_reply(option, rep::SERVER, &data))
    });
    let fake = script.start();
    verb("list", &fake).fits_in(128 * MIB).failed();
    fake.finish();
}

#[test]
fn client_check_10_endless_contexts_are_capped() {
    let script = Script::new(MIB).on_option(|peer, option, _| {
        if option != opt::SET_META_CONTEXT {
            return Step::Honest;
        }
        let data = Message::new().u32(1).bytes(b"base:allocation").0;
        endless(peer, &option_reply(option, rep::META_CONTEXT, &data))
    });
    let fake = script.start();
    verb("map", &fake).fits_in(128 * MIB).failed();
    fake.finish();
}

#[test]
fn client_check_11_an_ack_with_data_is_rejected() {
    let fake = at_go(|peer, option| {
        peer.export_info(option);
        peer.reply(option, rep::ACK, &[0; 4]);
        Step::Done
    });
    verb("info", &fake).failed();
    copy_fails(&fake);
}

#[test]
fn client_check_12_go_without_information_is_rejected() {
    let fake = at_go(|peer, option| {
        peer.reply(option, rep::ACK, &[]);
        Step::Done
    });
    verb("info", &fake).failed();
    copy_fails(&fake);
}

#[test]
fn client_check_12_transmission_flags_of_zero_are_rejected() {
    let fake = Script { flags: 0, ..Script::new(MIB) }.start();
    verb("info", &fake).failed();
    copy_fails(&fake);
}

#[test]
fn client_check_13_information_of_a_wrong_length_is_rejected() {
    let export = Message::new().u16(info::EXPORT).u64(MIB).u16(ALL_FLAGS).0;
    let sizes = Message::new().u16(info::BLOCK_SIZE).u32(1).u32(4096).u32(1 << 25).0;
    let longer = |bytes: &[u8]| [bytes, &[0]].concat();
    let bad = [
        export[..11].to_vec(),
        longer(&export),
        export[..2].to_vec(),
        export[..1].to_vec(),
        Vec::new(),
        sizes[..13].to_vec(),
        sizes[..2].to_vec(),
        longer(&sizes),
    ];
    for data in bad {
        let told = data.clone();
        let fake = at_go(move |peer, option| {
            peer.export_info(option);
            peer.reply(option, rep::INFO, &told);
            peer.reply(option, rep::ACK, &[]);
            Step::Done
        });
        let outcome = verb("info", &fake);
        assert!(!outcome.status.success(), "believed {data:02x?}");
        outcome.failed();
    }
}

#[test]
fn client_check_13_unknown_information_is_skipped() {
    let fake = at_go(|peer, option| {
        for id in [4, 100, 0xffff] {
            peer.reply(option, rep::INFO, &Message::new().u16(id).bytes(b"who knows").0);
        }
        Step::Honest
    });
    verb("info", &fake).succeeded();
    copy_is_right(&fake);
}

#[test]
fn client_check_14_malformed_block_sizes_do_no_harm() {
    let triples = [
        (0, 0, 0),
        (0, 4096, 1 << 25),
        (3, 4096, 1 << 25),
        (4096, 512, 1 << 25),
        (1, 0, 1 << 25),
        (1, 4096, 0),
        (1, 4096, 1),
        (4096, 4096, 512),
        (1 << 31, 1 << 31, u32::MAX),
        (u32::MAX, u32::MAX, u32::MAX),
        (131_072, 131_072, 1 << 25),
        (1, 5000, 1 << 25),
        (1, 1 << 31, 1 << 31),
        (512, 4096, 1_000_001),
    ];
    for sizes in triples {
        let fake = Script::new(MIB)
            .on_option(move |peer, option, _| {
                if let opt::INFO | opt::GO = option {
                    let (min, preferred, max) = sizes;
                    let data =
                        Message::new().u16(info::BLOCK_SIZE).u32(min).u32(preferred).u32(max);
                    peer.reply(option, rep::INFO, &data.0);
                    peer.export_info(option);
                    peer.reply(option, rep::ACK, &[]);
                    peer.terms.flags = peer.flags();
                    // The rest of GO is done here: enter transmission by hand.
                    if option == opt::GO {
                        return Step::Transmission;
                    }
                    return Step::Done;
                }
                Step::Honest
            })
            .start();
        let outcome = verb("info", &fake);
        if !outcome.status.success() {
            outcome.failed();
        }
        copy_is_right_or_fails(&fake);
    }
}

#[test]
fn client_check_15_sizes_of_2_to_the_63_and_more_are_rejected() {
    for size in [1 << 63, u64::MAX, (1 << 63) + 12345] {
        for mode in [Mode::Simple, Mode::Structured, Mode::Extended] {
            let fake = Script::empty(size).mode(mode).start();
            verb("info", &fake).failed();
            verb("map", &fake).failed();
            fake.finish();
        }
    }
    // One less is a size like any other.
    let fake = Script::empty((1 << 63) - 1).start();
    verb("info", &fake).succeeded();
    fake.finish();
}

#[test]
fn client_check_16_a_name_longer_than_its_reply_is_rejected() {
    let bad = [
        Message::new().u32(100).bytes(b"short").0,
        Message::new().u32(u32::MAX).bytes(b"short").0,
        vec![0, 0],
        Vec::new(),
    ];
    for data in bad {
        let script = Script::new(MIB).on_option(move |peer, option, _| {
            if option != opt::LIST {
                return Step::Honest;
            }
            peer.reply(option, rep::SERVER, &data);
            peer.reply(option, rep::ACK, &[]);
            Step::Done
        });
        let fake = script.start();
        verb("list", &fake).failed();
        fake.finish();
    }
}

#[test]
fn client_check_16_names_that_would_harm_a_terminal_are_not_printed_raw() {
    let script = Script::new(MIB).on_option(|peer, option, _| {
        if option != opt::LIST {
            return Step::Honest;
        }
        let data = Message::new().counted(b"\x1b[2Jevil").bytes(b"\x07\x1b]0;title\x07").0;
        peer.reply(option, rep::SERVER, &data);
        peer.reply(option, rep::ACK, &[]);
        Step::Done
    });
    let fake = script.start();
    let outcome = verb("list", &fake);
    assert!(!outcome.stdout.contains('\x1b') && !outcome.stderr.contains('\x1b'), "{outcome:?}");
}

#[test]
fn client_check_17_contexts_that_were_not_asked_for_are_not_used() {
    let strange: [&[u8]; 4] = [b"foo:bar", b"", b"base:allocation2", b"qemu:dirty-bitmap:x"];
    for name in strange {
        let script = Script::new(MIB).on_option(move |peer, option, _| {
            if option != opt::SET_META_CONTEXT {
                return Step::Honest;
            }
            // The fake believes that no context is selected, and blames BLOCK_STATUS.
            peer.reply(option, rep::META_CONTEXT, &Message::new().u32(9).bytes(name).0);
            peer.reply(option, rep::ACK, &[]);
            Step::Done
        });
        let fake = script.start();
        copy_is_right_or_fails(&fake);
    }
}

#[test]
fn client_check_17_a_context_without_an_id_is_rejected() {
    let script = Script::new(MIB).on_option(|peer, option, _| {
        if option != opt::SET_META_CONTEXT {
            return Step::Honest;
        }
        peer.reply(option, rep::META_CONTEXT, &[0, 0]);
        peer.reply(option, rep::ACK, &[]);
        Step::Done
    });
    let fake = script.start();
    copy_is_right_or_fails(&fake);
}

#[test]
fn client_check_18_a_server_that_requires_tls_is_told_apart() {
    let script = Script::new(MIB).on_option(|peer, option, _| match option {
        opt::ABORT => Step::Honest,
        opt::STARTTLS => {
            peer.reply(option, rep::POLICY, &[]);
            Step::Done
        }
        _ => {
            peer.reply(option, rep::TLS_REQD, &[]);
            Step::Done
        }
    });
    let fake = script.start();
    for name in ["info", "list"] {
        let outcome = verb(name, &fake);
        let line = outcome.failed();
        assert!(line.contains("TLS"), "it should say why: {line}");
    }
    fake.finish();
}

#[test]
fn client_check_19_starttls_refused_with_nbds() {
    let fake = Script::new(MIB).start();
    let uri = fake.uri("").replace("nbd+unix", "nbds+unix");
    blackbox::run::run(&mut blackbox::run::ours(["info", &uri])).failed();
    let record = fake.finish();
    assert!(!record.haggled(opt::GO) && !record.haggled(opt::EXPORT_NAME), "went on in the clear");
}

#[test]
fn client_check_20_a_server_that_shuts_down_is_left_politely() {
    let fake = Script { go: rep::SHUTDOWN, ..Script::new(MIB) }.start();
    verb("info", &fake).failed();
    fake.wait_until("ABORT", |record| record.haggled(opt::ABORT));

    let fake = Script::new(MIB)
        .on_request(|peer, request, _| {
            if request.command != cmd::READ {
                return Step::Honest;
            }
            peer.answer(request, err::ESHUTDOWN);
            Step::Done
        })
        .start();
    copy_fails(&fake);
    fake.wait_until("DISC", |record| record.asked(cmd::DISC));
    fake.finish();
}

#[test]
fn client_check_21_a_server_that_closes_on_abort_is_no_error() {
    let script = Script::new(MIB)
        .on_option(|_, option, _| if option == opt::ABORT { Step::Close } else { Step::Honest });
    let fake = script.start();
    for name in ["list", "info"] {
        let outcome = verb(name, &fake);
        outcome.succeeded();
        assert_eq!(outcome.stderr, "", "nothing happened worth a word");
    }
    fake.finish();
}

#[test]
fn client_check_13_read_only_and_rotational_are_reported() {
    let flags = tflag::HAS_FLAGS | tflag::READ_ONLY | tflag::ROTATIONAL;
    let fake = Script { flags, ..Script::new(MIB) }.start();
    let outcome = blackbox::run::run(&mut blackbox::run::ours(["info", "--json", &fake.uri("")]));
    let json: serde_json::Value = serde_json::from_str(outcome.succeeded()).unwrap();
    let text = json.to_string();
    assert!(text.contains("\"is_read_only\":true"), "{text}");
    assert!(text.contains("\"is_rotational\":true"), "{text}");
    fake.finish();
}
