"""Checks of pages made of somebody else's rows: no element, attribute or file name but the report's own."""

import html
import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path

from synthetic_workdir import METRICS, NAMES, metric_rows, reliability_rows

from focalgeo.rows import to_json

# tag -> attributes of the pages that test_hostile_report.py makes of good rows
VOCABULARY = {
    "a": {"download", "href"},
    "clippath": {"id"},
    "div": {"class", "tabindex"},
    "g": {"clip-path", "id"},
    "html": {"lang"},
    "image": {"height", "id", "transform", "width", "x", "xlink:href", "y"},
    "meta": {"charset", "content", "name"},
    "nav": {"aria-label"},
    "p": {"aria-hidden", "class"},
    "path": {"clip-path", "d", "id", "style"},
    "pattern": {"height", "id", "patternunits", "width", "x", "y"},
    "pre": {"id"},
    "rect": {"fill", "height", "width", "x", "y"},
    "section": {"id"},
    "style": {"type"},
    "svg": {"aria-label", "role", "viewbox", "xmlns:xlink"},
    "text": {"style", "transform", "x", "y"},
    "th": {"scope"},
    "use": {"style", "x", "xlink:href", "y"},
    **{
        tag: set()
        for tag in [
            "b",
            "body",
            "code",
            "dd",
            "defs",
            "details",
            "dl",
            "dt",
            "figure",
            "h1",
            "h2",
            "h3",
            "head",
            "li",
            "main",
            "small",
        ]
    },
    **{
        tag: set() for tag in ["span", "strong", "sub", "summary", "table", "tbody", "td", "thead", "title", "tr", "ul"]
    },
}
LINK = re.compile(r"#[a-z0-9-]+|data:text/csv;charset=utf-8,[A-Za-z0-9%._~/-]+|[A-Za-z0-9%._~/-]+/report\.html")
HREF = re.compile(r"#[A-Za-z0-9,=._-]+|data:image/png;base64,[A-Za-z0-9+/=\s]+")
STYLE = re.compile(r"[A-Za-z0-9 ,.;:#()%'=_-]*")
FILES = re.compile(
    r"(manifest\.json|metrics\.jsonl|search\.npz|report\.html|figures|figures/[A-Za-z0-9,=_-]{1,90}\.svg)"
)
EVIL = 'x"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Elements with their attributes, ids, links, and the text of a page."""

    def __init__(self, text: str):
        """Parse the page."""
        super().__init__()
        self.elements, self.ids, self.values, self.words, self.comments = defaultdict(set), [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note an element."""
        self.elements[tag] |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]
        self.values += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        """Note a text."""
        self.words.append(data)

    def handle_comment(self, data):
        """Note a comment."""
        self.comments.append(data)


def check_page(text: str) -> Page:
    """Assert that a page holds what the report's own templates and figures hold, and nothing else; returns it."""
    page = Page(text)
    for tag, attributes in page.elements.items():
        assert tag in VOCABULARY, tag
        assert attributes <= VOCABULARY[tag], (tag, attributes)
    assert not page.comments
    assert len(page.ids) == len(set(page.ids))
    assert all(re.fullmatch(r"[A-Za-z0-9,=._-]+", each) for each in page.ids)
    for name, value in page.values:
        assert name != "href" or LINK.fullmatch(value), value[:100]
        assert name != "xlink:href" or HREF.fullmatch(value), value[:100]
        assert name not in ("style", "class", "clip-path", "transform") or STYLE.fullmatch(value), value
    hidden = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\u2028\u2029]", text)
    assert hidden is None, hidden
    return page


def check_workdir(folder: Path, name: str = "w") -> None:
    """Assert that a report wrote its own files alone, whole, into the workdir alone."""
    check_page((folder / name / "report.html").read_text(encoding="utf-8"))
    for path in (folder / name).rglob("*"):
        found = path.relative_to(folder / name).as_posix()
        assert FILES.fullmatch(found), found
        if path.suffix == ".svg":
            ElementTree.parse(path)


def write(folder: Path, rows, manifest=None, **changes) -> Path:
    """A workdir of rows, each with fields changed, where None takes one away, however wrong they are."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(NAMES if manifest is None else manifest))
    fields = [{**(row if isinstance(row, dict) else to_json(row)), **changes} for row in rows]
    lines = (json.dumps({name: value for name, value in each.items() if value is not None}) for each in fields)
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def few_rows(**fields):
    """Metrics of one method, for which no figure is drawn."""
    return list(metric_rows(0.1, **{"method": "uncalibrated", **fields}))


def with_figure(**fields):
    """Metrics of one method and one reliability diagram."""
    return few_rows(**fields) + list(reliability_rows(0.1, **{"method": "uncalibrated", **fields}))


def metric_entry(**fields):
    """A manifest of which the ECE's entry is changed."""
    return {**NAMES, "metrics": {**METRICS, "ece": {**METRICS["ece"], **fields}}}


WIDTH = """<title>none</title><iframe width="420" height="900" srcdoc="{}"></iframe><script>
onload = () => {{ document.title = document.querySelector("iframe").contentDocument.documentElement.scrollWidth; }}
</script>"""


def scroll_width(page: str, folder: Path) -> int:
    """How wide a page is, in pixels, where a phone shows 420 of them: more if it scrolls sideways. Needs chromium."""
    (folder / "outer.html").write_text(WIDTH.format(html.escape(page)))
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/user"]
    found = subprocess.run(
        [*command, "--dump-dom", f"file://{folder}/outer.html"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (width,) = re.findall(r"<title>(\d+)</title>", found.stdout)
    return int(width)
