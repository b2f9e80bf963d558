//! One client: it changes its own bytes and the common ones, reads everything, keeps many requests
//! in flight, sometimes reads its replies late, and compares all replies with what it knows.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blackbox::dice::Dice;
use blackbox::nbd::{BASE_ALLOCATION, alloc, cflag, cmd, err, tflag};
use blackbox::session::{Answer, Mode, Request, Session};
use blackbox::{index, length};

use super::common::{Change, Common};
use super::layout::{Layout, mark, may_be};

/// What all clients of a disk have in common.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) layout: Layout,
    pub(crate) common: Common,
    /// The file that holds the disk, and where the disk begins in it; none where it is elsewhere,
    /// or does not change.
    pub(crate) file: Option<(File, u64)>,
    /// Operations done by all.
    pub(crate) clock: AtomicU64,
}

/// What a byte may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// Not known: another's, or being changed. The writer must have been this one.
    Of(usize),
    /// Exactly this.
    Is(u8),
    /// This, or zero: it was trimmed.
    Trimmed(u8),
    /// Common: judged elsewhere.
    Common,
}

#[derive(Debug)]
enum What {
    Look(Vec<Expected>),
    /// The bytes written; none for a trim or zeroes.
    Change(Option<Vec<u8>>, Option<Change>),
    Other,
}

#[derive(Debug)]
struct Flight {
    cookie: u64,
    request: Request,
    range: Range<usize>,
    what: What,
}

/// A client and what it knows of its bytes.
#[derive(Debug)]
pub(crate) struct Client {
    session: Session,
    me: usize,
    ground: Arc<Ground>,
    own: Vec<Range<usize>>,
    dice: Dice,
    known: Vec<Expected>,
    flying: Vec<Flight>,
    /// The last requests, for a failure's message.
    history: Vec<String>,
}

impl Client {
    /// Client number `me`.
    pub(crate) fn new(session: Session, me: usize, ground: Arc<Ground>, dice: Dice) -> Self {
        let layout = &ground.layout;
        assert_eq!(session.export.size, length(&layout.first), "the size of the disk");
        let mut known = vec![Expected::Common; layout.size];
        layout.runs_in(&(0..layout.size), |part, owner| {
            for at in part {
                let first = Expected::Is(layout.first[at]);
                known[at] = if owner == me { first } else { Expected::Of(owner) };
            }
        });
        let own = layout.of(me);
        let (flying, history) = (Vec::new(), Vec::new());
        Self { session, me, ground, own, dice, known, flying, history }
    }

    /// Does this many operations, makes them durable, reads its bytes once more, and leaves.
    /// Returns what it knows: for each byte of its own, its value, and whether it may be zero.
    pub(crate) fn run(mut self, operations: usize) -> Vec<(usize, u8, bool)> {
        let mut done = 0;
        while done < operations {
            let count = self.dice.between(1, 24).min(operations - done);
            if self.dice.percent(40) {
                self.late(count)
            } else {
                self.soon(count)
            }
            done += count;
        }
        self.drain();
        if self.session.has(tflag::SEND_FLUSH) {
            self.look(Request::new(cmd::FLUSH, 0, 0), 0..0);
            self.drain();
        }
        let size = self.ground.layout.size;
        for start in (0..size).step_by(300_000) {
            self.read(start..size.min(start + 300_000), 0);
        }
        self.drain();
        self.session.disconnect();
        let known = self.known.iter().enumerate();
        known
            .filter_map(|(at, expected)| match expected {
                Expected::Is(value) => Some((at, *value, false)),
                Expected::Trimmed(value) => Some((at, *value, true)),
                Expected::Of(_) | Expected::Common => None,
            })
            .collect()
    }

    /// Asks for bytes of a range that is in memory, and leaves the replies where they are.
    pub(crate) fn ask_and_look_away(&mut self, around: &Range<usize>) {
        self.read(around.clone(), 0);
        self.drain();
        for _ in 0..3 {
            let range = self.within(around, 60_000);
            self.read(range, 0);
        }
    }

    /// Changes bytes of its own in a range, and waits until that is done.
    pub(crate) fn change_within(&mut self, around: &Range<usize>) {
        let mut mine = Vec::new();
        self.ground.layout.runs_in(around, |part, owner| {
            if owner == self.me {
                mine.push(part);
            }
        });
        for _ in 0..mine.len().min(6) {
            let range = mine[self.dice.below(mine.len())].clone();
            match self.dice.below(4) {
                0 => self.write(range),
                1 | 2 => self.trim(range),
                _ => self.zero(range),
            }
        }
        self.drain();
    }

    /// Takes all replies.
    pub(crate) fn look_again(&mut self) {
        self.drain();
    }

    /// Operations whose replies are read as they come.
    fn soon(&mut self, count: usize) {
        let depth = self.dice.between(1, 12);
        for _ in 0..count {
            self.operation();
            while self.flying.len() > depth {
                self.receive();
            }
        }
    }

    /// Operations whose replies lie in the socket while the others go on.
    fn late(&mut self, count: usize) {
        self.drain();
        if self.dice.percent(60) {
            // Long reads of what has just been read, so that it comes from memory.
            let around = self.anywhere(160_000);
            self.read(around.clone(), 0);
            self.drain();
            for _ in 0..count.min(6) {
                let range = self.within(&around, 60_000);
                self.read(range, 0);
            }
        } else {
            for _ in 0..count.min(10) {
                self.operation();
            }
        }
        let now = self.ground.clock.load(Ordering::Relaxed);
        for _ in 0..10 {
            if self.ground.clock.load(Ordering::Relaxed) > now + 40 {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.drain();
    }

    fn drain(&mut self) {
        while !self.flying.is_empty() {
            self.receive();
        }
    }

    fn operation(&mut self) {
        match self.dice.below(100) {
            0..30 => {
                let range = self.anywhere(400_000);
                let wants_one_piece = self.session.has(tflag::SEND_DF) && self.dice.percent(20);
                self.read(range, if wants_one_piece { cflag::DF } else { 0 });
            }
            30..82 => {
                let range = self.changeable();
                match self.dice.below(5) {
                    0 | 1 => self.write(range),
                    2 | 3 => self.zero(range),
                    _ => self.trim(range),
                }
            }
            82..92 => self.status(),
            92..95 => self.flush(),
            _ => self.cache(),
        }
    }

    /// A range of the disk of up to `most` bytes.
    fn anywhere(&mut self, most: usize) -> Range<usize> {
        let size = self.ground.layout.size;
        let most = self.dice.pick(&[1, 600, 5000, 40_000, most]).min(size);
        let len = self.dice.between(1, most);
        let start = self.dice.below(size - len + 1);
        start..start + len
    }

    /// A part of a range, of up to `most` bytes.
    fn within(&mut self, around: &Range<usize>, most: usize) -> Range<usize> {
        let len = self.dice.between(1, around.len().min(most));
        let start = around.start + self.dice.below(around.len() - len + 1);
        start..start + len
    }

    /// A range that we may change: in a run of our own, or in what is common.
    fn changeable(&mut self) -> Range<usize> {
        let whole = match self.own.len() {
            0 => self.ground.layout.common.clone(),
            _ if self.dice.percent(15) => self.ground.layout.common.clone(),
            count => self.own[self.dice.below(count)].clone(),
        };
        if self.dice.percent(40) {
            return whole;
        }
        let start = self.dice.between(whole.start, whole.end - 1);
        start..self.dice.between(start + 1, whole.end)
    }

    fn read(&mut self, range: Range<usize>, flags: u16) {
        let request = Request::new(cmd::READ, wide(range.start), wide(range.len()));
        self.look(request.flags(flags), range);
    }

    fn status(&mut self) {
        if self.session.mode == Mode::Simple {
            return self.cache();
        }
        let whole = 0..self.ground.layout.size;
        let range = if self.dice.percent(30) { whole } else { self.anywhere(400_000) };
        let request = Request::new(cmd::BLOCK_STATUS, wide(range.start), wide(range.len()));
        let flags = if self.dice.percent(15) { cflag::REQ_ONE } else { 0 };
        self.look(request.flags(flags), range);
    }

    fn flush(&mut self) {
        if self.session.has(tflag::SEND_FLUSH) {
            // What was answered before must then be in the file: some of it is looked at.
            let range = self.anywhere(200_000);
            self.look(Request::new(cmd::FLUSH, 0, 0), range);
        }
    }

    fn cache(&mut self) {
        if self.session.has(tflag::SEND_CACHE) {
            let range = self.anywhere(400_000);
            let request = Request::new(cmd::CACHE, wide(range.start), wide(range.len()));
            self.fly(request, range, What::Other);
        }
    }

    fn write(&mut self, range: Range<usize>) {
        let mut bytes = vec![0; range.len()];
        if self.dice.percent(92) {
            mark(&mut bytes, self.me, self.dice.number());
        }
        let request = Request::write(wide(range.start), &bytes).flags(self.fua());
        self.change(request, range, Some(bytes));
    }

    fn zero(&mut self, range: Range<usize>) {
        if !self.session.has(tflag::SEND_WRITE_ZEROES) {
            return self.write(range);
        }
        let request = Request::new(cmd::WRITE_ZEROES, wide(range.start), wide(range.len()));
        let mut flags = self.fua();
        if self.dice.percent(40) {
            flags |= cflag::NO_HOLE;
        }
        if self.session.has(tflag::SEND_FAST_ZERO) && self.dice.percent(30) {
            flags |= cflag::FAST_ZERO;
        }
        self.change(request.flags(flags), range, None);
    }

    fn trim(&mut self, range: Range<usize>) {
        if !self.session.has(tflag::SEND_TRIM) {
            return self.zero(range);
        }
        let request = Request::new(cmd::TRIM, wide(range.start), wide(range.len()));
        let flags = self.fua();
        self.change(request.flags(flags), range, None);
    }

    fn fua(&mut self) -> u16 {
        if self.session.has(tflag::SEND_FUA) && self.dice.percent(6) { cflag::FUA } else { 0 }
    }

    /// Sends something whose answer is compared with what we know of `range`.
    fn look(&mut self, request: Request, range: Range<usize>) {
        let mut expected = self.known[range.clone()].to_vec();
        for flight in &self.flying {
            if matches!(flight.what, What::Change(..)) {
                forget(&mut expected, &range, &flight.range, self.me);
            }
        }
        self.ground.common.begin_read(&range);
        self.fly(request, range, What::Look(expected));
    }

    /// Sends a change. Two changes of one of its bytes are never in flight at once.
    fn change(&mut self, request: Request, range: Range<usize>, bytes: Option<Vec<u8>>) {
        let is_common = self.ground.layout.common.contains(&range.start);
        while !is_common && self.is_changing(&range) {
            self.receive();
        }
        for flight in &mut self.flying {
            if let What::Look(expected) = &mut flight.what {
                forget(expected, &flight.range, &range, self.me);
            }
        }
        let begin = || self.ground.common.begin_change(range.clone(), bytes.as_deref());
        let change = is_common.then(begin);
        self.fly(request, range, What::Change(bytes, change));
    }

    fn is_changing(&self, range: &Range<usize>) -> bool {
        self.flying.iter().any(|flight| {
            let is_change = matches!(flight.what, What::Change(..));
            is_change && flight.range.start < range.end && range.start < flight.range.end
        })
    }

    fn fly(&mut self, request: Request, range: Range<usize>, what: What) {
        if self.history.len() == 60 {
            self.history.remove(0);
        }
        let (command, flags) = (request.command, request.flags);
        self.history.push(format!("{command}/{flags:#x} {range:?}"));
        let cookie = self.session.send(&request);
        let request = Request { payload: Vec::new(), ..request };
        self.flying.push(Flight { cookie, request, range, what });
    }

    /// Takes the next reply, or chunk of one, and judges it when it is complete.
    fn receive(&mut self) {
        let cookie = self.session.frame();
        let Some(answer) = self.session.take(cookie) else { return };
        let place = self.flying.iter().position(|flight| flight.cookie == cookie).unwrap();
        let flight = self.flying.remove(place);
        self.ground.clock.fetch_add(1, Ordering::Relaxed);
        let request = &flight.request;
        match flight.what {
            What::Look(expected) => {
                assert_eq!(answer.error, 0, "{request:?}");
                let range = &flight.range;
                let told = match request.command {
                    cmd::READ => answer.data.into_iter().map(Some).collect(),
                    cmd::BLOCK_STATUS => self.told_by_map(range, &answer),
                    _ => self.in_file(range),
                };
                self.judge(request, range, &expected, &told);
            }
            What::Change(bytes, change) => {
                let fast = request.flags & cflag::FAST_ZERO != 0;
                let refused = fast && answer.error == err::ENOTSUP;
                assert!(refused || answer.error == 0, "error {}: {request:?}", answer.error);
                let trimmed = request.command == cmd::TRIM;
                if let Some(change) = change {
                    let zeroes = vec![0; flight.range.len()];
                    let certain =
                        (!refused && !trimmed).then_some(bytes.as_ref().unwrap_or(&zeroes));
                    self.ground.common.end_change(&change, certain.map(Vec::as_slice));
                } else if !refused {
                    self.learn(&flight.range, bytes.as_deref(), trimmed);
                }
            }
            What::Other => assert_eq!(answer.error, 0, "{request:?}"),
        }
    }

    /// A change of its own bytes was acknowledged.
    fn learn(&mut self, range: &Range<usize>, bytes: Option<&[u8]>, trimmed: bool) {
        for (i, at) in range.clone().enumerate() {
            self.known[at] = match (self.known[at], bytes) {
                (_, Some(bytes)) => Expected::Is(bytes[i]),
                (Expected::Is(old) | Expected::Trimmed(old), None) if trimmed && old != 0 => {
                    Expected::Trimmed(old)
                }
                _ => Expected::Is(0),
            };
        }
    }

    /// The bytes that a map calls zero.
    fn told_by_map(&self, range: &Range<usize>, answer: &Answer) -> Vec<Option<u8>> {
        let extents = &answer.extents[&self.session.context(BASE_ALLOCATION)];
        let mut told = Vec::with_capacity(range.len());
        for (len, flags) in extents {
            assert_eq!(flags & !(alloc::HOLE | alloc::ZERO), 0, "unknown flags in {extents:?}");
            let len = index(*len).min(range.len() - told.len());
            let zero = (flags & alloc::ZERO != 0).then_some(0);
            told.extend(std::iter::repeat_n(zero, len));
        }
        told
    }

    /// What the file holds.
    fn in_file(&self, range: &Range<usize>) -> Vec<Option<u8>> {
        let Some((file, start)) = &self.ground.file else { return Vec::new() };
        let mut bytes = vec![0; range.len()];
        file.read_exact_at(&mut bytes, start + wide(range.start)).unwrap();
        bytes.into_iter().map(Some).collect()
    }

    fn judge(
        &self,
        request: &Request,
        range: &Range<usize>,
        expected: &[Expected],
        told: &[Option<u8>],
    ) {
        let judged = expected.iter().zip(told);
        let wrong = judged.enumerate().find_map(|(i, (expected, told))| {
            let byte = (*told)?;
            let right = match *expected {
                Expected::Common => true,
                Expected::Of(owner) => may_be(byte, owner),
                Expected::Is(value) => byte == value,
                Expected::Trimmed(value) => byte == value || byte == 0,
            };
            (!right).then_some(range.start + i)
        });
        let wrong_common = self.ground.common.end_read(range, told);
        let Some(at) = wrong.or(wrong_common) else { return };
        let i = at - range.start;
        let count = expected.iter().zip(told).filter(|(expected, told)| {
            matches!((expected, told), (Expected::Is(value), Some(byte)) if value != byte)
        });
        panic!(
            "client {}: byte {at} is said to be {:?} and must be {:?} ({} such bytes), by {request:?} \
             in mode {:?}; the last requests: {}",
            self.me,
            told[i],
            expected[i],
            count.count(),
            self.session.mode,
            self.history.join(", "),
        );
    }
}

/// Its bytes that are being changed may hold any of its values.
fn forget(expected: &mut [Expected], of: &Range<usize>, changed: &Range<usize>, me: usize) {
    let start = changed.start.max(of.start);
    for at in start..changed.end.min(of.end).max(start) {
        let byte = &mut expected[at - of.start];
        if matches!(byte, Expected::Is(_) | Expected::Trimmed(_)) {
            *byte = Expected::Of(me);
        }
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap()
}
