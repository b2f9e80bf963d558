use std::sync::Arc;

use device::{Device, Edge, ErrorKind, ExtentKind};
use runtime::WorkPool;

use super::*;

fn open_with(text: &str, more: &[(&str, &str)]) -> Result<Memory> {
    let mut params = Params::default();
    params.set("data", text).unwrap();
    for (key, value) in more {
        params.set(key, value).unwrap();
    }
    open(&params, &OpenOptions::read_write())
}

fn bytes_of(disk: &Memory) -> Vec<u8> {
    let mut bytes = vec![0xaa; usize::try_from(disk.info().size).unwrap()];
    disk.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn bytes_of_device(disk: Arc<dyn Device>) -> Vec<u8> {
    let disk = Edge::new(disk, WorkPool::new(1));
    let mut bytes = vec![0xaa; usize::try_from(disk.info().size).unwrap()];
    disk.read(&mut bytes, 0).unwrap();
    bytes
}

fn hex(text: &str) -> String {
    bytes_of(&open_with(text, &[]).unwrap()).iter().map(|b| format!("{b:02x}")).collect()
}

fn error(text: &str) -> String {
    open_with(text, &[]).err().unwrap_or_else(|| panic!("{text} was taken")).to_string()
}

#[test]
fn the_language_means_what_it_means_to_nbdkit() {
    // Each answer is nbdkit 1.32's.
    for (text, want) in [
        ("", ""),
        ("1 2 @-1 3", "0103"),
        ("( 1 @4 )*2", "0100000001000000"),
        ("(1 @^4)*3", "010000000100000001000000"),
        ("@8", "0000000000000000"),
        ("1 @4 2 @1 9", "0109000002"),
        ("\"\\q\"", "71"),
        ("1*3[1:]", "0101"),
        ("(1 2 3 4)[1:3]", "0203"),
        ("(1 2)*2 -> \\x \\x 9 \\x", "010201020901020102"),
        ("\"ab\"[:1]", "61"),
        ("le16:258", "0201"),
        ("be32:0x01020304", "01020304"),
        ("010", "08"),
        ("1 # c\n2", "0102"),
        ("@+2 1", "000001"),
        ("(@2 1 @0 5)", "050001"),
        ("@3 (7 8)*2 9", "0000000708070809"),
        ("(1 -> \\a \\a)", "01"),
        ("1*0 2", "02"),
        ("(1*2)*2*2", "0101010101010101"),
        ("1-> \\a", ""),
        ("( (1 2) -> \\x \\x*3 )", "010201020102"),
        ("()*3", ""),
        ("\"a\" \"b\"*2", "616262"),
        ("(1 @10 @2 3) 4", "0100030000000000000004"),
        ("((1 2)*3)[2:4]*2", "01020102"),
        ("\"é\"", "c3a9"),
        ("1*4 @0 (@1 2)", "00020101"),
        ("\"abc\" @0 (@2)", "000063"),
        ("(1 @-1 2)*2", "0202"),
        ("1 -> \\a-b_c \\a-b_c", "01"),
        ("1->\\a 2->\\a \\a", "02"),
        ("1->\\a (2->\\a \\a) \\a", "0201"),
        ("0*5 1", "000000000001"),
        ("(1 2 3)[1:1] 4", "04"),
        ("(1 2 3)[99:99] 4", "04"),
        ("1*2 *2", "01010101"),
        ("1@^4 2", "0100000002"),
        ("1\"a\"2", "016102"),
        ("(1)(2)", "0102"),
        ("1[:]", "01"),
        ("\"Hello\"[99:99] 4", "04"),
        ("@+ 4", "00000000"),
        ("\"\\t\\v\\e\\\"\\\\\"", "090b1b225c"),
        // And what newer ones and C have.
        ("@1K 1 @0 0 [0:0]", &format!("{}01", "00".repeat(1024))),
        ("\"\\x41\\0\\101\"", "410041"),
    ] {
        assert_eq!(hex(text), want, "{text}");
    }
}

#[test]
fn what_the_language_does_not_have_is_refused_with_its_place() {
    for (text, want) in [
        ("0b11", "not a number (character 1"),
        ("256", "0 to 255"),
        ("1 @-2", "before the start of the disk (character 3: `@-2`)"),
        ("(1 2)[0:5]", "[0:5] does not lie in these 2 bytes"),
        ("(1 2)[2:1]", "does not lie"),
        ("(1 -> \\a) \\a", "there is no `\\a` here (character 11"),
        ("@^3", "power of two"),
        ("@^0", "power of two"),
        ("-> \\a", "must follow an expression"),
        ("*2", "must follow an expression"),
        ("\"abc", "does not end"),
        ("\"abc\\", "does not end"),
        ("(1", "`(` without `)`"),
        ("1)", "`)` without `(`"),
        ("1 2]", "not a byte"),
        ("<(echo hi)", "refused"),
        ("<", "which file?"),
        ("</nonexistent/file", "No such file"),
        ("$surely_not_defined", "nor in the environment"),
        ("le16:0x10000", "does not fit"),
        ("le8:1", "words are"),
        ("08", "not a number"),
        ("1->a", "begins with"),
        ("@0x8000000000000000", "beyond 2^63-1"),
        ("1 @9223372036854775807 1", "too large"),
        ("@+18446744073709551616", "not a number"),
        ("1*99999999999999999999", "not a number"),
        ("(1*9E)*9", "too large"),
        ("\"\\xzz\"", "not a byte"),
        ("\u{0}", "not a byte"),
    ] {
        let got = error(text);
        assert!(got.contains(want), "{text}: {got}");
        assert!(!got.contains('\n'), "{text}: {got}");
    }
}

#[test]
fn variables_are_parameters_and_unused_parameters_are_refused() {
    let disk = open_with("$pattern*2 9 $pattern[1:]", &[("pattern", "1 2"), ("size", "7")]);
    assert_eq!(bytes_of(&disk.unwrap()), [1, 2, 1, 2, 9, 2, 0]);
    let error = open_with("1", &[("sise", "7")]).err().unwrap().to_string();
    assert!(error.contains("did you mean `size`?"), "{error}");
    let error = open_with("$a", &[("a", "$a $a")]).err().unwrap().to_string();
    assert!(error.contains("nested too deep"), "{error}");
    let error = open_with("1 $b", &[("b", "1 (")]).err().unwrap().to_string();
    assert!(error.contains("$b: `(` without `)`"), "{error}");
}

#[test]
fn huge_sparse_disks_open_at_once_and_are_holes() {
    let disk = open_with("0*1E \"x\" @^1M (1 @4M)*100 @7E 5", &[]).unwrap();
    assert_eq!(disk.info().size, (7 << 60) + 1);
    let mut extents = Vec::new();
    disk.resolve(0, disk.info().size, 1000, &mut extents).unwrap();
    let data: u64 = extents.iter().filter(|e| e.kind == ExtentKind::Data).map(|e| e.len).sum();
    assert!(data < 4 << 20 && extents.len() > 200, "{data} bytes, {} extents", extents.len());
    let mut bytes = [0; 2];
    disk.read_at(&mut bytes, (1 << 60) - 1).unwrap();
    assert_eq!(bytes, [0, b'x']);
}

#[test]
fn expansion_is_limited_in_bytes_pieces_and_depth() {
    let bomb = "1*1M->\\a \\a*1M->\\b (\\b \\b)";
    assert_eq!(open_with(bomb, &[]).err().unwrap().kind(), ErrorKind::Limit);
    let many = "(1 @1M)*1000000000";
    assert_eq!(open_with(many, &[]).err().unwrap().kind(), ErrorKind::Limit);
    let deep = "(".repeat(100_000);
    assert!(error(&deep).contains("nested too deep"));
    let long = format!("1{}", "*1".repeat(100_000));
    assert!(error(&long).contains("too large"));
    let doubling: String = (0..40).fold("1->\\a ".into(), |s, _| s + "(\\a \\a)->\\a ");
    assert_eq!(open_with(&(doubling + "\\a"), &[]).err().unwrap().kind(), ErrorKind::Limit);
    // What is cut off costs nothing.
    let cut = open_with("(1 2)*1E", &[("size", "1000")]).unwrap();
    assert_eq!(bytes_of(&cut)[998..], [1, 2]);
}

#[test]
fn repetition_and_slices_agree_with_their_spelt_out_form() {
    let period: Vec<u8> = (0..=250).collect();
    let text: String = period.iter().map(|b| format!("{b} ")).collect();
    let disk = open_with(&format!("9 (({text})*9000)[77:2000000]"), &[]).unwrap();
    let want: Vec<u8> =
        std::iter::once(9).chain(period.repeat(9000)[77..2_000_000].iter().copied()).collect();
    assert!(bytes_of(&disk) == want);
}

#[test]
fn raw_and_base64_and_size_make_disks() {
    let open = |text: &str| {
        crate::Named::parse(text)
            .and_then(|disk| disk.open(&OpenOptions::read_write(), &runtime::Context::default()))
            .map(bytes_of_device)
            .map_err(|e| e.to_string())
    };
    assert_eq!(open("data:?raw=Hello").unwrap(), b"Hello");
    assert_eq!(open("data:?base64=MTIz&size=5").unwrap(), b"123\0\0");
    assert_eq!(open("data:1 2 3?size=2").unwrap(), [1, 2]);
    assert!(open("data:?base64=M").unwrap_err().contains("truncated"));
    assert!(open("data:").unwrap_err().contains("exactly one"));
    assert!(open("data:1?raw=2").unwrap_err().contains("exactly one"));
}

#[test]
fn files_are_read_and_writes_go_to_memory_only() {
    let scratch = trial::Scratch::new("/tmp");
    let path = scratch.file("data", b"xyz");
    let disk = open_with(&format!("(<{} )*2 9", path.display()), &[]).unwrap();
    assert_eq!(bytes_of(&disk), b"xyzxyz\x09");
    disk.write_at(b"Q", 0, true).unwrap();
    assert_eq!(bytes_of(&disk), b"Qyzxyz\x09");
    // A name ends where what may follow an expression begins.
    let name = path.display();
    for (text, want) in [
        (format!("<{name}*2"), &b"xyzxyz"[..]),
        (format!("(<{name})*2"), b"xyzxyz"),
        (format!("<{name}[1:]"), b"yz"),
        (format!("<{name} [ :1]*2"), b"xx"),
        (format!("<{name}[1:9][1:]"), b"z"),
        (format!("<{name}[7:9]"), b""),
        ("</dev/zero[7:9]*2".to_owned(), &[0; 4]),
    ] {
        assert_eq!(bytes_of(&open_with(&text, &[]).unwrap()), want, "{text}");
    }
    assert!(error(&format!("<{name}[2:1]")).contains("ends before its beginning"));
    assert!(error("</dev/zero[0:1G]").contains("longer than 16 MiB"));
    assert_eq!(std::fs::read(&path).unwrap(), b"xyz");
    assert!(error("</dev/zero").contains("longer than 16 MiB"));
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(tokens in proptest::collection::vec(token(), 0..40)) {
        let text = tokens.concat();
        if let Ok(disk) = open_with(&text, &[("v", "1 2 -> \\v \\v")]) {
            let mut byte = vec![0; usize::from(disk.info().size > 0)];
            disk.read_at(&mut byte, disk.info().size.saturating_sub(1)).unwrap();
        }
    }
}

fn token() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let words =
        r#"1 0x ff ( ) * 3 [ : ] -> \a \ $v $ " @ @+ @- @^ 4 le16: # < 9999999999 1M 1E é -"#;
    let words: Vec<_> = words.split(' ').chain([" ", "\n"]).collect();
    prop_oneof![
        8 => proptest::sample::select(words).prop_map(String::from),
        1 => "\\PC{0,3}",
    ]
}
