"""A directory as a container image, in an archive that `ctr images import` takes: image.py NAME ARCHIVE ROOT [ENTRYPOINT]..."""

import hashlib
import io
import json
import sys
import tarfile

OCI = "application/vnd.oci.image."


def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def layer_of(root: str) -> bytes:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w") as layer:
        layer.add(root, arcname=".", filter=owned_by_root)
    return into.getvalue()


def main(name: str, archive: str, root: str, *entrypoint: str) -> None:
    blobs: list[bytes] = []

    def described(kind: str, blob: bytes) -> dict[str, object]:
        blobs.append(blob)
        return {"mediaType": OCI + kind, "digest": "sha256:" + hashlib.sha256(blob).hexdigest(), "size": len(blob)}

    layer = described("layer.v1.tar", layer_of(root))
    started = {"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]}
    config = {"architecture": "amd64", "os": "linux", "config": started, "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]}}
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI + "manifest.v1+json",
        "config": described("config.v1+json", json.dumps(config).encode()),
        "layers": [layer],
    }
    index = {
        "schemaVersion": 2,
        "manifests": [described("manifest.v1+json", json.dumps(manifest).encode()) | {"annotations": {"io.containerd.image.name": name}}],
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    files |= {"blobs/sha256/" + hashlib.sha256(blob).hexdigest(): blob for blob in blobs}
    with tarfile.open(archive, "w") as out:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))


main(*sys.argv[1:])
