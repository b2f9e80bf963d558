//! The arrows of ARCHITECTURE.md hold: each crate's dependencies are in its table of crates, and
//! points one way; the files of a crate need each other in small circles only; no particular device
//! is known outside of `devices`; and a type name has one meaning, as CONTRIBUTING.md wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// Crates by name, as they lie in `crates/`.
fn crates() -> BTreeSet<String> {
    let found = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap());
    let found = found.filter(|entry| entry.path().join("Cargo.toml").exists());
    found.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Where a manifest has the dependencies of a crate, but for those of its tests.
const SECTIONS: [&str; 2] =
    ["[dependencies]", "[target.'cfg(target_os = \"linux\")'.dependencies]"];

/// The crates of this workspace among the dependencies of `name`, without those of its tests.
fn dependencies(name: &str) -> BTreeSet<String> {
    let path = root().join("crates").join(name).join("Cargo.toml");
    let manifest = fs::read_to_string(path).unwrap();
    let section = |name| {
        let lines = manifest.lines().skip_while(move |line| *line != name).skip(1);
        lines.take_while(|line| !line.starts_with('['))
    };
    let lines = SECTIONS.into_iter().flat_map(section);
    let keys = lines.filter_map(|line| line.split(['.', ' ', '=']).next()).map(str::to_owned);
    keys.filter(|key| crates().contains(key)).collect()
}

/// The rows of the table of crates: each with what it stands on, its last column.
fn table() -> Vec<(String, BTreeSet<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let words = |cell: &str| -> BTreeSet<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let rows = text.lines().skip_while(|line| !line.starts_with("| crate |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    let rows = rows.map(|row| row.trim_matches('|').split('|').collect::<Vec<_>>());
    rows.map(|cells| {
        let name = words(cells.first().unwrap()).into_iter().next().unwrap();
        (name, words(cells.last().unwrap()))
    })
    .collect()
}

#[test]
fn each_crate_stands_on_what_the_table_says_and_nothing_above_itself() {
    let mut below = BTreeSet::new();
    for (name, stands_on) in table() {
        if crates().contains(&name) {
            assert_eq!(dependencies(&name), stands_on, "{name}: the manifest and ARCHITECTURE.md");
            assert!(stands_on.is_subset(&below), "{name} stands on what comes after it");
        }
        below.insert(name);
    }
    let missing: Vec<_> = crates().difference(&below).cloned().collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name {missing:?}");
}

/// All source files below a directory, without tests.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" && name != "test.rs" {
            found.push(path);
        }
    }
}

/// What is in a source file without its lines of comment, and without a module of tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let tests = |at: &usize| text[*at..].lines().nth(1).is_some_and(|line| line.ends_with('{'));
    let end = text.match_indices("#[cfg(test)]\nmod ").map(|(at, _)| at).find(tests);
    let code = text[..end.unwrap_or(text.len())].lines();
    let code = code.filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect()
}

/// Whether a line decides by the word of a device.
fn decides(line: &str, word: &str) -> bool {
    let word = format!("\"{word}\"");
    if !line.contains(&word) {
        return false;
    }
    let asks = [
        format!("== {word}"),
        format!("!= {word}"),
        format!("kind({word}"),
        format!("device({word}"),
        format!("starts_with({word}"),
        format!("contains({word}"),
        format!("{word} =>"),
        format!("{word} |"),
        format!("| {word}"),
    ];
    asks.iter().any(|ask| line.contains(ask))
}

/// The lines of code, outside of some crates and of tests, that are `wrong`.
fn lines(outside: &[&str], wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for name in crates().into_iter().filter(|name| !outside.contains(&name.as_str())) {
        let mut files = Vec::new();
        sources(&root().join("crates").join(&name).join("src"), &mut files);
        for file in files {
            let code = code(&file);
            let wrong = code.lines().filter(|line| wrong(line));
            found.extend(wrong.map(|line| format!("{}: {}", file.display(), line.trim())));
        }
    }
    found
}

#[test]
fn unsafe_code_is_only_where_the_architecture_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with("| module | for |"));
    let cells =
        rows.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let named: BTreeSet<String> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    let mut found = BTreeSet::new();
    for name in crates() {
        let mut files = Vec::new();
        sources(&root().join("crates").join(&name), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            if text.contains("(unsafe_code") && !text.contains("forbid(unsafe_code") {
                let path = file.strip_prefix(root().join("crates")).unwrap();
                found.insert(path.to_str().unwrap().to_owned());
            }
        }
    }
    assert_eq!(found, named);
}

#[test]
fn nothing_outside_of_devices_asks_for_a_particular_device() {
    let words: Vec<_> = devices::kinds().iter().map(|kind| kind.word).collect();
    // The protocol itself has the name of one.
    let found = lines(&["devices", "wire", "client", "trial"], |line| {
        line.contains('"') && words.iter().any(|word| decides(line, word))
    });
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_the_program_prints() {
    let found = lines(&["cli"], |line| line.contains("print!(") || line.contains("println!("));
    assert!(found.is_empty(), "{found:#?}");
}

/// Times that are told, seeds, and dates that others tell: what may look at the clock on the wall,
/// which can jump.
const LOOK_AT_THE_WALL: [&str; 13] = [
    "attach/src/fuse/session.rs",
    "serving/src/log/line.rs",
    "serving/src/log/mod.rs",
    "filters/src/log/sink.rs",
    "filters/src/kit/chance.rs",
    "filters/src/rate/clock.rs",
    "formats/src/vpc/create.rs",
    "formats/src/qcow2/write/snapshots.rs",
    "devices/src/http/answer.rs",
    "devices/src/http/s3/signer.rs",
    "devices/src/words.rs",
    "plugins/src/host/text.rs",
    "transfer/src/fleet/journal.rs",
];

#[test]
fn nothing_waits_by_the_clock_on_the_wall() {
    let words = ["SystemTime::now", "CLOCK_REALTIME", "ClockId::Realtime", "gettimeofday"];
    let mut found = lines(&[], |line| words.iter().any(|word| line.contains(word)));
    found.retain(|line| !LOOK_AT_THE_WALL.iter().any(|file| line.contains(file)));
    assert!(found.is_empty(), "{found:#?}");
}

/// How far a type is seen.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Seen {
    Everywhere,
    InItsCrate,
    InItsModule,
}

/// The type that a line of code defines, and how far it is seen.
fn type_of(line: &str) -> Option<(Seen, &str)> {
    let mut words = line.split_whitespace().peekable();
    let seen = match *words.peek()? {
        "pub" => Seen::Everywhere,
        "pub(crate)" => Seen::InItsCrate,
        _ => Seen::InItsModule,
    };
    let mut words = words.skip_while(|word| word.starts_with("pub"));
    let keyword = words.next().filter(|word| ["struct", "enum", "trait", "type"].contains(word));
    // A `type` of a trait or of its implementation is indented.
    keyword.filter(|word| *word != "type" || !line.starts_with(' '))?;
    let name = words.next()?.split(|c: char| !c.is_alphanumeric()).next()?;
    Some((seen, name))
}

/// Names that go with their crate: its settings (`copy::Options`), and what two engines report.
const WITH_THEIR_CRATE: [&str; 3] = ["Options", "Progress", "Report"];
/// What the threads of something share: a role in each crate.
const ROLE: &str = "Shared";
/// The names of files that stand in for another one, with the same items, where that is not built:
/// without TLS, or on a system that is not Linux.
const STAND_INS: [&str; 3] = ["absent.rs", "other.rs", "kqueue.rs"];

#[test]
fn a_type_name_has_one_meaning() {
    let mut types = BTreeMap::<String, Vec<(Seen, String)>>::new();
    for crate_name in crates() {
        let mut files = Vec::new();
        sources(&root().join("crates").join(&crate_name).join("src"), &mut files);
        for file in files.iter().filter(|file| !STAND_INS.iter().any(|name| file.ends_with(name))) {
            for (seen, name) in code(file).lines().filter_map(type_of) {
                let place = (seen, file.display().to_string());
                types.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    assert!(types.len() > 500, "the types of {} names were found", types.len());
    let twice = types.iter().filter(|(name, all)| {
        let with_its_crate = WITH_THEIR_CRATE.contains(&name.as_str());
        let public = all.iter().any(|(seen, ..)| *seen == Seen::Everywhere);
        let shared = all.iter().filter(|(seen, ..)| *seen == Seen::InItsCrate).count();
        let clashes = public && !with_its_crate && all.len() > 1;
        clashes || shared > 1 && name.as_str() != ROLE
    });
    let twice: Vec<_> = twice
        .map(|(name, all)| (name, all.iter().map(|(_, file)| file).collect::<Vec<_>>()))
        .collect();
    assert!(twice.is_empty(), "type names with two meanings: {twice:#?}");
}

/// A module, or what it names, by the words of its path from the root of its crate.
type Words = Vec<String>;

/// Takes a path off the beginning of a text, or all paths of a tree in braces, each behind `stem`.
/// Returns the rest.
fn take_paths<'a>(mut text: &'a str, stem: &[String], found: &mut Vec<Words>) -> &'a str {
    let mut path = stem.to_vec();
    loop {
        text = text.trim_start();
        if let Some(mut inside) = text.strip_prefix('{') {
            loop {
                inside = take_paths(inside, &path, found);
                // ` as NAME` may be in between.
                let Some(end) = inside.find([',', '}']) else { return "" };
                let is_last = inside[end..].starts_with('}');
                inside = inside[end + 1..].trim_start();
                if is_last || inside.starts_with('}') {
                    return inside;
                }
            }
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        path.push(text[..end].to_owned());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => text = rest,
            None => {
                found.push(path);
                return text;
            }
        }
    }
}

/// The files of a crate as modules, and how they name each other.
#[derive(Default)]
struct Modules {
    code: BTreeMap<Words, String>,
    /// By module: what it shows of others (`pub use`), by the last word.
    shown: BTreeMap<Words, BTreeMap<String, Words>>,
}

impl Modules {
    fn of(crate_name: &str) -> Self {
        let src = root().join("crates").join(crate_name).join("src");
        let (mut files, mut all) = (Vec::new(), Self::default());
        sources(&src, &mut files);
        for file in &files {
            let path = file.strip_prefix(&src).unwrap().with_extension("");
            let mut module: Words = path.iter().map(|word| word.to_str().unwrap().into()).collect();
            if ["mod", "lib", "main"].contains(&module.last().unwrap().as_str()) {
                module.pop();
            }
            let code = code(file);
            let uses = code.split(";\n").map(str::trim).filter(|line| line.starts_with("pub"));
            let mut shown = Vec::new();
            for (_, tree) in uses.filter_map(|line| line.split_once("use ")) {
                take_paths(tree, &[], &mut shown);
            }
            let shown = shown.into_iter().map(|path| (path.last().unwrap().clone(), path));
            all.shown.insert(module.clone(), shown.collect());
            all.code.insert(module, code);
        }
        all
    }

    /// The module in which a path of the module `at` ends; a name that another one shows is
    /// followed there.
    fn meant(&self, at: &Words, path: &[String], again: usize) -> Words {
        let mut at = at.clone();
        for (i, word) in path.iter().enumerate() {
            match word.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                word => {
                    at.push(word.to_owned());
                    if !self.code.contains_key(&at) {
                        at.pop();
                        let shown = self.shown.get(&at).and_then(|shown| shown.get(word));
                        let shown = shown.filter(|shown| again > 0 && **shown != path[i..]);
                        return match shown {
                            Some(shown) => self.meant(&at, shown, again - 1),
                            None => at,
                        };
                    }
                }
            }
        }
        at
    }

    /// The modules that `module` names by `crate::…` and `super::…`.
    fn needs(&self, module: &Words) -> BTreeSet<Words> {
        let (code, mut paths) = (&self.code[module], Vec::new());
        let starts = ["crate::", "super::"].map(|root| code.match_indices(root));
        for (at, _) in starts.into_iter().flatten() {
            let before = &code[..at];
            // Inside of a path, a longer word, or `pub(in …)`.
            if !before.ends_with(|c: char| c == ':' || c.is_alphanumeric())
                && !before.ends_with("(in ")
            {
                take_paths(&code[at..], &[], &mut paths);
            }
        }
        let found = paths.iter().map(|path| self.meant(module, path, 4));
        found.filter(|found| found != module).collect()
    }
}

/// What a module needs, and what that needs in turn.
fn reached<'a>(
    needs: &'a BTreeMap<Words, BTreeSet<Words>>,
    module: &'a Words,
) -> BTreeSet<&'a Words> {
    let (mut found, mut next) = (BTreeSet::new(), vec![module]);
    while let Some(module) = next.pop() {
        next.extend(needs[module].iter().filter(|needed| found.insert(*needed)));
    }
    found
}

/// Groups of modules that all need each other.
fn circles(needs: &BTreeMap<Words, BTreeSet<Words>>) -> BTreeSet<BTreeSet<Words>> {
    let reached: BTreeMap<_, _> =
        needs.keys().map(|module| (module, reached(needs, module))).collect();
    let circle = |module: &Words| -> BTreeSet<Words> {
        let others = reached[module].iter().filter(|other| reached[**other].contains(module));
        others.map(|other| (*other).clone()).collect()
    };
    needs.keys().map(circle).collect()
}

/// The files in a circle, at most: more are read as one, and none of them can be changed alone.
const LARGEST_CIRCLE: usize = 3;

#[test]
fn no_circle_of_files_is_large() {
    let (mut large, mut arrows) = (Vec::new(), 0);
    for name in crates() {
        let modules = Modules::of(&name);
        let needs: BTreeMap<_, _> =
            modules.code.keys().map(|module| (module.clone(), modules.needs(module))).collect();
        arrows += needs.values().map(BTreeSet::len).sum::<usize>();
        for circle in circles(&needs) {
            if circle.len() > LARGEST_CIRCLE {
                let files: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
                large.push(format!("{name}: {} files: {}", files.len(), files.join(", ")));
            }
        }
    }
    assert!(arrows > 1000, "{arrows} arrows between files were found");
    assert!(large.is_empty(), "files that need each other: {large:#?}");
}
