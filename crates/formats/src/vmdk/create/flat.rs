//! monolithicFlat: a descriptor, and a file of plain bytes beside it.
//!
//! Writes go to that file unchanged; the descriptor is written last.

use std::sync::Arc;

use device::{Buffer, Device, Done, Edge, Error, Info, Now, Operation, Outcome, Result, Window};

use super::text::Text;
use super::{Making, Settings};

struct Flat {
    info: Info,
    file: Edge,
    container: Edge,
    descriptor: Vec<u8>,
    durable: bool,
}

pub(super) fn open(
    container: Edge,
    making: &Making<'_>,
    settings: &Settings,
) -> Result<Arc<dyn Device>> {
    let name = making.files.name();
    let name = name.ok_or_else(|| {
        Error::unsupported("make a file beside it for the bytes: its name is not known")
    })?;
    let name = name_beside(name.rsplit('/').next().unwrap_or(&name));
    let text = Text { settings, size: making.size, parent_cid: None, extent: ("FLAT", &name) };
    let descriptor = text.bytes()?;
    let file = making.files.create(&name)?;
    // Unwritten ranges are holes.
    file.device().resize(making.size.next_multiple_of(512))?;
    let info = Info {
        name: container.info().name.clone(),
        size: making.size,
        flat: None,
        ..file.info().clone()
    };
    let flat = Flat { info, file, container, descriptor, durable: making.durable };
    Ok(Arc::new(flat))
}

/// `disk-flat.vmdk` for `disk.vmdk`.
pub(super) fn name_beside(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() => format!("{stem}-flat.{ending}"),
        _ => format!("{name}-flat"),
    }
}

impl Device for Flat {
    fn info(&self) -> &Info {
        &self.info
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.file.submit(operation, done);
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        match now {
            Now::Read { offset, buffer } => self.file.read_now(buffer, offset),
            Now::Resolve { offset, len, max, out } => self.file.resolve_now(offset, len, max, out),
            Now::Write { offset, data, fua } => self.file.write_now(data, offset, fua),
        }
    }

    fn window(&self, offset: u64, len: usize) -> Option<Window> {
        self.file.window(offset, len)
    }

    fn finish(&self) -> Result<()> {
        self.file.device().resize(self.info.size.next_multiple_of(512))?;
        self.file.device().finish()?;
        if self.durable {
            self.file.flush()?;
        }
        let data = Buffer::copy_of(&self.descriptor).into();
        match self.container.run(Operation::Write { offset: 0, data, fua: false })? {
            Outcome::Done => {}
            _ => return Err(crate::kit::confused()),
        }
        self.container.device().resize(self.descriptor.len() as u64)?;
        self.container.device().finish()?;
        if self.durable { self.container.flush() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_beside_is_called_as_qemu_calls_it() {
        for (name, beside) in [
            ("disk.vmdk", "disk-flat.vmdk"),
            ("a.b.vmdk", "a.b-flat.vmdk"),
            ("disk", "disk-flat"),
            (".vmdk", ".vmdk-flat"),
        ] {
            assert_eq!(name_beside(name), beside);
        }
    }
}
