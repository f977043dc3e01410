"""A question is declared: its jobs, claims, tables and figures; one command trains, judges and writes.

A folder of experiments/ is a question: its `__init__.py` holds `QUESTION = Question(...)` and statistics as functions.

    python -m experiments NAME --store      train what is not stored; write results.json, figures, details.md
    python -m experiments NAME --tables     train nothing, remake them;  --cost: what would be trained;  --table "..."

`jobs(flags, parts)` yields `Job`s: a piece of work whose runs, dicts with a seed, are stored before the next; one
whose runs are there is not done again. `parts` is what results.json holds beside head and claims: "runs", a list of
dicts, and what jobs of another `part` made. `read(flags)` adds parts that are not stored there, as the cells' runs.

Claims, tables, figures and `numbers` (parts that are made from others, kept in results.json) are functions that name
the parts they take: `def table(runs)`, `def cost_table(runs, operations)`. `runs` is a DataFrame, a row a run, as are
`cells` and `own` in questions (experiments/numbers.py says what can be asked of it). Claims and tables are written into
details.md, below what the module's docstring says of the set-up, each table under its name with its function's
docstring; one of them into README.md too, between <!-- name --> and <!-- end -->; a figure as figures/NAME.png.
A function of claims yields them; one of a table yields its heads, then its rows, or returns text (numbers.table).

`keys` are what tells runs of one seed apart, each with its values in the order of tables, or () for increasing ones.
Two whole examples: text_transformer (jobs of seconds), calibration_of_losses (the stored runs of cells).
"""

import argparse
import contextlib
import importlib
import inspect
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pandas as pd

from experiments.numbers import VERDICTS, Claim, markdown, rounded
from focalgeo import files
from focalgeo.types import InputError, RunError

HERE = Path(__file__).parent
RECORD = "<!-- record -->\n"  # in details.md before what was measured once: it is kept as it is
MARK = re.compile(r"(<!-- (?P<name>[\w ]+)(: (?P<rows>[^\n]+?))? -->\n).*?(<!-- end -->\n)", re.DOTALL)
TOPICS = {
    "Losses": (
        *("calibration_of_losses", "regime", "large_gamma", "during_training"),
        *("two_parameters", "learned_gamma", "switch", "text_transformer"),
    ),
    "After training": ("posthoc", "focal_temperature", "map_and_matrix", "which_ece", "intervals"),
    "Curvature": (
        *("curvature_and_gamma", "curvature_of_losses", "causes", "held_apart"),
        *("trace_penalty", "sharpness_aware", "known_surfaces"),
    ),
    "Theory": ("theory", "bounds"),
    "Machine": ("benchmarks", "accelerators"),
}
QUESTIONS = tuple(itertools.chain(*TOPICS.values()))
Flags = argparse.Namespace
Parts = dict[str, Any]


class Job(NamedTuple):
    """A piece of work. of: what its runs have in common, by which those of its seeds are found among the stored."""

    of: Mapping[str, Any]
    seeds: Sequence[int]
    make: Callable[[Path], Any]  # folder of runs -> runs, or what the part is
    seconds: float = 0.0  # of a core, for one seed
    part: str = "runs"

    def __str__(self) -> str:
        seeds = [f"seeds {self.seeds[0]} to {self.seeds[-1]}"] if self.seeds else []
        return ", ".join([*(map(str, self.of.values()) if self.of else [self.part]), *seeds])

    def is_wanted(self, flags: Flags, parts: Parts) -> bool:
        """Whether it is to be done."""
        named = not flags.only or {self.part, *map(str, self.of.values())} & set(flags.only)
        return bool(named) and (flags.again or not self.is_stored(parts))

    def is_stored(self, parts: Parts) -> bool:
        """Whether the part is there, or runs of all seeds."""
        if not self.of and not self.seeds:
            return self.part in parts
        same = [run for run in parts.get(self.part, []) if self.of.items() <= run.items()]
        return bool(same) and {run.get("seed") for run in same} >= set(self.seeds)


class Question(NamedTuple):
    """What a question is made of; the module says what each part is."""

    name: str
    question: str
    claims: Callable[..., Iterable[Claim]]
    tables: Mapping[str, Callable[..., Any]] = {}
    figures: Mapping[str, Callable[..., Any]] = {}
    jobs: Callable[[Flags, Parts], Iterable[Job]] = lambda flags, parts: ()
    keys: Mapping[str, Iterable[Any]] = {}
    within: Sequence[str] = ("seed",)  # the keys that one job has several values of
    numbers: Mapping[str, Callable[..., Any]] = {}
    read: Callable[[Flags], Parts] = lambda flags: {}
    texts: Callable[..., dict[str, Any]] = lambda: {}  # more tables by name, where their names depend on the runs
    options: str = ""  # of the command as results.json has it, before --store
    before: str = ""  # the command that trains what is read
    answers: Sequence[str] = ()  # the papers' tables and figures, as "M Table 1"
    cost: str | Callable[..., str] = ""  # in words, where the runs do not say
    cores: str = "2 cores"
    seeds: int | None = 10
    least: int = 2  # seeds
    flags: Mapping[str, Mapping[str, Any]] = {}  # of its own: name -> what argparse takes

    @property
    def folder(self) -> Path:
        """Where its README and results lie."""
        return HERE / self.name


def load(name: str) -> Question:
    """The declaration of a question."""
    return importlib.import_module(f"experiments.{name}").QUESTION


# ---- the command


def answer(question: Question, arguments: Sequence[str]) -> None:
    """Train what is asked for, and write after each job."""
    flags = parse(question, arguments)
    folder = question.folder if flags.store else flags.out
    parts = stored(folder, flags.scale)
    parts = {name: part for name, part in parts.items() if name not in ("claims", *question.numbers)}
    jobs = () if flags.tables or flags.table else question.jobs(flags, parts)
    if flags.cost:
        jobs = [job for job in jobs if job.is_wanted(flags, parts)]
        seconds, runs = sum(len(job.seeds) * job.seconds for job in jobs), sum(len(job.seeds) for job in jobs)
        return print(*jobs, f"{len(jobs)} jobs of {runs} seeds, {seconds / 60:.0f} minutes of a core", sep="\n")
    made = False
    for job in jobs:
        if job.is_wanted(flags, parts):
            print(job, file=sys.stderr, flush=True)
            new = rounded(job.make(flags.out))
            parts[job.part] = merged(parts.get(job.part, []), new, question.keys) if job.of or job.seeds else new
            parts["about"] = {"date": str(date.today())}
            write(question, parts | question.read(flags), folder, flags.scale, keep=parts)
            made = True
    every = parts | question.read(flags)
    if flags.table:
        texts = texts_of(question, frames(every))
        if flags.table not in texts:
            raise InputError(f"{flags.table!r} is no table of {question.name}: {', '.join(texts) or 'it has no runs'}")
        about = "Stored on {date}: {cost}; made by: {command}".format_map(head(question, every))
        return print(texts[flags.table], about, sep="\n")
    if not made:
        write(question, every, folder, flags.scale, keep=parts)


def merged(known: list[dict], new: list[dict], keys: Mapping[str, Iterable[Any]]) -> list[dict]:
    """The runs known with the new ones in their places, in the order of the keys and seeds."""
    orders = {name: list(levels) for name, levels in keys.items()} | {"seed": []}
    runs = {tuple(map(run.get, orders)): run for run in [*known, *new]}

    def place(run):
        return [levels.index(run.get(name)) if levels else run.get(name) for name, levels in orders.items()]

    return sorted(runs.values(), key=place)


def frames(parts: Parts) -> Parts:
    """The parts with lists of runs as DataFrames."""
    return {
        name: pd.DataFrame(part) if isinstance(part, list) and part and "seed" in part[0] else part
        for name, part in parts.items()
    }


def called(function: Callable, parts: Parts) -> Any:
    """A function of the parts that it names, what it yields as a list; None where one that it needs is not there."""
    named = inspect.signature(function).parameters.values()
    if any(part.default is part.empty and part.name not in parts for part in named):
        return None
    made = function(**{part.name: parts[part.name] for part in named if part.name in parts})
    return list(made) if inspect.isgenerator(made) else made


def write(question: Question, parts: Parts, folder: Path, scale: str, *, keep: Iterable[str] = ()) -> None:
    """Write results.json with the parts to keep, figures, details.md, and the table of the README beside.

    Raises:
        InputError: nothing is stored.
    """
    if not {name for name, part in parts.items() if name != "about" and len(part)}:
        raise InputError(f"{folder} holds no results of {question.name}: leave --tables out to make some")
    tables = frames(parts)
    claims = called(question.claims, tables) or []
    numbers = {name: rounded(called(function, tables), 4) for name, function in question.numbers.items()}
    results = {"about": head(question, parts), "claims": [claim._asdict() for claim in claims], **numbers}
    results |= {name: parts[name] for name in keep if name != "about"}
    suffix = "" if scale == "small" else f"_{scale}"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f" {json.dumps(name)}: {_laid_out(part)}" for name, part in results.items()]
    replaced(folder / f"results{suffix}.json", "{\n" + ",\n".join(lines) + "\n}\n")
    for name, draw in question.figures.items():
        figure = called(draw, tables)
        if figure is not None:
            (folder / f"figures{suffix}").mkdir(exist_ok=True)
            figure.savefig(folder / f"figures{suffix}" / f"{name}.png", dpi=120, pil_kwargs={"optimize": True})
            figure.clear()
    texts = texts_of(question, tables)
    if not suffix:
        replaced(folder / "details.md", details(question, claims, texts))
        readme = folder / "README.md"
        if readme.exists():
            replaced(readme, filled(readme.read_text(encoding="utf-8"), texts))


def head(question: Question, parts: Parts) -> dict[str, Any]:
    """The head of results.json; the date is that of the last job, or of the newest run."""
    records = [run for part in parts.values() if isinstance(part, list) for run in part if "record" in run]
    apart = set(question.keys) - set(question.within)
    jobs = {(*(run.get(name) for name in apart), str(run["record"])): run["record"]["seconds"] for run in records}
    minutes = sum(jobs.values()) / 60
    cost = called(question.cost, parts) if callable(question.cost) else question.cost
    time = f"{minutes:.0f} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"
    command = [f"{question.before}python -m experiments", question.name, question.options, "--store"]
    return {
        "question": question.question,
        "command": " ".join(filter(None, command)),
        "cost": cost or f"{len(records)} runs, {time} of {question.cores}",
        "date": max([parts.get("about", {}).get("date", ""), *(run["record"]["date"] for run in records)]),
        "answers": list(question.answers),
    }


def texts_of(question: Question, parts: Parts) -> dict[str, str]:
    """Name -> table, as Markdown."""
    tables = {name: called(table, parts) for name, table in question.tables.items()}
    tables |= called(question.texts, parts) or {}
    return {name: as_text(table) for name, table in tables.items() if table is not None}


def as_text(table: str | Iterable[Iterable[Any]]) -> str:
    """A table as Markdown, which it may be already."""
    if isinstance(table, str):
        return table
    heads, *rows = table
    return markdown(heads, rows)


class Parser(argparse.ArgumentParser):
    """A mistake is one line, and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the flags are."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (--help lists the flags)\n")


def parse(question: Question, arguments: Sequence[str]) -> Flags:
    """The flags, the same for every question, with those of its own."""
    parser = Parser(f"python -m experiments {question.name}", description=question.question)
    add = parser.add_argument
    add("--seeds", type=at_least(question.least), default=question.seeds, help=f"0, 1, ... (default {question.seeds})")
    add("--only", nargs="+", default=[], metavar="WORD", help="the jobs that --cost lists with one of these words")
    add("--again", action="store_true", help="what is stored too; jobs finished in --out are read, not trained")
    add("--tables", action="store_true", help="train nothing, write what is stored")
    add("--table", metavar="NAME", help="print one table from what is stored")
    add("--cost", action="store_true", help="print what is to be trained and its cost")
    add("--data", type=absolute, metavar="NAME", help="config.data.name, as folder:cifar10.tar.xz or sst:trees.tar.xz")
    add("--scale", choices=("small", "paper"), default="small", help="paper: the papers' recipe, for a GPU or TPU")
    add("--store", action="store_true", help="write where the stored results are")
    out = f"runs/{question.name}"
    add("--out", type=lambda text: Path(text).absolute(), default=out, help=f"folder of the runs (default {out})")
    for name, settings in question.flags.items():
        add(name, **settings)
    return parser.parse_args(arguments)


def at_least(least: int) -> Callable[[str], int]:
    """The type of a flag that is a whole number of `least` or more."""

    def number(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
        return int(text)

    return number


def absolute(data: str) -> str:
    """config.data.name with its path made absolute, since jobs run in the folder of the clone."""
    kind, colon, path = data.partition(":")
    if not colon or kind == "tfds":
        return data
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: no such file or folder: name it as in folder:cifar10.tar.xz")
    return f"{kind}:{Path(path).absolute()}"


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """End the command with one line, or those of the job that failed, and its exit code."""
    try:
        yield
    except (InputError, RunError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    except subprocess.CalledProcessError as failed:
        sys.exit(failed.returncode)


# ---- files


def stored(folder: Path, scale: str = "small") -> Parts:
    """What results.json holds; nothing where there is none.

    Raises:
        InputError: the file is none of this command.
    """
    path = folder / ("results.json" if scale == "small" else f"results_{scale}.json")
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise InputError(f"{path} is no results.json ({error}): move it away") from None


def replaced(path: Path, text: str) -> None:
    """Write a file in whole or not at all."""
    files.replace(path, lambda file: file.write(text.encode()))


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The text with each table between its marks, <!-- name --> and <!-- end -->; other marks stay as they are.

    <!-- name: words --> has only the rows that hold the words.
    """

    def of_mark(match):
        if match["name"] not in tables:
            return match[0]
        table, words = tables[match["name"]], match["rows"]
        if words:
            heads, rule, rows = table.partition("| ---")
            line, *rows = rows.splitlines()
            table = "\n".join([f"{heads}{rule}{line}", *(row for row in rows if words in row), ""])
        return f"{match[1]}\n{table}\n{match[5]}"

    return MARK.sub(of_mark, text)


def _laid_out(part: Any) -> str:
    """JSON with a line for each item of a list or of a mapping."""
    text = partial(json.dumps, ensure_ascii=False)
    if part and isinstance(part, list):
        return "[\n" + ",\n".join(f"  {text(item)}" for item in part) + "\n ]"
    if part and isinstance(part, Mapping):
        return "{\n" + ",\n".join(f"  {text(name)}: {text(item)}" for name, item in part.items()) + "\n }"
    return text(part)


# ---- all questions


def details(question: Question, claims: Sequence[Claim], texts: Mapping[str, str]) -> str:
    """details.md: all claims with their verdicts, every table with what its function says of it, and its record."""
    command = f"`python -m experiments {question.name} --store --tables`"
    pieces = [f"# {question.name}: all claims and tables\n"]
    pieces.append(f"Written by {command}; [README.md](README.md) says what they mean.\n")
    pieces.append(f"{inspect.getdoc(inspect.getmodule(question.claims))}\n")
    pieces.append(f"## Claims\n\n{markdown(['where', 'claim', 'verdict', 'why'], claims)}")
    for name, text in texts.items():
        table = question.tables.get(name, question.texts)
        caption = inspect.getdoc(table) if inspect.isfunction(table) else None
        pieces.append("\n\n".join(filter(None, [f"## {name}", caption, text])))
    path = question.folder / "details.md"
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    return "\n".join(filter(None, [*pieces, "".join(written.partition(RECORD)[1:])]))


def counts(name: str) -> list[str]:
    """How many claims of a question are supported, contradicted and undecided, and when it was last run."""
    results = stored(HERE / name)
    verdicts = [claim["verdict"] for claim in results.get("claims", [])]
    run = results["about"]["date"] if results else "not yet run"
    return [*(str(verdicts.count(said)) for said in VERDICTS), run]


def index() -> str:
    """The questions by topic, in experiments/README.md: with answers, claims by verdict and last runs."""
    parts = []
    for topic, names in TOPICS.items():
        rows = [[f"[`{name}`]({name})", f"{title(name)} **{conclusion(name)}.**", *counts(name)] for name in names]
        parts.append(f"### {topic}\n\n{markdown(['name', 'question', *VERDICTS, 'run'], rows)}")
    return "\n".join(parts)


def listing() -> str:
    """The same as text for a terminal."""
    lines = [("", "question", *VERDICTS, "run"), *((name, title(name), *counts(name)) for name in QUESTIONS)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([*text, "", "claims of one: python -m experiments NAME", ""])


def title(name: str) -> str:
    """The heading of a question's README."""
    return _readme(name)[0].removeprefix("# ")


def conclusion(name: str) -> str:
    """What a question's README answers, in bold."""
    return " ".join(_readme(name)[1].split("**")[1].removeprefix("Answer. ").split())


def _readme(name):
    return (HERE / name / "README.md").read_text(encoding="utf-8").split("\n\n", 2)


def summary(name: str) -> str:
    """A question's claims with verdicts, its command, cost and date, as text for a terminal."""
    results = stored(HERE / name)
    if not results:
        return f"{name}: {title(name)}\n  not yet run: python -m experiments {name}\n"
    about = results["about"]
    lines = [f"{name}: {about['question']}"]
    lines += [f"  {claim['verdict']}: {claim['claim']} ({claim['source']})" for claim in results.get("claims", [])]
    lines += [f"  command: {about['command']}", f"  cost: {about['cost']}; run {about['date']}"]
    return "\n".join(lines) + "\n"
