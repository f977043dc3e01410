"""Whether the main job's programs compile for TPUs, which takes none, and what they cost there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.accelerators import cases, compiling
from experiments.accelerators.cases import HOST, NEWER, ONE, POD
from experiments.numbers import NOT, SHOWS, Claim, markdown, plain
from experiments.question import Flags, Job, Parts, Question

Row = Mapping[str, Any]
TOPOLOGIES = (HOST, ONE, POD, NEWER)
HEAD = (
    *("program", "dtype", "compiled for", "compiles", "s to compile", "CPU s", "Gflop", "Mcycles"),
    *("MB of temporaries", "MB in all", "fits in 16 GB"),
)


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Program by program, those that take longest last."""
    yield Job({}, (), lambda out: compiling.machine(), part="machine")
    for case in cases.every():
        if flags.programs in case.label:
            of = {"topology": case.topology, "kind": case.kind, "program": case.name, "dtype": case.dtype}
            yield Job(of, (), lambda out, case=case: [compiling.row_of_child(case)], part="rows")


def claims(rows) -> list[Claim]:
    """Whether every program compiles and fits, by topology."""
    told = []
    for topology in TOPOLOGIES:
        good = [bool(row["compiles"] and row.get("fits")) for row in rows if row["topology"] == topology]
        words = f"{topology}: every program compiles and fits in memory"
        if good:
            told.append(Claim("focalgeo", words, SHOWS if all(good) else NOT, f"{sum(good)} of {len(good)} programs"))
    return told


def in_order(rows: Sequence[Row], **tags: str) -> list[Row]:
    """The rows with these values in the order of `cases.every`."""
    places = {case.label: place for place, case in enumerate(cases.every())}
    own = [row for row in rows if all(row[name] == value for name, value in tags.items())]
    return sorted(own, key=lambda row: places.get(label(row), len(places)))


def label(row: Row) -> str:
    """`Case.label` of the row's program."""
    return f"{row['kind']}: {row['program']}, {row['dtype']}, {row['topology']}"


def made_with(machine, rows) -> str:
    """A line on versions and machine."""
    named = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = [row["load"] for row in rows]
    load = f"load while compiling {min(loads):.0f} to {max(loads):.0f}"
    return f"With {named}, on {machine['cores']} CPU cores ({machine['processor']}), {load}.\n"


def table(rows, kind: str) -> str:
    """A line for each row of a kind."""
    return markdown(HEAD, map(_cells, in_order(rows, kind=kind)))


def _cells(row: Row) -> list[str]:
    where = row["topology"] if row["topology"] == ONE else f"{row['topology']} ({row['devices']})"
    first = [row["program"], row["dtype"], where]
    if not row["compiles"]:
        return [*first, f"no: {row['error'].replace('|', '/')}", *["-"] * 7]
    took = f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}"
    cost = plain(row["flops"] / 1e9), plain(row["cycles"] / 1e6)
    mega = f"{row['temporaries'] / 1e6:,.0f}", f"{_in_all(row) / 1e6:,.0f}"
    return [*first, "yes", *took, *cost, *mega, "yes" if row["fits"] else "no"]


def _in_all(row: Row) -> int:
    return row["arguments"] + row["outputs"] + row["temporaries"]


def members_table(rows) -> str:
    """Members on one device against as many steps of one: operations, estimated cycles, and bytes in all."""
    on_one = in_order(rows, kind="sweep step", topology=ONE)
    head = ("program", "Gflop", "of as many steps of one", "Mcycles", "of as many steps of one", "MB", "of one's")
    return markdown(head, [_members_cells(row, on_one[0]) for row in on_one])


def _members_cells(row: Row, alone: Row) -> list[str]:
    times = row["members"] if row["loops"] else 1  # the compiler counts the body of a loop once
    outside = row["cycles_outside_loops"] if row["loops"] else 0
    costs = {"flops": times * row["flops"], "cycles": times * (row["cycles"] - outside) + outside}
    flops, cycles = (f"{cost / row['members'] / alone[name]:.2f}" for name, cost in costs.items())
    held = f"{_in_all(row) / 1e6:,.0f}", f"{_in_all(row) / _in_all(alone):.2f}"
    return [row["program"], plain(costs["flops"] / 1e9, 4), flops, plain(costs["cycles"] / 1e6), cycles, *held]


def forms_table(rows) -> str:
    """Steps with the trace penalty against the same network's plain step."""
    [base] = in_order(rows, kind="training step", program="resnet20", dtype="float32", topology=HOST)
    lines = []
    for row in [base, *in_order(rows, kind="trace penalty")]:
        units = {"flops": 1e9, "cycles": 1e6, "temporaries": 1e6}
        pairs = [(plain(row[name] / unit), f"{row[name] / base[name]:.2f}") for name, unit in units.items()]
        lines.append([row["program"], *(cell for pair in pairs for cell in pair)])
    head = ("step", "Gflop", "of a plain step", "Mcycles", "of a plain step", "MB of temporaries", "of a plain step's")
    return markdown(head, lines)


QUESTION = Question(
    "accelerators",
    "Do the job's programs compile for TPUs, and what do they cost there?",
    claims,
    tables={
        "versions": made_with,
        "members": members_table,
        "forms": forms_table,
        "training steps": lambda rows: table(rows, "training step"),
        "sweep steps": lambda rows: table(rows, "sweep step"),
        "trace penalties": lambda rows: table(rows, "trace penalty"),
        "measurements": lambda rows: table(rows, "measurement"),
    },
    jobs=plan,
    keys={"topology": TOPOLOGIES, "kind": (), "program": (), "dtype": ()},
    cost="hours of 2 cores, row by row; no TPU",
    seeds=None,
    flags={"--programs": {"default": "", "help": "programs with this text in 'kind: name, dtype, topology'"}},
)
