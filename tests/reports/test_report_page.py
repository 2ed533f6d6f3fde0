"""Sections become one HTML page in which nothing that a name holds is obeyed."""

import re
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from relograph.errors import ConfigError, DatasetError
from relograph.reports.page import Facts, Picture, Report, Section, Text, View, code, html_of_markdown
from relograph.reports.pdf import BROWSERS, find_browser, print_to_pdf

EVIL = '<img src=x onerror=alert(1)> "quoted" </script> & {{title}} {{body}}'


def report(*parts: Text | Picture | View | Facts, missing: str = "") -> str:
    return Report("A run", "About it.", [Section("Results", parts, missing)]).html()


def test_tables_lists_and_raised_marks_of_our_markdown_become_html():
    text = "| Method | 5 cm |\n| :--- | :---: |\n| **ours**<sup>\\*</sup> | 97.1 % |\n\n- first\n- second"
    page = html_of_markdown(text)
    assert "<strong>ours</strong><sup>*</sup></td>" in page
    assert '<td style="text-align:center">97.1 %</td>' in page
    assert page.count("<li>") == 2


@pytest.mark.parametrize("text", [EVIL, f"| {EVIL} |\n| --- |\n| {EVIL} |", f"`{EVIL}`", f"# {EVIL}"])
def test_html_in_markdown_is_shown_as_text(text: str):
    page = html_of_markdown(text)
    assert "<img" not in page
    assert "</script" not in page


@pytest.mark.parametrize("link", ["javascript:alert(1)", "data:text/html,<script>", "vbscript:x"])
def test_links_that_run_something_are_no_links(link: str):
    assert "<a" not in html_of_markdown(f"[here]({link})")


def test_a_name_from_outside_stays_text_wherever_it_stands():
    figure = Picture(b"\x89PNG", "image/png", EVIL)
    view = View(f"<p>{EVIL}</p>", EVIL)
    page = Report(EVIL, EVIL, [Section(EVIL, [Text(EVIL), figure, view, Facts(EVIL, [(EVIL, EVIL)])], EVIL)]).html()
    outside_the_view = re.sub(r'srcdoc="[^"]*"', "", page)
    assert not re.search(r"<img(?! alt=)", outside_the_view)
    assert "</script" not in outside_the_view
    assert "{{title}}" in page  # a place for text, once filled, is not filled again


def test_what_is_missing_is_told_in_its_section():
    page = report(missing="Not evaluated yet: `relograph eval run`.")
    assert '<p class="missing">Not evaluated yet: <code>relograph eval run</code>.</p>' in page
    assert '<a href="#section-1">Results</a>' in page


def test_pictures_have_words_for_who_cannot_see_them_and_a_caption_with_the_command():
    figure = Figure()
    figure.subplots().plot([0, 1], [0, 1])
    page = report(Picture.of_figure(figure, "Errors by distance. Drawn by `relograph eval run`."))
    assert 'alt="Errors by distance. Drawn by relograph eval run."' in page
    assert "<figcaption>Errors by distance. Drawn by <code>relograph eval run</code>.</figcaption>" in page
    assert 'src="data:image/svg+xml;base64,' in page
    with pytest.raises(DatasetError, match="expected a picture"):
        Picture.of_file(Path("nowhere.png"), "")


def test_pictures_of_a_text_are_put_into_the_page_and_no_others():
    known = {"pictures/a.png": Picture(b"\x89PNG", "image/png", "Known.")}
    page = html_of_markdown("![Known.](pictures/a.png) ![other](/etc/passwd)", known)
    assert page.count("<img") == 1
    assert "other" in page


def test_a_command_is_quoted_whatever_is_in_it():
    assert html_of_markdown(code("eval ``a`` <b>")) == "<p><code>eval ``a`` &lt;b&gt;</code></p>\n"


def test_without_a_browser_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="--pdf: expected Chromium or Chrome on PATH"):
        find_browser()
    (tmp_path / BROWSERS[1]).symlink_to(sys.executable)
    assert find_browser() == str(tmp_path / BROWSERS[1])


def test_a_browser_that_prints_nothing_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="found none printed"):
        print_to_pdf(tmp_path / "page.html", tmp_path / "page.pdf", "/bin/false")
    assert not (tmp_path / "page.pdf").exists()
