//! Many operations under way at a time, side by side in the same blocks: each ends once, and none
//! undoes its neighbour's work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use device::{
    Buffer, Client, Edge, Operation, Outcome, Peer, Presence, Result, WorkPool, ZeroFlags,
};
use proptest::prelude::*;
use trial::SIZE;

use crate::{SHAPES, pile};

/// What to do with the next so many bytes: write this, or zero them (0).
type Step = (usize, u8);

/// An edge for a client of that number, as a server has it.
fn client(disk: &Edge, number: u64) -> Edge {
    let (tx, rx) = mpsc::channel();
    let who = Client {
        number,
        peer: Peer::Other,
        export: String::new(),
        tls: false,
        presence: Presence::default(),
    };
    disk.device().connect(&who, Box::new(move |answer| tx.send(answer).unwrap()));
    let own = rx.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
    own.map_or_else(|| disk.clone(), |device| disk.beside(device))
}

fn operation(at: usize, (len, byte): Step, fua: bool) -> Operation {
    let offset = at as u64;
    if byte == 0 {
        let flags = ZeroFlags { may_unmap: fua, fua, fast_only: false };
        return Operation::Zero { offset, len: len as u64, flags };
    }
    let data = Buffer::copy_of(&vec![byte; len]).into();
    Operation::Write { offset, data, fua }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn neighbours_under_way_together_do_not_harm_each_other(
        steps in prop::collection::vec((1..3000usize, 0..4u8), 8..60),
        stack in prop::collection::vec(0..SHAPES.len(), 1..6),
        kind in 0..3usize,
    ) {
        let disk = Edge::new(pile(&stack, kind), WorkPool::new(3));
        disk.write(&vec![9; SIZE], 0, false).unwrap();
        disk.flush().unwrap();
        let clients = [client(&disk, 1), client(&disk, 2)];
        let ended: Arc<Vec<AtomicUsize>> =
            Arc::new((0..2 * steps.len()).map(|_| AtomicUsize::new(0)).collect());
        let (tx, rx) = mpsc::channel::<(usize, Result<Outcome>)>();
        let submit = |n: usize, client: usize, operation: Operation| {
            let (tx, ended) = (tx.clone(), ended.clone());
            clients[client].submit(operation, Box::new(move |result| {
                ended[n].fetch_add(1, Ordering::SeqCst);
                let _ = tx.send((n, result));
            }));
        };
        let (mut at, mut expected, mut count) = (0, vec![9; SIZE], 0);
        for (i, (len, byte)) in steps.iter().enumerate() {
            let len = (*len).min(SIZE - at);
            if len == 0 {
                break;
            }
            submit(count, i % 2, operation(at, (len, *byte), i % 5 == 0));
            // Meanwhile, on the same range.
            let other = match i % 4 {
                0 => Operation::Flush,
                1 => Operation::Resolve { offset: at as u64, len: len as u64, max: 4 },
                2 => Operation::Prefetch { offset: at as u64, len: len as u64 },
                _ => Operation::Read { offset: at as u64, buffer: Buffer::zeroed(len) },
            };
            submit(count + 1, (i + 1) % 2, other);
            expected[at..at + len].fill(*byte);
            at += len;
            count += 2;
        }
        for _ in 0..count {
            let (_, result) = rx.recv_timeout(Duration::from_secs(60))
                .map_err(|_| TestCaseError::fail("an operation never ended"))?;
            prop_assert!(result.is_ok(), "{:?}", result.err());
        }
        // The two may each have a cache of what the other wrote.
        for client in &clients {
            client.flush().unwrap();
        }
        for client in &clients {
            let mut bytes = vec![0; SIZE];
            client.read(&mut bytes, 0).unwrap();
            let differs = (0..SIZE).find(|i| bytes[*i] != expected[*i]);
            prop_assert!(differs.is_none(), "byte {:?}", differs);
        }
        prop_assert!(ended[..count].iter().all(|n| n.load(Ordering::SeqCst) == 1));
    }
}
