//! `luks`: the disk that is encrypted below, decrypted as it is read and encrypted as it is
//! written.
//!
//! It is the format of that name over any disk. All clients have one disk.

use crate::FilterKind;
use crate::kit::unpacked;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "luks",
    summary: "decrypts LUKS1 and LUKS2",
    params: formats::LUKS_PARAMS,
    reaches: |params| device::secret::reaches(params, formats::LUKS_PARAMS),
    example: "serve --filter=luks file disk.luks passphrase=+passphrase.txt --run 'nbdinfo --size \"$uri\"'",
    open: |params, below, context| unpacked::open_with("luks", params, below, context),
    ..FilterKind::PLAIN
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::model::Model;
    use device::{Blocking as _, Edge, Params};
    use formats::{Closed, Making, format};
    use runtime::{Context, WorkPool};
    use trial::Scratch;

    use crate::kit::tested::{blank, put, simple};

    #[test]
    fn what_is_encrypted_below_is_read_and_written() {
        let scratch = Scratch::new("/tmp");
        let key = scratch.file("key", b"open sesame\n");
        let word = format!("passphrase=+{}", key.display());
        let context = Context::new(WorkPool::new(2));
        let options = Params::parse([&*word, "iter-time=1"]).unwrap();
        let model = Arc::new(Model::new(3 << 20));
        let making = Making {
            size: 64 << 10,
            options: &options,
            compress: false,
            zeroed: true,
            durable: false,
            files: &Closed,
            context: &context,
        };
        let creator = format("luks").unwrap().create.unwrap();
        let container = Edge::new(simple(model.clone()), context.pool.clone());
        let made = (creator.open)(container, &making, &mut std::iter::empty()).unwrap();
        Edge::new(made.clone(), context.pool.clone()).write(&[7; 4096], 0, false).unwrap();
        made.finish().unwrap();

        let disk = put("luks", simple(model.clone()), &[&word]).unwrap();
        assert!(disk.info().abilities.write);
        disk.write(b"in place", 4000, true).unwrap();
        let mut back = [0; 100];
        disk.read(&mut back, 3999).unwrap();
        assert_eq!((back[0], &back[1..9], back[9]), (7, &b"in place"[..], 7));
        let mut all = vec![0; 3 << 20];
        model.read_at(&mut all, 0).unwrap();
        assert!(!all.windows(8).any(|bytes| bytes == b"in place"));
        assert!(put("luks", simple(model), &[]).is_err());
        assert!(put("luks", blank(4096), &[&word]).is_err());
    }
}
