//! `cache`: keeps blocks of a slow disk in a temporary file.
//!
//! No lock is held but on the blocks that an operation touches, and no thread waits: misses of
//! different blocks go below together, and several reads of one missing block share one read
//! below. Writes that were answered and are not below yet are dirty; a flush that succeeds means
//! that the device below has all of them and was flushed itself. Zeroes and trims go below at
//! once.

mod blocks;
mod recency;

use std::sync::{Arc, mpsc};

use device::{
    Abilities, Admitted, BlockSizes, Client, Done, Edge, Error, ErrorKind, Fault, Filter, Filtered,
    Info, Operation, Outcome, Params, Result, Wait, WorkPool, ZeroFlags, format_size, param,
    values,
};

use crate::store::{Exports, OnRead, Store, TempFile, block_size};
use crate::task::spawn;
use crate::{Complaints, Control, Kind, below};
use blocks::{Blocks, Limits};

pub(crate) const KIND: Kind = Kind {
    word: "cache",
    summary: "keeps blocks of a slow disk in a temporary file: what is written, prefetched or read",
    reads_only: false,
    params: &[
        param("cache", "writeback|writethrough|unsafe", "when to write below (default writeback)"),
        param("cache-min-block-size", "SIZE", "block of the cache, a power of two (default 64K)"),
        param("cache-max-size", "SIZE", "keep no more than this (default: no limit)"),
        param("cache-high-threshold", "PERCENT", "of the size: make room beyond (default 95)"),
        param("cache-low-threshold", "PERCENT", "of the size: room is made down to (default 80)"),
        param("cache-on-read", "true|false|/PATH", "keep what is read; PATH: while it exists"),
    ],
    example: "serve --filter=cache --filter=delay memory 1M rdelay=50ms cache-on-read=true \
              --run 'nbdcopy \"$uri\" null:'",
    open: |params, below, context| {
        let settings =
            Arc::new(Settings::read(params, &context.pool, context.control.complaints())?);
        let cache = Cache::new(settings, "", below, false);
        // Better now than at the first write.
        cache.inner.blocks.store().file.make()?;
        cache.save_at_the_end(&context.control);
        Ok(Filtered::device(cache))
    },
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
    caches: Exports<Blocks>,
}

impl Settings {
    fn read(params: &Params, pool: &WorkPool, complaints: Complaints) -> Result<Self> {
        let mode = match values::choice(params, "cache", &["writeback", "writethrough", "unsafe"])?
        {
            Some(1) => Mode::WriteThrough,
            Some(2) => Mode::Unsafe,
            _ => Mode::WriteBack,
        };
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
            caches: Exports::default(),
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
}

struct Cache {
    info: Info,
    inner: Inner,
    /// It is a client's own, and goes with the client.
    personal: bool,
}

impl Cache {
    fn new(settings: Arc<Settings>, export: &str, below: Edge, personal: bool) -> Self {
        let blocks = settings.caches.get(export, || {
            let store = Store::new(settings.block, &below, TempFile::new(&settings.pool));
            let limits = settings.limits(store.block());
            Blocks::new(store, limits)
        });
        let info = info(&below, blocks.store(), settings.mode);
        let inner = Inner { below, settings, blocks };
        Self { info, inner, personal }
    }

    fn save_at_the_end(&self, control: &Control) {
        let inner = self.inner.clone();
        control.on_end(move || {
            let (tx, rx) = mpsc::channel();
            spawn(async move {
                inner.end().await;
                // Whoever waits below waits for as long as this takes.
                let _ = tx.send(());
            });
            let _ = rx.recv();
        });
    }
}

impl Inner {
    /// Writes back what is left. There is nobody to tell but the user.
    async fn end(self) {
        let Settings { caches, complaints, .. } = &*self.settings;
        for blocks in caches.all() {
            blocks.parted().await;
            let saved = if Arc::ptr_eq(&blocks, &self.blocks) { self.save().await } else { Ok(()) };
            let dirty = blocks.dirty();
            match saved {
                Ok(()) if dirty == 0 => {}
                Ok(()) => complaints.add(lost(&self.below, dirty)),
                Err(e) => complaints.add(lost(&self.below, dirty).with_source(e)),
            }
        }
    }

    async fn save(&self) -> Result<()> {
        if self.blocks.dirty() == 0 {
            return Ok(());
        }
        self.blocks.save_all(&self.below).await?;
        below::flush(&self.below).await
    }

    async fn run(self, operation: Operation) -> Result<Outcome> {
        let Self { below, settings, blocks } = &self;
        let durable = settings.mode != Mode::Unsafe;
        match operation {
            Operation::Flush if durable => {
                blocks.save_all(below).await?;
                below::flush(below).await?;
            }
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
    let action = format!("cache: {} were not written back", format_size(dirty));
    Error::new(ErrorKind::Io, Fault::File, action).on(&below.info().name)
}

fn info(below: &Edge, store: &Store, mode: Mode) -> Info {
    let over = Info::over(below);
    let block = u32::try_from(store.block()).unwrap_or(BlockSizes::ANY.maximum);
    let blocks = BlockSizes { preferred: over.blocks.preferred.max(block), ..BlockSizes::ANY };
    let can = over.abilities;
    let is_unsafe = mode == Mode::Unsafe && can.write;
    let abilities = Abilities {
        flush: can.flush || is_unsafe,
        // Written through, and below made durable by whatever means it has.
        fua: can.fua || (can.flush && can.write) || is_unsafe,
        prefetch: true,
        ..can
    };
    Info { blocks, abilities, wait: Wait::Outside, ..over }
}

impl Filter for Cache {
    fn info(&self) -> &Info {
        &self.info
    }

    fn below(&self) -> &Edge {
        &self.inner.below
    }

    fn run(&self, operation: Operation, done: Done) {
        let inner = self.inner.clone();
        spawn(async move { done(inner.run(operation).await) });
    }

    fn for_client(&self, below: Edge, client: &Client) -> Self {
        Self::new(self.inner.settings.clone(), &client.export, below, true)
    }

    fn admit(&self, client: &Client, then: Admitted) {
        then(self.inner.settings.caches.admit(&client.export));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.personal {
            let complaints = self.inner.settings.complaints.clone();
            self.inner.blocks.part(self.inner.below.clone(), move |e| complaints.add(e));
        }
    }
}

#[cfg(test)]
mod tests;
