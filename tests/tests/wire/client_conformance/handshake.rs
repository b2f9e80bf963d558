//! Checks 1 to 21: the list of handshakes, over a socket.

use std::io::Write;
use std::sync::Arc;

use blackbox::MIB;
use blackbox::conformance::handshakes::{self, Goal, Handshake, Then, Verdict};
use blackbox::fake::{ALL_FLAGS, Fake, Peer, Script, Step, option_reply};
use blackbox::nbd::{opt, rep, tflag};
use blackbox::run::{ferry, json, measured, ours};

use super::{copy_fails, copy_is_right};

/// A fake that answers as the row says, and honestly where the row says nothing.
fn serves(row: &Arc<Handshake>) -> Fake {
    let mut script = if row.size == MIB { Script::new(MIB) } else { Script::empty(row.size) };
    let its = Arc::clone(row);
    if !row.goes_on() || row.is_oldstyle() {
        script = script.on_connect(move |peer| {
            peer.send(&its.greeting);
            peer.terms.flags = ALL_FLAGS & (tflag::HAS_FLAGS | tflag::SEND_FLUSH);
            if its.is_oldstyle() { Step::Done } else { Step::Close }
        });
        return script.start();
    }
    script.handshake = u16::from_be_bytes(row.greeting[16..].try_into().unwrap());
    let answer = move |peer: &mut Peer, option: u32, _: &[u8]| {
        let Some((bytes, then)) = its.answer(option) else { return Step::Honest };
        peer.send(&bytes);
        match then {
            Then::Repeats => {
                // What is longer gets no more: the client must give up by itself.
                let part = bytes.repeat(1 + 65_536 / bytes.len());
                (0..(64 << 20) / part.len()).all(|_| peer.stream.write_all(&part).is_ok());
                Step::Close
            }
            Then::Closes => Step::Close,
            Then::Waits if !bytes.ends_with(&option_reply(opt::GO, rep::ACK, &[])) => Step::Done,
            Then::Waits => {
                peer.terms.flags = peer.flags();
                Step::Transmission
            }
        }
    };
    script.on_option(answer).start()
}

/// Runs the program in each of these handshakes.
fn run_each(rows: Vec<Handshake>) {
    for row in rows {
        let row = Arc::new(row);
        let works = row.verdict == Verdict::Works;
        eprintln!("{row:?}");
        let fake = serves(&row);
        let uri = fake.uri(row.export);
        let secure = || uri.replace("nbd+unix", "nbds+unix") + "&tls-hostname=localhost";
        let uri = if row.tls { secure() } else { uri };
        let verb = match row.goal {
            Goal::List => "list",
            // `info` needs no contexts.
            Goal::Use if row.answer(opt::SET_META_CONTEXT).is_some() => "map",
            _ => "info",
        };
        let outcome = measured(&ours([verb, &uri]));
        outcome.fits_in(128 * MIB);
        assert!(
            !outcome.stdout.contains('\x1b') && !outcome.stderr.contains('\x1b'),
            "{outcome:?}"
        );
        if works {
            outcome.succeeded();
            assert_eq!(outcome.stderr, "", "nothing happened worth a word");
        } else {
            let line = outcome.failed();
            assert!(line.contains(row.says), "it should say why: {line}");
        }
        if row.goal == Goal::Use && row.export.is_empty() && !row.tls && row.size == MIB {
            // Another one: the first may not have seen yet that its client has gone.
            let fake = serves(&row);
            if works { copy_is_right(&fake) } else { drop(copy_fails(&fake)) }
        }
        for option in &row.sends {
            fake.wait_until("an option", |record| record.haggled(*option));
        }
        let record = fake.finish();
        assert!(!row.never.iter().any(|option| record.haggled(*option)), "{record:?}");
        assert!(row.goes_on() || record.options.is_empty(), "{record:?}");
    }
}

#[test]
fn greetings_are_understood_by_the_list() {
    run_each(handshakes::greetings());
}

#[test]
fn refusals_are_understood_by_the_list() {
    run_each(handshakes::refusals());
}

#[test]
fn descriptions_are_understood_by_the_list() {
    run_each(handshakes::descriptions());
}

#[test]
fn client_check_13_read_only_and_rotational_are_reported() {
    let flags = tflag::HAS_FLAGS | tflag::READ_ONLY | tflag::ROTATIONAL;
    let fake = Script { flags, ..Script::new(MIB) }.start();
    let text = json(ferry(["info", "--json", &fake.uri("")]).succeeded()).to_string();
    assert!(text.contains("\"is_read_only\":true"), "{text}");
    assert!(text.contains("\"is_rotational\":true"), "{text}");
    fake.finish();
}
