"""What the compiled rows come to: claims by topology, and the README's tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.accelerators.cases import HOST, ONE, cases
from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS
from experiments.writing import markdown, plain

Row = Mapping[str, Any]
KINDS = {
    "training steps": "training step",
    "sweep steps": "sweep step",
    "trace penalties": "trace penalty",
    "measurements": "measurement",
}
HEAD = (
    *("program", "dtype", "compiled for", "compiles", "s to compile", "CPU s", "Gflop", "of its own", "Mcycles"),
    *("MB of temporaries", "MB in all", "fits in 16 GB"),
)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Whether every program compiles and fits, by topology."""
    found = []
    for topology in dict.fromkeys(row["topology"] for row in rows):
        good = [bool(row["compiles"] and row.get("fits")) for row in rows if row["topology"] == topology]
        claim = f"{topology}: every program compiles and fits in memory"
        found.append(Claim("focalgeo", claim, SHOWS if all(good) else NOT, f"{sum(good)} of {len(good)} programs"))
    return found


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Markdown tables by name, made of the rows alone, in the order of `cases`."""
    places = {case.label: place for place, case in enumerate(cases())}
    rows = sorted(results["rows"], key=lambda row: places.get(label(row), len(places)))
    of_kinds = {name: table([row for row in rows if row["kind"] == kind]) for name, kind in KINDS.items()}
    return of_kinds | {"members": members_table(rows), "forms": forms_table(rows), "versions": made_with(results)}


def label(row: Row) -> str:
    """`Case.label` of the row's program."""
    return f"{row['kind']}: {row['program']}, {row['dtype']}, {row['topology']}"


def made_with(results: Mapping[str, Any]) -> str:
    """A line on versions and machine."""
    named = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    loads = [row["load"] for row in results["rows"]]
    load = f"load while compiling {min(loads):.0f} to {max(loads):.0f}"
    return f"With {named}, on {results['cores']} CPU cores ({results['processor']}), {load}.\n"


def table(rows: Sequence[Row]) -> str:
    """A line for each row."""
    return markdown(HEAD, map(_cells, rows))


def _cells(row: Row) -> list[str]:
    where = row["topology"] if row["topology"] == ONE else f"{row['topology']} ({row['devices']})"
    first = [row["program"], row["dtype"], where]
    if not row["compiles"]:
        return [*first, f"no: {row['error'].replace('|', '/')}", *["-"] * 8]
    own = f"{row['flops'] / row['own_flops']:.2f}" if row["own_flops"] else "-"
    own = "(loop)" if row["own_flops"] and row["loops"] else own  # which hides how often its body runs
    took = f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}"
    cost = plain(row["flops"] / 1e9), own, plain(row["cycles"] / 1e6)
    mega = f"{row['temporaries'] / 1e6:,.0f}", f"{_in_all(row) / 1e6:,.0f}"
    return [*first, "yes", *took, *cost, *mega, "yes" if row["fits"] else "no"]


def _in_all(row: Row) -> int:
    return row["arguments"] + row["outputs"] + row["temporaries"]


def members_table(rows: Sequence[Row]) -> str:
    """Members on one device against as many steps of one: operations, estimated cycles, and bytes in all."""
    on_one = [row for row in rows if row["kind"] == "sweep step" and row["topology"] == ONE]
    head = ("program", "Gflop", "of as many steps of one", "Mcycles", "of as many steps of one", "MB", "of one's")
    return markdown(head, [_members_cells(row, on_one[0]) for row in on_one])


def _members_cells(row: Row, alone: Row) -> list[str]:
    times = row["members"] if row["loops"] else 1  # the compiler counts the body of a loop once
    outside = row["cycles_outside_loops"] if row["loops"] else 0
    costs = {"flops": times * row["flops"], "cycles": times * (row["cycles"] - outside) + outside}
    flops, cycles = (f"{cost / row['members'] / alone[name]:.2f}" for name, cost in costs.items())
    held = f"{_in_all(row) / 1e6:,.0f}", f"{_in_all(row) / _in_all(alone):.2f}"
    return [row["program"], plain(costs["flops"] / 1e9, 4), flops, plain(costs["cycles"] / 1e6), cycles, *held]


def forms_table(rows: Sequence[Row]) -> str:
    """Steps with the trace penalty against the same network's plain step."""
    plain_step = [row for row in rows if label(row) == f"training step: resnet20, float32, {HOST}"]
    lines = []
    for row in [*plain_step, *(row for row in rows if row["kind"] == "trace penalty" and row["compiles"])]:
        pairs = ((row[name], row[name] / plain_step[0][name]) for name in ("flops", "cycles", "temporaries"))
        cells = zip((1e9, 1e6, 1e6), pairs, strict=True)
        lines.append([row["program"], *(text for unit, (n, ratio) in cells for text in (plain(n / unit), f"{ratio:.2f}"))])
    head = ("step", "Gflop", "of a plain step", "Mcycles", "of a plain step", "MB of temporaries", "of a plain step's")
    return markdown(head, lines)
