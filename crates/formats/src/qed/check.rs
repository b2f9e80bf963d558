//! Checks that each cluster and table of a QED image lies in the file and has one owner, and finds
//! those without one. Counts what `qemu-img check` counts. It reads each table once, so the size of
//! the container bounds the work.

use device::{Edge, Error, ErrorKind, Fault, Result};
use runtime::Context;

use super::header::Header;
use super::map::ZERO;
use crate::Findings;
use crate::kit::Taken;
use crate::kit::fields::{le64, load};

/// Bytes of a table that are read at a time.
const PIECE: u64 = 64 << 10;

pub(super) fn check(container: &Edge, _: &Context) -> Result<Findings> {
    let header = Header::read(container)?;
    // A partial cluster at the end does not count.
    let clusters = container.info().size / header.cluster;
    let taken = Taken::of(clusters);
    if !taken.is_whole() {
        let action = "check an image of more than 512 million clusters";
        return Err(Error::new(ErrorKind::Limit, Fault::File, action));
    }
    let total_clusters = header.size.div_ceil(header.cluster);
    let findings = Findings { total_clusters, ..Findings::default() };
    let mut check = Check { container, header, clusters, taken, findings };
    check.first_table()?;
    let of_header = check.header.len / check.header.cluster;
    check.findings.leaks = clusters.saturating_sub(of_header).saturating_sub(check.taken.count());
    Ok(check.findings)
}

struct Check<'a> {
    container: &'a Edge,
    header: Header,
    /// Of the container.
    clusters: u64,
    taken: Taken,
    findings: Findings,
}

impl Check<'_> {
    /// The entries of a table that is in the file, each with its place in the table.
    fn entries(
        &mut self,
        table: u64,
        mut each: impl FnMut(&mut Self, u64, u64) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        while at < self.header.table {
            let len = usize::try_from(PIECE.min(self.header.table - at)).unwrap_or(0);
            let piece = load(self.container, "table", table.saturating_add(at), len)?;
            for (index, entry) in (at / 8..).zip(piece.chunks_exact(8)) {
                each(self, index, le64(entry, 0))?;
            }
            at += PIECE;
        }
        Ok(())
    }

    fn first_table(&mut self) -> Result<()> {
        let (first, len) = (self.header.first, self.header.table / self.header.cluster);
        self.taken.take(first / self.header.cluster, len);
        self.entries(first, |check, index, table| {
            if table == 0 {
                return Ok(());
            }
            if !check.lies_in_the_file(table, len) {
                check.findings.wrong(format!("table {index} lies where none can be: at {table}"));
                return Ok(());
            }
            if !check.taken.take(table / check.header.cluster, len) {
                check.findings.wrong(format!("table {index} shares the space of another: {table}"));
                return Ok(());
            }
            check.second_table(index, table)
        })
    }

    fn second_table(&mut self, number: u64, table: u64) -> Result<()> {
        let mut before = None;
        self.entries(table, |check, index, start| {
            if start == 0 || start == ZERO {
                return Ok(());
            }
            let cluster = check.header.cluster;
            check.findings.allocated_clusters += 1;
            let follows =
                before.is_none_or(|before: u64| before.checked_add(cluster) == Some(start));
            check.findings.fragmented_clusters += u64::from(!follows);
            before = Some(start);
            if !check.lies_in_the_file(start, 1) {
                let what = format!("cluster {index} of table {number} lies where none can be");
                check.findings.wrong(format!("{what}: at {start}"));
            } else if !check.taken.take(start / cluster, 1) {
                let what = format!("cluster {index} of table {number} shares the space of another");
                check.findings.wrong(format!("{what}: {start}"));
            }
            Ok(())
        })
    }

    /// Whether so many clusters may be there.
    fn lies_in_the_file(&self, start: u64, count: u64) -> bool {
        let first = start / self.header.cluster;
        start.is_multiple_of(self.header.cluster)
            && start >= self.header.len
            && first <= self.clusters
            && count <= self.clusters - first
    }
}
