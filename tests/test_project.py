"""What is written in two places is the same: versions, links and names of the pages; what is made can be made."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import focalgeo
from docs import tables
from experiments import question
from focalgeo import calibration, losses, models

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_versions_are_those_of_the_package_and_of_the_tests():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (focalgeo.__version__, PROJECT["license"])
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert newest in (
        f"{focalgeo.__version__}, {citation['date-released']}",
        f"{focalgeo.__version__}, not yet released",
    )
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"\nruff=={hook['rev'].removeprefix('v')}\n" in (ROOT / "constraints.txt").read_text()


def test_ci_calls_the_readme_s_command_on_every_python_that_is_supported():
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    oldest = min(job["strategy"]["matrix"]["python"], key=lambda version: int(version[2:]))
    assert re.fullmatch(rf">={re.escape(oldest)}(\.\d+)?", PROJECT["requires-python"])


def test_a_release_is_tried_on_every_python_before_it_is_published():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert (jobs["test"]["needs"], jobs["publish"]["needs"]) == ("build", "test")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    pythons = [
        f"Programming Language :: Python :: {version}" for version in jobs["test"]["strategy"]["matrix"]["python"]
    ]
    assert pythons == PROJECT["classifiers"]


def test_the_front_page_is_short_and_every_name_is_in_the_tables_that_are_made():
    text = re.sub(
        r"^```.*?^```|^\|.*?$", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert len(text.split()) <= 900  # beside code and tables
    made = "".join(tables.pages().values())
    names = [losses.FUNCTIONS, models.MODELS, calibration.METHODS, calibration.METRICS, question.QUESTIONS]
    assert not [name for names in names for name in names if f"`{name}`" not in made]


# of docs and pages, which speak as people do
UNSAID = re.compile(
    r"(beyond|within) noise|counted as chances|plainest|\bmend|(is|are) told\b|so often|ten-thousandth|the way of ECE"
)
PROSE = [
    *(path for path in PAGES if path.name != "CONTRIBUTING.md"),
    *sorted((ROOT / "experiments").rglob("README.md")),
    *sorted((ROOT / "colabs").glob("*.ipynb")),
    ROOT / "focalgeo" / "report" / "sentences.html",
]


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_has_the_words_of_the_field(page):
    text = " ".join(re.sub(r"`[^`]*`|\{[#%].*?[#%]\}", "", page.read_text(encoding="utf-8")).split())
    assert not [text[max(0, match.start() - 40) : match.end() + 40] for match in UNSAID.finditer(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_and_every_file_that_is_named_exists(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text):
        file, _, heading = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
        anchors = {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not heading or heading in anchors, target
    for name in re.findall(r"`((?:configs|docs|examples|colabs|experiments|tests)/[\w/]+(?:\.\w+)?)", text):
        assert (ROOT / name).exists() or (ROOT / f"{name}.py").exists(), name
