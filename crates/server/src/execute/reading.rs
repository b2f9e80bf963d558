//! Reads, piece by piece, by the map: a hole is sent as a hole, data in memory leave from their
//! place, and only the rest is read, elsewhere where that would wait.
//!
//! A reply that must be one piece (DF, and all without chunks) is one header and then the pieces in
//! order, with zeroes for holes. Data that a device refused to read at once may be behind a lock,
//! so they are never sent from their place: short data are read, at once or elsewhere, and for long
//! data the place is asked for, which is refused where there is a lock.

use std::sync::Arc;

use device::{Buffer, Extent, ExtentKind, Operation, Outcome, Place, Result};
use runtime::{Promised, promise, spawn};
use serving::Share;
use wire::{ReplyWriter, Request};

use super::elsewhere::{Ending, go_on, senseless, start};
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
}

/// What a device will answer; `None`: it was given up.
type Answer = Promised<Result<Outcome>>;

impl RequestRun<'_> {
    pub(super) fn read(&mut self) {
        let len = self.request.length;
        if len == 0 {
            return self.done();
        }
        if len <= GATHER {
            if !self.read_small() {
                self.read_elsewhere(None);
            }
            return;
        }
        if let Some(placed) = self.flat() {
            return self.reply(vec![Part::Placed(placed)]);
        }
        let known = look_up(self.served, &self.request);
        match known.map(|extents| parts(self.served, &extents, len <= LONG)).transpose() {
            Ok(Some(parts)) if parts.iter().all(Part::is_there) => self.reply(parts),
            Ok(Some(mut parts)) if matches!(parts[..], [Part::Missing(..)]) => {
                let Some(Part::Missing(_, _, room)) = parts.pop() else { return };
                self.read_elsewhere(room);
            }
            Ok(parts) => {
                let missing: u64 = parts.iter().flatten().map(Part::missing).sum();
                let bytes = if missing == 0 { len } else { missing };
                // The memory that it takes is counted with each part.
                let share = Share::take(&self.served.account, FLOOR);
                spawn(by_the_map(Ending::begin(self, bytes, Some(share)), parts));
            }
            Err(e) => self.failed(&e),
        }
    }

    /// Reads all of it in one piece.
    fn read_elsewhere(&mut self, room: Option<Room>) {
        let (offset, len) = (self.request.offset, self.request.length);
        let buffer = room.map_or_else(|| buffer(self.served, len), |(buffer, _)| buffer);
        Ending::begin(self, len, None).submit(Operation::Read { offset, buffer });
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
    (buffer(served, len), share)
}

fn buffer(served: &Served, len: u64) -> Buffer {
    served.buffers.take_whole(usize::try_from(len).unwrap_or(0))
}

impl Part {
    fn is_there(&self) -> bool {
        !matches!(self, Self::Missing(..))
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
            Part::Missing(..) => continue,
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

/// Answers a read of which parts are not there, or of which nothing is known (`None`). It goes on
/// where the last of what it waits for ends. Given up, it is answered with an error.
async fn by_the_map(ending: Ending, parts: Option<Vec<Part>>) {
    // Where the map was read, a thread may be kept as long as that takes.
    let may_stay = parts.is_none();
    let known = match parts {
        Some(parts) => Ok(parts),
        None => match learn(&ending).await {
            Some(known) => known,
            None => return,
        },
    };
    let read = match known {
        Ok(parts) => fetch(&ending, parts, may_stay).await,
        Err(e) => Some(Err(e)),
    };
    match read {
        Some(Ok(parts)) => {
            let pieces = encode(&ending.served, &ending.writer, &ending.request, parts);
            ending.end(pieces);
        }
        Some(Err(e)) => ending.finish(Err(e)),
        None => {}
    }
}

/// Asks for the map. If it cannot be read, all is data.
async fn learn(ending: &Ending) -> Option<Result<Vec<Part>>> {
    let Ending { served, request, .. } = ending;
    let most = served.edge.size().saturating_sub(request.offset);
    let len = served.known.lock().to_ask(request.length).min(most);
    let question = Operation::Resolve { offset: request.offset, len, max: READ_EXTENTS };
    let mut extents = Vec::new();
    if let Ok(Outcome::Extents(told)) = ask(ending, question, false).await? {
        served.known.lock().learn(len, &told);
        let (offset, end) = (request.offset, request.offset + request.length);
        extents = told.iter().map_while(|extent| extent.part(offset, end)).collect();
    }
    Some(parts(served, &whole(served, request, extents), true))
}

/// Reads what is missing, all of it at the same time.
async fn fetch(ending: &Ending, mut parts: Vec<Part>, may_stay: bool) -> Option<Result<Vec<Part>>> {
    let mut coming = Vec::new();
    for (i, part) in parts.iter_mut().enumerate() {
        if let Part::Missing(offset, len, had) = part {
            let (buffer, share) = had.take().unwrap_or_else(|| room(&ending.served, *len));
            let read = Operation::Read { offset: *offset, buffer };
            coming.push((i, *offset, share, ask(ending, read, may_stay)));
        }
    }
    if !coming.is_empty() {
        for part in &mut parts {
            if let Part::Placed(placed) = part {
                placed.waits();
            }
        }
    }
    let mut failed = None;
    for (i, offset, share, answer) in coming {
        match (answer.await?, parts.get_mut(i)) {
            (Ok(Outcome::Read(buffer)), Some(part)) if buffer.len() as u64 == part.missing() => {
                *part = Part::Data(offset, buffer, share);
            }
            (Err(e), _) => _ = failed.get_or_insert(e),
            _ => _ = failed.get_or_insert_with(senseless),
        }
    }
    Some(failed.map_or(Ok(parts), Err))
}

/// Starts an operation. The answer may be here already.
fn ask(ending: &Ending, operation: Operation, may_stay: bool) -> Answer {
    let (promise, answer) = promise();
    let done = Box::new(move |result| promise.keep(result));
    let start = if may_stay { go_on } else { start };
    start(&ending.served.edge, &ending.link, operation, done);
    answer
}
