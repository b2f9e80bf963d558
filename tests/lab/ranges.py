"""A web server over a folder that answers ranges: ranges.py FOLDER [ADDRESS], on any port, which it prints. What is in /private wants
the login me:opensesame."""

import base64
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOGIN = "Basic " + base64.b64encode(b"me:opensesame").decode()


class Files(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/private/") and self.headers["Authorization"] != LOGIN:
            return self.answer(401, b"", WWW_Authenticate='Basic realm="x"')
        file = os.path.join(sys.argv[1], os.path.basename(path))
        if not os.path.isfile(file):
            return self.answer(404, b"")
        with open(file, "rb") as opened:
            content = opened.read()
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if not wanted:
            return self.answer(200, content, ETag='"a"', Accept_Ranges="bytes")
        first, last = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        about = f"bytes {first}-{last}/{len(content)}"
        self.answer(206, content[first : last + 1], ETag='"a"', Content_Range=about)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that has what it needs goes."""


server = Server((sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", 0), Files)
print(server.server_port, flush=True)
server.serve_forever()
