//! The disks that names lead to, and what is left of a target that could not be used.

use std::path::PathBuf;

use device::ZeroFlags;
use disk::{Creation, Holds, Named, OpenOptions, Relation, Scope, Stack};
use runtime::Context;

/// A unique name in the file system; the file of that name is removed with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("diskferry-opening-{name}-{}", std::process::id());
        let place = Self(std::env::temp_dir().join(name));
        let _ = std::fs::remove_file(&place.0);
        place
    }

    fn named(&self) -> Named {
        Named::parse(self.0.to_str().unwrap()).unwrap()
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.0).unwrap().len()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn creation(size: u64) -> Creation {
    let options = OpenOptions::read_write();
    Creation {
        size,
        grows: false,
        upwards: false,
        appears: false,
        whole: true,
        write_back: false,
        options,
    }
}

fn stack(words: &[&str]) -> Stack {
    Stack::parse(words.iter().copied()).unwrap()
}

#[test]
fn disks_by_name_are_for_stacks_that_keep_nothing_of_one() {
    let (disk, context) = (Named::parse("file:?dir=/").unwrap(), Context::default());
    let options = OpenOptions { by_name: true, ..OpenOptions::read_only() };
    for words in [&[][..], &["exportname"], &["readonly", "count"]] {
        let opened = disk::open(&disk, &stack(words), &options, &context).unwrap();
        assert!(opened.edge.device().is_chosen_by_name(), "{words:?}");
    }
    for filter in ["cow", "cache", "gzip", "offset", "truncate"] {
        let stack = stack(&["exportname", filter]);
        assert!(stack.keeps_disk());
        let refused = disk::open(&disk, &stack, &options, &context).unwrap_err().to_string();
        assert!(refused.contains("without filters that keep something of one disk"), "{refused}");
    }
    let guessed = Stack::default().over_image(disk::Image::guessed());
    assert!(guessed.keeps_disk() && !Stack::default().keeps_disk());
}

#[test]
fn all_ways_to_name_a_disk_lead_to_one_kind_and_one_storage() {
    let place = Place::new("names");
    std::fs::write(&place.0, [1; 512]).unwrap();
    let path = place.0.to_str().unwrap();
    let plain = place.named();
    assert_eq!(plain.path(), Some(path));
    for text in
        [format!("file:{path}"), format!("file:?file={path}"), format!("file:{path}?lock=off")]
    {
        let other = Named::parse(&text).unwrap();
        assert_eq!(other.kind().word, plain.kind().word);
        assert_eq!(other.path(), None, "it says what it means");
        assert_eq!(plain.storage().relation(&other.storage()), Relation::Same, "{text}");
    }
}

#[test]
fn what_was_made_is_gone_when_a_filter_refuses_it() {
    let place = Place::new("refused");
    let filters = stack(&["partition?partition=1"]);
    disk::create(&place.named(), &filters, &creation(1 << 20), &Context::default()).unwrap_err();
    assert!(!place.0.exists());
    std::fs::write(&place.0, [0; 4096]).unwrap();
    disk::create(&place.named(), &filters, &creation(1 << 20), &Context::default()).unwrap_err();
    assert_eq!(place.len(), 4096, "what was there is not touched");
}

#[test]
fn a_file_is_known_to_be_zero_only_if_it_was_made_and_nothing_stands_over_it() {
    let (place, context) = (Place::new("zero"), Context::default());
    let create = |filters: &Stack, size| {
        disk::create(&place.named(), filters, &creation(size), &context).unwrap()
    };
    let made = create(&Stack::default(), 4096);
    assert_eq!(made.holds, Holds::Zeroes);
    let made = made.made.unwrap();
    assert!(made.remove() && !made.remove() && !place.0.exists());
    let made = create(&stack(&["noextents"]), 8192);
    assert_eq!(made.holds, Holds::Unknown);
    made.made.unwrap().keep();
    drop(made.edge);
    let again = create(&stack(&["noextents"]), 512);
    assert!(again.holds == Holds::Unknown && again.made.is_none());
    again.edge.zero(0, 512, ZeroFlags::default()).unwrap();
    again.edge.device().finish().unwrap();
    assert_eq!(place.len(), 8192, "only a part of it may have been seen");
}

#[test]
fn a_target_that_drops_bytes_is_as_large_as_needed_unless_its_size_is_named() {
    for (text, size) in [("null:", 12_345), ("null:1M", 1 << 20), ("null:?size=2M", 2 << 20)] {
        let named = Named::parse(text).unwrap();
        let made = disk::create(&named, &Stack::default(), &creation(12_345), &Context::default());
        assert_eq!(made.unwrap().edge.info().size, size, "{text}");
    }
}

#[test]
fn a_disk_that_is_only_read_is_not_opened_for_writing() {
    let (place, context) = (Place::new("read"), Context::default());
    std::fs::write(&place.0, [1; 4096]).unwrap();
    let filters = stack(&["cow"]);
    let options = OpenOptions::read_write();
    let opened = disk::open(&place.named(), &filters, &options, &context).unwrap();
    assert!(!opened.below.info().abilities.write && opened.edge.info().abilities.write);
    let other = disk::open(&place.named(), &filters, &options, &context).unwrap();
    opened.edge.write(&[2; 512], 0, false).unwrap();
    let mut bytes = [0; 512];
    other.edge.read(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 512]);
}

#[test]
fn only_a_kind_that_can_tell_without_opening_is_asked() {
    let memory = Named::parse("memory:1M").unwrap();
    assert!(memory.inspect(Scope::All, &Context::default()).unwrap().is_none());
}

#[test]
fn an_invalid_option_leaves_an_existing_file_as_it_was() {
    let place = Place::new("senseless");
    for (format, key, value) in
        [("qcow2", "cluster_size", "3"), ("vmdk", "subformat", "x"), ("vhdx", "block_size", "3")]
    {
        std::fs::write(&place.0, "kept").unwrap();
        let mut image = disk::Image::of(format).unwrap();
        image.options.add(key, value);
        let filters = Stack::default().over_image(image);
        let context = Context::default();
        assert!(disk::create(&place.named(), &filters, &creation(1 << 20), &context).is_err());
        assert_eq!(std::fs::read(&place.0).unwrap(), b"kept", "{format}");
    }
}
