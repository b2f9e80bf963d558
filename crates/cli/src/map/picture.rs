//! A map, or where two disks differ, as a picture: a grid of cells, each of which is a part of the
//! disk and shows how much of it is data (or, in another status context, how much is marked). For a
//! terminal as characters, for a page as SVG. It needs the memory of its cells, whatever the disk.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::image::size_for_people;

/// Cells of a row, and rows.
const ACROSS: usize = 64;
const ROWS: usize = 8;
/// Shades from nothing to all.
const BLOCKS: [char; 5] = ['·', '░', '▒', '▓', '█'];
const ASCII: [char; 5] = ['.', ':', '+', '*', '#'];
/// Units of a cell in the SVG.
const CELL: usize = 12;

/// How much of each part of a disk is marked.
pub(crate) struct Picture {
    /// First byte, and one after the last.
    range: (u64, u64),
    /// Marked bytes of each cell.
    cells: Vec<u64>,
    /// What is marked is called so, and what is not.
    words: (&'static str, &'static str),
}

impl Picture {
    /// Of bytes from `range.0` to before `range.1`.
    pub(crate) fn new(range: (u64, u64), words: (&'static str, &'static str)) -> Self {
        let cells = usize::try_from(range.1 - range.0).unwrap_or(usize::MAX).min(ACROSS * ROWS);
        Self { range, cells: vec![0; cells], words }
    }

    /// First byte of a cell, from the beginning of the range on.
    fn start(&self, cell: usize) -> u64 {
        let (size, cells) = (u128::from(self.range.1 - self.range.0), self.cells.len().max(1));
        u64::try_from(size * cell as u128 / cells as u128).unwrap_or(u64::MAX)
    }

    /// The cell of a byte of the range.
    fn cell(&self, at: u64) -> usize {
        let size = u128::from(self.range.1 - self.range.0).max(1);
        let near = usize::try_from(u128::from(at) * self.cells.len() as u128 / size);
        let near = near.unwrap_or(usize::MAX);
        if self.start(near.saturating_add(1)) <= at { near + 1 } else { near }
    }

    /// Marks `len` bytes from `offset` on, which lie in the range.
    pub(crate) fn mark(&mut self, offset: u64, len: u64) {
        let (mut at, end) = (offset - self.range.0, offset - self.range.0 + len);
        while at < end {
            let cell = self.cell(at);
            let stop = self.start(cell + 1).min(end);
            let Some(marked) = self.cells.get_mut(cell).filter(|_| stop > at) else { return };
            *marked += stop - at;
            at = stop;
        }
    }

    /// Quarters of a cell that are marked, rounded; some is never none, and not all never all.
    fn shade(&self, cell: usize) -> usize {
        let len = self.start(cell + 1) - self.start(cell);
        let marked = self.cells.get(cell).copied().unwrap_or(0);
        match marked {
            0 => 0,
            all if all == len => 4,
            some => {
                let quarters =
                    (u128::from(some) * 4 + u128::from(len) / 2) / u128::from(len.max(1));
                usize::try_from(quarters).unwrap_or(0).clamp(1, 3)
            }
        }
    }

    fn rows(&self) -> impl Iterator<Item = (usize, String)> {
        let firsts = (0..self.cells.len()).step_by(ACROSS);
        firsts.map(|first| (first, size_for_people(self.range.0 + self.start(first))))
    }

    /// What is marked and what is not, in words.
    fn totals(&self) -> (String, String) {
        let (marked, size) = (self.cells.iter().sum::<u64>(), self.range.1 - self.range.0);
        let percent = super::percent(marked, size);
        let is = format!("{} {} ({percent:.1} %)", self.words.0, size_for_people(marked));
        (is, format!("{} {}", self.words.1, size_for_people(size - marked)))
    }

    /// As lines of at most 80 columns.
    pub(crate) fn print(&self, blocks: bool, out: &mut dyn Write) -> io::Result<()> {
        let shades = if blocks { BLOCKS } else { ASCII };
        for (first, label) in self.rows() {
            let cells = first..(first + ACROSS).min(self.cells.len());
            let row: String = cells.filter_map(|cell| shades.get(self.shade(cell))).collect();
            writeln!(out, "{label:>10}  {row}")?;
        }
        let [none, .., all] = shades;
        let (is, is_not) = self.totals();
        writeln!(out, "{:10}  {all} {is}   {none} {is_not}", "")
    }

    /// As an SVG document, which has its colours from the page where it can.
    pub(crate) fn svg(&self, name: &str, out: &mut dyn Write) -> io::Result<()> {
        let rows = self.cells.len().div_ceil(ACROSS).max(1);
        let (wide, high) = (ACROSS * CELL + 110, rows * CELL + 50);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" font-family=\"sans-serif\" font-size=\"11\" fill=\"currentColor\">\n\
             <title>{0}</title>\n<text x=\"100\" y=\"16\">{0}</text>\n",
            escaped(name)
        );
        for (row, (first, label)) in self.rows().enumerate() {
            let y = 24 + row * CELL;
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "<text x=\"92\" y=\"{}\" text-anchor=\"end\">{label}</text>",
                y + 10
            );
            for cell in first..(first + ACROSS).min(self.cells.len()) {
                let (x, shade) = (100 + (cell - first) * CELL, self.shade(cell));
                let side = CELL - 1;
                let look = match shade {
                    0 => "fill=\"currentColor\" fill-opacity=\"0.08\"".to_owned(),
                    shade => format!("fill=\"#2a78d6\" fill-opacity=\"0.{}\"", 20 * shade + 19),
                };
                let _ = writeln!(
                    text,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{side}\" height=\"{side}\" {look}/>"
                );
            }
        }
        let ((is, is_not), y) = (self.totals(), 40 + rows * CELL);
        let _ = writeln!(text, "<text x=\"100\" y=\"{y}\">{is}, {is_not}</text>\n</svg>");
        out.write_all(text.as_bytes())
    }
}

/// Text within XML.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            c if c.is_control() => safe.push('\u{fffd}'),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_in_one_cell_and_some_is_neither_none_nor_all() {
        for (start, size) in [(0, 1), (7, 511), (0, 513), (1 << 40, 1 << 60), (0, u64::MAX - 1)] {
            let mut all = Picture::new((start, start.saturating_add(size)), ("data", "hole"));
            let size = all.range.1 - all.range.0;
            let cells = all.cells.len();
            all.mark(start, size / 3);
            all.mark(start + size / 3, size - size / 3);
            assert_eq!(
                all.cells.iter().map(|marked| u128::from(*marked)).sum::<u128>(),
                size.into()
            );
            assert!((0..cells).all(|cell| all.shade(cell) == 4), "{size}");
        }
        let mut some = Picture::new((0, 512 << 10), ("data", "hole"));
        some.mark(0, 1);
        some.mark(1024, 1023);
        some.mark(2048, 512);
        some.mark(511 << 10, 1024);
        assert_eq!([0, 1, 2, 3, 511].map(|cell| some.shade(cell)), [1, 3, 2, 0, 4]);
        let mut out = Vec::new();
        some.print(false, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("       0 B  :*+......") && text.lines().count() == 9, "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        some.svg("a<b>&\u{1b}", &mut io::sink()).unwrap();
        assert_eq!(escaped("a<b>&\u{1b}"), "a&lt;b&gt;&amp;\u{fffd}");
    }

    #[test]
    fn a_disk_of_no_bytes_has_a_picture() {
        let none = Picture::new((0, 0), ("data", "hole"));
        let mut out = Vec::new();
        none.print(true, &mut out).unwrap();
        none.svg("none", &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("</svg>"));
    }
}
