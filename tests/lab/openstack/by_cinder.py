"""Cinder's own code that calls qemu-img: cinder.image.image_utils, and the snapshots of its drivers for file systems,
plain and encrypted. Usage: by_cinder.py, in an empty directory."""

import os
import subprocess
from types import SimpleNamespace
from unittest import mock

from cinder import objects, privsep, utils
from cinder.image import image_utils
from cinder.volume import configuration  # noqa: F401  registers what is read below
from cinder.volume.drivers import remotefs
from oslo_config import cfg

from report import MIB, QEMU_IMG, base, kept, made, say, tried

CONF = cfg.CONF
FORMATS = ["raw", "qcow2", "vmdk", "vdi", "vhdx", "vpc"]
GIB = 1 << 30
CIPHER = {"cipher_alg": "aes-256", "cipher_mode": "xts", "ivgen_alg": "plain64"}


class Images:
    """Glance, as Cinder calls it: one image is fetched, and one is uploaded."""

    def __init__(self, path: str, form: str) -> None:
        self.path, self.form, self.temp_images = path, form, None

    def show(self, *_: object) -> dict[str, object]:
        return {"id": "an-image", "disk_format": self.form, "container_format": "bare", "size": os.stat(self.path).st_size}

    def download(self, _context: object, _image: str, out: object, **_how: object) -> None:
        with open(self.path, "rb") as image:
            out.write(image.read())

    def update(self, _context: object, _image: str, _meta: object, data: object, **_how: object) -> None:
        with open("uploaded", "wb") as uploaded:
            uploaded.write(data.read())


class Driver(remotefs.RemoteFSSnapDriverDistributed):
    """A driver for a file system that is a directory, without what starts a service."""

    driver_volume_type, driver_prefix, SHARE_FORMAT_REGEX = "dir", "dir", None

    def __init__(self, key: str | None) -> None:  # pylint: disable=super-init-not-called
        self._execute, self._execute_as_root, self.key = utils.execute, False, key

    def _local_volume_dir(self, _volume: object) -> str:
        return os.getcwd()

    def _qemu_img_info(self, path: str, volume_name: str) -> object:
        return self._qemu_img_info_base(path, volume_name, os.getcwd(), force_share=True)

    def secure_file_operations_enabled(self) -> bool:
        return False

    def _set_rw_permissions(self, _path: str) -> None:
        pass


def wrote(path: str, pattern: int, key: str | None) -> None:
    """A guest writes: one byte many times, at the megabyte of that number."""
    form = f"driver=qcow2,file.filename={path}" + (",encrypt.key-secret=s" if key else "")
    words = ["--object", f"secret,id=s,file={key}"] if key else []
    subprocess.run(["qemu-io", *words, "--image-opts", form, "-c", f"write -P {pattern} {pattern}M 64k"], check=True, stdout=subprocess.DEVNULL)


def snapshots(encrypted: bool) -> None:
    """A volume, a snapshot of it, and another; both are merged and deleted. Of an encrypted one there is no snapshot here."""
    kind, key = ("encrypted", "key") if encrypted else ("plain", None)
    driver, name = Driver(key), f"volume-{'e' if encrypted else 'a'}"
    volume = SimpleNamespace(name=name, size=1, encryption_key_id="a-key" if encrypted else None, id=name)
    path = os.path.abspath(name)
    if encrypted:
        encryption = {"cipher": "aes-xts-plain64", "key_size": 256, "provider": "luks", "encryption_key_id": "a-key"}
        with mock.patch.object(remotefs.volume_utils, "check_encryption_provider", return_value=encryption):
            tried(f"{kind} volume", lambda: driver._create_encrypted_volume_file(path, 1, encryption, None))
    else:
        tried(f"{kind} volume", lambda: driver._create_qcow2_file(path, 1))
    wrote(path, 1, key)
    tried(f"{kind} volume's info", lambda: kept(driver._qemu_img_info(path, name)))
    if encrypted:
        # An encrypted image over an encrypted one is refused here; docs/openstack.md says so.
        return
    lower = name
    for number in ["1111", "2222"]:
        snapshot = SimpleNamespace(volume=volume, id=number, obj_context=None, volume_id=name)
        snapshot.volume.obj_context = None
        new = f"{path}.{number}"
        tried(f"{kind} snapshot {number}", lambda: driver._do_create_snapshot(snapshot, lower, new))
        tried(f"{kind} snapshot {number}'s info", lambda: kept(driver._qemu_img_info(new, name)))
        lower = os.path.basename(new)
    tried(f"{kind} chain", lambda: driver._get_backing_chain_for_path(volume, f"{path}.2222"))
    # The first is merged into the volume; the second lies over the volume then.
    tried(f"{kind} merge", lambda: driver._img_commit(f"{path}.1111", key, path))
    tried(f"{kind} rebase", lambda: driver._rebase_img(f"{path}.2222", name, "qcow2", key))
    tried(f"{kind} chain, shorter", lambda: driver._get_backing_chain_for_path(volume, f"{path}.2222"))
    tried(f"{kind} merge of the last", lambda: driver._img_commit(f"{path}.2222", key, path))
    tried(f"{kind} volume at last", lambda: [sorted(file for file in os.listdir() if file.startswith(name)), made(path, "qcow2", key)])


def converted(source: str, form: str, target: str, **how: object) -> object:
    path = os.path.abspath(f"{form}.to.{target}")
    image_utils.convert_image(source, path, target, src_format=form, run_as_root=False, **how)
    key = how.get("passphrase_file")
    return [kept(image_utils.qemu_img_info(path, run_as_root=False)), made(path, "vpc" if target == "vhd" else target, key)]


def fetched(source: str, form: str, target: str) -> object:
    path = os.path.abspath(f"{form}.fetched.{target}")
    image_utils.fetch_to_volume_format(None, Images(source, form), "an-image", path, target, 4096, size=1, run_as_root=False)
    return made(path, target)


def uploaded(source: str, volume_format: str, form: str) -> object:
    meta = {"id": "an-image", "disk_format": form, "container_format": "bare"}
    image_utils.upload_volume(None, Images(source, form), meta, source, volume_format=volume_format, run_as_root=False)
    return made("uploaded", form)


def resized(path: str, form: str) -> object:
    image_utils.resize_image(path, 1, file_format=form)
    return [image_utils.qemu_img_info(path, run_as_root=False).virtual_size, made(path, form)]


def main() -> None:
    CONF([], project="cinder", default_config_files=[])
    CONF.set_override("image_conversion_dir", os.getcwd())
    CONF.set_override("image_compress_on_upload", True)
    privsep.sys_admin_pctxt.set_client_mode(False)
    objects.register_all()
    secret = SimpleNamespace(get_encoded=lambda: b"a key")
    remotefs.key_manager.API = lambda *_: SimpleNamespace(get=lambda *_: secret)
    raw = base("base")
    with open("key", "w", encoding="utf-8") as key:
        key.write(secret.get_encoded().hex())
    tried("is new enough", lambda: image_utils.check_qemu_img_version("2.10.0"))
    for form in FORMATS:
        source = os.path.abspath(f"source.{form}")
        options = ["-o", "subformat=streamOptimized"] if form == "vmdk" else []
        subprocess.run([QEMU_IMG, "convert", "-q", "-f", "raw", "-O", form, *options, raw, source], check=True)
        tried(f"info of {form}", lambda: kept(image_utils.qemu_img_info(source, run_as_root=False, force_share=True)))
        tried(f"format of {form}", lambda: image_utils.get_image_format(source))
        for target in ["raw", "qcow2", "vmdk", "vdi", "vhd", "vhdx"]:
            tried(f"{form} to {target}", lambda: converted(source, form, target))
        tried(f"{form} to compressed qcow2", lambda: converted(source, form, "qcow2", compress=True))
        tried(f"{form} to raw, all of it", lambda: converted(source, form, "raw", disable_sparse=True))
        tried(f"fetches {form} as raw", lambda: fetched(source, form, "raw"))
        tried(f"fetches {form} as qcow2", lambda: fetched(source, form, "qcow2"))
    tried("to luks", lambda: converted(raw, "raw", "luks", cipher_spec=CIPHER, passphrase_file="key"))
    for target in ["qcow2", "vmdk", "raw"]:
        tried(f"uploads as {target}", lambda: uploaded(raw, "raw", target))
    tried("fails for want of a file", lambda: image_utils.qemu_img_info("nothing", run_as_root=False, img_format="raw"))
    tried("resizes raw", lambda: resized(os.path.abspath("qcow2.fetched.raw"), "raw"))
    tried("resizes qcow2", lambda: resized(os.path.abspath("raw.fetched.qcow2"), "qcow2"))
    subprocess.run([QEMU_IMG, "create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "overlay"], check=True)
    tried("info of an overlay", lambda: kept(image_utils.qemu_img_info("overlay", run_as_root=False, allow_qcow2_backing_file=True)))
    tried("fetches an overlay", lambda: fetched("overlay", "qcow2", "raw"))
    snapshots(encrypted=False)
    snapshots(encrypted=True)
    say("done", True)


main()
