use super::*;

fn ranges(text: &str) -> std::result::Result<Vec<(u64, u64)>, String> {
    match CopyChanges::read(text.as_bytes()) {
        Ok(CopyChanges::Ranges(found)) => Ok(found.iter().map(|r| (r.start, r.end)).collect()),
        Ok(other) => Err(format!("{other:?}")),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn lists_of_all_kinds_say_what_changed() {
    for (text, wanted) in [
        ("[]", &[][..]),
        (r#"[{"offset":4096,"length":8192}]"#, &[(4096, 12288)]),
        (
            r#"[{"offset":0,"length":1,"exists":"true"},{"offset":5,"length":1,"exists":"false"}]"#,
            &[(0, 1), (5, 6)],
        ),
        (
            r#"[{"offset":0,"length":10,"type":0,"description":"clean"},{"offset":10,"length":5,"type":1,"description":"dirty"}]"#,
            &[(10, 15)],
        ),
        (
            r#"[{"start":0,"length":10,"depth":0,"present":true,"zero":false,"data":true,"offset":327680},
                {"start":10,"length":10,"depth":1,"present":true,"zero":false,"data":true,"offset":7},
                {"start":20,"length":10,"depth":0,"present":true,"zero":true,"data":false},
                {"start":30,"length":10,"depth":0,"present":false,"zero":true,"data":false}]"#,
            &[(0, 10), (20, 30)],
        ),
        (
            r#"{"changedArea":[{"start":65536,"length":65536}],"length":1,"startOffset":0}"#,
            &[(65536, 131_072)],
        ),
        (
            r#"<superblock uuid="" time="1" data_block_size="128" nr_data_blocks="0">
                 <diff left="1" right="2">
                   <same begin="0" length="4"/><different begin="4" length="1"/>
                   <right_only begin="8" length="2"/><left_only begin="16" length="1"/>
                 </diff></superblock>"#,
            &[(262_144, 327_680), (524_288, 655_360), (1_048_576, 1_114_112)],
        ),
    ] {
        assert_eq!(ranges(text).unwrap(), wanted, "{text}");
    }
}

#[test]
fn what_is_no_list_of_changes_is_refused() {
    for (text, why) in [
        ("", "unknown form"),
        ("12 34\n", "unknown form"),
        ("{}", "without changedArea"),
        ("[1]", "not an object"),
        ("[{}]", "without a start"),
        (r#"[{"start":1}]"#, "without a start"),
        (r#"[{"start":-1,"length":1}]"#, "without a start"),
        (r#"[{"start":18446744073709551615,"length":1}]"#, "beyond the end"),
        (r#"[{"offset":0,"length":1,"type":0,"description":"data"}]"#, "another context"),
        ("[{\"start\":1,", "not JSON"),
        ("<a/>", "no superblock"),
        (r#"<superblock data_block_size="128"><different begin="1"/>"#, "without begin"),
        (
            r#"<superblock data_block_size="128"><different begin="18446744073709551615" length="1"/>"#,
            "without begin",
        ),
    ] {
        let told = ranges(text).unwrap_err();
        assert!(told.contains(why), "{text}: {told}");
    }
}
