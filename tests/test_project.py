"""What is written in two places is the same: versions, links and names of the pages; what is made can be made."""

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import focalgeo
from docs import names, tables
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


# what nobody says, in pages, templates, notebooks, docstrings, messages and help
UNSAID = re.compile(
    r"(beyond|within) noise|counted as chances|plainest|\bmend(s|ed)?\b|\b(is|are|was|be|none|not) told\b|so often"
    r"|ten-thousandth|the way of ECE|cannot be told|\bnot show is\b|\bless (that|those|its|cross-entropy|CE)\b"
)
PLACES = "*.md docs/*.md docs/*.py colabs/*.ipynb focalgeo/**/*.py focalgeo/**/*.html experiments/**/*.*[dy]"
PROSE = [path for place in PLACES.split() for path in ROOT.glob(place)]


def sentences(path):
    """The text of a page; of a program its strings of several words, docstrings among them."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = (getattr(node, "value", None) for node in ast.walk(ast.parse(text)))
        text = "\n".join(value for value in found if isinstance(value, str) and " " in value)
    return " ".join(re.sub(r"`[^`]*`|\{[#%].*?[#%]\}", "", text).split())


@pytest.mark.parametrize("kind", sorted({path.suffix for path in PROSE}))
def test_prose_has_the_words_of_the_field(kind):
    said = {path: UNSAID.search(sentences(path)) for path in PROSE if path.suffix == kind}
    assert not {path: found[0] for path, found in said.items() if found}


def test_a_public_docstring_has_subject_and_verb_first():
    docs = {name: inspect.getdoc(member) or "" for page in names.PAGES for name, member in names.members(page).items()}
    assert not [name for name, text in docs.items() if re.search(r"(^|[.:]\s)\s*Of [`\w]", text)]


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
