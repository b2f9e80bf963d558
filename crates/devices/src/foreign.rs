//! Words for disks that other programs open and that are none here: what to use for each of them.

/// The cure for Ceph's word, as a device and as a scheme.
const CEPH: &str = "Ceph's disks: map one (`rbd device map`) and name /dev/rbdX";
/// The same for disks behind ssh.
const SSH: &str = "serve the file over there (`diskferry serve`) and name its nbd:// URI";

/// Words of nbdkit's plugins and QEMU's drivers that are in no table here.
const DEVICES: &[(&[&str], &str)] = &[
    (&["rbd", "ceph"], CEPH),
    (&["curl", "url"], "the device `http` does that: `serve http url=URL`, or the URL itself"),
    (&["iscsi"], "log in (`iscsiadm`) and name the block device"),
    (&["host_device", "host_cdrom"], "name the block device by its path"),
    (
        &["json"],
        "JSON options are accepted by the verbs with qemu-img's options, such as `convert` and \
         `info`",
    ),
];

/// nbdkit's plugins, of which some are packaged apart.
const PLUGINS: &str = "S3 blkio cdi floppy gcs guestfs iso libvirt linuxdisk lua ocaml ondemand \
     perl python ruby ssh tcl tmpdisk torrent vddk";
const PLUGIN: &str = "nbdkit's plugin of that name was not found in nbdkit's directories: install \
                      it, or name its \
                      directory in NBDKIT_PLUGINDIR";

/// Schemes of URIs.
const SCHEMES: &[(&[&str], &str)] = &[
    (&["rbd", "ceph"], CEPH),
    (
        &["gs"],
        "with HMAC keys: s3://BUCKET/KEY?endpoint=https://storage.googleapis.com; else a presigned https:// URL",
    ),
    (&["az", "swift"], "name a presigned https:// URL"),
    (&["ssh", "scp", "sftp", "rsync"], SSH),
    (&["iscsi"], "log in (`iscsiadm`) and name the block device"),
    (&["nfs", "smb", "cifs"], "mount it, and name the file by its path"),
    (&["ftp", "ftps"], "name an https:// URL"),
];

/// What to use instead of a device that is not here.
pub(crate) fn device(word: &str) -> Option<&'static str> {
    let cure = DEVICES.iter().find(|(words, _)| words.contains(&word)).map(|(_, cure)| *cure);
    cure.or_else(|| PLUGINS.split(' ').any(|plugin| plugin == word).then_some(PLUGIN))
}

/// What to use instead of a scheme that is not here.
pub(crate) fn scheme(word: &str) -> Option<&'static str> {
    SCHEMES.iter().find(|(words, _)| words.contains(&word)).map(|(_, cure)| *cure)
}
