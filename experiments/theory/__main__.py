"""Draw every figure of the papers that needs no training, and write the table of errata.

python -m experiments.theory --out=runs/theory
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

from experiments.flags import Parser
from experiments.theory.errata import as_rows, errata, markdown
from experiments.theory.numbers import anchors, matches, printed_pairs
from experiments.theory.verdicts import head
from experiments.writing import rounded

DIGITS = 5  # so that another machine's rounding changes no line


def main() -> None:
    """Write results.json, errata.md and the figures into the folder of --out."""
    parser = Parser("theory", __doc__)
    parser.add_out("runs/theory", "output folder")
    out = parser.parse_args().out
    (out / "figures").mkdir(parents=True, exist_ok=True)
    results = draw(out / "figures")
    found = [row._replace(numbers=rounded(row.numbers, DIGITS)) for row in errata()]
    results |= {"anchors": anchors(), "errata": as_rows(found)}
    results = head(results, str(date.today())) | results
    (out / "errata.md").write_text(markdown(found), encoding="utf-8")
    text = json.dumps(rounded(results, DIGITS), indent=1, ensure_ascii=False) + "\n"
    (out / "results.json").write_text(text, encoding="utf-8")
    refuted = sum(row.refuted for row in found)
    print(f"{out}: figures, results.json and errata.md; {refuted} of {len(found)} errata confirmed")


def draw(folder: Path) -> dict[str, Any]:
    """Draw all figures; return the numbers behind them."""
    from experiments.theory import gradients, simplex, temperatures
    from experiments.theory.palette import save
    from focalgeo.report.style import styled

    fits, pairs = [matches(classes) for classes in (2, 3, 4)], printed_pairs()
    with styled():
        figures = {
            "kimura_1": gradients.kimura_1(),
            "mukhoti_4a_7": gradients.mukhoti_4a_7(),
            "komisarenko_1": gradients.komisarenko_1(),
            "komisarenko_2_6": temperatures.komisarenko_2_6(fits, pairs),
            "komisarenko_3": temperatures.komisarenko_3(),
            "komisarenko_4": simplex.komisarenko_4(),
            "komisarenko_5": simplex.komisarenko_5(),
            "komisarenko_7": simplex.komisarenko_7(),
        }
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png")
    return {"matching_temperatures": fits, "printed_pairs": pairs, "simplex": simplex.simplex_numbers()}


if __name__ == "__main__":
    main()
