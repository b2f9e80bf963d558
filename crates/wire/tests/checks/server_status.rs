//! Checks 79 to 89: block status and extended headers of the server.

use wire::{CommandFlags, Framing, ReplyWriter, Request, StatusExtent};

use crate::bytes::{Answer, Ask, Bytes, EINVAL, Fields, PAYLOAD_LEN, REQ_ONE, answers};
use crate::model::{Connection, Menu, SIZE};

const STATUS: u16 = 7;

type Extents = Vec<(u64, u64)>;

/// Parses the status chunks of a reply; asserts what holds for every success.
fn statuses(answers: &[Answer], length: u64) -> Vec<(u32, Extents)> {
    let mut statuses = Vec::new();
    for (index, answer) in answers.iter().enumerate() {
        let Answer::Chunk { last, kind, payload, offset, .. } = answer else { panic!("simple") };
        assert_eq!(*last, index + 1 == answers.len());
        assert_eq!(*kind, if offset.is_some() { 6 } else { 5 });
        let mut fields = Fields(payload);
        let context = fields.u32();
        let count = offset.map(|_| fields.u32());
        let mut extents = Extents::new();
        while !fields.0.is_empty() {
            extents.push(if count.is_some() {
                (fields.u64(), fields.u64())
            } else {
                (fields.u32().into(), fields.u32().into())
            });
        }
        assert!(count.is_none_or(|count| count as usize == extents.len()));
        assert!(!extents.is_empty() && extents.iter().all(|(len, _)| *len != 0));
        let but_last: u64 = extents[..extents.len() - 1].iter().map(|(len, _)| len).sum();
        assert!(but_last < length);
        statuses.push((context, extents));
    }
    statuses
}

fn covered(extents: &[(u64, u64)]) -> u64 {
    extents.iter().map(|(len, _)| len).sum()
}

fn ask(extended: bool, flags: u16, offset: u64, length: u64) -> Ask {
    Ask { extended, flags, command: STATUS, cookie: 3, offset, length }
}

#[test]
fn server_check_79_one_chunk_for_each_context_with_honest_sums() {
    for mode in [Framing::Structured, Framing::Extended] {
        let mut connection = Connection::transmitting(mode);
        let ids: Vec<u32> = connection.session().contexts.iter().map(|(id, _)| *id).collect();
        for (offset, length) in [(0, SIZE as u64), (4096, 1), (60_000, 100_000)] {
            let replies = connection.ask(ask(mode == Framing::Extended, 0, offset, length), &[]);
            let statuses = statuses(&replies, length);
            assert_eq!(statuses.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
            for (_, extents) in statuses {
                assert!(covered(&extents) >= length && covered(&extents) <= SIZE as u64 - offset);
            }
        }
    }
}

#[test]
fn server_check_80_req_one_is_one_extent_within_the_range() {
    let mut connection = Connection::transmitting(Framing::Structured);
    let replies = connection.ask(ask(false, REQ_ONE, 0, 1000), &[]);
    for (_, extents) in statuses(&replies, 1000) {
        assert_eq!(extents, [(1000, 0)]);
    }
}

#[test]
fn server_check_81_a_hole_above_four_gigabytes_is_cut_to_an_aligned_length() {
    let menu = Menu { size: 1 << 40, ..Menu::default() };
    let mut connection = Connection::transmitting_with(Framing::Structured, menu, "disk");
    let length = u64::from(u32::MAX);
    let replies = connection.ask(ask(false, 0, SIZE as u64, length), &[]);
    for (_, extents) in statuses(&replies, length) {
        assert_eq!(extents.len(), 1);
        assert!(extents[0].0 > 4_000_000_000 && extents[0].0 % 65_536 == 0);
    }
}

#[test]
fn server_check_81_nothing_follows_an_extent_that_was_cut() {
    let extents = [(5 << 32, 3), (4096, 0)].map(|(length, flags)| StatusExtent { length, flags });
    let request = Request {
        flags: CommandFlags::NONE,
        command: STATUS,
        cookie: 3,
        offset: 0,
        length: u32::MAX.into(),
        payload: 0,
    };
    for (mode, count) in [(Framing::Structured, 1), (Framing::Extended, 1)] {
        let mut out = Vec::new();
        ReplyWriter::new(mode, &request).block_status(1, extents, 100, true, &mut out);
        assert_eq!(statuses(&answers(&out, 0), request.length)[0].1.len(), count);
    }
}

#[test]
fn server_check_82_status_past_the_end_fails_in_a_chunk() {
    for mode in [Framing::Structured, Framing::Extended] {
        let mut connection = Connection::transmitting(mode);
        let replies = connection.ask(ask(mode == Framing::Extended, 0, SIZE as u64 - 1, 2), &[]);
        assert!(replies[0].is_chunk());
        assert_eq!((replies.len(), replies[0].error()), (1, EINVAL));
        assert!(connection.is_alive());
    }
}

#[test]
fn server_check_83_extents_end_with_the_export() {
    let menu = Menu { size: SIZE as u64 + 1000, ..Menu::default() };
    let mut connection = Connection::transmitting_with(Framing::Structured, menu, "disk");
    let replies = connection.ask(ask(false, 0, 0, SIZE as u64 + 1000), &[]);
    for (_, extents) in statuses(&replies, SIZE as u64 + 1000) {
        assert_eq!(covered(&extents), SIZE as u64 + 1000);
    }
}

#[test]
fn server_check_84_dense_fragmentation_is_cut_off() {
    let request = Request {
        flags: CommandFlags::NONE,
        command: STATUS,
        cookie: 3,
        offset: 0,
        length: u32::MAX.into(),
        payload: 0,
    };
    let endless = (0..).map(|index| StatusExtent { length: 512, flags: index % 2 });
    for (limit, expected) in [(1000, 1000), (usize::MAX, 1 << 20)] {
        let mut out = Vec::new();
        let reply = ReplyWriter::new(Framing::Structured, &request);
        let covered = reply.block_status(1, endless.clone(), limit, true, &mut out);
        assert_eq!(statuses(&answers(&out, 0), request.length)[0].1.len(), expected);
        assert_eq!(covered, 512 * expected as u64);
    }
}

#[test]
fn server_check_84_no_extent_means_nothing_is_sent() {
    let request = Request {
        flags: CommandFlags::NONE,
        command: STATUS,
        cookie: 3,
        offset: 0,
        length: 4096,
        payload: 0,
    };
    let mut out = b"before".to_vec();
    let empty = [StatusExtent { length: 0, flags: 0 }];
    let reply = ReplyWriter::new(Framing::Extended, &request);
    assert_eq!(reply.block_status(1, empty, 10, true, &mut out), 0);
    assert_eq!(out, b"before");
}

#[test]
fn server_check_85_extended_replies_echo_the_offset() {
    let mut connection = Connection::transmitting(Framing::Extended);
    for command in [0, 1, 3, 4, 5, 6, 7, 200] {
        let (offset, length) = if command == 3 { (0, 0) } else { (8192, 4096) };
        let flags = if command == 1 { PAYLOAD_LEN } else { 0 };
        let ask = Ask { extended: true, flags, command, cookie: 3, offset, length };
        let payload = vec![1; if command == 1 { 4096 } else { 0 }];
        for answer in connection.ask(ask, &payload) {
            let Answer::Chunk { offset: echoed, .. } = answer else { panic!("simple reply") };
            assert_eq!(echoed, Some(offset));
        }
    }
}

#[test]
fn server_check_86_payload_on_a_command_without_one_is_drained() {
    for command in [0, 2_000, 3, 4, 5, 6] {
        let mut connection = Connection::transmitting(Framing::Extended);
        let ask =
            Ask { extended: true, flags: PAYLOAD_LEN, command, cookie: 3, offset: 0, length: 16 };
        let replies = connection.ask(ask, &[0xff; 16]);
        assert_eq!((replies.len(), replies[0].error()), (1, EINVAL));
        assert!(connection.is_alive());
    }
}

#[test]
fn server_check_87_status_for_one_context_by_payload() {
    let mut connection = Connection::transmitting(Framing::Extended);
    let id = connection.session().contexts[1].0;
    let payload = Bytes::new().u64(5000).u32(id).0;
    let replies = connection.ask(ask(true, PAYLOAD_LEN, 0, 12), &payload);
    let statuses = statuses(&replies, 5000);
    assert_eq!(statuses.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [id]);
    assert!(covered(&statuses[0].1) >= 5000);
}

#[test]
fn server_check_87_bad_status_payloads_are_drained() {
    let mut connection = Connection::transmitting(Framing::Extended);
    let id = connection.session().contexts[1].0;
    for payload in [
        Bytes::new().u64(5000).u32(id).u32(id),
        Bytes::new().u64(5000).u32(9999),
        Bytes::new().u64(5000).u16(0),
        Bytes::new().u64(5000),
        Bytes::new().u64(0).u32(id),
        Bytes::new().u64(SIZE as u64 + 1).u32(id),
        Bytes::new().u64(u64::MAX).u32(id),
        Bytes::new().u64(5000).u32(1).u32(2).u32(3).u32(4),
        Bytes::new().u32(5000),
    ] {
        let length = payload.0.len() as u64;
        let replies = connection.ask(ask(true, PAYLOAD_LEN, 0, length), &payload.0);
        assert_eq!((replies.len(), replies[0].error()), (1, EINVAL), "{payload:?}");
        assert!(connection.is_alive());
    }
}

#[test]
fn server_check_88_payload_of_a_terabyte_ends_the_connection() {
    for command in [0, 1, 7, 200] {
        let mut connection = Connection::transmitting(Framing::Extended);
        let flags = PAYLOAD_LEN;
        connection.send(
            Ask { extended: true, flags, command, cookie: 3, offset: 0, length: 1 << 40 }.bytes(),
        );
        assert!(!connection.is_open());
    }
}

#[test]
fn server_check_89_extended_write_without_the_payload_flag_carries_its_payload() {
    // QEMU's client writes like this; what follows is in step.
    let mut connection = Connection::transmitting(Framing::Extended);
    let write = Ask { extended: true, command: 1, length: 4096, ..Ask::default() }.bytes();
    assert_ne!(connection.send(write.raw([7; 4096])), b"");
    assert!(connection.is_open());
    assert_eq!(connection.disk[..4096], [7; 4096]);
}
