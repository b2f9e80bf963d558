//! Random operations through the NBD client on a served model, compared with the same operations
//! on a model here: every byte, every map.
//!
//! The server is correct and as awkward as it may be: replies in any order, reads cut into pieces
//! that come shuffled and interleaved, holes where there are zeroes, maps cut short.

use crate::script;

use runtime::WorkPool;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use trial::{BlockingCalls, Fate, TestDevice};

use device::model::Model;
use device::{
    Abilities, BlockSizes, Blocking, Buffer, Edge, ErrorKind, Extent, ExtentKind, Lane, Operation,
    Outcome, Simple, ZeroFlags,
};
use script::{Client, EVERYTHING, Server, plain, structured};
use wire::{Command, CommandFlags, ExportOffer, ReplyWriter, Request, ServerPolicy, StatusExtent};

const SIZE: usize = 1 << 20;

/// Numbers that look random and are the same for the same seed.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

fn model(blocks: BlockSizes) -> Model {
    let abilities = Abilities {
        write: true,
        flush: true,
        fua: true,
        trim: true,
        zero: true,
        fast_zero: true,
        extents: true,
        ..Abilities::READ
    };
    Model::with(SIZE, abilities, blocks)
}

/// Serves `model` to one client.
fn serve(mut client: Client, model: &Model, seed: u64) {
    let mut random = Random::new(seed);
    let mut replies: Vec<VecDeque<Vec<u8>>> = Vec::new();
    loop {
        while replies.is_empty() || (!random.one_in(4) && client.has_more()) {
            let Some((request, payload)) = client.request() else { return };
            if request.kind() == Some(Command::Disconnect) {
                return;
            }
            replies.push(perform(&client, model, &request, &payload, &mut random));
        }
        for _ in 0..=random.index(8) {
            if replies.is_empty() {
                break;
            }
            let which = random.index(replies.len());
            if let Some(message) = replies[which].pop_front() {
                client.send(&message);
            }
            if replies[which].is_empty() {
                replies.swap_remove(which);
            }
        }
    }
}

fn perform(
    client: &Client,
    model: &Model,
    request: &Request,
    payload: &[u8],
    random: &mut Random,
) -> VecDeque<Vec<u8>> {
    let writer = ReplyWriter::new(client.session.mode, request);
    let mut out = Vec::new();
    let (offset, len) = (request.offset, request.length);
    client.session.check(request).expect("the client sent what it must not send");
    let has = |flag| request.flags.contains(flag);
    let fua = has(CommandFlags::FUA);
    let done = match request.kind().unwrap() {
        Command::Read => return read(&writer, model, request, random),
        Command::BlockStatus => {
            let extents = status(model, request, random);
            writer.block_status(client.session.contexts[0].0, extents, 1000, true, &mut out);
            return VecDeque::from([out]);
        }
        Command::Write => model.write_at(payload, offset, fua),
        Command::Trim => model.trim(offset, len, fua),
        Command::WriteZeroes => {
            let (may_unmap, fast_only) =
                (!has(CommandFlags::NO_HOLE), has(CommandFlags::FAST_ZERO));
            model.zero(offset, len, ZeroFlags { may_unmap, fast_only, fua, ..ZeroFlags::default() })
        }
        Command::Flush => model.flush(),
        _ => Ok(()),
    };
    done.unwrap();
    writer.done(&mut out);
    VecDeque::from([out])
}

fn read(
    writer: &ReplyWriter,
    model: &Model,
    request: &Request,
    random: &mut Random,
) -> VecDeque<Vec<u8>> {
    let len = usize::try_from(request.length).unwrap();
    let mut bytes = vec![0; len];
    model.read_at(&mut bytes, request.offset).unwrap();
    let mut cuts = vec![0, len];
    if writer.may_fragment() {
        cuts.extend((0..random.index(5)).map(|_| random.index(len)));
    }
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces: Vec<_> = cuts.windows(2).map(|w| w[0]..w[1]).collect();
    for i in (1..pieces.len()).rev() {
        pieces.swap(i, random.index(i + 1));
    }
    let separate_end = writer.is_chunked() && random.one_in(2);
    let count = pieces.len();
    let mut messages = VecDeque::new();
    for (i, piece) in pieces.into_iter().enumerate() {
        let (last, mut out) = (i + 1 == count && !separate_end, Vec::new());
        let start = request.offset + piece.start as u64;
        let length = u32::try_from(piece.len()).unwrap();
        let content = &bytes[piece];
        if writer.may_fragment() && content.iter().all(|b| *b == 0) {
            writer.read_hole(start, length, last, &mut out);
        } else {
            writer.read_data(start, length, last, &mut out);
            out.extend(content);
        }
        messages.push_back(out);
    }
    if separate_end {
        let mut out = Vec::new();
        writer.done(&mut out);
        messages.push_back(out);
    }
    messages
}

fn status(model: &Model, request: &Request, random: &mut Random) -> Vec<StatusExtent> {
    let mut extents = Vec::new();
    let max = 1 + random.index(20);
    model.resolve(request.offset, request.length, max, &mut extents).unwrap();
    let mut told = Vec::new();
    for extent in extents {
        let flags = if extent.kind == ExtentKind::Hole { 3 } else { 0 };
        let first = 1 + random.below(extent.len);
        told.push(StatusExtent { length: first, flags });
        if first < extent.len {
            told.push(StatusExtent { length: extent.len - first, flags });
        }
    }
    told
}

fn server(policy: ServerPolicy, blocks: BlockSizes, seed: u64) -> (Server, Arc<Model>) {
    let offer = ExportOffer {
        size: SIZE as u64,
        flags: EVERYTHING.with(wire::TransmissionFlags::SEND_DF),
        blocks: Some(wire::BlockConstraints {
            minimum: blocks.minimum,
            preferred: blocks.preferred,
            maximum: blocks.maximum,
        }),
        contexts: vec!["base:allocation".into()],
        ..ExportOffer::default()
    };
    // Without the context the client does not ask for reads in one piece.
    let contexts = if seed.is_multiple_of(2) { offer.contexts.clone() } else { Vec::new() };
    let model = Arc::new(model(blocks));
    let served = model.clone();
    let server = Server::start(ExportOffer { contexts, ..offer }, policy, move |client| {
        serve(client, &served, seed);
    });
    (server, model)
}

fn blocks(minimum: u32) -> BlockSizes {
    BlockSizes { minimum, preferred: 4096, maximum: 256 << 10 }
}

/// The result that an operation must have.
enum Expected {
    Bytes(Vec<u8>),
    Done,
    Kinds(u64, Vec<ExtentKind>),
    NotFast,
}

fn kinds(extents: &[Extent], offset: u64) -> Vec<ExtentKind> {
    let mut list = Vec::new();
    for extent in extents {
        assert_eq!(extent.start, offset + list.len() as u64);
        list.extend((0..extent.len).map(|_| extent.kind));
    }
    list
}

fn range(random: &mut Random, step: u64) -> (u64, usize) {
    let size = SIZE as u64 / step;
    let start = random.below(size);
    let most = if random.one_in(4) { 200_000 } else { 20_000 } / step;
    let len = (1 + random.below(most.max(1))).min(size - start);
    (start * step, usize::try_from(len * step).unwrap())
}

/// A random operation, already done on `twin`.
fn operation(random: &mut Random, twin: &dyn Blocking, step: u64) -> (Operation, Expected) {
    let (offset, len) = range(random, step);
    let length = len as u64;
    let (may_unmap, fast_only, fua) = (random.one_in(2), random.one_in(3), random.one_in(8));
    match random.below(10) {
        0..=3 => {
            let mut bytes = vec![0; len];
            twin.read_at(&mut bytes, offset).unwrap();
            let mut buffer = Buffer::zeroed(len);
            buffer.fill(0xee);
            (Operation::Read { offset, buffer }, Expected::Bytes(bytes))
        }
        4..=6 => {
            let mut buffer = Buffer::zeroed(len);
            let seed = u8::try_from(random.below(255)).unwrap() + 1;
            buffer.iter_mut().zip((0..=255_u8).cycle()).for_each(|(b, i)| *b = seed ^ i);
            twin.write_at(&buffer, offset, fua).unwrap();
            (Operation::Write { offset, data: buffer.into(), fua }, Expected::Done)
        }
        7 => {
            let flags = ZeroFlags { may_unmap, fast_only, fua, ..ZeroFlags::default() };
            // Only whole blocks are zeroed fast.
            let expected = match twin.zero(offset, length, flags) {
                Err(e) if e.kind() == ErrorKind::NotFast => Expected::NotFast,
                other => other.map(|()| Expected::Done).unwrap(),
            };
            (Operation::Zero { offset, len: length, flags }, expected)
        }
        8 => {
            twin.trim(offset, length, fua).unwrap();
            (Operation::Trim { offset, len: length, fua }, Expected::Done)
        }
        _ => {
            let mut extents = Vec::new();
            twin.resolve(offset, length, usize::MAX, &mut extents).unwrap();
            let max = if random.one_in(3) { 1 } else { 1 + random.index(30) };
            let expected = Expected::Kinds(offset, kinds(&extents, offset));
            (Operation::Resolve { offset, len: length, max }, expected)
        }
    }
}

fn compare(outcome: device::Result<Outcome>, expected: Expected, info: &device::Info, what: &str) {
    if let (Err(e), Expected::NotFast) = (&outcome, &expected) {
        return assert_eq!(e.kind(), ErrorKind::NotFast, "{what}");
    }
    match (outcome.expect(what), expected) {
        (Outcome::Read(buffer), Expected::Bytes(bytes)) => assert!(*buffer == bytes, "{what}"),
        (Outcome::Extents(extents), Expected::Kinds(offset, right)) => {
            let told = kinds(&extents, offset);
            assert!(!told.is_empty(), "{what}");
            let all_data = told.iter().all(|kind| *kind == ExtentKind::Data);
            // With a reply only for the part of a block that it did not ask about, the client
            // reports data.
            let block = u64::from(info.blocks.minimum);
            let in_block = offset % block != 0 && offset % block + told.len() as u64 <= block;
            if info.abilities.extents && !(in_block && all_data) {
                assert!(told == right[..told.len()], "{what}");
            } else {
                assert!(all_data, "{what}");
            }
        }
        (Outcome::Done, Expected::Done) => {}
        (other, _) => panic!("{what}: {other:?}"),
    }
}

/// Random operations, many in flight, on a lane.
fn through_a_lane(policy: ServerPolicy, minimum: u32, seed: u64) {
    let what = format!("{policy:?}, blocks of {minimum}, seed {seed}");
    let (server, served) = server(policy, blocks(minimum), seed);
    let twin = model(blocks(minimum));
    let device = server.open();
    let mut lane = device.lane().unwrap().unwrap();
    let mut random = Random::new(seed + 1000);
    let mut expected = HashMap::new();
    for ticket in 0..300 {
        let (operation, right) = operation(&mut random, &twin, minimum.into());
        expected.insert(ticket, right);
        lane.start(ticket, operation);
        if expected.len() > 30 || random.one_in(6) {
            harvest(&mut *lane, &mut expected, random.index(30), device.info(), &what);
        }
    }
    harvest(&mut *lane, &mut expected, 0, device.info(), &what);
    assert!(served.bytes() == twin.bytes(), "{what}");
}

/// Turns the lane until at most `left` operations are in flight.
fn harvest(
    lane: &mut dyn Lane,
    expected: &mut HashMap<u64, Expected>,
    left: usize,
    info: &device::Info,
    what: &str,
) {
    while lane.in_flight() > left {
        for (ticket, outcome) in script::turn_or_wait(lane) {
            let right = expected.remove(&ticket).expect("a ticket that was given out");
            compare(outcome, right, info, what);
        }
    }
}

#[test]
fn a_lane_does_what_the_model_does() {
    for seed in 0..4 {
        for minimum in [1, 512, 4096] {
            through_a_lane(plain(), minimum, seed);
            through_a_lane(structured(), minimum, seed);
            through_a_lane(ServerPolicy::default(), minimum, seed);
        }
    }
}

#[test]
fn the_edge_over_the_client_does_what_the_edge_over_the_model_does() {
    for seed in 0..4 {
        for (minimum, policy) in
            [(1, plain()), (512, structured()), (4096, ServerPolicy::default())]
        {
            let what = format!("{policy:?}, blocks of {minimum}, seed {seed}");
            let (server, served) = server(policy, blocks(minimum), seed);
            let pool = WorkPool::new(4);
            let edge = Edge::new(server.open(), pool.clone());
            let twin = Simple::edge(model(blocks(minimum)), &pool);
            let edge_of_twin = twin.clone();
            let twin_face = TestDevice::blank(twin.info().clone())
                .hooked(move |operation| Fate::Answer(edge_of_twin.run(operation)));
            let mut random = Random::new(seed + 2000);
            for _ in 0..100 {
                let (operation, right) = operation(&mut random, &twin_face, 1);
                let outcome = edge.run(operation);
                compare(outcome, right, edge.info(), &what);
            }
            let mut bytes = vec![0; SIZE];
            twin.read(&mut bytes, 0).unwrap();
            assert!(served.bytes() == bytes, "{what}");
        }
    }
}

#[test]
fn a_lane_and_others_share_a_connection() {
    let (server, served) = server(structured(), blocks(1), 2);
    let device = server.open();
    let half = SIZE as u64 / 2;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The blocking face, in the first half.
            let mut random = Random::new(1);
            for i in 0..200_u64 {
                let byte = u8::try_from(i % 250).unwrap() + 1;
                let offset = random.below(half - 5000);
                device.write_at(&[byte; 5000], offset, false).unwrap();
                let mut bytes = vec![0; 5000];
                device.read_at(&mut bytes, offset).unwrap();
                assert!(bytes.iter().all(|b| *b == byte));
            }
        });
        // The lane, in the second.
        let mut lane = device.lane().unwrap().unwrap();
        for round in 0..50_u8 {
            for i in 0..16 {
                let buffer = Buffer::copy_of(&vec![round; 32_768]);
                let offset = half + i * 32_768;
                lane.start(i, Operation::Write { offset, data: buffer.into(), fua: false });
            }
            assert!(script::finish(&mut *lane).iter().all(|(_, outcome)| outcome.is_ok()));
            for i in 0..16 {
                let buffer = Buffer::zeroed(32_768);
                lane.start(i, Operation::Read { offset: half + i * 32_768, buffer });
            }
            for (_, outcome) in script::finish(&mut *lane) {
                let Ok(Outcome::Read(buffer)) = outcome else { panic!("{outcome:?}") };
                assert!(buffer.iter().all(|b| *b == round));
            }
        }
    });
    assert!(served.bytes()[SIZE / 2..].iter().all(|b| *b == 49));
}
