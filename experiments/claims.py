"""What the experiments say of the papers: claims with verdicts, in results.json, and the table of all questions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.writing import markdown

HERE = Path(__file__).parent


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
