//! Where the blocks of a VDI image lie.

use std::sync::Arc;

use device::{Edge, Result};
use runtime::Context;

use super::header::Header;
use super::write::Rooms;
use crate::kit::fields::{corrupt, le32, lies_within};
use crate::kit::{Atlas, Lies, Run, Runs, Table, WrittenFile};

/// A block that was never written, and one that was given up.
pub(super) const ABSENT: u64 = 0xffff_ffff;
pub(super) const GIVEN_UP: u64 = 0xffff_fffe;

/// Where the blocks lie.
pub(super) struct Map {
    pub(super) header: Header,
    pub(super) table: Table,
    container: Edge,
    pub(super) written: Option<Written>,
}

/// What an image that is written has besides.
pub(super) struct Written {
    pub(super) file: Arc<WrittenFile>,
    pub(super) rooms: Rooms,
}

impl Map {
    pub(super) fn new((container, context): (&Edge, &Context), header: Header) -> Result<Self> {
        let shape = (header.blocks, 4);
        let table = Table::new((container, context), "block map", header.map, shape, |b, at| {
            le32(b, at).into()
        })?;
        Ok(Self { header, table, container: container.clone(), written: None })
    }

    /// The same for an image that is written in `file`.
    pub(super) fn written(self, file: Arc<WrittenFile>, rooms: Rooms) -> Result<Self> {
        let (table, container) = (self.table.written(&file)?, file.edge.clone());
        Ok(Self { table, container, written: Some(Written { file, rooms }), ..self })
    }
}

impl Runs for Map {
    async fn run(&self, at: u64, len: u64, may_wait: bool) -> Result<Option<Run>> {
        let (block, within) = (at / self.header.block, at % self.header.block);
        let len = len.min(self.header.block - within);
        let Some(entry) = self.table.entry(block, may_wait).await? else { return Ok(None) };
        let lies = match entry {
            ABSENT | GIVEN_UP => Lies::Hole,
            index => {
                let there = self.header.place(index).ok_or_else(|| {
                    corrupt(format!("its block {block} lies nowhere: its number is {index}"))
                })?;
                lies_within(self.length(&self.container), "block", there + within, len)?;
                Lies::At(there + within)
            }
        };
        Ok(Some(Run { len, lies }))
    }
}

impl Atlas for Map {
    fn file(&self, _: u64) -> Option<(u16, &Edge)> {
        Some((0, &self.container))
    }

    fn length(&self, file: &Edge) -> u64 {
        let written = self.written.as_ref().map(|written| written.file.container.length());
        written.unwrap_or_else(|| file.info().size)
    }
}
