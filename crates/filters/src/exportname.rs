//! `exportname`: sets the export names that clients see, which disk each one is, and its
//! description.
//!
//! Names come from clients: with `exportname-strict`, only those that the user lists get through.
//! Over a disk that has no names of its own, every name means that disk.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use device::{
    Arrival, Client, Connected, Edge, Error, ErrorKind, Fault, Filter, Filtered, Listed, Over,
    Params, Passes, Reach, Result, param, repeated, text, values,
};
use programs::{Program, StandardStreams};
use runtime::{Mutex, OperatorLog, WorkPool};

use crate::FilterKind;

const LIST: &str = "keep|error|empty|defaultonly|explicit";

pub(crate) const KIND: FilterKind = FilterKind {
    word: "exportname",
    summary: "sets the export names that clients see, and the disk behind each",
    keeps_disk: false,
    params: &[
        param("default-export", "NAME", "the export of clients that ask for the empty name"),
        repeated("exportname", "NAME", "an export name that is listed, or allowed"),
        param("exportname-list", LIST, "which names are listed (default keep: as below)"),
        param("exportname-strict", "true|false", "refuse all names but those (default false)"),
        param(
            "exportdesc",
            "keep|none|fixed:TEXT|script:SCRIPT",
            "the description of each (default keep)",
        ),
    ],
    reaches: |params| Reach {
        programs: params.get("exportdesc").and_then(script).into_iter().collect(),
        ..Reach::default()
    },
    example: "serve --filter=exportname memory 1M exportname=disk exportname-list=explicit \
              --run 'nbdinfo --list \"$uri\"'",
    open: |params, below, context| {
        let settings = Settings::read(params, &context.pool, &context.log)?;
        let (settings, told) = (Arc::new(settings), Told::default());
        Ok(Filtered::device(ExportName { settings, told }, below))
    },
    ..FilterKind::PLAIN
};

/// The longest name or description in NBD, in bytes.
const LONGEST: usize = 4096;
/// The most names.
const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Listing {
    Keep,
    Error,
    Empty,
    DefaultOnly,
    Explicit,
}

#[derive(Clone, Debug)]
enum DescriptionSource {
    Keep,
    Fixed(String),
    Script(Program),
}

fn script(value: &str) -> Option<Program> {
    value.strip_prefix("script:").map(|script| Program::script(script, &["name"]))
}

impl DescriptionSource {
    fn read(params: &Params) -> Result<Self> {
        let Some(value) = params.get("exportdesc") else { return Ok(Self::Keep) };
        match (value, value.strip_prefix("fixed:"), script(value)) {
            ("keep", ..) => Ok(Self::Keep),
            ("none", ..) => Ok(Self::Fixed(String::new())),
            (_, Some(fixed), _) => {
                valid("exportdesc", fixed)?;
                Ok(Self::Fixed(fixed.to_owned()))
            }
            (_, _, Some(script)) => Ok(Self::Script(script)),
            _ => Err(values::not_a("exportdesc", value, "keep, none, fixed:TEXT or script:SCRIPT")),
        }
    }
}

/// Refuses a name or description that cannot be sent.
fn valid(key: &str, text: &str) -> Result<()> {
    if text.len() > LONGEST {
        return Err(values::wrong(key, format!("it is longer than {LONGEST} bytes")));
    }
    if text.contains('\0') {
        return Err(values::wrong(key, "it must not contain a zero byte"));
    }
    Ok(())
}

struct Settings {
    default: String,
    names: Vec<String>,
    listing: Listing,
    strict: bool,
    description: DescriptionSource,
    pool: WorkPool,
    log: OperatorLog,
    /// Descriptions from scripts, for clients that are being admitted.
    said: Mutex<HashMap<u64, String>>,
}

impl Settings {
    fn read(params: &Params, pool: &WorkPool, log: &OperatorLog) -> Result<Self> {
        use Listing::{DefaultOnly, Empty, Explicit, Keep};
        let default = params.get("default-export").unwrap_or_default().to_owned();
        valid("default-export", &default)?;
        let mut names: Vec<String> = Vec::new();
        for name in params.all("exportname") {
            valid("exportname", name)?;
            if names.len() >= MOST {
                return Err(values::wrong("exportname", format!("there are more than {MOST}")));
            }
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        let listing = values::meaning(
            params,
            "exportname-list",
            &format!("{LIST}|default-only"),
            [Keep, Listing::Error, Empty, DefaultOnly, Explicit, DefaultOnly],
        )?;
        Ok(Self {
            default,
            names,
            listing: listing.unwrap_or(Keep),
            strict: values::flag(params, "exportname-strict")?.unwrap_or(false),
            description: DescriptionSource::read(params)?,
            pool: pool.clone(),
            log: log.clone(),
            said: Mutex::default(),
        })
    }

    /// The name below for a name that a client asks for.
    fn means(&self, asked: &str) -> Result<String> {
        if self.strict && !self.names.iter().any(|name| name == asked) {
            let action = match asked {
                "" => "open: there is no default export; name one".to_owned(),
                name => format!("open: there is no export `{}`", text::shown(name)),
            };
            return Err(Error::new(ErrorKind::NotFound, Fault::User, action));
        }
        Ok(if asked.is_empty() { self.default.clone() } else { asked.to_owned() })
    }

    /// The description of an export; `known` is the one below. A script may take a while.
    fn describe(&self, name: &str, known: &str) -> String {
        match &self.description {
            DescriptionSource::Keep => known.to_owned(),
            DescriptionSource::Fixed(text) => text.clone(),
            DescriptionSource::Script(script) => run(script, name).unwrap_or_else(|e| {
                self.log.say(format_args!("exportname: {e}"));
                String::new()
            }),
        }
    }
}

/// A script's description of an export: the start of its output.
fn run(script: &Program, name: &str) -> Result<String> {
    let failed = |e: std::io::Error| Error::os("run the script", e).on("exportdesc");
    let (output, input) = std::io::pipe().map_err(failed)?;
    let nothing = programs::nothing().map_err(failed)?;
    let streams = StandardStreams { input: Some(nothing), output: Some(input.into()) };
    let running = programs::start(script, &[("name", name)], streams).map_err(failed)?;
    let mut text = Vec::new();
    let limit = u64::try_from(LONGEST).unwrap_or(u64::MAX);
    // Further output is not read.
    let read = output.take(limit).read_to_end(&mut text);
    let status = running.wait().map_err(failed)?;
    read.map_err(failed)?;
    if !status.success() {
        let action = format!("run the script for `{}`: {status}", text::shown(name));
        return Err(Error::new(ErrorKind::Io, Fault::User, action).on("exportdesc"));
    }
    let text = String::from_utf8_lossy(&text);
    let text = text.strip_suffix('\n').unwrap_or(&text).replace('\0', "");
    // A cut character may have become a longer replacement.
    Ok(text
        .chars()
        .scan(0, |len, c| {
            *len += c.len_utf8();
            (*len <= LONGEST).then_some(c)
        })
        .collect())
}

struct ExportName {
    settings: Arc<Settings>,
    /// What a client is told of its export.
    told: Told,
}

/// `None`: as below.
#[derive(Default)]
struct Told {
    description: Option<String>,
    export: Option<String>,
}

impl ExportName {
    /// Names, and the description of each below.
    fn names(&self, below: &Edge, client: &Client, done: Listed) {
        let settings = &self.settings;
        let plain = |names: &[String]| {
            names.iter().map(|name| (name.clone(), String::new())).collect::<Vec<_>>()
        };
        match settings.listing {
            Listing::Error => {
                let action = "list: the names of exports are hidden";
                done(Err(Error::new(ErrorKind::Denied, Fault::User, action)));
            }
            Listing::Empty => done(Ok(Vec::new())),
            Listing::DefaultOnly => done(Ok(plain(std::slice::from_ref(&settings.default)))),
            Listing::Explicit => done(Ok(plain(&settings.names))),
            Listing::Keep if below.device().is_chosen_by_name() => {
                below.device().list(client, done);
            }
            Listing::Keep => {
                done(Ok(vec![(String::new(), below.info().description.clone())]));
            }
        }
    }
}

impl Filter for ExportName {
    fn describe(&self, over: &mut Over) {
        let (Told { description, export }, info) = (&self.told, &mut over.info);
        if let Some(description) = description {
            info.description.clone_from(description);
        }
        if let Some(export) = export {
            info.export = Some(export.as_str().into());
        }
        over.passes = Passes::ALL;
    }

    fn for_client(&self, _: &Over, arrival: &mut Arrival<'_>) -> Option<Arc<dyn Filter>> {
        let Client { number, export, .. } = arrival.client;
        let settings = self.settings.clone();
        let is_default = export.is_empty() && !settings.default.is_empty();
        let told = Told {
            description: settings.said.lock().remove(number),
            export: is_default.then(|| settings.default.clone()),
        };
        Some(Arc::new(Self { settings, told }))
    }

    fn connect(&self, over: &Over, client: &Client, done: Connected) {
        let settings = self.settings.clone();
        let export = match settings.means(&client.export) {
            Ok(export) => export,
            Err(e) => return done(Err(e)),
        };
        let (below, number) = (over.below.clone(), client.number);
        let this_client = Client { export, ..client.clone() };
        let forget = settings.clone();
        let then: Connected = Box::new(move |answer| {
            if answer.is_err() {
                forget.said.lock().remove(&number);
            }
            done(answer);
        });
        let go = move || below.device().connect(&this_client, then);
        match &self.settings.description {
            DescriptionSource::Keep => go(),
            DescriptionSource::Fixed(text) => {
                settings.said.lock().insert(number, text.clone());
                go();
            }
            DescriptionSource::Script(_) => {
                let name = client.export.clone();
                let pool = settings.pool.clone();
                pool.run(move || {
                    let text = settings.describe(&name, "");
                    settings.said.lock().insert(number, text);
                    go();
                });
            }
        }
    }

    fn is_chosen_by_name(&self, _: &Over) -> bool {
        true
    }

    fn list(&self, over: &Over, client: &Client, done: Listed) {
        let settings = self.settings.clone();
        let then: Listed = Box::new(move |found| {
            let Ok(found) = found else { return done(found) };
            if settings.listing == Listing::DefaultOnly {
                // As in nbdkit, there is no description here.
                return done(Ok(found));
            }
            let pool = settings.pool.clone();
            let describe = move || {
                let all = found.into_iter().map(|(name, known)| {
                    let text = settings.describe(&name, &known);
                    (name, text)
                });
                done(Ok(all.collect()));
            };
            // Scripts take a while.
            pool.run(describe);
        });
        self.names(&over.below, client, then);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use device::model::Model;
    use device::{Device, Session};
    use trial::TestDevice;

    use super::*;
    use crate::kit::tested::{blank, client, put};

    fn ask(disk: &Edge, name: &str) -> Result<Option<Arc<dyn Device>>> {
        let (tx, rx) = channel();
        let this_client = Client { export: name.into(), ..client(1) };
        disk.device().connect(&this_client, Box::new(move |own| tx.send(own).unwrap()));
        rx.recv().unwrap()
    }

    fn list(disk: &Edge) -> Result<Vec<(String, String)>> {
        let (tx, rx) = channel();
        disk.device().list(&client(1), Box::new(move |names| tx.send(names).unwrap()));
        rx.recv().unwrap()
    }

    fn over(words: &[&str]) -> Result<Edge> {
        put("exportname", blank(512), words)
    }

    fn pairs(names: &[(&str, &str)]) -> Vec<(String, String)> {
        names.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    /// Has a disk for each name but `none`, and remembers which were requested.
    #[derive(Default)]
    struct Named(Mutex<Vec<String>>);

    impl Session for Named {
        fn connect(&self, client: &Client, done: Connected) {
            self.0.lock().push(client.export.clone());
            done(if client.export == "none" { Err(Error::invalid("none")) } else { Ok(None) });
        }
        fn is_chosen_by_name(&self) -> bool {
            true
        }
        fn list(&self, _: &Client, done: Listed) {
            done(Ok(pairs(&[("one", "the first"), ("two", "")])));
        }
    }

    #[test]
    fn a_client_that_names_none_gets_the_default_and_others_what_they_name() {
        let names = Arc::<Named>::default();
        let below = TestDevice::over(Model::new(512)).session_of(names.clone()).shared();
        let disk = put("exportname", below, &["default-export=two"]).unwrap();
        assert_eq!(list(&disk).unwrap(), pairs(&[("one", "the first"), ("two", "")]));
        let own = ask(&disk, "").unwrap().unwrap();
        assert_eq!(own.info().export.as_deref(), Some("two"));
        ask(&disk, "one").unwrap();
        assert!(ask(&disk, "none").is_err());
        assert_eq!(*names.0.lock(), ["two", "one", "none"]);
    }

    #[test]
    fn the_description_of_an_export_is_fixed_or_what_a_script_prints() {
        let said = |word: &str, name: &str| {
            let disk = over(&[word, "exportname=a b", "exportname-list=explicit"]).unwrap();
            let own = ask(&disk, name).unwrap().unwrap().info().description.clone();
            (own, list(&disk).unwrap())
        };
        let fixed = "exportdesc=fixed:a disk";
        assert_eq!(said(fixed, "x"), ("a disk".into(), pairs(&[("a b", "a disk")])));
        let script = "exportdesc=script:echo \"<$name>\"";
        assert_eq!(said(script, "a b"), ("<a b>".into(), pairs(&[("a b", "<a b>")])));
        assert_eq!(said("exportdesc=script:exit 3", "x").0, "");
        let long = said("exportdesc=script:head -c 100000 /dev/zero | tr '\\0' x; true", "x").0;
        assert_eq!(long.len(), LONGEST);
        assert_eq!(said("exportdesc=none", "x"), (String::new(), pairs(&[("a b", "")])));
    }

    #[test]
    fn names_that_cannot_be_sent_are_refused() {
        let long = format!("exportname={}", "x".repeat(LONGEST + 1));
        let long_default = format!("default-export={}", "x".repeat(LONGEST + 1));
        for word in [&long, &long_default, "exportname-list=some", "exportdesc=what"] {
            assert!(over(&[word]).unwrap_err().is_usage());
        }
    }
}
