"""Glance's own code that calls qemu-img: its plug-in that converts images at an import, and its tasks that inspect and
convert. Usage: by_glance.py, in an empty directory."""

import os
import subprocess

from glance.common import config  # noqa: F401  registers what is read below
from glance.async_.flows import convert, introspect
from glance.async_.flows.plugins import image_conversion
from oslo_config import cfg

from report import QEMU_IMG, base, made, say, tried

CONF = cfg.CONF
FORMATS = {"raw": [], "qcow2": [], "vmdk": ["-o", "subformat=streamOptimized"], "vdi": [], "vhdx": [], "vpc": []}


class Image:
    """An image in the store, and the action on it: what they are told is kept."""

    def __init__(self, disk_format: str) -> None:
        self.image_id, self.disk_format, self.image_disk_format = "an-image", disk_format, disk_format
        self.told: dict[str, object] = {}

    def __enter__(self) -> "Image":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_image_attribute(self, **told: object) -> None:
        self.told.update(told)

    def get(self, _: str) -> "Image":
        return self

    def save(self, _: object) -> None:
        pass


def source(form: str) -> str:
    path = os.path.abspath(f"upload.{form}")
    subprocess.run([QEMU_IMG, "convert", "-q", "-f", "raw", "-O", form, *FORMATS[form], "base", path], check=True)
    return path


def importing(image: Image) -> image_conversion._ConvertImage:
    return image_conversion._ConvertImage(None, "a-task", "import", image, [])


def imported(form: str, target: str) -> object:
    CONF.set_override("output_format", target, "image_conversion")
    image = Image(form)
    path = importing(image).execute("file://" + source(form)).removeprefix("file://")
    # How long the file is depends on how it is laid out.
    size = image.told.pop("size", None)
    assert size is None or size == os.stat(path).st_size
    return [image.told, os.path.basename(path), made(path, target)]


def introspected(path: str) -> object:
    image = Image("unknown")
    introspect._Introspect("a-task", "import", image).execute("an-image", path)
    return [image.disk_format, image.virtual_size]


def converted(form: str, target: str) -> object:
    CONF.set_override("conversion_format", target, "taskflow_executor")
    path = source(form)
    convert._Convert("a-task", "import", Image(form)).execute("an-image", path)
    return made(path, target)


def main() -> None:
    CONF([], project="glance", default_config_files=[])
    CONF.set_override("work_dir", os.getcwd(), "task")
    base("base")
    for form in FORMATS:
        tried(f"introspect {form}", lambda form=form: introspected(source(form)))
        for target in ["raw", "qcow2", "vmdk"]:
            tried(f"import {form} as {target}", lambda form=form, target=target: imported(form, target))
            tried(f"convert {form} to {target}", lambda form=form, target=target: converted(form, target))
    subprocess.run([QEMU_IMG, "create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "overlay"], check=True)
    tried("import an overlay", lambda: importing(Image("qcow2")).execute("file://overlay"))
    tried("introspect an overlay", lambda: introspected("overlay"))
    tried("introspect what is not there", lambda: introspected("nothing"))
    say("done", True)


main()
