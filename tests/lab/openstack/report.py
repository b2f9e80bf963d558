"""What the scripts here have in common: they run a service's own code, and print what came of it, a line each. The
program `qemu-img` is the first on PATH; `QEMU_IMG` names QEMU's, by which images are read."""

import hashlib
import json
import os
import subprocess
import sys

QEMU_IMG = os.environ["QEMU_IMG"]
MIB = 1 << 20


def base(name: str, size: int = 8 * MIB) -> str:
    """A disk with some data in it, the same each time, and its path."""
    block = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(4000))
    with open(name, "wb") as disk:
        disk.write(block)
        disk.seek(size // 2)
        disk.write(block)
        disk.truncate(size)
    return os.path.abspath(name)


def made(image: str, form: str, key: str | None = None) -> str:
    """What is in an image, as QEMU reads it."""
    prefix = {"luks": "", "qcow2": "encrypt."}.get(form, "")
    words = ["--object", f"secret,id=s,file={key}"] if key else []
    words += ["--image-opts", f"driver={form},file.driver=file,file.filename={image}" + (f",{prefix}key-secret=s" if key else "")]
    raw = f"{image}.read"
    subprocess.run([QEMU_IMG, "convert", "-q", "-O", "raw", *words, raw], check=True)
    with open(raw, "rb") as disk:
        digest = hashlib.file_digest(disk, "sha256").hexdigest()
    os.remove(raw)
    return digest


def comparable(value: object) -> object:
    """Without what is another one each time: identifiers, costs of keys, and the directory that is worked in."""
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key not in ("cid", "uuid", "iters", "master-key-iters")}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return value.replace(os.getcwd(), ".") if isinstance(value, str) else value


def kept(info: object) -> dict[str, object]:
    """What was read out of `info`, without what depends on how a file is laid out."""
    keys = ["file_format", "virtual_size", "cluster_size", "backing_file", "encrypted", "format_specific"]
    found = {key: getattr(info, key, None) for key in keys}
    found["snapshots"] = [snapshot.get("name") for snapshot in getattr(info, "snapshots", [])]
    return found


def say(what: str, came: object) -> None:
    print(f"{what}: {json.dumps(comparable(came), sort_keys=True, default=str)}", flush=True)


def tried(what: str, run: object) -> None:
    """Runs it; a failure is a result, too, by its type: its text has the program's own words in it."""
    for _ in range(5):
        try:
            came = run()
            break
        except Exception as failed:  # pylint: disable=broad-exception-caught
            came = f"fails: {type(failed).__name__}"
            print(what, failed, file=sys.stderr)
            # QEMU measures how costly a key may be, and gives up on a busy machine.
            if "accurate CPU usage" not in str(failed):
                break
    say(what, came)
