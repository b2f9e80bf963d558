//! The disks that names lead to, and what is left of a target that could not be used.

use device::ZeroFlags;
use disk::{Holds, Named, OpenOptions, Relation, Scope, Stack};
use runtime::Context;

use crate::support::{Place, creation};

fn named(path: &str) -> Named {
    Named::parse(path).unwrap()
}

fn stack(words: &[&str]) -> Stack {
    Stack::parse(words.iter().copied()).unwrap()
}

#[test]
fn disks_by_name_are_for_stacks_that_keep_nothing_of_one() {
    let (disk, context) = (named("file:?dir=/"), Context::default());
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
    let place = Place::new();
    let path = place.write("disk", &[1; 512]);
    let plain = named(&path);
    assert_eq!(plain.path(), Some(&*path));
    for text in
        [format!("file:{path}"), format!("file:?file={path}"), format!("file:{path}?lock=off")]
    {
        let other = named(&text);
        assert_eq!(other.kind().word, plain.kind().word);
        assert_eq!(other.path(), None, "it says what it means");
        assert_eq!(plain.storage().relation(&other.storage()), Relation::Same, "{text}");
    }
}

#[test]
fn what_was_made_is_gone_when_a_filter_refuses_it() {
    let (place, filters) = (Place::new(), stack(&["partition?partition=1"]));
    let disk = named(&place.path("disk"));
    disk::create(&disk, &filters, &creation(1 << 20), &Context::default()).unwrap_err();
    assert!(!place.0.join("disk").exists());
    place.write("disk", &[0; 4096]);
    disk::create(&disk, &filters, &creation(1 << 20), &Context::default()).unwrap_err();
    assert_eq!(place.read("disk").len(), 4096, "what was there is not touched");
}

#[test]
fn a_file_is_known_to_be_zero_only_if_it_was_made_and_nothing_stands_over_it() {
    let (place, context) = (Place::new(), Context::default());
    let disk = named(&place.path("disk"));
    let create =
        |filters: &Stack, size| disk::create(&disk, filters, &creation(size), &context).unwrap();
    let made = create(&Stack::default(), 4096);
    assert_eq!(made.holds, Holds::Zeroes);
    let made = made.made.unwrap();
    assert!(made.remove() && !made.remove() && !place.0.join("disk").exists());
    let made = create(&stack(&["noextents"]), 8192);
    assert_eq!(made.holds, Holds::Unknown);
    made.made.unwrap().keep();
    drop(made.edge);
    let again = create(&stack(&["noextents"]), 512);
    assert!(again.holds == Holds::Unknown && again.made.is_none());
    again.edge.zero(0, 512, ZeroFlags::default()).unwrap();
    again.edge.device().finish().unwrap();
    assert_eq!(place.read("disk").len(), 8192, "only a part of it may have been seen");
}

#[test]
fn a_target_that_drops_bytes_is_as_large_as_needed_unless_its_size_is_named() {
    for (text, size) in [("null:", 12_345), ("null:1M", 1 << 20), ("null:?size=2M", 2 << 20)] {
        let made =
            disk::create(&named(text), &Stack::default(), &creation(12_345), &Context::default());
        assert_eq!(made.unwrap().edge.info().size, size, "{text}");
    }
}

#[test]
fn a_disk_that_is_only_read_is_not_opened_for_writing() {
    let (place, context) = (Place::new(), Context::default());
    let disk = named(&place.write("disk", &[1; 4096]));
    let (filters, options) = (stack(&["cow"]), OpenOptions::read_write());
    let opened = disk::open(&disk, &filters, &options, &context).unwrap();
    assert!(!opened.below.info().abilities.write && opened.edge.info().abilities.write);
    let other = disk::open(&disk, &filters, &options, &context).unwrap();
    opened.edge.write(&[2; 512], 0, false).unwrap();
    let mut bytes = [0; 512];
    other.edge.read(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [1; 512]);
}

#[test]
fn only_a_kind_that_can_tell_without_opening_is_asked() {
    assert!(named("memory:1M").inspect(Scope::All, &Context::default()).unwrap().is_none());
}

#[test]
fn an_invalid_option_leaves_an_existing_file_as_it_was() {
    let place = Place::new();
    for (format, key, value) in
        [("qcow2", "cluster_size", "3"), ("vmdk", "subformat", "x"), ("vhdx", "block_size", "3")]
    {
        let disk = named(&place.write("disk", b"kept"));
        let mut image = disk::Image::of(format).unwrap();
        image.options.add(key, value);
        let filters = Stack::default().over_image(image);
        let context = Context::default();
        assert!(disk::create(&disk, &filters, &creation(1 << 20), &context).is_err());
        assert_eq!(place.read("disk"), b"kept", "{format}");
    }
}
