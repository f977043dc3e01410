"""Every question: its README, figures and results.json are those of the stored runs; the list of all questions."""

import importlib
import json
import re

import pytest

from experiments import __main__ as command
from experiments import papers, question
from experiments.numbers import VERDICTS, rounded

README = (question.HERE.parent / "README.md").read_text(encoding="utf-8")


def same(one, other) -> bool:
    """Equal but for the last digit that was written."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == pytest.approx(other, rel=2e-4) if isinstance(one, float) else one == other


@pytest.mark.long
@pytest.mark.parametrize("name", question.QUESTIONS)
def test_claims_numbers_and_tables_are_those_of_the_stored_runs(name):
    asked = question.load(name)
    stored = question.stored(asked.folder)
    if not stored:
        pytest.skip("not yet run")
    kept = {part: value for part, value in stored.items() if part not in ("claims", *asked.numbers)}
    every = kept | asked.read(question.parse(asked, []))
    parts = question.frames(every)
    claims = question.called(asked.claims, parts)
    assert [claim._asdict() for claim in claims] == stored["claims"]
    assert {claim.verdict for claim in claims} <= {*VERDICTS}
    assert question.head(asked, every) == stored["about"]
    assert stored["about"]["question"] in question.summary(name)
    for part, function in asked.numbers.items():
        assert same(json.loads(json.dumps(rounded(question.called(function, parts), 4))), stored[part]), part
    texts = question.texts_of(asked, parts)
    readme = (asked.folder / "README.md").read_text(encoding="utf-8")
    assert question.filled(readme, texts) == readme
    assert {match["name"] for match in question.MARK.finditer(readme)} <= set(texts)
    assert (asked.folder / "details.md").read_text(encoding="utf-8") == question.details(asked, claims, texts)
    drawn = {path.stem for path in (asked.folder / "figures").glob("*.png")}
    assert set(re.findall(r"\(figures/(\w+)\.png\)", readme)) <= drawn
    assert set(asked.figures) <= drawn


def test_the_list_of_questions(capsys):
    rows = [row for row in question.index().splitlines() if "not yet run" not in row]
    listed = (question.HERE / "README.md").read_text(encoding="utf-8").splitlines()
    assert set(rows) <= set(listed), "python -m docs.tables writes them anew"
    links = re.findall(r"^- \[\w+\]\(experiments/(\w+)\)", README, re.MULTILINE)
    assert sorted(links) == sorted(question.QUESTIONS)  # a sentence each
    assert command.main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) <= 35
    assert all(any(line.startswith(f"{name} ") for line in listed) for name in question.QUESTIONS)


def test_a_readme_is_read_in_three_minutes():
    words = {}
    for path in question.HERE.glob("*/README.md"):
        text = path.read_text(encoding="utf-8")
        words[path.parent.name] = len(text.split())
        assert text.split("\n\n")[1].startswith("**Answer. "), path.parent.name
        verdict = re.search(r"## Verdict\n(.*?)(?=\n## )", text, re.DOTALL)
        assert verdict is None or len(verdict[1].split()) <= 150, path.parent.name
        tables = re.findall(r"(?<=\n\n)\|[^\n]*\n(?:\|[^\n]*\n)*", text)
        assert all(table.splitlines()[1].startswith(("|---", "| ---")) for table in tables), path.parent.name
    assert {name for name, count in words.items() if count > 900} == set()
    assert sum(words.values()) <= 15_200


def test_a_table_that_is_none_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["theory", "--store", "--table", "no"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("'no' is no table of theory: ")


def exists(where: str) -> bool:
    """Whether the library or the tests have it."""
    file, _, test = where.partition("::")
    if test:
        return f"def {test}(" in (question.HERE.parent / file).read_text(encoding="utf-8")
    module, _, name = where.rpartition(".")
    return hasattr(importlib.import_module(module), name)


def test_the_list_of_the_papers_is_held_by_stored_results(capsys):
    results = {name: found for name in question.QUESTIONS if (found := question.stored(question.HERE / name))}
    said = {
        name: {*of["about"]["answers"], *(claim["source"] for claim in of["claims"])} for name, of in results.items()
    }
    for name, item in papers.ITEMS.items():
        assert set(filter(None, item.lacks.split(", "))) <= set(papers.LACKS), name
        if item.where in results:
            sources = said[item.where]
            assert name.startswith("N") or any(source == name or source.startswith(f"{name},") for source in sources)
        elif item.where:
            assert exists(item.where), name
    of_papers = {source for sources in said.values() for source in sources if source[:2] in ("K ", "F ", "M ")}
    assert {source for source in of_papers if not any(source.startswith(name) for name in papers.ITEMS)} == set()
    assert command.main(["--papers"]) == 0
    shown = capsys.readouterr().out
    assert "| M Table 13 | MCE after it | small | `calibration_of_losses` |" in shown
    assert "| F Table 1 | focal temperature scaling by loss | partial |" in shown
