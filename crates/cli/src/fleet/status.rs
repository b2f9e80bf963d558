//! `diskferry status`: how far a plan is, for people, programs, and as a page.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use serde_json::{Value, json};
use transfer::fleet::{DiskStatus, FleetStatus, ShardState, status};

use super::{page, plan_file, plan_of};
use crate::arguments::json_flag;
use crate::digest;
use crate::failure::{ExitResult, Failure};
use crate::image::size_for_people;
use crate::output;
use crate::verb::Verb;

pub(crate) const VERB: Verb = Verb {
    name: "status",
    summary: "Show the progress of a plan",
    about: "It reads the plan's journals, without contacting any process. The rate covers the \
            last minute. Byte counts include only data, according to the sources' maps.",
    example: "  printf '[[disk]]\\nsource=\"pattern:8M\"\\ntarget=\"copy.raw\"\\n' > job.toml\n  \
              diskferry plan -q job.toml -o plan.json\n  \
              diskferry status plan.json\n  \
              diskferry status --json plan.json\n  \
              diskferry status --html status.html plan.json",
    status: "",
    usage: 2,
    arguments,
    run,
};

/// Columns of a name.
const NAME: usize = 32;

fn arguments(command: Command) -> Command {
    command
        .arg(plan_file())
        .arg(json_flag())
        .arg(digest::file("--html FILE", "Write a page with a chart to FILE, and print nothing"))
}

fn run(matches: &ArgMatches) -> ExitResult {
    let plan = plan_of(matches)?;
    let found = status(&plan)?;
    if let Some(path) = matches.get_one::<PathBuf>("html") {
        write_page(path, &page::html(&found, &plan.id))?;
        if !matches.get_flag("json") {
            return Ok(ExitCode::SUCCESS);
        }
    }
    if matches.get_flag("json") {
        return output::text(&format!("{}\n", in_json(&found, &plan.id)));
    }
    output::finish(|out| print(&found, out).map(|()| ExitCode::SUCCESS))
}

/// Writes the page, which others may be reading, as a whole.
fn write_page(path: &Path, text: &str) -> Result<(), Failure> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    written.map_err(|e| Failure::new(format!("--html {}: {e}", path.display())))
}

fn in_json(found: &FleetStatus, id: &str) -> Value {
    let (data, copied) = found.bytes();
    let disk = |disk: &DiskStatus| {
        json!({
            "target": device::text::shown(&disk.target),
            "state": disk.word(),
            "size": disk.size,
            "data": disk.data,
            "copied": disk.copied,
            "rate": disk.rate,
            "shards": {
                "waiting": disk.count(ShardState::Waiting),
                "running": disk.count(ShardState::Running),
                "failed": disk.count(ShardState::Failed),
                "done": disk.count(ShardState::Done),
            },
            "failure": disk.failure,
        })
    };
    json!({
        "version": output::VERSION,
        "plan": id,
        "data": data,
        "copied": copied,
        "rate": found.rate(),
        "seconds-left": found.seconds_left(),
        "disks": found.disks.iter().map(disk).collect::<Vec<_>>(),
    })
}

/// A name of at most so many columns: its end, which tells more.
fn short(name: &str) -> String {
    let shown = device::text::shown(name);
    let count = shown.chars().count();
    if count <= NAME {
        return shown.into_owned();
    }
    let end: String = shown.chars().skip(count - NAME + 1).collect();
    format!("…{end}")
}

/// A time for people.
pub(super) fn time(seconds: u64) -> String {
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6000 => format!("{} min", seconds.div_ceil(60)),
        6000..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The sum in one line.
pub(super) fn summary(found: &FleetStatus) -> String {
    let (data, copied) = found.bytes();
    let left = match found.seconds_left() {
        Some(0) => "nothing is left to copy".to_owned(),
        Some(seconds) => format!("{} left", time(seconds)),
        None => "nothing was copied in the last minute".to_owned(),
    };
    let rate = size_for_people(found.rate());
    format!("{} of {}, {rate}/s, {left}", size_for_people(copied), size_for_people(data))
}

fn print(found: &FleetStatus, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:NAME$} {:8} {:>11} {:>10} {:>13}",
        "disk", "state", "copied", "of", "shards done"
    )?;
    for disk in &found.disks {
        let shards = format!("{}/{}", disk.count(ShardState::Done), disk.shards.len());
        let (name, state) = (short(&disk.target), disk.word());
        let (copied, data) = (size_for_people(disk.copied), size_for_people(disk.data));
        writeln!(out, "{name:NAME$} {state:8} {copied:>11} {data:>10} {shards:>13}")?;
        if let Some(failure) = &disk.failure {
            for line in crate::page::wrap(&device::text::shown(failure), 4) {
                writeln!(out, "{line}")?;
            }
        }
    }
    writeln!(out, "{}", summary(found))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn found(name: &str) -> FleetStatus {
        let disk = DiskStatus {
            target: name.to_owned(),
            size: 10 << 40,
            data: 9 << 40,
            copied: 3 << 40,
            rate: 100 << 20,
            shards: vec![ShardState::Done, ShardState::Failed, ShardState::Waiting],
            finished: false,
            failure: Some(format!("{name}: {}", "no way ".repeat(50))),
        };
        let done = DiskStatus {
            shards: vec![ShardState::Done; 3],
            copied: 9 << 40,
            rate: 0,
            finished: true,
            failure: None,
            ..disk.clone()
        };
        FleetStatus { disks: vec![disk, done] }
    }

    #[test]
    fn the_text_has_80_columns_whatever_names_there_are() {
        for name in ["a", &"ä/long".repeat(40), "\u{1b}[2J"] {
            let mut out = Vec::new();
            print(&found(name), &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            for line in text.lines() {
                let is_word = !line.trim_start().contains(' ');
                assert!(is_word || line.chars().count() <= 80, "{line}");
            }
            assert!(!text.contains('\u{1b}'));
            assert!(text.contains("failed") && text.contains("finished") && text.contains("1/3"));
        }
    }

    #[test]
    fn times_are_told_in_the_units_of_people() {
        let told: Vec<_> = [7, 150, 7000, 400_000].into_iter().map(time).collect();
        assert_eq!(told, ["7 s", "3 min", "1 h 56 min", "4 days"]);
    }
}
