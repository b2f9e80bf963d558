//! What is below as the disk that is in it, packed or encrypted: the formats of that name know how.
//!
//! All clients have one disk, and what is below still lets each of them in, or does not.

use std::sync::Arc;

use device::{
    Client, Connected, Device, Done, Edge, Filter, Filtered, Info, Now, Operation, Over, Params,
    Passes, Result,
};
use formats::{Closed, Opening, format};
use runtime::Context;

/// The contents of the stream below, which has the format `word`. Nothing is decompressed to a
/// file; a stream that does not give its size is decompressed once now, to learn it.
///
/// # Errors
/// The data is no such stream, or is damaged.
pub(crate) fn open(word: &str, below: Edge, context: &Context) -> Result<Arc<dyn Device>> {
    open_with(word, &Params::default(), below, context)
}

/// The same with parameters of the format.
///
/// # Errors
/// They make no sense, too.
pub(crate) fn open_with(
    word: &str,
    params: &Params,
    below: Edge,
    context: &Context,
) -> Result<Arc<dyn Device>> {
    let opening = Opening { params, files: &Closed, context };
    let disk = (format(word)?.open)(below.clone(), &opening)?;
    let disk = Edge::new(disk, context.pool.clone());
    Ok(Filtered::device(Unpacked { stream: below }, disk))
}

/// Over what is in the stream.
struct Unpacked {
    stream: Edge,
}

impl Filter for Unpacked {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        let disk = over.below.device().clone();
        let admitted = move |own| {
            let device: Arc<dyn Device> = Arc::new(DiskAndPath { disk, _own: own });
            device
        };
        let then: Connected = Box::new(move |answer| done(answer.map(|own| own.map(admitted))));
        self.stream.device().connect(client, then);
    }
}

/// The disk for one client, which has a path of its own to the stream. The bytes do not come that
/// way, but as long as the client is there, it counts below.
struct DiskAndPath {
    disk: Arc<dyn Device>,
    _own: Arc<dyn Device>,
}

impl Device for DiskAndPath {
    fn info(&self) -> &Info {
        self.disk.info()
    }

    fn submit(&self, operation: Operation, done: Done) {
        self.disk.submit(operation, done);
    }

    fn now(&self, now: Now<'_>) -> Result<bool> {
        self.disk.now(now)
    }
}

#[cfg(test)]
mod tests {
    use device::Blocking as _;
    use device::model::Model;

    use crate::kit::tested::{client, connect, put, simple};

    /// `hello` as gzip packs it, stored.
    const PACKED: &[u8] =
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x01\x05\0\xfa\xffhello\x86\xa6\x10\x36\x05\0\0\0";

    fn below(word: &str, words: &[&str]) -> device::Edge {
        let model = Model::new(PACKED.len());
        model.write_at(PACKED, 0, false).unwrap();
        put(word, simple(std::sync::Arc::new(model)), words).unwrap()
    }

    #[test]
    fn a_client_that_is_refused_below_is_refused() {
        let disk = put("gzip", below("ip", &["deny=any"]).device().clone(), &[]).unwrap();
        assert_eq!(disk.info().size, 5);
        assert!(connect(&disk, &client(1)).is_err());
        let disk = put("gzip", below("ip", &["allow=any"]).device().clone(), &[]).unwrap();
        assert!(connect(&disk, &client(1)).is_ok());
    }

    #[test]
    fn a_client_counts_below_for_as_long_as_it_is_there() {
        let disk = put("gzip", below("limit", &["limit=1"]).device().clone(), &[]).unwrap();
        let one = connect(&disk, &client(1)).unwrap().unwrap();
        let mut hello = [0; 5];
        disk.beside(one.clone()).read(&mut hello, 0).unwrap();
        assert_eq!(&hello, b"hello");
        assert!(connect(&disk, &client(2)).is_err());
        drop(one);
        assert!(connect(&disk, &client(3)).is_ok());
    }
}
