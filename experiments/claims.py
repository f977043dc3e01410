"""What the experiments say of the papers: claims with verdicts, in results.json, and the table of all questions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.writing import markdown

HERE = Path(__file__).parent
QUESTIONS = (
    "calibration_of_losses",
    "during_training",
    "two_parameters",
    "curvature_and_gamma",
    "trace_penalty",
    "focal_temperature",
    "theory",
    "which_ece",
    "posthoc",
    "curvature_of_losses",
    "held_apart",
    "switch",
    "sharpness_aware",
    "text_transformer",
    "bounds",
    "learned_gamma",
    "known_surfaces",
    "map_and_matrix",
    "accelerators",
    "benchmarks",
)


class Claim(NamedTuple):
    """One statement with where it is made, its verdict (shows, does not show, cannot be told), and the numbers."""

    source: str  # as "Mukhoti et al., Table 1"; "focalgeo" for what the project says itself
    claim: str
    verdict: str
    because: str


def about(question: str, *, command: str, cost: str, date: str, answers: Sequence[str] = ()) -> dict[str, Any]:
    """The head of a results.json. answers: the papers' tables and figures, as "M Table 1" (experiments/papers.py)."""
    return {"question": question, "command": command, "cost": cost, "date": date, "answers": list(answers)}


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims as a Markdown table."""
    return markdown(["where", "claim", "verdict", "why"], [list(claim) for claim in claims])


def stored(name: str) -> dict[str, Any]:
    """The stored results of a question; what it has not been asked yet is empty."""
    path = HERE / name / "results.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def index() -> str:
    """The README's table of experiments: each question, its claims by verdict (open: not told), its last run."""
    rows = []
    for name in QUESTIONS:
        found = stored(name)
        date = found["about"]["date"] if found else "not yet run"
        rows.append([f"[`{name}`](experiments/{name})", question(name), *tally(found), date])
    heads = ["`python -m experiments.…`", "question", "show", "do not", "open", "run"]
    return markdown(heads, rows)


def question(name: str) -> str:
    """The heading of a question's README."""
    return (HERE / name / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def tally(found: dict[str, Any]) -> list[str]:
    """How many claims show, do not show, and cannot be told; nothing of a question that judges none."""
    verdicts = [claim["verdict"] for claim in found.get("claims", [])]
    counts = [verdicts.count(name) for name in ("shows", "does not show", "cannot be told")]
    return [str(count or "") for count in counts]


def summary(name: str) -> str:
    """A question's claims with verdicts, its command, cost and date, as text for a terminal."""
    found = stored(name)
    head = found.get("about", {})
    if not head:
        return f"{name}: {question(name)}\n  not yet run: python -m experiments.{name}\n"
    lines = [f"{name}: {head['question']}"]
    lines += [f"  {claim['verdict']}: {claim['claim']} ({claim['source']})" for claim in found.get("claims", [])]
    lines += [f"  command: {head['command']}", f"  cost: {head['cost']}; run {head['date']}"]
    return "\n".join(lines) + "\n"
