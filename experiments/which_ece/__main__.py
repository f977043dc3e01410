"""Runs every case on every installed library; writes results.json and table.md beside this file, or into --out."""

import json
import math
from datetime import date
from pathlib import Path

from experiments.flags import Parser
from experiments.which_ece import cases, libraries
from experiments.which_ece.verdicts import head

TOLERANCE = 1e-5


def measure() -> dict:
    """Versions (None: not installed) and, for each case, the exact value and each installed library's answer."""
    versions = {name: libraries.version(name) for name in libraries.LIBRARIES}
    rows = []
    for case in cases.cases():
        answers = {name: libraries.answer(name, case) for name, found in versions.items() if found}
        rows.append({"case": case.name, "asked": case.kind, "bins": case.num_bins, "fault": case.fault})
        rows[-1] |= {"expected": cases.expected(case), "answers": answers}
    return {"versions": versions, "rows": rows}


def agrees(answer: float | str, expected: float) -> bool:
    """Whether an answer is the exact value; where that is NaN, a refusal is right too."""
    if math.isnan(expected):
        return isinstance(answer, str) or math.isnan(answer)
    return not isinstance(answer, str) and abs(answer - expected) < TOLERANCE


def table(results: dict) -> str:
    """The results as Markdown; an answer in bold is not the exact value."""
    names = list(results["versions"])
    heads = [f"{name} {results['versions'][name] or '(not installed)'}" for name in names]
    lines = [
        "| case | asked | exact | " + " | ".join(heads) + " | another value means |",
        "| --- " * (len(names) + 4) + "|",
    ]
    for row in results["rows"]:
        cells = [_cell(row["answers"].get(name), row["expected"]) for name in names]
        parts = [row["case"], row["asked"].replace("_", " "), f"{row['expected']:.5g}", *cells, row["fault"]]
        lines.append("| " + " | ".join(parts) + " |")
    return "\n".join(lines) + "\n"


def _cell(answer: float | str | None, expected: float) -> str:
    if answer is None:
        return "not installed"
    text = answer.replace("|", "/") if isinstance(answer, str) else f"{answer:.5g}"
    return text if agrees(answer, expected) else f"**{text}**"


def main() -> None:
    """Measures, writes both files and prints the table."""
    parser = Parser("which_ece", __doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="output folder (default: here)")
    out = parser.parse_args().out
    results = measure()
    results = head(results, str(date.today()), agrees) | results
    out.mkdir(parents=True, exist_ok=True)
    plain = json.loads(json.dumps(results), parse_constant=str)  # NaN as a word: JSON has no such number
    (out / "results.json").write_text(json.dumps(plain, indent=1) + "\n")
    (out / "table.md").write_text(table(results))
    print(table(results), end="")


if __name__ == "__main__":
    main()
