"""Measure the estimators on every surface, and write results.json, figures and the README's tables.

python -m experiments.known_surfaces --store
"""

import argparse
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from experiments import jobs
from experiments.claims import about
from experiments.flags import Parser, at_least
from experiments.known_surfaces import figures, verdicts
from experiments.results import read, write_answers
from experiments.writing import rounded
from focalgeo.types import InputError

HERE = Path(__file__).parent
QUESTION = "Which estimator of curvature is right about its own error, and which is nearest at equal cost?"


def main() -> None:
    """Measure what is not there, surface by surface; what is there is written after each."""
    asked = parse()
    with jobs.reported():
        folder = HERE if asked.store else asked.out
        results = {} if asked.again and not asked.tables else read(folder)
        if asked.tables and not results:
            raise InputError(f"{folder} holds no results: run without --tables")
        if asked.tables:
            return write(results, folder)
        measure(results, folder, asked.draws)


def measure(results: dict[str, Any], folder: Path, draws: int) -> None:
    """Add the surfaces that the results lack, or that have other draws."""
    from experiments.known_surfaces import estimates, surfaces

    for surface in surfaces.surfaces():
        rows = [row for row in results.get("rows", []) if row["surface"] != surface.name or row["draws"] == draws]
        if not any(row["surface"] == surface.name for row in rows):
            print(surface.title, file=sys.stderr, flush=True)
            began = time.perf_counter()
            rows += rounded(estimates.measure(surface, draws), 4)
            seconds = results.get("seconds", 0) + time.perf_counter() - began
            titles = {**results.get("titles", {}), surface.name: surface.title}
            results |= {"titles": titles, "rows": rows, "seconds": round(seconds, 1), "date": str(date.today())}
            write(results, folder)


def write(results: dict[str, Any], folder: Path) -> None:
    """Write results.json, figures and the README's tables."""
    rows, titles = results["rows"], results["titles"]
    found = verdicts.claims(rows, titles)
    draws = max(row["draws"] for row in rows)
    head = about(
        QUESTION,
        command="python -m experiments.known_surfaces --store",
        cost=f"{len(titles)} surfaces, {draws} draws each, {results['seconds']:g} s of 2 cores",
        date=results["date"],
    )
    parts = {name: part for name, part in results.items() if name not in ("about", "claims")}
    figures.draw(rows, titles, folder / "figures")
    texts = {
        "trace": verdicts.trace_table(rows, titles),
        "search": verdicts.search_table(rows, titles),
        "others": verdicts.others_table(rows, titles),
    }
    write_answers(folder, head, found, parts, texts)


def parse() -> argparse.Namespace:
    """The flags."""
    parser = Parser("known_surfaces", __doc__)
    parser.add_argument("--draws", type=at_least(20), default=500, help="keys of every estimate (default 500)")
    parser.add_argument("--again", action="store_true", help="measure what is stored too")
    parser.add_argument("--tables", action="store_true", help="measure nothing, write what is stored")
    parser.add_store()
    parser.add_out("runs/known_surfaces", "folder of tables and figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
