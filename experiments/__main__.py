"""List the questions with the papers' claims, their verdicts, cost and date, from the stored results.

python -m experiments             all questions
python -m experiments theory      one
python -m experiments --papers    every table and figure of the papers, and what answers it
python -m experiments --readme    write the table of experiments into README.md
"""

import argparse
import sys
from pathlib import Path

from experiments.claims import QUESTIONS, index, summary
from experiments.flags import Parser
from experiments.papers import coverage
from experiments.writing import filled

README = Path(__file__).parent.parent / "README.md"


def main(argv: list[str] | None = None) -> int:
    """Print what is asked for; 2 for a question that is none."""
    asked = parse(argv)
    if asked.name and asked.name not in QUESTIONS:
        print(f"{asked.name} is no experiment: name one of {', '.join(QUESTIONS)}", file=sys.stderr)
        return 2
    if asked.papers:
        print(coverage(), end="")
    elif asked.readme:
        README.write_text(filled(README.read_text(encoding="utf-8"), {"experiments": index()}), encoding="utf-8")
    else:
        print("\n".join(map(summary, [asked.name] if asked.name else QUESTIONS)), end="")
    return 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = Parser("", __doc__)
    parser.add_argument("name", nargs="?", help="one question")
    parser.add_argument("--papers", action="store_true", help="tables and figures of the papers")
    parser.add_argument("--readme", action="store_true", help="write the README's table")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
