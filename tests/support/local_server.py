"""A server of files on this machine, for tests of downloads."""

import contextlib
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the contents of its paths.

    ``/broken/...`` hangs up in the middle, ``/stalled/...`` falls silent there.
    """

    def do_GET(self):
        self.server.requested.append(self.path)
        name = self.path.removeprefix("/broken").removeprefix("/stalled")
        content = self.server.contents.get(name)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write((content or b"")[: len(content) // 2 if name != self.path else None])
        if self.path.startswith("/stalled"):
            self.server.given_up.wait()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving():
    """The server, with ``contents`` by path, the paths ``requested``, and its ``url``."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.contents, server.requested, server.given_up = {}, [], threading.Event()
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.given_up.set()
        server.shutdown()
        thread.join()
