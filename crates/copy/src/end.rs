//! One end of a worker's pair: a lane to a device, its own or made from the blocking face.
//!
//! What the device takes as it is goes to the lane; what does not lie on its blocks goes through
//! the edge, which reads and rewrites them. A refused zero comes back as `Unsupported`, so that
//! the caller can write zeroes in pieces that it can stop between.

use std::os::fd::BorrowedFd;

use device::{Completed, Edge, Interest, Lane, LaneStep, Operation, Result, SubmitLane, Wait};

pub(crate) struct End {
    edge: Edge,
    lane: Option<Box<dyn Lane>>,
    ended: Vec<Completed>,
}

impl End {
    pub(crate) fn open(edge: &Edge) -> Result<Self> {
        let own = edge.device().lane().map_err(|e| e.on(&edge.info().name))?;
        let lane = match (own, edge.info().wait) {
            (Some(lane), _) => Some(lane),
            (None, Wait::Outside) => Some(Box::new(SubmitLane::new(edge.clone())?) as Box<_>),
            (None, Wait::Never | Wait::Disk) => None,
        };
        Ok(Self { edge: edge.clone(), lane, ended: Vec::new() })
    }

    /// Whether operations end before `start` returns.
    pub(crate) fn is_inline(&self) -> bool {
        self.lane.is_none()
    }

    pub(crate) fn start(&mut self, ticket: u64, operation: Operation) {
        let outcome = if self.fits(&operation) {
            match &mut self.lane {
                Some(lane) => return lane.start(ticket, operation),
                None => self.edge.device().run_blocking(operation),
            }
        } else {
            self.edge.run(operation)
        };
        self.ended.push(Completed { ticket, outcome });
    }

    /// Appends what has ended to `out`; whether anything moved.
    pub(crate) fn turn(&mut self, out: &mut Vec<Completed>) -> bool {
        let mut moved = !self.ended.is_empty();
        out.append(&mut self.ended);
        if let Some(lane) = &mut self.lane {
            let before = out.len();
            moved |= lane.turn(out) == LaneStep::Progress || out.len() > before;
        }
        moved
    }

    pub(crate) fn waits_on(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        self.lane.as_ref().and_then(|lane| lane.waits_on())
    }

    /// Gives the lane back.
    pub(crate) fn close(&mut self) {
        self.lane = None;
    }

    /// Whether the device takes the operation as it is.
    fn fits(&self, operation: &Operation) -> bool {
        let info = self.edge.info();
        let (min, size) = (u64::from(info.blocks.minimum), info.size);
        let (offset, len, longest) = match operation {
            Operation::Read { offset, buffer } => {
                (*offset, buffer.len() as u64, u64::from(info.blocks.maximum))
            }
            Operation::Write { offset, data, fua: false } => {
                (*offset, data.len() as u64, u64::from(info.blocks.maximum))
            }
            Operation::Zero { offset, len, flags } if !flags.fua => (*offset, *len, u64::MAX),
            Operation::Resolve { offset, len, .. } => (*offset, *len, u64::MAX),
            Operation::Flush => return true,
            _ => return false,
        };
        let inside = offset <= size && len <= size - offset;
        inside && offset.is_multiple_of(min) && len.is_multiple_of(min) && len <= longest
    }
}
