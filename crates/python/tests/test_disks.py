"""Disks by name: whatever the command line can name is opened, copied, compared and served."""

import errno
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import diskferry


class Disks(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def file(self, name, data=b"", size=0):
        with open(self.path(name), "wb") as file:
            file.write(data)
            if size:
                file.truncate(size)
        return self.path(name)

    def test_a_disk_is_read_and_written(self):
        path = self.file("disk", size=1 << 20)
        with diskferry.open(path, write=True, format="raw") as disk:
            self.assertEqual((disk.size, len(disk), disk.format, disk.writable), (1 << 20, 1 << 20, "raw", True))
            disk.write(b"hello", 4096)
            disk.write(bytearray(b"world"), 5000, fua=True)
            self.assertEqual(bytes(disk.read(5, 4096)), b"hello")
            buffer = bytearray(5)
            disk.readinto(buffer, 5000)
            self.assertEqual(buffer, b"world")
            disk.zero(512, 4096)
            self.assertEqual(disk.read(5, 4096), bytes(5))
            disk.trim(4096, 8192)
            disk.flush()
        with open(path, "rb") as file:
            self.assertEqual(file.read()[5000:5005], b"world")
        with self.assertRaises(ValueError):
            disk.read(1, 0)
        disk.close()

    def test_an_argument_that_makes_no_sense_is_an_error_and_a_value_error(self):
        for digest in ("sha257", "sha256/3000"):
            with self.assertRaises(diskferry.Error) as caught:
                diskferry.copy("memory:1M", "null:", digest=digest)
            self.assertIsInstance(caught.exception, ValueError)
            self.assertEqual((caught.exception.kind, caught.exception.errno), ("InvalidInput", errno.EINVAL))
            self.assertIn("digest: ", str(caught.exception))

    def test_a_failed_operation_raises_an_error_with_kind_and_number(self):
        for name, kind in (("/nonexistent", "NotFound"), ("nosuchdevice:1", "InvalidInput")):
            with self.assertRaises(diskferry.Error) as caught:
                diskferry.open(name)
            self.assertIsInstance(caught.exception, OSError)
            self.assertTrue(caught.exception.errno, kind)
            self.assertTrue(str(caught.exception))
        with diskferry.open("memory:1M") as disk:
            with self.assertRaises(diskferry.Error) as caught:
                disk.read(512, 1 << 20)
            self.assertEqual(caught.exception.kind, "OutOfBounds")
            with self.assertRaises(diskferry.Error) as caught:
                disk.write(b"x", 0)
            self.assertEqual(caught.exception.kind, "ReadOnly")

    def test_an_error_is_also_of_the_class_that_python_has_for_its_number(self):
        made = self.file("made", b"x" * 4096)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            # It does not listen.
            refused = f"nbd://127.0.0.1:{taken.getsockname()[1]}"
            cases = [
                (lambda: diskferry.open("/nonexistent"), FileNotFoundError, errno.ENOENT),
                (lambda: diskferry.copy("/nonexistent", self.path("x")), FileNotFoundError, errno.ENOENT),
                (lambda: diskferry.copy("memory:1M", self.path("no/x")), FileNotFoundError, errno.ENOENT),
                (lambda: diskferry.compare("memory:1M", "/nonexistent"), FileNotFoundError, errno.ENOENT),
                (lambda: diskferry.open(made + "/below"), NotADirectoryError, errno.ENOTDIR),
                (lambda: diskferry.open(refused), ConnectionRefusedError, errno.ECONNREFUSED),
                (lambda: diskferry.copy("memory:1M", refused), ConnectionRefusedError, errno.ECONNREFUSED),
            ]
            for call, kind, number in cases:
                with self.assertRaises(kind) as caught:
                    call()
                self.assertIsInstance(caught.exception, diskferry.Error)
                self.assertEqual(caught.exception.errno, number)
        for number, kind in ((errno.EACCES, PermissionError), (errno.EEXIST, FileExistsError), (errno.EIO, OSError)):
            error = diskferry.Error(number, "text", "Io")
            again = pickle.loads(pickle.dumps(error))
            for each in (error, again):
                self.assertIsInstance(each, kind)
                self.assertIsInstance(each, diskferry.Error)
                self.assertEqual((each.errno, str(each), each.kind), (number, "text", "Io"))

    @unittest.skipIf(os.geteuid() == 0 and not os.access("/usr/bin/setpriv", os.X_OK), "nothing is denied to root")
    def test_what_the_system_denies_is_a_permission_error(self):
        secret = self.file("secret", b"x" * 4096)
        os.chmod(secret, 0)
        os.chmod(self.directory.name, 0o755)
        child = f"""
import diskferry, errno
try:
    diskferry.open({secret!r})
except PermissionError as e:
    print(isinstance(e, diskferry.Error), e.errno == errno.EACCES, e.kind)
"""
        words = [sys.executable, "-c", child]
        if os.geteuid() == 0:
            # Its owner may do no more than the mode says.
            words = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] + words
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout + done.stderr, "True True PermissionDenied\n")

    def test_a_format_is_not_guessed_for_writing(self):
        path = self.file("disk", size=1 << 20)
        with self.assertRaisesRegex(diskferry.Error, "not guessed for writing"):
            diskferry.open(path, write=True)
        with self.assertRaisesRegex(ValueError, "not guessed"):
            with diskferry.serve(path, format=None):
                pass

    def test_the_map_is_an_iterator_over_joined_extents(self):
        path = self.file("disk", size=1 << 20)
        with diskferry.open(path, write=True, format="raw") as disk:
            for at in range(0, 262144, 65536):
                disk.write(b"x" * 65536, at)
            found = list(disk.map())
            self.assertEqual([(e.start, e.length, e.kind) for e in found], [(0, 262144, "data"), (262144, 786432, "hole")])
            self.assertEqual(next(iter(disk.map(300000))).start, 300000)
            self.assertEqual([e.length for e in disk.map(0, 4096)], [4096])
            self.assertEqual(disk.totals(), {"data": 262144, "hole": 786432, "zero": 0})
            with self.assertRaises(ValueError):
                list(disk.map(2 << 20))

    def test_images_filters_and_servers_are_opened_alike(self):
        raw = self.file("disk.raw", b"qcow data".ljust(1 << 20, b"\0"))
        image = self.path("disk.qcow2")
        account = diskferry.convert(raw, image, "qcow2", options={"cluster_size": "64k"})
        self.assertEqual(account["total"], 1 << 20)
        with diskferry.open(image) as disk:
            self.assertEqual((disk.format, bytes(disk.read(9, 0))), ("qcow2", b"qcow data"))
        with diskferry.open(image, format="raw") as disk:
            self.assertEqual(bytes(disk.read(3, 0)), b"QFI")
        with diskferry.open(raw, format="raw", filters=["offset?offset=5", "readonly"]) as disk:
            self.assertEqual(bytes(disk.read(4, 0)), b"data")
        with diskferry.serve(image, format="qcow2", export="disk") as uri:
            with diskferry.open(uri) as disk:
                self.assertEqual(bytes(disk.read(9, 0)), b"qcow data")
        self.assertTrue(diskferry.compare(raw, image))

    def test_images_are_written_where_they_lie(self):
        for format in ("qcow2", "vdi", "vpc", "vmdk", "vhdx"):
            options = {"force_size": "on"} if format == "vpc" else None
            image, raw = self.path("image." + format), self.file("raw", b"raw data".ljust(1 << 20, b"\0"))
            diskferry.convert("pattern:4M", image, format, options=options)
            with diskferry.open(image, write=True, format=format) as disk:
                self.assertTrue(disk.writable)
                disk.write(b"hello", 3 << 20)
                disk.zero(65536, 2 << 20)
            diskferry.convert(raw, image, format, source_format="raw", create=False)
            with diskferry.open(image, format=format) as disk:
                self.assertEqual((disk.size, bytes(disk.read(9, 0))), (4 << 20, b"raw data\0"), format)
                self.assertEqual(bytes(disk.read(6, (3 << 20) - 1))[1:], b"hello")
                self.assertEqual(bytes(disk.read(65536, 2 << 20)), bytes(65536))
                self.assertEqual(bytes(disk.read(8, 1 << 20)), (1 << 20).to_bytes(8, "big"))
            with self.assertRaisesRegex(diskferry.Error, "too small"):
                diskferry.convert("pattern:5M", image, format, create=False)
        for more in ({"options": {"cluster_size": "64k"}}, {"compress": True}):
            with self.assertRaisesRegex(diskferry.Error, "keeps its options"):
                diskferry.convert(raw, self.path("image.qcow2"), "qcow2", create=False, **more)
        with self.assertRaises(FileNotFoundError):
            diskferry.convert(raw, self.path("none"), "qcow2", source_format="raw", create=False)

    def test_a_copy_reports_progress_and_an_exception_stops_it(self):
        seen = []
        target = self.path("copy")
        account = diskferry.copy("sparse-random:64M?seed=1&percent=50", target, progress=lambda *a: seen.append(a))
        self.assertEqual(seen[-1], (64 << 20, 64 << 20))
        self.assertEqual(account["total"], account["copied"] + account["zeroed"] + account["skipped"])
        self.assertTrue(diskferry.compare("sparse-random:64M?seed=1&percent=50", target))

        class Stop(Exception):
            pass

        def stop(done, total):
            raise Stop

        target = self.path("stopped")
        with self.assertRaises(Stop):
            # A gigabyte at 8 MiB a second: it cannot end before it is stopped.
            diskferry.copy("pattern:1G", target, source_filters=["rate?rate=64M"], progress=stop)
        self.assertFalse(os.path.exists(target), "what was made is removed")

    def test_a_copy_onto_itself_is_refused(self):
        path = self.file("disk", b"x" * 4096)
        with self.assertRaisesRegex(diskferry.Error, "nothing was changed"):
            diskferry.copy(path, path)
        with open(path, "rb") as file:
            self.assertEqual(file.read(), b"x" * 4096)

    def test_a_comparison_reports_the_first_difference(self):
        one, other = self.file("one", b"x" * 65536), self.file("other", b"x" * 40000 + b"y" + b"x" * 25535)
        found = diskferry.compare(one, other, first_format="raw", second_format="raw")
        self.assertFalse(found)
        self.assertEqual((found.what, found.offset, found.same_size), ("content", 39936, True))
        self.assertEqual(diskferry.compare("null:1M", "null:2M", strict=True).what, "size")
        self.assertTrue(diskferry.compare("null:1M", "null:2M"))

    def test_a_server_ends_with_its_with_statement(self):
        with diskferry.serve("memory:1M", tcp=("127.0.0.1", 0)) as uri:
            self.assertTrue(uri.startswith("nbd://127.0.0.1:"))
            h = diskferry.nbd.NBD()
            h.connect_uri(uri)
            h.pwrite(b"x" * 512, 0)
        with self.assertRaises(diskferry.nbd.Error):
            h.pread(512, 0)
        with self.assertRaises(diskferry.nbd.Error):
            diskferry.nbd.NBD().connect_uri(uri)

    def test_threads_share_a_disk(self):
        with diskferry.open("memory:8M", write=True) as disk:
            failures = []

            def work(number):
                try:
                    for turn in range(50):
                        at = number << 20
                        disk.write(bytes([turn]) * 65536, at)
                        assert disk.read(65536, at) == bytes([turn]) * 65536
                except BaseException as e:  # noqa: B036
                    failures.append(e)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])

    def test_notebooks_show_the_map(self):
        with diskferry.open("sparse-random:64M?seed=1&percent=50") as disk:
            page = disk._repr_html_()
            self.assertIn("<svg", page)
            self.assertIn("64 MiB", page)
            self.assertIn("sparse-random", repr(disk))
            try:
                import matplotlib
            except ImportError:
                with self.assertRaisesRegex(ImportError, "pip install matplotlib"):
                    disk.plot()
            else:
                matplotlib.use("Agg")
                axes = disk.plot()
                self.assertEqual(axes.get_xlim(), (0, 64 << 20))
        self.assertIn("closed", repr(disk))
        self.assertIn("closed", disk._repr_html_())
        name = self.file("<b>&", size=4096)
        with diskferry.open(name, format="raw") as disk:
            self.assertNotIn("<b>&<", disk._repr_html_())


if __name__ == "__main__":
    unittest.main()
