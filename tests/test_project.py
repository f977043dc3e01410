"""What stands in two places is the same: versions of the package, of ruff, of Python."""

import re
import tomllib
from pathlib import Path

import yaml

import focalgeo

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == focalgeo.__version__
    assert citation["license"] == PROJECT["license"]
    assert len(citation["references"]) == 3


def test_the_changes_of_this_version_are_listed():
    assert f"\n## {focalgeo.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_pre_commit_has_the_tests_ruff():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pins = (ROOT / "constraints.txt").read_text()
    assert hook["rev"] == "v" + re.search(r"^ruff==(\S+)", pins, re.MULTILINE)[1]


def test_ci_calls_the_readme_s_command_on_every_python_that_is_supported():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert PROJECT["requires-python"] == f">={min(job['strategy']['matrix']['python'], key=lambda each: int(each[2:]))}"
