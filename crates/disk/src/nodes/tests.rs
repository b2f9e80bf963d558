use super::*;

fn parse(text: &str) -> Result<NamedNode> {
    let mut tls = Params::default();
    tls.add("tls-certificates", "/pki");
    tls.add("tls", "require");
    let objects = NodeObjects {
        credentials: vec![("tls0".to_owned(), tls)],
        throttles: vec![("slow".to_owned(), Some(1024)), ("free".to_owned(), None)],
    };
    node(text, &objects)
}

/// The disk, its format, and the filters above and below that.
fn shown(text: &str) -> String {
    let node = parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let content = match node.stack.image().content {
        Content::Raw => "raw",
        Content::Guess => "guess",
        Content::Format(format) => format.word,
    };
    let all: Vec<_> = node.stack.kinds().map(|kind| kind.word).collect();
    let read_only = if node.read_only { " read-only" } else { "" };
    let all = if all.is_empty() { String::new() } else { format!(" {}", all.join(",")) };
    format!("{} {content}{all}{read_only}", node.disk)
}

#[test]
fn what_qemu_would_open_is_named_as_here() {
    for (text, wanted) in [
        ("driver=raw,file.filename=/a,,b", "/a,b raw"),
        ("driver=raw,file.driver=file,file.filename=x,file.locking=off", "x raw"),
        ("driver=file,filename=x", "x raw"),
        ("driver=host_device,filename=/dev/x,cache.direct=on", "/dev/x raw"),
        ("filename=x", "x guess"),
        ("file.filename=x", "x guess"),
        ("driver=nbd,host=h,port=1,export=a b", "nbd://h:1/a%20b raw"),
        ("driver=nbd,server.type=inet,server.host=::1,server.port=1", "nbd://[::1]:1/ raw"),
        (
            "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path=/s",
            "nbd+unix:///?socket=/s raw",
        ),
        ("driver=nbd,host=h,tls-creds=tls0,tls-hostname=x,open-timeout=3", "nbd://h/ raw"),
        ("driver=qcow2,file.driver=http,file.url=http://h/a,file.timeout=9", "http://h/a qcow2"),
        ("driver=null-co,size=1M,read-zeroes=on", "null:1M raw"),
        ("driver=qcow2,file.filename=x,l2-cache-size=1M,discard-no-unref=on", "x qcow2"),
        ("driver=qcow2,file.filename=x,backing=", "x qcow2"),
        ("file.filename=x,encrypt.format=luks,encrypt.key-secret=s", "x qcow2"),
        ("driver=raw,offset=512,size=1M,file.filename=x", "x raw offset"),
        ("driver=qcow2,file.driver=raw,file.offset=512,file.file.filename=x", "x qcow2 offset"),
        ("driver=raw,size=1M,file.driver=qcow2,file.file.filename=x", "x qcow2 offset"),
        ("driver=copy-on-read,file.driver=qcow2,file.file.filename=x", "x qcow2"),
        ("driver=throttle,throttle-group=slow,file.driver=raw,file.file.filename=x", "x raw rate"),
        ("driver=throttle,throttle-group=free,file.filename=x", "x guess"),
        ("driver=compress,file.driver=qcow2,file.file.filename=x", "x qcow2"),
        (r#"json:{"driver":"raw","file":{"driver":"file","filename":"x"}}"#, "x raw"),
        (r#"json:{"file.filename":"x","read-only":true}"#, "x guess read-only"),
        (r#"json:{"driver":"qcow2","backing":null,"file":{"filename":"x"}}"#, "x qcow2"),
        (r#"json: {'driver': 'raw', 'file.filename': 'it\'s "x"'}"#, r#"it's "x" raw"#),
    ] {
        assert_eq!(shown(text), wanted, "{text}");
    }
    let node = parse("driver=compress,file.driver=qcow2,file.file.filename=x").unwrap();
    assert!(node.stack.image().compress);
    let node = parse(r#"json:{"driver":"qcow2","backing":null,"file":{"filename":"x"}}"#).unwrap();
    assert!(node.stack.image().ignore_backing);
    let node = parse("driver=nbd,host=h,tls-creds=tls0").unwrap();
    assert_eq!(node.disk.params().get("tls-certificates"), Some("/pki"));
}

#[test]
fn the_secret_of_an_encrypted_image_is_named_in_either_way() {
    for text in [
        "driver=luks,key-secret=s,file.filename=x",
        "driver=qcow2,encrypt.format=luks,encrypt.key-secret=s,file.filename=x",
        r#"json:{"driver":"qcow2","encrypt":{"key-secret":"s"},"file":{"filename":"x"}}"#,
    ] {
        let node = parse(text).unwrap();
        assert_eq!(node.stack.image().params.get("key-secret"), Some("s"), "{text}");
    }
}

#[test]
fn what_has_no_meaning_here_is_refused_and_named() {
    for (text, why) in [
        ("driver=qcow2,encrypt.format=aes,encrypt.key-secret=s,file.filename=x", "encrypt.format"),
        ("driver=raw,encrypt.key-secret=s,file.filename=x", "encrypt.key-secret"),
        ("driver=raw,offset=x,file.filename=x", "offset"),
        ("driver=raw,ofset=512,file.filename=x", "did you mean `offset`?"),
        ("driver=raw,file.driver=curl,file.filename=x", "curl"),
        ("driver=quorum,vote-threshold=1,children.0=x", "QEMU's driver `quorum` is not supported"),
        ("driver=blkdebug,image.filename=x", "`blkdebug` is not supported"),
        (r#"json:{"driver":"quorum","children":["a","b"]}"#, "`quorum` is not supported"),
        ("driver=blkverify,raw=x,test=y", "`blkverify` is not supported"),
        ("driver=throttle,file.filename=x", "there is no `throttle-group`"),
        ("driver=throttle,throttle-group=x,file.filename=x", "no --object with this id"),
        ("driver=nbd,host=x,tls-creds=x", "no --object with this id"),
        ("driver=nbd,host=x,x-dirty-bitmap=b", "x-dirty-bitmap"),
        ("driver=compress,file.driver=raw,file.file.filename=x", "compress"),
        ("driver=qcow2,file.driver=qcow2,file.file.filename=x", "is stored in a file"),
        ("driver=qcow2,backing.filename=y,file.filename=x", "the image's own backing image"),
        (r#"json:{"driver":"qcow2","file":"node0"}"#, "refers to the node node0"),
        ("driver=raw", "there is no `filename`"),
        ("driver=nbd", "neither `server.host` nor `server.path`"),
        ("file.filename", "has no value"),
        ("json:{", "JSON"),
        ("json:[]", "not an object"),
        (r#"json:{"driver":null}"#, "has the wrong type"),
        (r#"json:{"driver":"raw","file":1,"file.filename":"x"}"#, "refers to the node 1"),
    ] {
        let error = parse(text).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(why), "{text}: {error}");
    }
}
