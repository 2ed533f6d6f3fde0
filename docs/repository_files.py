"""A hook of mkdocs: files outside docs/ that a page links to become part of the site, below repository/.

Pages are read in the repository too, so their links lead to where a file lies there, `../examples` for one. On the site
such a file is a copy, its Python is a page with colours, a folder is a list of what is in it, and links lead there.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PREFIX = "repository/"
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages of the navigation that lie outside docs/."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what those files link to in turn."""
    root = _root(config)
    todo = [*ALWAYS, *(path for file in files.documentation_pages() for path in _linked(file.content_string, file))]
    while todo:
        path = todo.pop()
        if (src_uri := _src_uri(path, root)) in files.src_uris or path.startswith("docs/"):
            continue
        added = _file(path, src_uri, root, config)
        files.append(added)
        if src_uri.endswith(".md"):
            todo += _linked(added.content_string, added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where files are on the site."""
    here = _repository_path(page.file)

    def on_site(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        return posixpath.relpath(_src_uri(path, _root(config)), posixpath.dirname(page.file.src_uri) or ".")

    parts = FENCE.split(markdown)  # prose and fenced code in turns
    return "".join(part if i % 2 else LINK.sub(on_site, part) for i, part in enumerate(parts))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _repository_path(file: File) -> str:
    return file.src_uri.removeprefix(PREFIX) if file.src_uri.startswith(PREFIX) else f"docs/{file.src_uri}"


def _linked(markdown: str, file: File) -> Iterator[str]:
    """Paths in the repository of what a page links to."""
    folder = posixpath.dirname(_repository_path(file))
    for link in LINK.findall(FENCE.sub("", markdown)):
        yield posixpath.normpath(posixpath.join(folder, link))


def _src_uri(path: str, root: Path) -> str:
    """Where mkdocs has a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (root / path).is_dir():
        return f"{PREFIX}{path}/index.md"
    return f"{PREFIX}{path}.md" if path.endswith(".py") else f"{PREFIX}{path}"


def _file(path: str, src_uri: str, root: Path, config: MkDocsConfig) -> File:
    source = root / path
    if source.is_dir():
        names = sorted(file.name for file in source.iterdir() if file.is_file())
        listing = "".join(f"- [{name}]({name})\n" for name in names)
        return File.generated(config, src_uri, content=f"# {path}\n\n{listing}")
    if path.endswith(".py"):
        code = source.read_text(encoding="utf-8")
        return File.generated(config, src_uri, content=f"# {path}\n\n```python\n{code}```\n")
    return File.generated(config, src_uri, abs_src_path=str(source))
