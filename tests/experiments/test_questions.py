"""Every question: its README, figures and results.json are those of the stored runs; the list of all questions."""

import json
import re

import pytest

from experiments import __main__ as command
from experiments import papers, question
from experiments.numbers import NOT, SHOWS, UNTOLD, rounded

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
    kept = {part: value for part, value in stored.items() if part not in ("claims", *asked.numbers)}
    every = kept | asked.read(question.parse(asked, []))
    parts = question.frames(every)
    claims = question.called(asked.claims, parts)
    assert [claim._asdict() for claim in claims] == stored["claims"]
    assert {claim.verdict for claim in claims} <= {SHOWS, NOT, UNTOLD}
    assert question.head(asked, every) == stored["about"]
    assert stored["about"]["question"] in question.summary(name)
    for part, function in asked.numbers.items():
        assert same(json.loads(json.dumps(rounded(question.called(function, parts), 4))), stored[part]), part
    texts = {"claims": question.claims_table(claims)} | question.texts_of(asked, parts)
    written = ""
    for path in asked.folder.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert question.filled(text, texts) == text, path
        written += text
    marks = {match["name"] for match in question.MARK.finditer(written)}
    assert marks <= set(texts)
    drawn = {path.stem for path in (asked.folder / "figures").glob("*.png")}
    assert set(re.findall(r"\(figures/(\w+)\.png\)", written)) <= drawn
    assert set(asked.figures) <= drawn


def test_the_list_of_questions_and_of_the_papers_tables(capsys):
    assert question.index() in README
    wanted = [f"K Fig. {number}" for number in range(1, 5)] + ["F Table 1", *(f"F Fig. {n}" for n in range(1, 9))]
    wanted += [f"M Table {number}" for number in range(1, 14)] + [f"M Fig. {number}" for number in range(1, 9)]
    assert {name.partition(",")[0] for name in papers.answers()} == set(wanted)
    assert set(papers.LACKS) <= set(question.QUESTIONS)
    assert set(", ".join(papers.LACKS.values()).split(", ")) == set(papers.MISSING)
    assert command.main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in question.QUESTIONS)
    assert command.main(["--papers"]) == 0
    assert "| M Table 13 | `calibration_of_losses` |" in capsys.readouterr().out
