"""The server of the page: a few fixed addresses on this machine alone, for whoever has the token.

Others may share the machine, and pages from anywhere may be open in the same browser: an address without the token, or
under a name that is not this machine's own, gets nothing. No request names a file.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import secrets
import socket
import socketserver
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from etd.core import files
from etd.core.errors import UserError
from etd.lab.live.follow import Follower, refuse_other
from etd.lab.live.level import Maps
from etd.lab.report import page
from etd.lab.runs.store import FILE, Run

HOST = "127.0.0.1"
PORT, TRIED = 8383, 50
"""The first port that is tried if none is named, and how many."""
OWN = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""What a browser on this machine, or at the end of a tunnel, calls it; any other name was made to point here."""


def serve(path: Path, port: int | None = None, seed: int | None = None) -> None:
    """Serve the page of the run at ``path`` until Ctrl-C; ``seed`` chooses the agent whose level is drawn."""
    with Server(path, port, seed) as server:
        print(
            f"Live view of {path}: {server.address}\n"
            f"From another machine: ssh -L {server.server_port}:localhost:{server.server_port} {socket.gethostname()}, "
            "then open the same address there. Ctrl-C ends it.",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("The live view has ended; the training goes on.")


class Server(ThreadingHTTPServer):
    """Listens from its creation on; ``with`` also stops the thread that draws maps."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # on Windows two servers would share the port

    def __init__(self, path: Path, port: int | None = None, seed: int | None = None) -> None:
        with files.told(path, "read"):
            if os.path.lexists(path / FILE):
                run = Run.open(path)
                if seed is not None:
                    run.index(seed)
            else:
                refuse_other(path)
        self.path, self.token = path, secrets.token_urlsafe(24)
        self.follower, self.maps = Follower(path), Maps(path, seed)
        self._listen(port)
        self.maps.start()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def _listen(self, port: int | None) -> None:
        if port is not None and not 0 <= port <= 65535:
            raise UserError(f"There is no port {port}. Choose one from 1024 to 65535.")
        tried = range(PORT, PORT + TRIED) if port is None else [port]
        for number in tried:
            try:
                return super().__init__((HOST, number), _Handler)
            except OSError as error:
                refused = error
        if port is None:
            raise UserError(f"All ports from {PORT} to {PORT + TRIED - 1} are taken. Name another with --port.")
        raise UserError(f"Port {port} cannot be used: {files.reason(refused)}. Choose another --port.") from refused

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks the network for this machine's name
        self.server_name, self.server_port = HOST, self.server_address[1]

    def server_close(self) -> None:
        super().server_close()
        self.maps.stop()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def document(self, nonce: str) -> str:
        """The page, whose script alone, by its ``nonce``, may run in it."""
        body = Path(__file__).with_name("live.html").read_text(encoding="utf-8").replace("@NONCE@", nonce)
        return page.document(self.path.resolve().name, body, broad=True)

    def data(self) -> dict[str, Any]:
        """What changes, apart from the map, which is fetched when ``map`` does."""
        return {**self.follower.data(), "map": self.maps.ask()["made"]}


class _Handler(BaseHTTPRequestHandler):
    """Answers GET, and nothing else."""

    server: Server
    timeout = 20
    server_version, sys_version = "etd", ""
    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        try:
            address = urlsplit(self.path)
            given = parse_qs(address.query).get("token", [""])[0]
        except ValueError:
            return self._answer(400, "text/plain", "This is not an address.")
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not OWN.fullmatch(hosts[0]):
            return self._answer(403, "text/plain", "This page is called 127.0.0.1 or localhost.")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            return self._answer(403, "text/plain", "Open the address that `etd watch --live` printed, token and all.")
        if address.path not in self.routes:
            return self._answer(404, "text/plain", "There is nothing here.")
        return self.routes[address.path](self)

    def _page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self._answer(200, "text/html", self.server.document(nonce), nonce)

    def _data(self) -> None:
        self._answer(200, "application/json", json.dumps(self.server.data(), allow_nan=False))

    def _map(self) -> None:
        self._answer(200, "application/json", json.dumps(self.server.maps.ask(), allow_nan=False))

    routes: ClassVar[dict[str, Callable[[_Handler], None]]] = {"/": _page, "/data": _data, "/map": _map}

    def _answer(self, status: int, kind: str, text: str, nonce: str = "") -> None:
        content = text.encode()
        script = f"script-src 'nonce-{nonce}'; " if nonce else ""
        policy = f"default-src 'none'; {script}style-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        self.send_response(status)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy + "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """A page asks every two seconds; that is not worth a line."""
