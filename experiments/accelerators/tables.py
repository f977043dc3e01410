"""Tables of the rows in results.json, and their places in README.md."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.accelerators.cases import ONE, cases
from experiments.writing import filled, markdown, plain

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
_PLAIN = "resnet20"


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Markdown tables by name, made of the rows alone, in the order of `cases`."""
    keys = [case.key(topology) for case in cases() for topology in case.on]
    places = {each: place for place, each in enumerate(keys)}
    rows = sorted(results["rows"], key=lambda row: places.get(key(row), len(places)))
    found = {name: table([row for row in rows if row["kind"] == kind]) for name, kind in KINDS.items()}
    return found | {
        "members": members_table(rows),
        "forms": forms_table(rows),
        "versions": made_with(results),
        "missing": missing(rows),
    }


def made_with(results: Mapping[str, Any]) -> str:
    """A line on versions and machine."""
    named = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    loads = [row["load"] for row in results["rows"]]
    load = f"load while compiling {min(loads):.0f} to {max(loads):.0f}" if loads else "no rows"
    return f"With {named}, on {results['cores']} CPU cores ({results['processor']}), {load}.\n"


def missing(rows: Sequence[Mapping[str, Any]]) -> str:
    """The programs that have no row yet, a line for each topology."""
    there = {key(row) for row in rows}
    found: dict[str, list[str]] = {}
    for case in cases():
        for topology in case.on:
            if case.key(topology) not in there:
                found.setdefault(topology, []).append(f"{case.kind} {case.name} ({case.dtype})")
    lines = [f"- {topology}: {'; '.join(names)}" for topology, names in found.items()]
    return "\n".join(["Not compiled yet:" if lines else "Every program has its row.", "", *lines]).strip() + "\n"


def key(row: Mapping[str, Any]) -> tuple[str, str, str, str | None]:
    """What tells a row from every other, as `Case.key`; one that ran on a device has no topology."""
    return row["program"], row["kind"], row["dtype"], row.get("topology")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row."""
    return markdown(HEAD, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> list[str]:
    where = row["topology"] if row["topology"] == ONE else f"{row['topology']} ({row['devices']})"
    first = [row["program"], row["dtype"], where]
    if not row["compiles"]:
        return [*first, f"no: {row['error'].replace('|', '/')}", *["-"] * 8]
    mega = f"{row['temporaries'] / 1e6:,.0f}", f"{in_all(row) / 1e6:,.0f}"
    took = f"{row['seconds']:.0f}", f"{row['cpu_seconds']:.0f}"
    cost = plain(row["flops"] / 1e9), _ratio(row), plain(row["cycles"] / 1e6)
    return [*first, "yes", *took, *cost, *mega, "yes" if row["fits"] else "no"]


def in_all(row: Mapping[str, Any]) -> int:
    """Bytes on a device: arguments, outputs that are not donated arguments, temporaries, code."""
    return row["arguments"] + row["outputs"] + row["temporaries"]


def _ratio(row: Mapping[str, Any]) -> str:
    """Operations over the computation's own; none where a loop hides how often its body runs."""
    if not row["own_flops"]:
        return "-"
    return "(loop)" if row["loops"] else f"{row['flops'] / row['own_flops']:.2f}"


def members_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Members on one device against as many steps of one: operations, estimated cycles, and bytes in all."""
    on_one = {row["program"]: row for row in rows if row["kind"] == "sweep step" and row["topology"] == ONE}
    alone = on_one.pop("1 member", None)
    head = ("program", "Gflop", "of as many steps of one", "Mcycles", "of as many steps of one", "MB", "of one's")
    if alone is None or not alone["compiles"]:
        return markdown(head, [])
    cells = [_members_cells(row, alone) for row in on_one.values() if row["compiles"]]
    return markdown(head, [_members_cells(alone, alone), *cells])


def _members_cells(row: Mapping[str, Any], alone: Mapping[str, Any]) -> list[str]:
    times = row["members"] if row["loops"] else 1  # the compiler counts the body of a loop once
    outside = row["cycles_outside_loops"] if row["loops"] else 0
    costs = {"flops": times * row["flops"], "cycles": times * (row["cycles"] - outside) + outside}
    flops, cycles = (f"{cost / row['members'] / alone[name]:.2f}" for name, cost in costs.items())
    held = f"{in_all(row) / 1e6:,.0f}", f"{in_all(row) / in_all(alone):.2f}"
    return [row["program"], plain(costs["flops"] / 1e9, 4), flops, plain(costs["cycles"] / 1e6), cycles, *held]


def forms_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Steps with the trace penalty against the same network's plain step."""
    head = ("step", "Gflop", "of a plain step", "Mcycles", "of a plain step", "MB of temporaries", "of a plain step's")
    steps = [row for row in rows if row["program"] == _PLAIN and row["dtype"] == "float32" and row["compiles"]]
    steps = [row for row in steps if row["kind"] == "training step" and row["topology"] == "v5e:2x2"]
    if not steps:
        return markdown(head, [])
    found = [row for row in rows if row["kind"] == "trace penalty" and row["compiles"]]
    return markdown(head, [_form_cells(row, steps[0]) for row in (*steps, *found)])


def _form_cells(row: Mapping[str, Any], step: Mapping[str, Any]) -> list[str]:
    found = [row["program"]]
    for name, unit in (("flops", 1e9), ("cycles", 1e6), ("temporaries", 1e6)):
        found += [plain(row[name] / unit), f"{row[name] / step[name]:.2f}"]
    return found


def timed_table(results: Mapping[str, Any]) -> str:
    """Milliseconds of the programs that ran on a device."""
    head = ("program", "dtype", "members", "ms", "s to compile", "Tflop/s of its own products")
    return markdown(head, [_timed_cells(row) for row in results["rows"]])


def _timed_cells(row: Mapping[str, Any]) -> list[str]:
    rate = f"{row['own_flops'] / row['seconds'] / 1e12:.3g}" if row["own_flops"] else "-"
    ms, first = f"{1e3 * row['seconds']:.3g}", f"{row['first_seconds']:.1f}"
    return [row["program"], row["dtype"], str(row["members"]), ms, first, rate]


def write(path: Path, results: Mapping[str, Any], found: Callable[[Mapping[str, Any]], dict[str, str]]) -> None:
    """Write the results, and the tables made of them into the README.md beside them where there is one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
    readme = path.parent / "README.md"
    if readme.exists():
        readme.write_text(filled(readme.read_text(encoding="utf-8"), found(results)), encoding="utf-8")
