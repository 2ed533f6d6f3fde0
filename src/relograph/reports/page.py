"""Sections of a report, and the one HTML file that they become.

Text is Markdown, as evaluation writes its tables; everything that a name may hold is escaped on its way to HTML.
"""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from relograph.errors import DatasetError
from relograph.evaluation.plots import figure_bytes
from relograph.viewer.cameras_page import filled_page

MIME_BY_ENDING = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}
OWN_TAGS = ("<sup>", "</sup>")
"""The only HTML in our Markdown; of anything else the text is shown."""


@dataclass(frozen=True)
class Text:
    """Markdown as evaluation writes it."""

    markdown: str
    picture_by_name: Mapping[str, "Picture"] = field(default_factory=dict)
    """That it refers to."""


@dataclass(frozen=True)
class Picture:
    """A picture inside the page."""

    content: bytes
    mime: str
    caption: str
    """In Markdown; says what is seen and which command drew it."""

    @staticmethod
    def of_figure(figure: Figure, caption: str) -> "Picture":
        return Picture(figure_bytes(figure, "svg"), "image/svg+xml", caption)

    @staticmethod
    def of_file(path: Path, caption: str) -> "Picture":
        try:
            return Picture(path.read_bytes(), MIME_BY_ENDING[path.suffix.lower()], caption)
        except (OSError, KeyError) as error:
            raise DatasetError(f"{path}: expected a picture, found: {error}. Run the command that drew it.") from error


@dataclass(frozen=True)
class View:
    """Cameras in 3-D: a page of its own within the report, that is not printed."""

    page: str
    title: str


@dataclass(frozen=True)
class Facts:
    """Names and values, a line each."""

    title: str
    rows: Sequence[tuple[str, str]]


Part = Text | Picture | View | Facts


@dataclass(frozen=True)
class Section:
    """What a run has to show of one kind."""

    title: str
    parts: Sequence[Part] = ()
    missing: str = ""
    """What is not there, and how one gets it, in one line."""


@dataclass(frozen=True)
class Report:
    """All sections of a run."""

    title: str
    about: str
    """In Markdown: the run in a sentence or two."""
    sections: Sequence[Section]

    def html(self) -> str:
        """The page."""
        links = " ".join(
            f'<a href="#section-{number}">{html.escape(section.title)}</a>'
            for number, section in enumerate(self.sections, start=1)
        )
        body = [
            f"<header><h1>{html.escape(self.title)}</h1>{html_of_markdown(self.about)}<nav>{links}</nav></header>",
            *(_section_html(number, section) for number, section in enumerate(self.sections, start=1)),
        ]
        values = {"title": html.escape(self.title), "body": "\n".join(body)}
        return filled_page("report_page.html", values, package="relograph.reports")


def html_of_markdown(text: str, picture_by_name: Mapping[str, Picture] | None = None) -> str:
    """Our Markdown as HTML; pictures are those of the mapping, put into the page.

    Example:
        >>> html_of_markdown("**0.16 m** / <b>5.2</b>")
        '<p><strong>0.16 m</strong> / &lt;b&gt;5.2&lt;/b&gt;</p>\\n'
    """
    renderer = MarkdownIt("commonmark", {"html": True}).enable("table")

    def own_tag(self: object, tokens: Any, idx: int, options: object, env: object) -> str:
        content: str = tokens[idx].content
        return content if content in OWN_TAGS else html.escape(content)

    def image(self: object, tokens: Any, idx: int, options: object, env: object) -> str:
        name = unquote(str(tokens[idx].attrGet("src") or ""))
        picture = (picture_by_name or {}).get(name)
        return html.escape(tokens[idx].content) if picture is None else _img_html(picture)

    renderer.add_render_rule("html_inline", own_tag)
    renderer.add_render_rule("html_block", own_tag)
    renderer.add_render_rule("image", image)
    renderer.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    renderer.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return str(renderer.render(text))


def plain(markdown: str) -> str:
    """The words of a Markdown text."""
    return html.unescape(re.sub("<[^>]*>", "", html_of_markdown(markdown))).strip()


def code(text: str) -> str:
    """A command in Markdown, whatever is in it.

    Example:
        >>> print(code("relograph eval `run`"))
        `` relograph eval `run` ``
    """
    text = " ".join(text.split())
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return f"`{text}`" if not longest else f"{'`' * (longest + 1)} {text} {'`' * (longest + 1)}"


def _section_html(number: int, section: Section) -> str:
    parts = "\n".join(_part_html(part) for part in section.parts)
    missing = f'<p class="missing">{_inline_html(section.missing)}</p>' if section.missing else ""
    return f'<section id="section-{number}"><h2>{html.escape(section.title)}</h2>\n{parts}\n{missing}</section>'


def _part_html(part: Part) -> str:
    match part:
        case Text():
            return html_of_markdown(part.markdown, part.picture_by_name)
        case Picture():
            return f"<figure>{_img_html(part)}<figcaption>{_inline_html(part.caption)}</figcaption></figure>"
        case View():
            page = html.escape(part.page, quote=True)
            return f'<iframe title="{html.escape(part.title, quote=True)}" srcdoc="{page}" loading="lazy"></iframe>'
        case Facts():
            rows = "".join(
                f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
                for name, value in part.rows
            )
            return f'<h3>{html.escape(part.title)}</h3><div class="wide"><table class="facts">{rows}</table></div>'


def _img_html(picture: Picture) -> str:
    url = f"data:{picture.mime};base64,{base64.b64encode(picture.content).decode()}"
    return f'<img alt="{html.escape(plain(picture.caption), quote=True)}" src="{url}">'


def _inline_html(markdown: str) -> str:
    return html_of_markdown(markdown).strip().removeprefix("<p>").removesuffix("</p>")
