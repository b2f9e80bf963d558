//! `serve` as a service: messages to the service manager, reloading, listening sockets, its
//! configuration, and the units that are shipped.

mod check;
mod configured;
mod listeners;
mod logging;
mod notify;
mod reload;
mod units;

use std::fs;
use std::path::PathBuf;

use blackbox::haggle::Haggler;
use blackbox::run::{Job, ours};
use blackbox::socket::Socket;
use blackbox::temp::TempDir;
use blackbox::{eventually, line_with};

/// A server that is started by a configuration, listens on a Unix socket and logs into a file.
struct Service {
    job: Job,
    temp: TempDir,
}

impl Service {
    /// Starts it with this configuration, in which `%D` is its directory, and these options;
    /// `socket` is where to look whether it is ready.
    fn start(config: &str, options: &[&str]) -> Self {
        let temp = TempDir::new();
        write_config(&temp, config);
        let mut command = ours(["serve", "-v", "--config"]);
        command.arg(temp.join("config")).arg("--log").arg(temp.join("log")).args(options);
        let service = Self { job: Job::start(&mut command), temp };
        eventually("the server is ready", || service.connect());
        service
    }

    fn socket(&self) -> PathBuf {
        self.temp.join("s")
    }

    fn connect(&self) -> Option<Socket> {
        Socket::unix(&self.socket()).ok()
    }

    fn haggle(&self) -> Haggler {
        Haggler::new(self.connect().unwrap())
    }

    /// The names that a client sees in a list.
    fn names(&self) -> Vec<String> {
        self.haggle().list().into_iter().map(|(name, _)| name).collect()
    }

    fn configure(&self, config: &str) {
        write_config(&self.temp, config);
    }

    /// Has it reload, and waits until the log has these words.
    fn reload(&self, words: &str) -> String {
        self.job.signal(rustix::process::Signal::HUP);
        self.line(words)
    }

    /// Waits for a line of the log with these words.
    fn line(&self, words: &str) -> String {
        line_with(&self.temp.join("log"), words)
    }

    /// Asks it to end, and waits until it did.
    fn stop(self) {
        self.job.signal(rustix::process::Signal::TERM);
        self.job.wait().succeeded();
    }
}

fn write_config(temp: &TempDir, config: &str) {
    let text = config.replace("%D", &temp.path().display().to_string());
    // As an editor does it: under another name, and then the name is changed.
    fs::rename(temp.file("config.new", text.as_bytes()), temp.join("config")).unwrap();
}
