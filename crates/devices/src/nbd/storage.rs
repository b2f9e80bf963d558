//! Which export of which server is named, however it is spelled.

use std::ffi::OsStr;
use std::net::ToSocketAddrs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use device::Params;
use runtime::Patience;
use wire::Transport;

use crate::OpenOptions;
use crate::nbd::params::NbdParams;
use crate::storage::{Storage, StoredExport, StoredServer};

/// What the parameters of `nbd` name. A host's name is looked up.
pub(crate) fn storage(params: &Params) -> Storage {
    let named = NbdParams::parse(params, &OpenOptions::default(), Patience::default())
        .ok()
        .and_then(|wanted| {
            let client::ServerSpec::Address(uri) = wanted.target.server else { return None };
            Some(StoredExport { server: server(&uri.transport)?, name: wanted.target.export })
        });
    named.map_or(Storage::Unknown, Storage::Export)
}

fn server(transport: &Transport) -> Option<StoredServer> {
    Some(match transport {
        Transport::Tcp { host, port } => {
            StoredServer::Tcp((host.as_str(), *port).to_socket_addrs().ok()?.collect())
        }
        Transport::Unix { path } => {
            let found = std::fs::metadata(Path::new(OsStr::from_bytes(path))).ok()?;
            StoredServer::Unix(found.dev(), found.ino())
        }
        Transport::UnixAbstract { name } => StoredServer::Abstract(name.clone()),
        Transport::Vsock { cid, port } => StoredServer::Vsock(*cid, *port),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Relation;

    fn of(words: &[&str]) -> Storage {
        storage(&Params::parse(words.iter().copied()).unwrap())
    }

    #[test]
    fn an_export_is_the_same_in_another_spelling() {
        let same = |a: &[&str], b: &[&str]| of(a).relation(&of(b)) == Relation::Same;
        assert!(same(&["uri=nbd://127.0.0.1/x"], &["host=127.0.0.1", "port=10809", "export=x"]));
        assert!(same(&["uri=nbd://localhost:99/"], &["uri=nbd+tcp://LOCALHOST:99"]));
        assert!(!same(&["uri=nbd://127.0.0.1/x"], &["uri=nbd://127.0.0.1/y"]));
        assert!(!same(&["uri=nbd://127.0.0.1/x"], &["uri=nbd://127.0.0.2/x"]));
        assert!(same(&["socket=@s", "export=x"], &["uri=nbd+unix:///x?socket=%00s"]));
        assert!(!same(&["socket=/nonexistent"], &["socket=/nonexistent"]), "that is not known");
        let path = std::env::temp_dir();
        let spelled = format!("socket={}/.", path.display());
        assert!(same(&[&format!("socket={}", path.display())], &[&spelled]));
        assert!(!same(&["command=a"], &["command=a"]), "two servers");
    }
}
