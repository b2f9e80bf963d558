//! `cache`: keeps blocks of a slow disk in a temporary file.
//!
//! An operation locks only the blocks that it touches, and no thread waits: misses of different
//! blocks go below together, and several reads of one missing block share one read below. Blocks
//! with acknowledged writes that are not below yet are dirty. After a successful flush the device
//! below has all of them and was flushed itself. Zeroes and trims go below at once.
//!
//! Each disk has one cache, which its clients share, whatever name they asked for. A client with a
//! path of its own to the disk uses that path if the device promises that a flush over one path
//! covers all (multi-conn). Otherwise all clients use one path: a flush would not cover blocks
//! written back over another client's path, and readers need not see them.

mod blocks;
mod recency;

use runtime::{Complaints, Control, Mutex, Promised, WorkPool, promise, spawn};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};

use device::{
    Abilities, Arrival, BlockSizes, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered,
    Operation, Outcome, Over, Params, Result, ZeroFlags, format_size, param, values,
};

use crate::FilterKind;
use crate::kit::below;
use crate::kit::store::{OnRead, Store, TempFile, block_size};
use blocks::{Blocks, Limits};

const MODES: &str = "writeback|writethrough|unsafe";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "cache",
    summary: "caches blocks of a slow disk in a temporary file: written, prefetched or read data",
    params: &[
        param("cache", MODES, "when to write below (default writeback)"),
        param("cache-min-block-size", "SIZE", "block of the cache, a power of two (default 64K)"),
        param("cache-max-size", "SIZE", "keep no more than this (default: no limit)"),
        param("cache-high-threshold", "PERCENT", "of the size: make room beyond (default 95)"),
        param("cache-low-threshold", "PERCENT", "of the size: room is made down to (default 80)"),
        param("cache-on-read", "true|false|/PATH", "keep what is read; PATH: while it exists"),
    ],
    reaches: |_| crate::kit::store::TempFile::reach(),
    example: "serve --filter=cache --filter=delay memory 1M rdelay=50ms cache-on-read=true \
              --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings =
            Arc::new(Settings::read(params, &context.pool, context.control.complaints())?);
        let cache = Cache::new(settings, below.clone(), Standing::Base);
        // Fail now rather than at the first write.
        cache.inner.blocks.store().file.make()?;
        cache.save_at_the_end(&context.control);
        Ok(Filtered::device(cache, below))
    },
    ..FilterKind::PLAIN
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    WriteBack,
    WriteThrough,
    Unsafe,
}

struct Settings {
    mode: Mode,
    block: u64,
    max: Option<u64>,
    high: u64,
    low: u64,
    on_read: OnRead,
    pool: WorkPool,
    complaints: Complaints,
    /// The last write-backs of clients that have left.
    leaving: Mutex<Vec<Promised<()>>>,
}

impl Settings {
    fn read(params: &Params, pool: &WorkPool, complaints: Complaints) -> Result<Self> {
        let modes = [Mode::WriteBack, Mode::WriteThrough, Mode::Unsafe];
        let mode = values::meaning(params, "cache", MODES, modes)?.unwrap_or(Mode::WriteBack);
        let block = block_size(params, "cache-min-block-size")?;
        let max = values::size(params, "cache-max-size")?;
        if let (Some(..), Some(text)) = (max.filter(|m| *m < block), params.get("cache-max-size")) {
            return Err(values::not_a("cache-max-size", text, "at least a block"));
        }
        let high = values::number(params, "cache-high-threshold")?.unwrap_or(95);
        let low = values::number(params, "cache-low-threshold")?.unwrap_or(80);
        if !(1..high).contains(&low) || high > 100 {
            let why = format!("{low} and {high} are not 0 < low < high <= 100");
            return Err(values::wrong("cache-low-threshold, cache-high-threshold", why));
        }
        Ok(Self {
            mode,
            block,
            max,
            high,
            low,
            on_read: OnRead::read(params, "cache-on-read")?,
            pool: pool.clone(),
            complaints,
            leaving: Mutex::default(),
        })
    }

    fn limits(&self, block: u64) -> Option<Limits> {
        let max = (self.max? / block).max(1);
        let share = |percent: u64| max / 100 * percent + max % 100 * percent / 100;
        Some(Limits { max, high: share(self.high), low: share(self.low) })
    }
}

#[derive(Clone)]
struct Inner {
    below: Edge,
    settings: Arc<Settings>,
    blocks: Arc<Blocks>,
    /// For a client that shares the path below: how many failed flushes it has been told of.
    told: Option<Arc<AtomicU64>>,
}

struct Cache {
    inner: Inner,
    standing: Standing,
}

/// The owner of a cache, and what it shares with others.
enum Standing {
    /// The first of a disk, which stays to the end.
    Base,
    /// A client's, with a path of its own below.
    Beside,
    /// A client's, which uses the path of the first one and only keeps its own open.
    Over { _own: Edge },
    /// A client's, over another disk, with blocks of its own.
    Apart,
}

impl Cache {
    fn new(settings: Arc<Settings>, below: Edge, standing: Standing) -> Self {
        let store = Store::new(settings.block, &below, TempFile::new(&settings.pool));
        let limits = settings.limits(store.block());
        let blocks = Arc::new(Blocks::new(store, limits));
        Self { inner: Inner { below, settings, blocks, told: None }, standing }
    }

    fn save_at_the_end(&self, control: &Control) {
        let inner = self.inner.clone();
        let blocks = Arc::downgrade(&self.inner.blocks);
        control.on_owed(move || blocks.upgrade().map_or(0, |blocks| blocks.dirty()));
        control.on_end(move || {
            let (tx, rx) = mpsc::channel();
            spawn(async move {
                inner.end().await;
                // Operations below wait until this is done.
                let _ = tx.send(());
            });
            let _ = rx.recv();
        });
    }
}

impl Inner {
    /// Writes back the remaining dirty blocks. Failures can only go to the log.
    async fn end(self) {
        let leaving = std::mem::take(&mut *self.settings.leaving.lock());
        for answer in leaving {
            answer.await;
        }
        self.save_or_complain().await;
    }

    /// Writes back all dirty blocks and makes them durable.
    async fn save_or_complain(&self) {
        if self.blocks.dirty() == 0 && !self.blocks.owes_flush() {
            return;
        }
        let saved = self.blocks.flush(&self.below).await;
        let dirty = self.blocks.dirty();
        match saved {
            Ok(()) if dirty == 0 => {}
            Ok(()) => self.settings.complaints.add(lost(&self.below, dirty)),
            Err(e) => self.settings.complaints.add(lost(&self.below, dirty).with_source(e)),
        }
    }

    /// The client has left: writes dirty blocks back while its path exists. Blocks that stay dirty
    /// are left to the other clients, and in the end to the first cache.
    fn leave(&self, apart: bool) {
        if self.blocks.dirty() == 0 && !(apart && self.blocks.owes_flush()) {
            return;
        }
        let (owed, answer) = promise();
        let mut leaving = self.settings.leaving.lock();
        leaving.retain(|answer| !answer.is_here());
        leaving.push(answer);
        drop(leaving);
        let me = self.clone();
        spawn(async move {
            if apart {
                me.save_or_complain().await;
            } else {
                let _ = me.blocks.save_all(&me.below).await;
            }
            owed.keep(());
        });
    }

    async fn flush(&self) -> Result<()> {
        let flushed = self.blocks.flush(&self.below).await;
        let others = self.told.as_ref().map_or(Ok(()), |told| self.blocks.tell(told));
        flushed.and(others)
    }

    async fn run(self, operation: Operation) -> Result<Outcome> {
        let Self { below, settings, blocks, .. } = &self;
        let durable = settings.mode != Mode::Unsafe;
        match operation {
            Operation::Flush if durable => self.flush().await?,
            Operation::Flush => {}
            Operation::Prefetch { offset, len } => blocks.prefetch(below, offset, len).await?,
            Operation::Read { offset, buffer } => {
                let keep = settings.on_read.is_on();
                return blocks.read(below, offset, buffer, keep).await.map(Outcome::Read);
            }
            Operation::Resolve { offset, len, max } => {
                let extents = blocks.store().resolve(below, offset, len, max).await?;
                return Ok(Outcome::Extents(extents));
            }
            status @ Operation::Status { .. } => {
                // The answer below is true once dirty blocks are written back.
                blocks.save_all(below).await?;
                return below::ended(below::submit(below, status)).await;
            }
            Operation::Take { .. } => return Ok(Outcome::Taken(0)),
            Operation::Trim { offset, len, fua } => {
                blocks.trim(below, offset, len, fua && durable).await?;
            }
            Operation::Write { offset, data, fua } => {
                let through = settings.mode == Mode::WriteThrough;
                if through || (fua && durable) {
                    blocks.write_through(below, offset, data, fua, through).await?;
                } else {
                    blocks.write(below, offset, data).await?;
                }
            }
            Operation::Zero { offset, len, flags } => {
                if flags.fast_only && !below.info().abilities.fast_zero {
                    return Err(Error::not_fast().on(&below.info().name).at(offset));
                }
                let flags = ZeroFlags { fua: flags.fua && durable, ..flags };
                blocks.zero(below, offset, len, flags).await?;
            }
        }
        Ok(Outcome::Done)
    }
}

fn lost(below: &Edge, dirty: u64) -> Error {
    let action = match dirty {
        0 => "cache: write-backs are not known to be durable".to_owned(),
        n => format!("cache: {} were not written back", format_size(n)),
    };
    Error::new(ErrorKind::Io, Fault::File, action).on(&below.info().name)
}

impl Filter for Cache {
    fn describe(&self, over: &mut Over) {
        let (Inner { settings, blocks, .. }, info) = (&self.inner, &mut over.info);
        let block = u32::try_from(blocks.store().block()).unwrap_or(BlockSizes::ANY.maximum);
        let preferred = info.blocks.preferred.max(block);
        info.blocks = BlockSizes { preferred, ..BlockSizes::ANY };
        let can = info.abilities;
        let is_unsafe = settings.mode == Mode::Unsafe && can.write;
        info.abilities = Abilities {
            flush: can.flush || is_unsafe,
            // Written through, and made durable below by whatever means the device has.
            fua: can.fua || (can.flush && can.write) || is_unsafe,
            prefetch: true,
            observed: can.observed || settings.on_read.is_ever_on(),
            take: false,
            multi_conn: can.multi_conn && !matches!(self.standing, Standing::Apart),
            ..can
        };
    }

    fn keeps_bytes(&self) -> bool {
        true
    }

    fn run(&self, _: &Over, operation: Operation, done: Done) {
        let inner = self.inner.clone();
        below::complete(done, async move { inner.run(operation).await });
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        if !arrival.has_own_path {
            return None;
        }
        let (base, below) = (&self.inner, arrival.below.clone());
        if !base.blocks.store().fits(&below) {
            let own = Self::new(base.settings.clone(), below, Standing::Apart);
            return Some(Arc::new(own));
        }
        let cover = |edge: &Edge| edge.info().abilities.multi_conn;
        if cover(&below) && cover(&base.below) {
            let inner = Inner { below, ..base.clone() };
            return Some(Arc::new(Self { inner, standing: Standing::Beside }));
        }
        arrival.below = base.below.clone();
        let told = Some(Arc::new(AtomicU64::new(base.blocks.failures())));
        let standing = Standing::Over { _own: below };
        let inner = Inner { told, ..base.clone() };
        Some(Arc::new(Self { inner, standing }))
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        match self.standing {
            Standing::Base | Standing::Over { .. } => {}
            Standing::Beside => self.inner.leave(false),
            Standing::Apart => self.inner.leave(true),
        }
    }
}

#[cfg(test)]
mod tests;
