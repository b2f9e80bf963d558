//! Reads, piece by piece, by the map: a hole is sent as a hole, data in memory leave from their
//! place, and only the rest is read, elsewhere where that would wait.
//!
//! A reply that must be one piece (DF, and all without chunks) is one header and then the pieces in
//! order, with zeroes for holes. Data that a device refused to read at once may be behind a lock,
//! so they are never sent from their place: short data are read, at once or elsewhere, and for long
//! data the place is asked for, which is refused where there is a lock.

use std::sync::Arc;

use device::{
    Buffer, Done, Error, ErrorKind, Extent, ExtentKind, Fault, Operation, Outcome, Place, Result,
};
use runtime::Mutex;
use serving::Share;
use wire::{ReplyWriter, Request};

use super::elsewhere::{Ending, go_on, start};
use super::zeroes::zeroes;
use super::{FLOOR, LONG, RequestRun, Served};
use crate::link::{Out, Placed};

/// Data up to this many bytes are copied into the reply; longer ones leave from their place. An
/// estimate, not a measurement: a copy of a few pages against a second system call.
const GATHER: u64 = 24 << 10;
/// Reads at least this long are looked up in the map, so that holes are not sent.
const LOOK: u64 = 32 << 10;
/// Extents looked up for one read.
const READ_EXTENTS: usize = 64;

/// Memory, counted.
type Room = (Buffer, Share);

/// A part of a reply to a read.
enum Part {
    /// A hole, or what else reads as zeroes: offset and length.
    Zeroes(u64, u64),
    Placed(Placed),
    Data(u64, Buffer, Share),
    /// To be read: offset, length, and the memory for it if there is some already.
    Missing(u64, u64, Option<Room>),
    /// Being read: offset and length.
    UnderWay(u64, u64, Share),
}

impl RequestRun<'_> {
    pub(super) fn read(&mut self) {
        let (offset, len) = (self.request.offset, self.request.length);
        if len == 0 {
            return self.done();
        }
        if len <= GATHER {
            if !self.read_small() {
                Reading::begin(self, vec![Part::Missing(offset, len, None)]).read(false);
            }
            return;
        }
        if let Some(placed) = self.flat() {
            return self.reply(vec![Part::Placed(placed)]);
        }
        let Some(extents) = look_up(self.served, &self.request) else {
            return Reading::begin(self, Vec::new()).look_up();
        };
        match parts(self.served, &extents, len <= LONG) {
            Ok(parts) if parts.iter().all(Part::is_there) => self.reply(parts),
            Ok(parts) => Reading::begin(self, parts).read(false),
            Err(e) => self.failed(&e),
        }
    }

    /// A reply that must be one piece, if all of it is in memory in one place: then a map saves
    /// nothing.
    fn flat(&self) -> Option<Placed> {
        let (offset, len) = (self.request.offset, self.request.length);
        if self.writer.may_fragment() || self.served.session.tls {
            return None;
        }
        let place = flat(self.served, offset).filter(|p| p.is_resident(len))?;
        Some(Placed::new(place, len, self.served, offset))
    }

    fn reply(&mut self, parts: Vec<Part>) {
        let pieces = encode(self.served, &self.writer, &self.request, parts);
        let mut pieces = pieces.into_iter().peekable();
        // The first header goes with what is gathered.
        if let Some(Out::Bytes(first)) = pieces.next_if(|piece| matches!(piece, Out::Bytes(_))) {
            self.gather.put(self.link, |out| out.extend_from_slice(&first));
        }
        if pieces.peek().is_some() {
            self.gather.put_pieces(self.link, pieces);
        }
    }

    /// Reads into the gathered reply. False: that would have to wait.
    fn read_small(&mut self) -> bool {
        let (edge, writer, r) = (&self.served.edge, self.writer, self.request);
        let Ok(len) = u32::try_from(r.length) else { return false };
        let header = |out: &mut Vec<u8>| writer.read_data(r.offset, len, true, out);
        let header = (writer.read_data_header_len(), header);
        let read = self
            .gather
            .put_filled(self.link, header, len as usize, |buffer| edge.read_now(buffer, r.offset));
        read.unwrap_or_else(|e| {
            self.failed(&e);
            true
        })
    }
}

/// The map of a read's range, if holes are worth looking for; otherwise all of it as data. `None`:
/// it cannot be read without waiting.
fn look_up(served: &Served, r: &Request) -> Option<Vec<Extent>> {
    let mut extents = Vec::new();
    let abilities = served.edge.info().abilities;
    if r.length >= LOOK
        && abilities.extents
        && !abilities.observed
        && !served.known.lock().has(r.offset, r.length)
    {
        match served.edge.resolve_now(r.offset, r.length, READ_EXTENTS, &mut extents) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(_) => extents.clear(),
        }
    }
    Some(whole(served, r, extents))
}

/// Where `offset` lies, if all of the device lies in one file.
fn flat(served: &Served, offset: u64) -> Option<Place> {
    Some(served.edge.info().flat.as_ref()?.advanced(offset))
}

/// The known extents of a range, and the rest of it as data.
fn whole(served: &Served, r: &Request, mut extents: Vec<Extent>) -> Vec<Extent> {
    let end = r.offset + r.length;
    let known = extents.last().map_or(r.offset, Extent::end);
    if known < end {
        let place = flat(served, known);
        let rest = Extent::new(known, end - known, ExtentKind::Data).at(place);
        device::merge_extent(&mut extents, rest);
    }
    extents
}

/// How each extent is sent, as far as that can be decided at once. `may_read`: reads what can be
/// read without waiting. Missing parts that adjoin are read in one piece.
fn parts(served: &Arc<Served>, extents: &[Extent], may_read: bool) -> Result<Vec<Part>> {
    let mut parts = Vec::with_capacity(extents.len());
    for extent in extents {
        match (part(served, extent, may_read)?, parts.last_mut()) {
            (Part::Missing(start, more, _), Some(Part::Missing(first, len, room)))
                if *first + *len == start =>
            {
                (*len, *room) = (*len + more, None);
            }
            (part, _) => parts.push(part),
        }
    }
    Ok(parts)
}

fn part(served: &Arc<Served>, extent: &Extent, may_read: bool) -> Result<Part> {
    let (start, len) = (extent.start, extent.len);
    if extent.kind.reads_zero() {
        return Ok(Part::Zeroes(start, len));
    }
    // Under TLS nothing leaves from its place, so it is read before it is queued.
    match extent.place.as_ref().filter(|_| len > GATHER && !served.session.tls) {
        Some(place) if place.is_resident(len) => {
            Ok(Part::Placed(Placed::new(place.clone(), len, served, start)))
        }
        None if may_read => {
            let (mut buffer, share) = room(served, len);
            if served.edge.read_now(&mut buffer, start)? {
                return Ok(Part::Data(start, buffer, share));
            }
            Ok(Part::Missing(start, len, Some((buffer, share))))
        }
        _ => Ok(Part::Missing(start, len, None)),
    }
}

/// Memory for `len` bytes.
fn room(served: &Served, len: u64) -> Room {
    let share = Share::take(&served.account, len);
    (served.buffers.take(usize::try_from(len).unwrap_or(0)), share)
}

impl Part {
    fn is_there(&self) -> bool {
        !matches!(self, Self::Missing(..) | Self::UnderWay(..))
    }

    /// Whether it is being read, and how many bytes are to come.
    fn is_of(&self, bytes: u64) -> bool {
        matches!(self, Self::UnderWay(_, len, _) if *len == bytes)
    }

    /// Bytes of memory that are to be filled.
    fn missing(&self) -> u64 {
        if let Self::Missing(_, len, _) = self { *len } else { 0 }
    }
}

/// A whole reply. Parts that are missing are not in it.
fn encode(served: &Arc<Served>, writer: &ReplyWriter, r: &Request, parts: Vec<Part>) -> Vec<Out> {
    let mut pieces = Vec::with_capacity(2 * parts.len() + 1);
    let mut head = Vec::with_capacity(64);
    let narrow = |len: u64| u32::try_from(len).unwrap_or(u32::MAX);
    let one_piece = !writer.may_fragment();
    if one_piece {
        writer.read_data(r.offset, narrow(r.length), true, &mut head);
    }
    let end = r.offset + r.length;
    for part in parts {
        let (start, out) = match part {
            Part::Zeroes(start, len) if one_piece => (start, zero_bytes(served, start, len)),
            Part::Zeroes(start, len) => {
                writer.read_hole(start, narrow(len), start + len == end, &mut head);
                continue;
            }
            Part::Placed(placed) => (placed.offset(), Out::Place(placed)),
            Part::Data(start, buffer, share) => (start, Out::Data(buffer, share)),
            Part::Missing(..) | Part::UnderWay(..) => continue,
        };
        if !one_piece {
            let last = start + out.len() == end;
            writer.read_data(start, narrow(out.len()), last, &mut head);
        }
        if !head.is_empty() {
            pieces.push(Out::Bytes(std::mem::take(&mut head)));
        }
        pieces.push(out);
    }
    if !head.is_empty() {
        pieces.push(Out::Bytes(head));
    }
    pieces
}

/// Zeroes to send.
fn zero_bytes(served: &Arc<Served>, start: u64, len: u64) -> Out {
    if !served.session.tls
        && let Some(place) = zeroes(len)
    {
        return Out::Place(Placed::new(place, len, served, start));
    }
    let share = Share::take(&served.account, len);
    Out::Data(Buffer::zeroed(usize::try_from(len).unwrap_or(0)), share)
}

/// A read of which parts are read elsewhere.
struct Reading {
    ending: Ending,
    parts: Vec<Part>,
    /// Parts being read.
    left: usize,
    failed: Option<Error>,
}

impl Reading {
    fn begin(run: &mut RequestRun<'_>, parts: Vec<Part>) -> Self {
        let bytes = match parts.iter().map(Part::missing).sum() {
            0 => run.request.length,
            bytes => bytes,
        };
        // The memory that it takes is counted with each part.
        let share = Share::take(&run.served.account, FLOOR);
        Self { ending: Ending::begin(run, bytes, Some(share)), parts, left: 0, failed: None }
    }

    /// Asks for the map, then reads what is data.
    fn look_up(self) {
        let Ending { served, link, request, .. } = &self.ending;
        let (edge, link, offset) = (served.edge.clone(), link.clone(), request.offset);
        let most = edge.info().size.saturating_sub(offset);
        let len = served.known.lock().to_ask(request.length).min(most);
        let resolve = Operation::Resolve { offset, len, max: READ_EXTENTS };
        start(&edge, &link, resolve, Box::new(move |result| self.looked_up(len, result)));
    }

    /// The map of `len` bytes is there, or could not be read.
    fn looked_up(mut self, len: u64, result: Result<Outcome>) {
        let Ending { served, request, .. } = &self.ending;
        let mut extents = Vec::new();
        if let Ok(Outcome::Extents(told)) = result {
            served.known.lock().learn(len, &told);
            let (offset, end) = (request.offset, request.offset + request.length);
            extents = told.iter().map_while(|extent| extent.part(offset, end)).collect();
        }
        match parts(served, &whole(served, request, extents), true) {
            Ok(parts) => {
                self.parts = parts;
                self.read(true);
            }
            Err(e) => self.ending.finish(Err(e)),
        }
    }

    /// Reads what is missing; `may_stay`: on a thread that may be kept as long as that takes.
    fn read(mut self, may_stay: bool) {
        let mut reads = Vec::new();
        for (i, slot) in self.parts.iter_mut().enumerate() {
            let part = std::mem::replace(slot, Part::Zeroes(0, 0));
            *slot = match part {
                Part::Missing(offset, len, had) => {
                    let (buffer, share) = had.unwrap_or_else(|| room(&self.ending.served, len));
                    reads.push((i, Operation::Read { offset, buffer }));
                    Part::UnderWay(offset, len, share)
                }
                other => other,
            };
        }
        self.left = reads.len();
        if reads.is_empty() {
            return self.end();
        }
        for part in &mut self.parts {
            if let Part::Placed(placed) = part {
                placed.waits();
            }
        }
        let (edge, link) = (self.ending.served.edge.clone(), self.ending.link.clone());
        let reading = Arc::new(Mutex::new(Some(self)));
        for (i, read) in reads {
            let reading = reading.clone();
            let done: Done = Box::new(move |result| Self::arrived(&reading, i, result));
            if may_stay {
                go_on(&edge, &link, read, done);
            } else {
                start(&edge, &link, read, done);
            }
        }
    }

    /// A part was read, or could not be. The last one ends the request.
    fn arrived(reading: &Mutex<Option<Self>>, i: usize, result: Result<Outcome>) {
        let mut lock = reading.lock();
        let Some(me) = &mut *lock else { return };
        match (result, me.parts.get_mut(i)) {
            (Ok(Outcome::Read(buffer)), Some(slot)) if slot.is_of(buffer.len() as u64) => {
                let part = std::mem::replace(slot, Part::Zeroes(0, 0));
                if let Part::UnderWay(offset, _, share) = part {
                    *slot = Part::Data(offset, buffer, share);
                }
            }
            (Err(e), _) => _ = me.failed.get_or_insert(e),
            _ => {
                let action = "read: the device gave an answer that makes no sense";
                me.failed = Some(Error::new(ErrorKind::Io, Fault::Us, action));
            }
        }
        me.left -= 1;
        let ended = if me.left == 0 { lock.take() } else { None };
        drop(lock);
        if let Some(me) = ended {
            me.end();
        }
    }

    fn end(self) {
        if let Some(e) = self.failed {
            return self.ending.finish(Err(e));
        }
        let Ending { served, writer, request, .. } = &self.ending;
        let pieces = encode(served, writer, request, self.parts);
        self.ending.end(pieces);
    }
}
