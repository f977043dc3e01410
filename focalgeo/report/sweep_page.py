"""The page of a sweep: curves along its axis with intervals over seeds, and a table with paired differences."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from focalgeo.report.diagnostics_sweep import diagnostic_sweep_panels
from focalgeo.report.formats import interval, plain, significant
from focalgeo.report.members import (
    AXIS_TITLES,
    Mean,
    Sweep,
    axis_symbol,
    by_seed,
    line_title,
    mean,
    paired,
    sweep_of,
    value_text,
)
from focalgeo.report.panels import Panel, template
from focalgeo.report.selection import Row, loss_title, matching, setting
from focalgeo.report.sweep_figures import axis_figure, reliability_grid, scatter_figure
from focalgeo.report.tables import Cell, Line, Table, config_settings, phases, settings
from focalgeo.report.words import data_title

CRITERION = "nll"  # of the maps shown: their parameters are steadier than those fitted by ECE
_TEST = {"split": "test", "map": "uncalibrated"}
_FITTED = {"criterion": CRITERION, "split": "test"}


def quantities(rows: Sequence[Row]) -> dict[str, tuple[float, Mapping[str, Any]]]:
    """Title -> (scale, conditions on its rows) of what the table shows, as far as there are rows."""
    after = {"split": "test", "criterion": CRITERION}
    found = {
        "Accuracy, %": (100.0, {"name": "accuracy", **_TEST}),
        "NLL, nats": (1.0, {"name": "nll", **_TEST}),
        "ECE as trained, %": (100.0, {"name": "ece", **_TEST}),
        "ECE after T, %": (100.0, {"name": "ece", "map": "temperature_scaling", **after}),
        "ECE after γ and T, %": (100.0, {"name": "ece", "map": "focal_temperature_scaling", **after}),
        "Best T": (1.0, {"name": "temperature", "map": "temperature_scaling", "criterion": CRITERION}),
    }
    for loss, split in _measured(rows):
        title = f"{loss_title(loss)}, {split}"
        found[f"λmax, {title}"] = (1.0, {"name": "lambda_max", "loss": loss, "split": split})
        found[f"Trace, {title}"] = (1.0, {"name": "trace", "loss": loss, "split": split})
        found[f"Scale-free trace, {title}"] = (1.0, {"name": "scale_free_trace", "loss": loss, "split": split})
    return {title: each for title, each in found.items() if matching(rows, each[1])}


def _measured(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(loss, split) of every trace, cross-entropy first."""
    places = dict.fromkeys((row["loss"], row["split"]) for row in matching(rows, {"name": "trace", "epoch": None}))
    return sorted(places, key=lambda place: place[0] != "cross_entropy")


def sweep_table(rows: Sequence[Row], sweep: Sweep, line: tuple) -> Table:
    """Means over seeds with 95% intervals at each value; beneath, the paired difference to the first value."""
    lines = []
    for title, (scale, where) in quantities(rows).items():
        found = [by_seed(rows, sweep, line, value, where) for value in sweep.values]
        scaled = [{seed: scale * value for seed, value in each.items()} for each in found]
        lines.append(Line(title, "", [_cell(mean(list(each.values()))) for each in scaled]))
        differences = [None, *(paired(each, scaled[0]) for each in scaled[1:])]
        if any(each is not None and each.low is not None for each in differences):
            lines.append(Line("", f"less {_at_first(sweep)}, paired", [_difference(each) for each in differences]))
    heads = [(f"{axis_symbol(sweep)} = {value_text(sweep, value)}", "") for value in sweep.values]
    return Table(heads, lines)


def _at_first(sweep: Sweep) -> str:
    return f"at {axis_symbol(sweep)} = {value_text(sweep, sweep.values[0])}"


def _cell(each: Mean | None) -> Cell:
    if each is None:
        return Cell("–")
    return Cell(significant(each.value), "" if each.low is None else _ends(each))


def _difference(each: Mean | None) -> Cell:
    if each is None or each.low is None:
        return Cell("")
    sign = "+" if each.value > 0 else ""
    return Cell(f"{sign}{significant(each.value, 3)}", _ends(each), best=each.low > 0 or each.high < 0)


def _ends(each: Mean) -> str:
    spread = each.high - each.low
    digits = next((digits for digits in range(7) if spread * 10**digits >= 5), 7)
    return interval(each.low, each.high, digits=digits)


def sweep_panels(rows: Sequence[Row], manifest: Mapping[str, Any]) -> Iterator[Panel]:
    """The figures of a sweep, as far as there are rows for them."""
    sweep = sweep_of(manifest, rows)
    trained = ("grey", {"name": "ece", **_TEST})
    maps = {
        "as trained": trained,
        "after T": ("blue", {"name": "ece", "map": "temperature_scaling", **_FITTED}),
        "after γ and T": ("orange", {"name": "ece", "map": "focal_temperature_scaling", **_FITTED}),
    }
    yield Panel("calibration", "sweep_ece", "ECE on test", axis_figure(rows, sweep, maps, "ECE", percent=True))
    for name, title, percent in (("accuracy", "Accuracy on test", True), ("nll", "NLL on test", False)):
        drawn = {"": ("grey", {"name": name, **_TEST})}
        label = "accuracy" if percent else "NLL (nats)"
        yield Panel("calibration", f"sweep_{name}", title, axis_figure(rows, sweep, drawn, label, percent=percent))
    fitted = {
        "T of temperature scaling": ("blue", {"name": "temperature", "map": "temperature_scaling"}),
        "T with γ": ("orange", {"name": "temperature", "map": "focal_temperature_scaling"}),
    }
    fitted = {label: (colour, {**where, "criterion": CRITERION}) for label, (colour, where) in fitted.items()}
    yield Panel("calibration", "sweep_temperature", "Best temperature", axis_figure(rows, sweep, fitted, "temperature"))
    gamma = {"name": "calibration_gamma", "map": "focal_temperature_scaling", "criterion": CRITERION}
    figure = axis_figure(rows, sweep, {"": ("orange", gamma)}, "γ of the map")
    yield Panel("calibration", "sweep_gamma", "Best γ of focal temperature scaling", figure)
    yield from _curvature_panels(rows, sweep)
    yield from diagnostic_sweep_panels(rows, sweep)
    for number, line in enumerate(sweep.lines):
        title = line_title(sweep, line) or "All values"
        yield Panel("reliability", f"sweep_reliability_{number}", title, reliability_grid(rows, sweep, line))


def _curvature_panels(rows: Sequence[Row], sweep: Sweep) -> Iterator[Panel]:
    places = _measured(rows)
    for split in dict.fromkeys(split for _, split in places):
        losses = [loss for loss, where in places if where == split]
        for name, title in (
            ("lambda_max", "Largest eigenvalue"),
            ("trace", "Trace"),
            ("scale_free_trace", "Scale-free trace"),
        ):
            drawn = {
                loss_title(loss): (
                    "blue" if loss == "cross_entropy" else "orange",
                    {"name": name, "loss": loss, "split": split},
                )
                for loss in losses
            }
            figure = axis_figure(rows, sweep, drawn, title.lower())
            yield Panel("curvature", f"sweep_{name}_{split}", f"{title} on {split}", figure)
        where = {"name": "trace", "loss": "cross_entropy", "split": split}
        figure = scatter_figure(rows, sweep, where, {"name": "ece", **_TEST})
        yield Panel("curvature", f"sweep_trace_and_ece_{split}", f"Flatness on {split} and calibration", figure)


def stopped_words(rows: Sequence[Row]) -> str:
    """Return which members stopped early, and when; "" if none."""
    found = matching(rows, {"name": "stopped"})
    if not found:
        return ""
    names = [
        ", ".join(f"{name} {row[name]}" for name in AXIS_TITLES if name in row) + f" at step {row['value']}"
        for row in found
    ]
    return f"Members whose loss was not finite stopped there and have no results: {'; '.join(names)}."


def render_sweep(rows: Sequence[Row], manifest: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Return the page of a sweep."""
    sweep = sweep_of(manifest, rows)
    members = len({tuple(row.get(name) for name in AXIS_TITLES) for row in rows if row.get("map") == "uncalibrated"})
    tables = [(line_title(sweep, line) or "Mean over seeds", sweep_table(rows, sweep, line)) for line in sweep.lines]
    return template("sweep.html").render(
        title=f"{data_title(manifest, 'A sweep')}: {loss_title(setting(manifest, 'loss.name') or 'runs')} along "
        f"{axis_symbol(sweep)}",
        members=members,
        seeds=len(sweep.seeds),
        values=", ".join(value_text(sweep, value) for value in sweep.values),
        axis=AXIS_TITLES[sweep.axis],
        stopped=stopped_words(rows),
        first=_at_first(sweep),
        tables=tables,
        sections=sections,
        examples=setting(manifest, "curvature.examples"),
        config=config_settings(manifest),
        about=settings({key: manifest[key] for key in ("data", "parameters", "created", "git") if key in manifest}),
        seconds=phases(rows),
        machine=settings({key: manifest[key] for key in ("platform", "devices", "versions") if key in manifest}),
        command=shlex.join(str(word) for word in manifest.get("command", [])),
    )


def sweep_text(rows: Sequence[Row], manifest: Mapping[str, Any]) -> str:
    """Return the table's main numbers as plain text, one line for each value of the axis, means over seeds."""
    sweep = sweep_of(manifest, rows)
    shown = {title: each for title, each in quantities(rows).items() if "Scale-free" not in title}
    lines = [f"{axis_symbol(sweep):>8}  " + "  ".join(f"{title:>{max(9, len(title))}}" for title in shown)]
    for line in sweep.lines:
        lines += [line_title(sweep, line)] if line else []
        for value in sweep.values:
            cells = []
            for title, (scale, where) in shown.items():
                found = mean(list(by_seed(rows, sweep, line, value, where).values()))
                text = "–" if found is None else plain(round(scale * found.value, 4))
                cells.append(f"{text:>{max(9, len(title))}}")
            lines.append(f"{value_text(sweep, value):>8}  " + "  ".join(cells))
    return "\n".join(lines)
