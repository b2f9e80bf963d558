//! Where the header says where the directory of the bitmaps is, and how it says something else.
//!
//! What is to change together, with other fields, is changed in one sector. Where the extension of
//! the bitmaps is not in the first one, all extensions are written once more behind the old ones;
//! the first sector then says, at once, that the header is as long as that, so the old ones are no
//! longer read. They are changed, and the header gets its old length back.

use device::{Edge, Error, ErrorKind, Fault, Result};

use super::super::header::{
    AUTOCLEAR_AT, COMPRESSION_AT, Header, LENGTH_AT, LENGTH_V3, SIZE_AT, autoclear, extension,
};
use super::super::region::Region;
use super::Writer;
use super::anew::{HeaderChange, header_anew};
use super::directory::{ResizedBitmaps, put};
use crate::kit::confused;
use crate::kit::numbers::{be32, be64};

/// What is written as a whole.
const SECTOR: u64 = 512;
/// Bytes of the extension of the header, with its beginning, and without.
const EXTENSION: u64 = 32;
const FIELD: usize = 24;
/// Where the header has the offset of the name of the backing image.
const BACKING_AT: u64 = 8;

/// Where the header says where the directory is.
pub(super) struct Heading {
    /// The extension begins there, or could.
    at: u64,
    is_there: bool,
    /// Nothing is behind it.
    is_last: bool,
    /// The name of the backing image, and where it is.
    name: (u64, Vec<u8>),
    /// Where the extensions begin, and all of them without their end.
    extensions: (u64, Vec<u8>),
    /// The first cluster.
    first: Vec<u8>,
}

/// Where the extensions are while the old ones are changed, and the name of the backing image if
/// it has to be behind them.
struct Elsewhere {
    extensions: u64,
    name: u64,
}

impl Heading {
    pub(super) fn read(container: &Edge, header: &Header) -> Result<Self> {
        let cluster = header.geometry().cluster();
        let mut first = vec![0; usize::try_from(cluster).map_err(|_| confused())?];
        let there = usize::try_from(container.info().size).unwrap_or(usize::MAX).min(first.len());
        container.read(first.get_mut(..there).unwrap_or_default(), 0)?;
        let (offset, len) =
            (be64(&first, 8).ok_or_else(confused)?, be32(&first, 16).ok_or_else(confused)?);
        let name = usize::try_from(offset).ok().and_then(|at| first.get(at..));
        let name = name.and_then(|rest| rest.get(..usize::try_from(len).ok()?)).unwrap_or_default();
        let end = if offset == 0 { cluster } else { offset };
        let begin = u64::from(header.length);
        let mut found = Self {
            at: begin,
            is_there: false,
            is_last: true,
            name: (offset, name.to_vec()),
            extensions: (begin, Vec::new()),
            first: Vec::new(),
        };
        let mut at = begin;
        while at + 8 <= end {
            let here = usize::try_from(at).map_err(|_| confused())?;
            let (kind, len) = (be32(&first, here).unwrap_or(0), be32(&first, here + 4));
            if kind == extension::END {
                break;
            }
            found.is_last = !found.is_there;
            if kind == extension::BITMAPS {
                (found.at, found.is_there) = (at, true);
            }
            at = at.saturating_add(8 + u64::from(len.unwrap_or(0)).next_multiple_of(8));
        }
        if !found.is_there {
            found.at = at;
        }
        // The last one need not be padded.
        let range = usize::try_from(begin).ok().zip(usize::try_from(at.min(end)).ok());
        let all = range.and_then(|(begin, end)| first.get(begin..end)).ok_or_else(confused)?;
        found.extensions.1 = all.to_vec();
        found.extensions.1.resize(all.len().next_multiple_of(8), 0);
        found.first = first;
        Ok(found)
    }

    /// Refuses what cannot be done in this header.
    pub(super) fn check(&self, header: &Header, has_any: bool) -> Result<()> {
        let full = |what| Error::new(ErrorKind::Limit, Fault::File, what);
        if !has_any && self.is_there && !self.is_last {
            return Err(Error::unsupported(
                "the header has extensions after the bitmaps' extension, which are not moved",
            ));
        }
        let most = header.geometry().cluster();
        let end = self.moved_name().checked_add(self.name.1.len() as u64);
        if has_any && !self.is_there && end.is_none_or(|end| end > most) {
            return Err(full("there is no space in the header for bitmaps"));
        }
        Ok(())
    }

    /// The end of a new extension, with that of all of them.
    fn end(&self) -> u64 {
        self.at + EXTENSION + 8
    }

    /// Where the name of the backing image is, if it makes room for a new extension and is not
    /// written over itself.
    fn moved_name(&self) -> u64 {
        let (offset, name) = &self.name;
        if *offset == 0 || *offset >= self.end() {
            return self.end().max(*offset);
        }
        self.end().max(offset + name.len() as u64).next_multiple_of(8)
    }

    /// Refuses a header that cannot say at once where its bitmaps are and what else changes.
    pub(super) fn check_moves(&self, header: &Header) -> Result<()> {
        let change = HeaderChange { bitmaps: Some(&[0; FIELD]), ..HeaderChange::default() };
        let slice = usize::try_from(header.geometry().slice()).map_err(|_| confused())?;
        let block = self.first.get(..slice).ok_or_else(confused)?;
        if self.is_together()
            || self.elsewhere().is_some()
            || header_anew(block, header, header.version, change).is_ok()
        {
            return Ok(());
        }
        let action = "the extensions of the header leave no space to change the bitmaps' \
                      extension; `diskferry bitmap --remove FILE BITMAP` removes those";
        Err(Error::new(ErrorKind::Limit, Fault::File, action))
    }

    /// Whether the extension is in the sector of the header.
    fn is_together(&self) -> bool {
        self.at + EXTENSION <= SECTOR
    }

    /// Where the extensions have room behind the old ones, before the name of the backing image or
    /// behind it; `None`: nowhere.
    fn elsewhere(&self) -> Option<Elsewhere> {
        let ((begin, extensions), (name, bytes)) = (&self.extensions, &self.name);
        let (len, cluster) = (extensions.len() as u64 + 8, self.first.len() as u64);
        let behind = (begin + len).next_multiple_of(8);
        if *name == 0 || behind + len <= *name {
            let found = Elsewhere { extensions: behind, name: *name };
            return (behind + len <= cluster).then_some(found);
        }
        let place = behind.max(name.checked_add(bytes.len() as u64)?).next_multiple_of(8);
        let found = Elsewhere { extensions: place, name: place + len };
        (found.name + bytes.len() as u64 <= cluster).then_some(found)
    }

    /// The extensions, where the one of the bitmaps says this.
    fn with(&self, field: &[u8]) -> Result<Vec<u8>> {
        let (begin, extensions) = &self.extensions;
        let mut all = extensions.clone();
        let at = self.at.checked_sub(*begin).and_then(|at| usize::try_from(at + 8).ok());
        put(&mut all, at.ok_or_else(confused)?, field)?;
        Ok(all)
    }
}

/// What the extension of the header says of bitmaps.
fn directory_field(count: usize, directory: Region) -> Result<Vec<u8>> {
    let mut field = u32::try_from(count).map_err(|_| confused())?.to_be_bytes().to_vec();
    field.extend([0; 4]);
    field.extend(directory.len.to_be_bytes());
    field.extend(directory.offset.to_be_bytes());
    Ok(field)
}

impl Writer {
    /// Lets the header say how large the disk is, and where the directory of its bitmaps is then,
    /// at once.
    pub(super) async fn say_size(
        &self,
        header: &Header,
        size: u64,
        bitmaps: Option<(&ResizedBitmaps, Region)>,
    ) -> Result<()> {
        let size = size.to_be_bytes();
        let Some((bitmaps, directory)) = bitmaps else {
            return self.change_header(&[(SIZE_AT, &size)]).await;
        };
        let field = directory_field(bitmaps.count(), directory)?;
        self.move_directory(header, bitmaps.heading(), &field, &[(SIZE_AT, &size)]).await
    }

    /// Lets the header, which has a directory, say where it is now, and other fields of its first
    /// sector with that.
    async fn move_directory(
        &self,
        header: &Header,
        heading: &Heading,
        field: &[u8],
        more: &[(u64, &[u8])],
    ) -> Result<()> {
        let features = header.autoclear & autoclear::DATA_FILE_RAW;
        let without = features.to_be_bytes();
        let with = (features | autoclear::BITMAPS).to_be_bytes();
        let fields = [&[(AUTOCLEAR_AT, &with[..])], more].concat();
        if heading.is_together() {
            let there = (heading.at + 8, field);
            return self.change_header(&[&fields, &[there][..]].concat()).await;
        }
        if let Some(elsewhere) = heading.elsewhere() {
            return self.move_extensions(heading, elsewhere, field, &fields).await;
        }
        let change = HeaderChange { bitmaps: Some(field), fields: &fields, data_file: None };
        match self.rewrite(header, header.version, change).await {
            Err(e) if e.is_unsupported() => {}
            rewritten => return rewritten,
        }
        // For a moment none of them is valid.
        self.change_header(&[&[(AUTOCLEAR_AT, &without[..])], more].concat()).await?;
        self.change_header(&[(heading.at + 8, field)]).await?;
        self.change_header(&[(AUTOCLEAR_AT, &with)]).await
    }

    /// The same where the extension is not in the first sector, by means of a copy of all.
    async fn move_extensions(
        &self,
        heading: &Heading,
        elsewhere: Elsewhere,
        field: &[u8],
        fields: &[(u64, &[u8])],
    ) -> Result<()> {
        let ((begin, old), (name_at, name)) = (&heading.extensions, &heading.name);
        let number = |at: u64| u32::try_from(at).map(u32::to_be_bytes).map_err(|_| confused());
        let new = heading.with(field)?;
        // A header without a way of compression has extensions where a longer one has it.
        let way = if *begin == u64::from(LENGTH_V3) { 8 } else { 0 };
        let before = old.get(..way).ok_or_else(confused)?;
        let (length, name_at) = (number(*begin)?, name_at.to_be_bytes());
        let back =
            [(LENGTH_AT, &length[..]), (BACKING_AT, &name_at), (COMPRESSION_AT as u64, before)];
        if new == *old {
            // What there was is where it was.
            return self.change_header(&[fields, &back[..]].concat()).await;
        }
        let copy = [&new[..], &[0; 8]].concat();
        // Where the name stays, it is what it was.
        self.change_header(&[(elsewhere.extensions, &copy), (elsewhere.name, name)]).await?;
        let (length, name) = (number(elsewhere.extensions)?, elsewhere.name.to_be_bytes());
        let none = [0; 8];
        let none = none.get(..way).ok_or_else(confused)?;
        let there = [(LENGTH_AT, &length[..]), (BACKING_AT, &name), (COMPRESSION_AT as u64, none)];
        self.change_header(&[fields, &there[..]].concat()).await?;
        // It is done. If this fails, the header stays as long as it is.
        if self.change_header(&[(heading.at + 8, field)]).await.is_ok() {
            let _ = self.change_header(&back).await;
        }
        Ok(())
    }

    /// Lets the header say where the directory is.
    pub(super) async fn say_bitmaps(
        &self,
        header: &Header,
        heading: &Heading,
        count: usize,
        directory: Region,
    ) -> Result<()> {
        let features = header.autoclear & autoclear::DATA_FILE_RAW;
        let without = features.to_be_bytes();
        let with = (features | autoclear::BITMAPS).to_be_bytes();
        let is_together = heading.is_together();
        if count == 0 {
            if heading.is_there {
                if !is_together {
                    self.change_header(&[(AUTOCLEAR_AT, &without)]).await?;
                }
                // The end of all extensions.
                self.change_header(&[(AUTOCLEAR_AT, &without), (heading.at, &[0; 8])]).await?;
            }
            return Ok(());
        }
        let field = directory_field(count, directory)?;
        if heading.is_there {
            return self.move_directory(header, heading, &field, &[]).await;
        }
        let mut field =
            [&extension::BITMAPS.to_be_bytes()[..], &24u32.to_be_bytes(), &field].concat();
        let (offset, name) = &heading.name;
        if *offset != 0 && *offset < heading.end() {
            let place = heading.moved_name();
            self.change_header(&[(place, name)]).await?;
            self.change_header(&[(BACKING_AT, &place.to_be_bytes())]).await?;
        }
        // What is behind the end of the extensions is not seen.
        field.extend([0; 8]);
        let here = usize::try_from(SECTOR - heading.at % SECTOR).unwrap_or(field.len());
        let (head, tail) = field.split_at(here.min(field.len()));
        if !tail.is_empty() {
            self.change_header(&[(heading.at + head.len() as u64, tail)]).await?;
        }
        self.change_header(&[(heading.at, head)]).await?;
        self.change_header(&[(AUTOCLEAR_AT, &with)]).await
    }
}
