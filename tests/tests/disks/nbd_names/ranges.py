"""A web server of the current directory that gives ranges of files, as QEMU and curl want them.

Its address goes into the file `site`, and its process into `site.pid`."""

import http.server
import os
import re


class Ranges(http.server.SimpleHTTPRequestHandler):
    def send_head(self):
        opened = open(self.translate_path(self.path), "rb")
        size = os.fstat(opened.fileno()).st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), int(wanted[2] or size - 1)) if wanted else (0, size - 1)
        last = min(last, size - 1)
        self.send_response(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        self.left = last + 1 - first
        opened.seek(first)
        return opened

    def copyfile(self, source, outputfile):
        outputfile.write(source.read(self.left))

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges)
with open("site.pid", "w") as file:
    file.write(str(os.getpid()))
with open("site.new", "w") as file:
    file.write(f"http://127.0.0.1:{server.server_address[1]}")
os.rename("site.new", "site")
server.serve_forever()
