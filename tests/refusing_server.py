"""A service that answers its health page and refuses everything else, as the hosted one can."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def refusing_server(status: int, *, healthz: int = 200, delay: float = 0.0) -> Iterator[str]:
    """The address of a server that answers ``status`` to every call but the health page.

    Args:
        healthz: what the health page answers.
        delay: seconds before each answer.
    """

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            time.sleep(delay)
            length = int(self.headers.get("content-length") or 0)
            self.rfile.read(length)
            code = healthz if self.path.endswith("/healthz") else status
            body = json.dumps({"detail": f"refused with {code}"}).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # the client may have given up
                self.wfile.write(body)

        do_GET = do_POST = answer

        def log_message(self, *_: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
