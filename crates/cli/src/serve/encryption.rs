//! TLS of `serve`: certificates and keys, in nbdkit's words, and what `--run` and URIs say about
//! it.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{ArgMatches, Command, ValueHint, value_parser};
use server::tls::{Acceptor, Serving};
use wire::ServerTls;

use crate::arguments::{flag, value};
use crate::failure::Failure;

pub(super) fn arguments(command: Command) -> Command {
    let path = |spelled, help| {
        value(spelled, help).value_parser(value_parser!(PathBuf)).value_hint(ValueHint::AnyPath)
    };
    command
        .next_help_heading("Encryption and access")
        .arg(
            value("--tls WHEN", "Whether clients may or must encrypt [default: require with one of these, else off]")
                .value_parser(when())
                .ignore_case(true),
        )
        .arg(path("--tls-certificates DIR", "Show a certificate: server-cert.pem, server-key.pem, ca-cert.pem in DIR",
        ))
        .arg(value("--tls-priority WORD", "Taken for nbdkit: NORMAL or SECURE128, which all ciphers here are; there is no other choice")
            .value_parser(["NORMAL", "SECURE128"])
            .hide_possible_values(true))
        .arg(flag("--tls-verify-peer", "Clients need a certificate signed by ca-cert.pem; those with a key (--tls-psk) need none"))
        .arg(
            path("--tls-psk FILE", "Clients need a key from FILE, or from a variable (-env:NAME): \
                                    lines USER:HEXADECIMAL")
                .conflicts_with("tls-certificates"),
        )
}

/// The words of `--tls`: nbdkit takes those for true and false, too.
fn when() -> PossibleValuesParser {
    let word = |word: &'static str, more: &[&'static str]| {
        PossibleValue::new(word).aliases(more.iter().copied())
    };
    PossibleValuesParser::new([
        word("off", &["no", "n", "false", "f", "0"]),
        word("on", &["yes", "y", "true", "t", "1"]),
        word("require", &["required", "force"]),
    ])
}

/// What a word of `--tls` means.
fn meant(word: &str) -> ServerTls {
    match word.to_ascii_lowercase().as_str() {
        "require" | "required" | "force" => ServerTls::Require,
        "on" | "yes" | "y" | "true" | "t" | "1" => ServerTls::On,
        _ => ServerTls::Off,
    }
}

/// Whether it names an environment variable and not a file.
fn is_variable(path: &Path) -> bool {
    path.to_str().is_some_and(|word| device::secret::of_environment(word).is_some())
}

/// The settings of the command line.
#[derive(Clone, Debug)]
pub(super) struct Encryption {
    pub(super) when: ServerTls,
    serving: Option<Serving>,
}

impl Encryption {
    pub(super) fn resolve(matches: &ArgMatches) -> Result<Self, Failure> {
        let path = |id: &str| {
            let path = matches.get_one::<PathBuf>(id);
            let absolute = path.map(|path| match is_variable(path) {
                true => Ok(path.clone()),
                false => std::path::absolute(path),
            });
            let absolute = absolute.transpose();
            absolute.map_err(|e| Failure::usage(format!("--{id}: {e}")))
        };
        let (keys, directory) = (path("tls-psk")?, path("tls-certificates")?);
        let verify_peer = matches.get_flag("tls-verify-peer");
        let named = keys.is_some() || directory.is_some() || verify_peer;
        let when = match matches.get_one::<String>("tls") {
            Some(word) => meant(word),
            // Naming a key or certificate means to require it.
            None if named => ServerTls::Require,
            None => ServerTls::Off,
        };
        if when == ServerTls::Off && named {
            let what = "--tls=off cannot be combined with certificates or keys";
            return Err(Failure::usage(what));
        }
        let serving = match (when, keys) {
            (ServerTls::Off, _) => None,
            // A client with a key has shown who it is: there is no more to verify.
            (_, Some(file)) => Some(Serving::Keys(file)),
            (_, None) => Some(Serving::Certificates { directory, verify_peer }),
        };
        Ok(Self { when, serving })
    }

    /// Reads the files.
    pub(super) fn acceptor(&self) -> Result<Option<Acceptor>, Failure> {
        let made = self.serving.as_ref().map(Acceptor::new).transpose();
        made.map_err(|e| Failure::new(format!("--tls={}: {e}", self.word())))
    }

    /// The files that are read, now and by a reload.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let files = self.serving.as_ref().map(Serving::files).unwrap_or_default();
        files.into_iter().filter(|file| !is_variable(file)).collect()
    }

    fn word(&self) -> &'static str {
        match self.when {
            ServerTls::Off => "off",
            ServerTls::On => "on",
            ServerTls::Require => "require",
        }
    }

    /// Warnings for the operator.
    pub(super) fn warning(&self) -> Option<String> {
        self.serving.as_ref().and_then(Serving::warning)
    }

    /// The variables for the command of `--run`, with nbdkit's values: when, certificates and keys.
    pub(super) fn variables(&self) -> [String; 3] {
        let when = match self.when {
            ServerTls::Off => "0",
            ServerTls::On => "1",
            ServerTls::Require => "2",
        };
        let (certificates, keys) = match &self.serving {
            Some(Serving::Certificates { directory: Some(directory), .. }) => {
                (directory.display().to_string(), String::new())
            }
            Some(Serving::Keys(file)) => (String::new(), file.display().to_string()),
            _ => (String::new(), String::new()),
        };
        [when.to_owned(), certificates, keys]
    }

    /// The parameters of the URI, where clients are to encrypt.
    pub(super) fn params(&self) -> Vec<(String, String)> {
        let param = match &self.serving {
            Some(Serving::Certificates { directory: Some(directory), .. }) => {
                Some(("tls-certificates", directory))
            }
            Some(Serving::Keys(file)) => Some(("tls-psk-file", file)),
            _ => None,
        };
        let param = param.map(|(key, path)| (key.to_owned(), path.display().to_string()));
        param.into_iter().collect()
    }
}
