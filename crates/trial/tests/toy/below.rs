//! What a toy image lies in.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::model::Model;
use device::{Edge, Params, Simple};
use devices::{Named, OpenOptions};
use runtime::{Context, WorkPool};
use trial::toy::{Toy, ToySettings};

/// How many kinds of [`Below`] there are.
pub(crate) const KINDS: usize = 8;

/// A place for disks of a test's own, gone when it is dropped.
pub(crate) struct Below {
    pool: WorkPool,
    directory: PathBuf,
    servers: Vec<server::Server>,
}

impl Below {
    pub(crate) fn new(pool: &WorkPool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("toy-{}-{number}", std::process::id());
        // On a disk, unless the build directory is in memory.
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir(&directory).unwrap();
        Self { pool: pool.clone(), directory, servers: Vec::new() }
    }

    fn open(&self, named: &Named) -> Edge {
        let options = OpenOptions { lock: false, ..OpenOptions::read_write() };
        let device = named.open(&options, &Context::new(self.pool.clone())).unwrap();
        Edge::new(device, self.pool.clone())
    }

    pub(crate) fn memory(&self, size: u64) -> Edge {
        self.open(&Named::parse(&format!("memory:{size}")).unwrap())
    }

    /// A file of zeroes of that name.
    pub(crate) fn file(&self, name: &str, size: u64) -> Edge {
        let path = self.directory.join(name);
        std::fs::File::create(&path).and_then(|file| file.set_len(size)).unwrap();
        self.open(&Named::parse(path.to_str().unwrap()).unwrap())
    }

    fn filtered(&self, below: Edge, word: &str, words: &[&str]) -> Edge {
        let params = Params::parse(words.iter().copied()).unwrap();
        filters::open(word, &params, below, &Context::new(self.pool.clone())).unwrap()
    }

    /// A client of a server of it. Both are in this process, and only the client is in our pool.
    pub(crate) fn served(&mut self, edge: Edge) -> Edge {
        let mut exports = server::Exports::new();
        let (name, description, read_only) = (String::new(), String::new(), false);
        assert!(exports.add(server::Export {
            name,
            description,
            edge,
            read_only,
            allow: server::Allowed::default()
        }));
        let listener = server::Listener::private().unwrap();
        let server::ListenAddress::Unix(path) = listener.place().clone() else {
            panic!("not Unix")
        };
        let options = server::Options { reactors: 1, ..server::Options::default() };
        self.servers.push(server::Server::start(exports, vec![listener], &options).unwrap());
        let mut params = Params::parse(std::iter::empty::<&str>()).unwrap();
        params.add("socket", path.to_str().unwrap());
        self.open(&Named::new(devices::kind("nbd").unwrap(), params).unwrap())
    }

    /// Two disks of zeroes of a kind.
    pub(crate) fn pair(&mut self, kind: usize, size: u64) -> [Edge; 2] {
        ["a", "b"].map(|name| match kind {
            0 => self.memory(size),
            1 => self.file(name, size),
            2 => self.served(Simple::shared_edge(memory(size), &WorkPool::new(1))),
            3 => self.filtered(self.file(name, size), "log", &["logfile=/dev/null"]),
            4 => self.filtered(self.file(name, size), "limit", &["limit=9"]),
            5 => self.filtered(self.memory(size), "error", &["error-rate=0"]),
            6 => {
                let files = [format!("{name}0"), format!("{name}1")];
                let files = files.map(|inner| self.file(&inner, 4 * size));
                Toy::create(files, None, size, ToySettings::default()).edge()
            }
            _ => {
                let files = [self.memory(4 * size), self.memory(4 * size)];
                Toy::create(
                    files,
                    None,
                    size,
                    ToySettings { cluster: 1024, ..ToySettings::default() },
                )
                .edge()
            }
        })
    }
}

fn memory(size: u64) -> Arc<Model> {
    Arc::new(Model::new(usize::try_from(size).unwrap()))
}

impl Drop for Below {
    fn drop(&mut self) {
        for server in self.servers.drain(..) {
            assert!(server.stop());
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
