"""A hub on the loopback that speaks what huggingface_hub needs of the protocol, and misbehaves.

Knows nothing of argus: files, a commit and a list of faults in, a log of requests out.
"""

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

REPO = "owner/tiny-model"
COMMIT = "c0ffee" + "0" * 34


def git_hash(content: bytes) -> str:
    """What git calls a blob with this content: the ETag of a file outside LFS."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content: bytes) -> str:
    """The ETag of a file in LFS."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Hub:
    """One repository. Files named *.safetensors are in LFS: they redirect to another host."""

    files: dict[str, bytes]
    commit: str = COMMIT
    token: str | None = None  # without it: 401
    etags: dict[str, str] = field(default_factory=dict)  # instead of the right ones
    break_after: dict[str, int] = field(default_factory=dict)  # bytes, then the line is cut, once
    status_after_break: int = 0  # what the same file is answered with from then on
    instead: dict[str, bytes] = field(default_factory=dict)  # other bytes than announced
    more_headers: dict[str, str] = field(default_factory=dict)  # in every answer, instead of ours
    status: dict[str, int] = field(default_factory=dict)  # an HTTP status for a file's download
    delay_s: float = 0.0
    log: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.port}"

    def requests(self, method: str = "") -> list[str]:
        """The paths asked for so far."""
        return [path for verb, path, _ in self.log if verb.startswith(method)]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Run the hub in a thread as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        hub = self.hub
        hub.log.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        time.sleep(hub.delay_s)
        if match := re.fullmatch(r"/cdn/(.+)", self.path):
            return self._send_file(match[1])
        match = re.fullmatch(rf"/{REPO}/resolve/([^/]+)/(.+)", unquote(self.path))
        if match is None:
            return self._refuse(404, "RepoNotFound")
        revision, name = match.groups()
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._refuse(401, "GatedRepo")
        if revision not in ("main", hub.commit):
            return self._refuse(404, "RevisionNotFound")
        if name not in hub.files:
            return self._refuse(404, "EntryNotFound")
        return self._resolve(name, body)

    def _resolve(self, name: str, body: bool) -> None:
        """The hub's own answer: where the file is, how large, and its digest."""
        hub, content = self.hub, self.hub.files[name]
        lfs = name.endswith(".safetensors")
        etag = hub.etags.get(name) or (sha256(content) if lfs else git_hash(content))
        headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{etag}"'}
        if lfs:
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{etag}"'}
            headers |= {"Location": f"http://localhost:{hub.port}/cdn/{name}"}
            self._headers(302, headers | {"Content-Length": "0"})
        elif body:
            self._send_file(name, headers)
        else:
            self._headers(200, headers | {"Content-Length": str(len(content))})

    def _send_file(self, name: str, headers: dict[str, str] | None = None) -> None:
        hub = self.hub
        if code := hub.status.get(name):
            return self._refuse(code, "")
        content = hub.instead.get(name, hub.files[name])
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
        rest = content[start:]
        headers = (headers or {}) | {"Content-Length": str(len(rest))}
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._headers(206 if start else 200, headers)
        if cut := hub.break_after.pop(name, None):
            hub.status[name] = hub.status_after_break
            self.close_connection = True
        self.wfile.write(rest[:cut])

    def _refuse(self, code: int, reason: str) -> None:
        self._headers(code, {"X-Error-Code": reason, "Content-Length": "0"})

    def _headers(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in (headers | self.hub.more_headers).items():
            self.send_header(name, value)
        self.end_headers()
