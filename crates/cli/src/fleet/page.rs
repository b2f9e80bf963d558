//! The status of a plan as one static page: a table with a bar of each disk as SVG. Nothing is
//! loaded, and nothing runs in it.

use std::fmt::Write as _;

use device::text::shown;
use transfer::fleet::{DiskStatus, FleetStatus, ShardState};

use super::status::summary;
use crate::image::size_for_people;
use crate::map::escaped;

/// Disks on the page; of more, those that are not complete come first.
const ROWS: usize = 200;
/// Pixels of a bar of all data.
const BAR: u64 = 240;
const STYLE: &str = "body{font:14px sans-serif;margin:2em;color-scheme:light dark}h1{font-size:1.4em}table{border-collapse:collapse}\
    td,th{padding:.25em 1.2em .25em 0;text-align:left}tr{border-bottom:1px solid #8883}td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.done,.finished{fill:#2a8a4a}.running{fill:#2f6fd0}.failed{fill:#c8362e}.waiting{fill:#7d9cc4}\
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
    text += "</body>\n</html>\n";
    text
}

/// How much of a disk's data is durable.
fn bar(disk: &DiskStatus) -> String {
    let copied = match disk.data {
        // There is nothing to copy but holes.
        0 if disk.count(ShardState::Done) == disk.shards.len() => BAR,
        0 => 0,
        data => {
            let part = u128::from(disk.copied.min(data)) * u128::from(BAR) / u128::from(data);
            u64::try_from(part).unwrap_or(BAR)
        }
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{BAR}\" height=\"12\">\
         <rect class=\"rest\" width=\"{BAR}\" height=\"12\" rx=\"2\"/>\
         <rect class=\"{}\" width=\"{copied}\" height=\"12\" rx=\"2\"/></svg>",
        disk.word()
    )
}

fn chart(disks: &[&DiskStatus]) -> String {
    let mut text = "<table>\n<tr><th>disk<th>data that is durable<th>state<th class=\"n\">copied\
                    <th class=\"n\">of<th class=\"n\">a second<th class=\"n\">shards done<th>\n"
        .to_owned();
    for disk in disks {
        let size = |bytes| format!("<td class=\"n\">{}", size_for_people(bytes));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<tr><td>{}<td>{}<td>{}{}{}{}<td class=\"n\">{}/{}<td>{}",
            escaped(&shown(&disk.target)),
            bar(disk),
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
        assert!(page.contains("width=\"80\""));
        assert!(!page.contains("src=") && !page.contains("href="));
    }
}
