"""Answer a question, or list all questions and the verdicts on the papers' claims, from the stored results.

python -m experiments                     all questions, with how many claims are supported, contradicted, undecided
python -m experiments theory              one: its claims with verdicts, command, cost and date
python -m experiments theory --store      train or measure what is not stored, write (--help: its flags)
python -m experiments --papers            every table and figure of the papers, and what answers it
python -m experiments --readme            write the table of experiments into experiments/README.md
"""

import sys
from collections.abc import Sequence

from experiments import question
from experiments.papers import coverage
from focalgeo import files


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for; 2 for a question that is none."""
    name = arguments[0] if arguments else ""
    if name in ("-h", "--help"):
        print(__doc__, end="")
    elif name == "--papers":
        print(coverage(), end="")
    elif name == "--readme":
        readme = question.HERE / "README.md"
        question.replaced(
            readme, question.filled(readme.read_text(encoding="utf-8"), {"experiments": question.index()})
        )
    elif name and name not in question.QUESTIONS:
        print(f"{name} is no experiment: name one of {', '.join(question.QUESTIONS)}", file=sys.stderr)
        return 2
    elif arguments[1:]:
        with question.reported():
            question.answer(question.load(name), arguments[1:])
    else:
        print(question.summary(name) if name else question.listing(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(files.spoken(lambda: main(sys.argv[1:])))
