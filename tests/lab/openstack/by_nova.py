"""Nova's own code that calls qemu-img: nova.virt.images, and how its libvirt driver makes, resizes and copies disks.
Usage: by_nova.py, in an empty directory."""

import os
import subprocess

import nova.conf
import nova.privsep
from nova.virt import images
from nova.virt.disk import api
from nova.virt.image import model
from nova.virt.libvirt import utils

from report import MIB, QEMU_IMG, base, kept, made, say, tried

FORMATS = ["raw", "qcow2", "vmdk", "vdi", "vhdx", "vpc"]
LUKS = {"secret": "a key", "format": "luks"}


def converted(source: str, form: str, target: str, **how: object) -> object:
    path = os.path.abspath(f"{form}.{len(how)}.{target}")
    images.convert_image(source, path, form, target, **how)
    key = "key" if "dest_encryption" in how else None
    return [kept(images.qemu_img_info(path)) if not key else None, made(path, target, key)]


def created(path: str, form: str, size: object, **how: object) -> object:
    utils.create_image(path, form, size, **how)
    key = "key" if "encryption" in how else None
    return [kept(images.qemu_img_info(path, form)), made(path, form, key)]


def extended(path: str, form: str, size: int) -> object:
    api.extend(model.LocalFileImage(path, form), size)
    return [api.get_disk_size(path), made(path, form)]


def main() -> None:
    nova.conf.CONF([], project="nova", default_config_files=[])
    nova.conf.CONF.set_override("instances_path", os.getcwd())
    nova.privsep.sys_admin_pctxt.set_client_mode(False)
    raw = base("base")
    with open("key", "w", encoding="utf-8") as key:
        key.write("a key")
    for form in FORMATS:
        source = os.path.abspath(f"source.{form}")
        subprocess.run([QEMU_IMG, "convert", "-q", "-f", "raw", "-O", form, raw, source], check=True)
        tried(f"info of {form}", lambda: kept(images.qemu_img_info(source)))
        tried(f"info of {form}, named", lambda: kept(images.privileged_qemu_img_info(source, form)))
        for target in ["raw", "qcow2", "vmdk", "vdi"]:
            tried(f"{form} to {target}", lambda: converted(source, form, target, run_as_root=True))
        tried(f"{form} to compressed", lambda: converted(source, form, "qcow2", compress=True, run_as_root=False))
        tried(f"{form} unsafe", lambda: images.convert_image_unsafe(source, source + ".raw", "raw"))
    tried("to luks", lambda: converted(raw, "raw", "luks", dest_encryption=LUKS))
    tried("to encrypted qcow2", lambda: converted(raw, "raw", "qcow2", dest_encryption=LUKS))
    for form in ["luks", "qcow2"]:
        source = os.path.abspath(f"raw.1.{form}")
        tried(f"from encrypted {form}", lambda: converted(source, form, "raw", src_encryption=LUKS))
        tried(f"from {form} to {form}", lambda: converted(source, form, form, src_encryption=LUKS, dest_encryption=LUKS))
        tried(f"info of encrypted {form}", lambda: kept(images.qemu_img_info(source)))
    tried("creates raw", lambda: created("new.raw", "raw", 4 * MIB))
    tried("creates qcow2", lambda: created("new.qcow2", "qcow2", "1G"))
    tried("creates luks", lambda: created("new.luks", "luks", 4 * MIB, encryption=LUKS))
    tried("creates encrypted qcow2", lambda: created("secret.qcow2", "qcow2", 4 * MIB, encryption=LUKS))
    tried("creates an overlay", lambda: created("over", "qcow2", None, backing_file=raw))
    tried("creates a larger overlay", lambda: created("larger", "qcow2", 16 * MIB, backing_file=os.path.abspath("source.qcow2")))
    tried("creates an overlay over vmdk", lambda: created("over.vmdk", "qcow2", None, backing_file=os.path.abspath("source.vmdk")))
    tried("extends raw", lambda: extended("new.raw", "raw", 8 * MIB))
    tried("extends qcow2", lambda: extended("larger", "qcow2", 32 * MIB))
    tried("may be extended", lambda: [api.can_resize_image("larger", size * MIB) for size in [16, 32, 64]])
    tried("extracts", lambda: [utils.extract_snapshot("larger", "qcow2", "extracted", "raw"), made("extracted", "raw")])
    tried("backing of", lambda: [utils.get_disk_backing_file("larger"), utils.get_disk_backing_file("larger", basename=False)])
    tried("a disk that is not there", lambda: images.qemu_img_info("nothing"))
    say("done", True)


main()
