//! `tls-fallback`: shows clients without TLS a short disk that tells them to use TLS, never the one
//! below.
//!
//! It must be the first filter, with `--tls=on`. A copy by this program is no client, and sees the
//! disk below.

use std::sync::Arc;

use device::{
    Abilities, Blocking, Client, Connected, Device, Error, ErrorKind, Fault, Filter, Filtered,
    Info, Listed, Over, Passes, Result, Simple, param,
};
use runtime::{WorkPool, to_usize};

use crate::FilterKind;

pub(crate) const KIND: FilterKind = FilterKind {
    word: "tls-fallback",
    summary: "shows clients without TLS a message instead of the disk",
    keeps_disk: false,
    params: &[param("tlsreadme", "TEXT", "the message (default: to use TLS)")],
    example: "serve --filter=tls-fallback memory 1M --run 'nbdcopy \"$uri\" - | head -n 1'",
    open: |params, below, context| {
        let text = params.get("tlsreadme").unwrap_or(README);
        Ok(Filtered::device(TlsFallback(message(text, &context.pool)), below))
    },
    ..FilterKind::PLAIN
};

const README: &str =
    "This NBD server requires TLS authentication before it will serve useful data.\n";

/// Bytes of the disk with the message. A longer message is cut off.
const SECTOR: usize = 512;

/// A disk with a message.
struct Message {
    info: Info,
    bytes: Vec<u8>,
}

fn message(text: &str, pool: &WorkPool) -> Arc<dyn Device> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(SECTOR, 0);
    let abilities = Abilities { flush: true, ..Abilities::READ };
    let info = Info { abilities, ..Info::new("tls-fallback", bytes.len() as u64) };
    Simple::device(Message { info, bytes }, pool)
}

impl Blocking for Message {
    fn info(&self) -> &Info {
        &self.info
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let found = self.bytes.get(to_usize(offset)..).and_then(|rest| rest.get(..buf.len()));
        let beyond =
            || Error::new(ErrorKind::OutOfBounds, Fault::User, "read beyond the end").at(offset);
        buf.copy_from_slice(found.ok_or_else(beyond)?);
        Ok(())
    }

    fn write_at(&self, _data: &[u8], offset: u64, _fua: bool) -> Result<()> {
        let action = "write refused: the disk is for clients under TLS";
        Err(Error::new(ErrorKind::ReadOnly, Fault::User, action).at(offset))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

/// Its message.
struct TlsFallback(Arc<dyn Device>);

impl Filter for TlsFallback {
    fn describe(&self, over: &mut Over) {
        over.passes = Passes::ALL;
    }

    /// The device below does not learn of clients without TLS.
    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        match client.tls {
            Some(_) => over.below.device().connect(client, done),
            None => done(Ok(Some(self.0.clone()))),
        }
    }

    /// Nor do they hear of its names.
    fn list(&self, over: &Over, client: &Client, done: Listed) {
        match client.tls {
            Some(_) => over.below.device().list(client, done),
            None => done(Ok(vec![(String::new(), String::new())])),
        }
    }
}

#[cfg(test)]
mod tests {
    use device::Identity;
    use device::model::Model;

    use super::*;
    use crate::kit::tested::{client, connect, personal, put, simple};

    #[test]
    fn without_tls_there_is_only_a_message_and_under_tls_only_the_disk() {
        let model = Arc::new(Model::new(1 << 20));
        model.write_at(&[7; 1024], 0, false).unwrap();
        let disk = put("tls-fallback", simple(model), &[]).unwrap();
        let plain = personal(&disk, &client(1));
        assert_eq!(plain.info().size, 512);
        assert!(!plain.info().abilities.write && plain.info().flat.is_none());
        let mut text = [0; 512];
        plain.read(&mut text, 0).unwrap();
        assert!(text.starts_with(README.as_bytes()) && text.ends_with(&[0; 400]));
        assert!(plain.write(&[1], 0, false).is_err());
        let tls = Client { tls: Some(Arc::new(Identity::default())), ..client(2) };
        assert!(connect(&disk, &tls).unwrap().is_none(), "the disk below, as it is");
        disk.read(&mut text, 0).unwrap();
        assert_eq!(text, [7; 512]);
    }
}
