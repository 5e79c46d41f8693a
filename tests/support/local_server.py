"""A server of files on this machine, for tests of downloads."""

import contextlib
import hashlib
import http.server
import json
import threading

COMMIT = "0" * 40


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves the contents of its paths.

    ``/broken/...`` hangs up in the middle, ``/stalled/...`` falls silent there.
    """

    def do_HEAD(self):
        """The headers of a file, with what a hub of models says of it."""
        name = self.path.removeprefix("/broken").removeprefix("/stalled").partition("?")[0]
        content = self.server.contents.get(name)
        self.send_response(200 if content is not None else 404)
        self.send_header("Content-Length", str(len(content or b"")))
        self.send_header("ETag", hashlib.sha256(content or b"").hexdigest())
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        return content or b""

    def do_GET(self):
        self.server.requested.append(self.path)
        content = self.do_HEAD()
        is_whole = not self.path.startswith(("/broken", "/stalled"))
        self.wfile.write(content[: None if is_whole else len(content) // 2])
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


def serve_model(server, name, folder, licence="apache-2.0"):
    """Put the files of a folder where a hub has those of a model."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [str(path.relative_to(folder)) for path in files]
    page = {"id": name, "modelId": name, "sha": COMMIT, "cardData": {"license": licence}}
    page["siblings"] = [{"rfilename": each} for each in names]
    for address in (f"/api/models/{name}", f"/api/models/{name}/revision/main"):
        server.contents[address] = json.dumps(page).encode()
    sizes = [path.stat().st_size for path in files]
    tree = [
        {"type": "file", "path": each, "size": size, "oid": COMMIT}
        for each, size in zip(names, sizes, strict=True)
    ]
    server.contents[f"/api/models/{name}/tree/{COMMIT}"] = json.dumps(tree).encode()
    for each, path in zip(names, files, strict=True):
        server.contents[f"/{name}/resolve/{COMMIT}/{each}"] = path.read_bytes()
