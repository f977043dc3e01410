"""README and docs: length, links, tables made from the code."""

import re
from pathlib import Path

import pytest

from docs import tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchor(heading: str) -> str:
    """The anchor that a heading has on a code host's page."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_front_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8")) < 9_500


def test_the_tables_of_names_are_those_of_the_code():
    for path, text in tables.pages().items():
        assert path.read_text(encoding="utf-8") == text, "python -m docs.tables writes them anew"


def test_a_badge_opens_the_notebook_of_the_repository():
    link = tables.badge("https://github.com/someone/focalgeo", "quickstart.ipynb")
    assert link.endswith(
        "(https://colab.research.google.com/github/someone/focalgeo/blob/main/colabs/quickstart.ipynb)"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page.name}: {target}"
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in map(anchor, headings), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:configs|docs|examples|colabs|experiments|tests)/[\w/]+(?:\.\w+)?)", text):
        assert any((ROOT / each).exists() for each in (name, f"{name}.py")), f"{page.name}: {name}"
