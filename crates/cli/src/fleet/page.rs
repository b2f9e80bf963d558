//! The status of a plan as one static page: a chart as SVG, and a table. Nothing is loaded, and
//! nothing runs in it.

use std::fmt::Write as _;

use device::text::shown;
use transfer::fleet::{DiskStatus, FleetStatus, ShardState};

use super::status::summary;
use crate::image::size_for_people;
use crate::map::escaped;

/// Disks in the chart; of more, those that are not complete come first.
const ROWS: usize = 200;
/// Units of a row, and of a bar of all data.
const ROW: usize = 18;
const BAR: u64 = 600;
const STYLE: &str = "body{font:14px sans-serif;margin:2em;color-scheme:light dark}td,th{padding:.1em .8em;text-align:left}\
    td.n{text-align:right}.done,.finished{fill:#2a8a4a}.running{fill:#2f6fd0}.failed{fill:#c8362e}.waiting{fill:#8a8a8a}\
    .rest{fill:#8885}";

/// The page.
pub(super) fn html(found: &FleetStatus, id: &str) -> String {
    let mut disks: Vec<&DiskStatus> = found.disks.iter().collect();
    disks.sort_by_key(|disk| disk.finished);
    let (all, shown) = (disks.len(), disks.len().min(ROWS));
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>Status of a plan</title>\n<style>{STYLE}</style>\n\
         </head>\n<body>\n<h1>{}</h1>\n<p>Plan {}, {all} disks{}.</p>\n",
        escaped(&summary(found)),
        escaped(id.get(..12).unwrap_or(id)),
        if shown < all { format!(", {shown} of them shown") } else { String::new() },
    );
    disks.truncate(ROWS);
    text += &chart(&disks);
    text += &table(&disks);
    text += "</body>\n</html>\n";
    text
}

fn chart(disks: &[&DiskStatus]) -> String {
    let (wide, high) = (BAR + 20, disks.len() * ROW + 10);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{wide}\" viewBox=\"0 0 {wide} {high}\">\n\
         <title>Data that is durable, by disk</title>\n"
    );
    for (row, disk) in disks.iter().enumerate() {
        let y = row * ROW + 5;
        let copied = match disk.data {
            // There is nothing to copy but holes.
            0 if disk.count(ShardState::Done) == disk.shards.len() => BAR,
            0 => 0,
            data => {
                let part = u128::from(disk.copied.min(data)) * u128::from(BAR) / u128::from(data);
                u64::try_from(part).unwrap_or(BAR)
            }
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<g><title>{}</title><rect class=\"rest\" x=\"10\" y=\"{y}\" width=\"{BAR}\" height=\"14\"/>\
             <rect class=\"{}\" x=\"10\" y=\"{y}\" width=\"{copied}\" height=\"14\"/></g>",
            escaped(&shown(&disk.target)),
            disk.word()
        );
    }
    text + "</svg>\n"
}

fn table(disks: &[&DiskStatus]) -> String {
    let mut text =
        "<table>\n<tr><th>disk<th>state<th>copied<th>of<th>a second<th>shards done<th>\n"
            .to_owned();
    for disk in disks {
        let size = |bytes| format!("<td class=\"n\">{}", size_for_people(bytes));
        let _ = writeln!(
            text,
            "<tr><td>{}<td>{}{}{}{}<td class=\"n\">{}/{}<td>{}",
            escaped(&shown(&disk.target)),
            disk.word(),
            size(disk.copied),
            size(disk.data),
            size(disk.rate),
            disk.count(ShardState::Done),
            disk.shards.len(),
            escaped(&shown(disk.failure.as_deref().unwrap_or_default()))
        );
    }
    text + "</table>\n"
}

#[cfg(test)]
mod tests {
    use super::super::status::tests::found;
    use super::*;

    #[test]
    fn a_page_has_nothing_of_a_name_but_its_letters() {
        let page = html(&found("<script>alert(1)</script>&\"\u{1b}"), "0123456789abcdef");
        assert!(!page.contains("<script") && !page.contains('\u{1b}'));
        assert!(page.contains("&lt;script&gt;"));
        assert!(page.contains("class=\"failed\"") && page.contains("class=\"finished\""));
        // A third of the bar.
        assert!(page.contains("width=\"200\""));
        assert!(!page.contains("src=") && !page.contains("href="));
    }
}
