"""Files of the page and of the reference of addresses, read once at the start: no path of a request reaches a disk."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

INDEX = "index.html"
TYPE_BY_ENDING = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
"""Files of other kinds are not served."""


@dataclass(frozen=True)
class PageFile:
    """A file that is served."""

    content: bytes
    content_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """The file, or that the browser has it already."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.content_type)


def page_files(folder: str) -> dict[str, PageFile]:
    """The files in a folder of this package, by their paths within it."""
    found: dict[str, PageFile] = {}
    _collect(resources.files("relograph.serving").joinpath(folder), "", found)
    return found


def _collect(folder: Traversable, path: str, found: dict[str, PageFile]) -> None:
    for child in folder.iterdir():
        name = f"{path}{child.name}"
        if child.is_dir():
            _collect(child, f"{name}/", found)
            continue
        content_type = TYPE_BY_ENDING.get(f".{child.name.rpartition('.')[2].lower()}")
        if content_type is not None:
            content = child.read_bytes()
            found[name] = PageFile(content, content_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
