//! Making a qcow2 image: many threads fill it in any order, and it becomes valid at the end.
//!
//! Clusters are appended as they come, or have their place in a preallocated image or a data file.
//! Only a plain cluster is ever overwritten, by a new version of itself. Tables are kept in memory;
//! [`finish`] writes them after all data, and the header last, so an interrupted file is no valid
//! image.
//!
//! The parts: [`options`], [`layout`] (how large everything is, and where), [`clusters`] (where
//! each cluster is), [`packing`] and [`encoder`] (compressed clusters), [`writer`] (operations),
//! [`finish`], [`heading`], [`measure`]. [`upwards`] makes an image that goes into a pipe.

mod clusters;
mod encoder;
mod finish;
mod heading;
mod layout;
mod measure;
mod options;
mod packing;
mod remake;
#[cfg(test)]
mod tests;
mod upwards;
mod writer;

use std::sync::Arc;

use device::{Abilities, BlockSizes, Device, Edge, Info, Order, Result, ZeroFlags};
use runtime::{Gate, Mutex, MutexGuard, WorkPool};

use crate::format::{Creator, DiskMap, Making};
use crate::kit::Layered;
use crate::luks::inside::{NewEncryption, NewImageKey};
use crate::{Reference, Role};
use clusters::{Clusters, Room};
use layout::Shape;
use options::{CreateOptions, Qcow2Preallocation};
use packing::Packer;

pub(super) use encoder::{CompressionLevel, packed};

pub(crate) const CREATE: Creator = Creator {
    beside: None,
    options: options::OPTIONS,
    open,
    over: |making| making.backing(None),
    piped: upwards::piped,
    remake: Some(remake::remake),
    reads_zero: true,
    measure: measure::measure,
    measure_bitmaps: measure::bitmaps,
};

/// The least blocks of file systems, in bytes.
const SHARED: u32 = 4096;

/// An image that is being made.
struct NewImage {
    info: Info,
    options: CreateOptions,
    shape: Shape,
    container: Edge,
    /// The data file, if there is one.
    data: Option<Edge>,
    /// The container of the data: one of both, perhaps under encryption.
    home: Edge,
    key: Option<NewImageKey>,
    backing: Option<Edge>,
    placement: Placement,
    /// Unwritten ranges of the container read as zeroes.
    zeroed: bool,
    /// Write the header only after all else is durable.
    durable: bool,
    pool: WorkPool,
    /// Packers share it; a flush of the packed data holds it alone.
    packing: Arc<Gate>,
    state: Mutex<State>,
    /// Sharing ranges is worth trying.
    takes: std::sync::atomic::AtomicBool,
}

struct State {
    clusters: Clusters,
    room: Room,
    packer: Packer,
}

/// Where the clusters of the disk lie.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Placement {
    /// Wherever there is room, in order of arrival.
    Appended,
    /// In the order of the disk, from this offset.
    Fixed {
        /// In bytes.
        base: u64,
        /// The written clusters are tracked.
        marks: bool,
        /// All clusters have an entry, written or not.
        all: bool,
    },
}

fn open(container: Edge, making: &Making<'_>, map: DiskMap<'_>) -> Result<Arc<dyn Device>> {
    if container.info().order != Order::Any && upwards::piped(making)? {
        return upwards::open(container, making, map);
    }
    let options = CreateOptions::read(making.options, making.compress)?;
    let shape = Shape::new(&options, making.size)?;
    let backing = options.backing.as_deref().map(|name| {
        let format = options.backing_format.as_deref();
        making.files.open(&Reference { name, role: Role::Backing, format })
    });
    let backing = backing.transpose()?;
    heading::check(&options, shape)?;
    let data = options.data_file.as_deref().map(|name| making.files.create(name)).transpose()?;
    let image = NewImage::new(container, data, backing, options, shape, making)?;
    image.prepare()?;
    Ok(Layered::device(image))
}

impl NewImage {
    fn new(
        container: Edge,
        data: Option<Edge>,
        backing: Option<Edge>,
        options: CreateOptions,
        shape: Shape,
        making: &Making<'_>,
    ) -> Result<Self> {
        let full = options.preallocation == Qcow2Preallocation::Full;
        let all = options.preallocation != Qcow2Preallocation::Off;
        let placement = match (all, &data) {
            (false, None) => Placement::Appended,
            (_, data) => Placement::Fixed {
                base: match data {
                    Some(_) => 0,
                    None => shape.in_front()?.disk << shape.geometry.cluster_bits,
                },
                marks: full || backing.is_some() || !all,
                all,
            },
        };
        let key = options.encryption.as_ref().map(NewEncryption::key).transpose()?;
        let file = data.as_ref().unwrap_or(&container).clone();
        let home = match &key {
            Some(key) => key.decrypted(file, making.context)?,
            None => file,
        };
        // A part of a cluster can be written if the rest is known to be zero.
        let zeroed = making.zeroed || data.is_some();
        let whole = !zeroed || full || backing.is_some() || options.level.is_some();
        let whole = whole || key.is_some();
        let cluster = u32::try_from(shape.geometry.cluster()).unwrap_or(u32::MAX);
        let info = Info {
            blocks: BlockSizes {
                minimum: if whole { cluster } else { 1 },
                preferred: cluster.max(4096),
                ..BlockSizes::ANY
            },
            abilities: Abilities {
                write: true,
                flush: container.info().abilities.flush && home.info().abilities.flush,
                zero: shape.geometry.zeroes || backing.is_none(),
                fast_zero: shape.geometry.zeroes || backing.is_none(),
                // Whole blocks of a file system are shared: room that such small clusters would
                // lose to that is more than `measure` counts.
                take: options.level.is_none()
                    && home.info().abilities.take
                    && (cluster >= SHARED || data.is_some()),
                extents: true,
                whole_blocks: whole,
                ..Abilities::READ
            },
            ..Info::new(&*container.info().name, shape.size)
        };
        let mut room = Room::new(shape, container.info().size);
        if let Some(new) = &options.encryption {
            let first = room.take(new.len.div_ceil(shape.geometry.cluster()))?;
            debug_assert_eq!(first, 1, "where the header says");
        }
        let state = State { clusters: Clusters::new(shape), room, packer: Packer::new(shape) };
        Ok(Self {
            info,
            options,
            shape,
            container,
            data,
            home,
            key,
            backing,
            placement,
            zeroed,
            durable: making.durable,
            pool: making.context.pool.clone(),
            packing: Arc::default(),
            state: Mutex::new(state),
            takes: true.into(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The container of the data.
    fn home(&self) -> &Edge {
        &self.home
    }

    /// Makes sure that the old contents of the container are not taken for an image meanwhile, and
    /// preallocates space if asked to.
    fn prepare(&self) -> Result<()> {
        let cluster = self.shape.geometry.cluster();
        if !self.zeroed {
            let len = usize::try_from(cluster).unwrap_or(0);
            self.container.write(&vec![0; len], 0, false)?;
        }
        if let Some(key) = &self.key {
            key.write(&self.container, cluster)?;
        }
        let Placement::Fixed { base, all: true, .. } = self.placement else { return Ok(()) };
        let len = match self.data {
            Some(_) => self.shape.size,
            None => self.shape.disk() * cluster,
        };
        let keep = match self.options.preallocation {
            Qcow2Preallocation::Falloc => true,
            // No reader may find the old contents.
            Qcow2Preallocation::Metadata if !self.zeroed => false,
            _ => return Ok(()),
        };
        let flags = ZeroFlags { may_unmap: !keep, ..ZeroFlags::default() };
        if len > 0 { self.home().zero(base, len, flags) } else { Ok(()) }
    }

    /// The files that are written.
    fn files(&self) -> impl Iterator<Item = &Edge> {
        std::iter::once(&self.container).chain(&self.data)
    }
}
