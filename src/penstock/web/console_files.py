"""The files of the web console, as a browser loads them: `/console/`, docs/console.md.

    /console/static/...     scripts, styles and pictures, from the folder `console` beside this module
    /console/...            the shell, whatever follows: the page's script reads the rest of the address. So a link to a
                            topic can be shared, and a browser that is reloaded shows the same page

No path is absolute. A reverse proxy may serve the node below a prefix, which the node never sees, so the shell gets a
`<base>` that leads from the requested address back to `/console/`, and everything else is relative to that.

The files say nothing about the cluster, so they need no login (`login.LoginGate`); the API checks every request that
the page makes. The Content-Security-Policy allows only scripts and styles of these files. `require-trusted-types-for`
makes the browser refuse text as HTML: a message that is a script stays text, also if the page had a mistake.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.web.api.problems import Problem
from penstock.web.api.responses import error_response

FOLDER = Path(__file__).parent / "console"
PATH = "/console"
SHELL = "index.html"
BASE = b"{base}"
"""The shell's place for the relative address of /console/."""
PRELOAD = b"{preload}"
"""The shell's place for links to the modules that pages share: a browser gets them at once, and not one after the other
as each names the next."""
SHARED = ("static/elements/", "static/lib/", "static/pages.js")

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the browser asks whether its copy is good: a node may have been upgraded
    "vary": "accept-encoding",
}


class ConsoleFile(NamedTuple):
    content: bytes
    compressed: bytes
    media_type: str
    etag: str


def is_console_path(path: str) -> bool:
    return path == PATH or path.startswith(PATH + "/")


def wants_page(headers: Mapping[str, str]) -> bool:
    """Whether a browser asks for a page to show, and not a program for an answer."""
    return "text/html" in headers.get("accept", "")


def load_files(folder: Path = FOLDER) -> dict[str, ConsoleFile]:
    """All files by their path below the folder."""
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in TYPES]
    files = {
        path.relative_to(folder).as_posix(): _file(path.read_bytes(), TYPES[path.suffix]) for path in paths
    }
    shell = files[SHELL]
    links = "".join(
        f'<link rel="modulepreload" href="{path}">\n' for path in files if path.startswith(SHARED)
    )
    return {**files, SHELL: _file(shell.content.replace(PRELOAD, links.encode()), shell.media_type)}


def _file(content: bytes, media_type: str) -> ConsoleFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return ConsoleFile(content, gzip.compress(content, mtime=0), media_type, etag)


class Console:
    """Serves the files. They are read with the first request, in a thread, and kept: some 100 KB."""

    def __init__(self) -> None:
        self._loading: asyncio.Future[dict[str, ConsoleFile]] | None = None

    def routes(self) -> list[BaseRoute]:
        return [
            Route(PATH, self.lead),
            Route(PATH + "/static/{path:path}", self.static),
            Route(PATH + "/{path:path}", self.shell),
        ]

    async def lead(self, request: Request) -> Response:
        return RedirectResponse("console/", 302)

    async def static(self, request: Request) -> Response:
        path = f"static/{request.path_params['path']}"
        found = (await self._files()).get(path)
        if found is None:
            return error_response(Problem(404, "not_found", f"the console has no file {path!r}"))
        return _response(request, found)

    async def shell(self, request: Request) -> Response:
        page = (await self._files())[SHELL]
        return _response(request, _file(page.content.replace(BASE, _way_back(request)), page.media_type))

    async def _files(self) -> dict[str, ConsoleFile]:
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, load_files)
        return await asyncio.shield(self._loading)


def _way_back(request: Request) -> bytes:
    """From the requested address to /console/. The path counts as it was sent: a name may hold a slash, as %2F."""
    sent: bytes = request.scope.get("raw_path", request.scope["path"].encode())
    depth = sent.partition(b"?")[0].removeprefix(PATH.encode() + b"/").count(b"/")
    return b"../" * depth or b"./"


def _response(request: Request, file: ConsoleFile) -> Response:
    headers = {**HEADERS, "etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            file.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=file.media_type
        )
    return Response(file.content, headers=headers, media_type=file.media_type)
