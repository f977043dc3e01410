"""The list of questions, the README's table of them, and what answers the papers' tables and figures."""

import json
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments import claims, papers
from experiments.intervals import NOT, SHOWS, UNTOLD

ROOT = Path(__file__).parents[2]
PARTS = ("right", "a", "b to d")  # of figures that two questions answer


def test_the_readmes_table_is_that_of_the_stored_results():
    assert claims.index() in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", claims.QUESTIONS)
def test_every_question_has_a_readme_and_results_or_says_that_it_was_not_run(name):
    text = (ROOT / "experiments" / name / "README.md").read_text(encoding="utf-8")
    found = claims.stored(name)
    assert ("Not yet run" in text) == (not found)
    if found:
        assert found["about"].keys() == {"question", "command", "cost", "date", "answers"}
        assert {claim["verdict"] for claim in found["claims"]} <= {SHOWS, NOT, UNTOLD}
        assert found["about"]["question"] in claims.summary(name)


def test_every_table_and_figure_of_the_papers_is_answered():
    wanted = [f"K Fig. {number}" for number in range(1, 5)] + ["F Table 1", *(f"F Fig. {n}" for n in range(1, 9))]
    wanted += [f"M Table {number}" for number in range(1, 14)] + [f"M Fig. {number}" for number in range(1, 9)]
    assert [
        name
        for name in wanted
        if not any(answer in (name, *(f"{name}, {part}" for part in PARTS)) for answer in papers.ANSWERS)
    ] == []
    for part in papers.ANSWERS.values():
        assert part.question in claims.QUESTIONS
        assert set(part.missing.split()) <= papers.MISSING.keys()


def test_what_a_question_says_it_answers_is_what_the_list_says():
    for name in claims.QUESTIONS:
        for answer in claims.stored(name).get("about", {}).get("answers", ()):
            parts = [part for title, part in papers.ANSWERS.items() if title.startswith(answer)]
            assert name in {part.question for part in parts}, (name, answer)


def test_the_command_lists_and_refuses(capsys):
    assert command.main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in claims.QUESTIONS)
    assert command.main(["theory"]) == 0
    assert "does not show: " in capsys.readouterr().out
    assert command.main(["--papers"]) == 0
    assert "| M Table 13 | `calibration_of_losses` |" in capsys.readouterr().out
    assert command.main(["thoery"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_question_without_results_says_its_command(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "HERE", tmp_path)
    for name in claims.QUESTIONS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"# Is {name} so?\n\nText.\n")
    assert "theory: Is theory so?\n  not yet run: python -m experiments.theory" in claims.summary("theory")
    assert claims.index().count("| not yet run |") == len(claims.QUESTIONS)
    head = claims.about("Which?", command="c", cost="1 s", date="2026-01-01")
    found = [claims.Claim("a", "b", verdict, "c")._asdict() for verdict in (SHOWS, SHOWS, NOT)]
    (tmp_path / "theory" / "results.json").write_text(json.dumps({"about": head, "claims": found}))
    assert "| Is theory so? | 2 | 1 |  | 2026-01-01 |" in claims.index()
