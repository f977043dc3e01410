"""The page that lists the runs of a folder: newest first, with their verdicts and what their configs differ in."""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from focalgeo import records
from focalgeo.report.axes import is_sweep, sweep_of, value_text
from focalgeo.report.choice import verdict_words
from focalgeo.report.page import read_run
from focalgeo.report.panels import template
from focalgeo.report.selection import AS_TRAINED, PLAIN, Column, Manifest, check_folder, metric, metric_entries
from focalgeo.report.style import short
from focalgeo.report.tables import NOTHING, Line, Table, leaves, metric_cell, setting_text
from focalgeo.report.words import data_title, training_loss, verdict
from focalgeo.rows import Row
from focalgeo.types import InputError

PAGE = "index.html"
MOST_RUNS, _MOST_DIFFERENCES, _DEEPEST = 500, 12, 4
_COLUMNS = (("accuracy", AS_TRAINED), ("ece", AS_TRAINED), ("ece", Column(PLAIN, "nll")), ("nll", Column(PLAIN, "nll")))


class Run(NamedTuple):
    """A workdir beneath the folder; without rows where they cannot be read, and `trouble` says why."""

    name: str  # its path from the folder
    manifest: Manifest
    rows: Sequence[Row]
    has_page: bool
    trouble: str = ""


def workdirs_in(folder: Path) -> Iterator[Path]:
    """Yield the workdirs up to four folders down, by name; members of a sweep are part of it, links not followed."""
    for path, folders, files in os.walk(folder):
        folders.sort()
        if records.MANIFEST in files:
            yield Path(path)
        if records.MANIFEST in files or len(Path(path).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()


def write_list(folder: records.Workdir) -> Path:
    """Write index.html, a page of all runs beneath a folder; returns its path.

    A workdir that cannot be read is listed with the reason.

    Raises:
        InputError: there is no run in the folder, there are too many, its index.html is another's, or the page cannot
        be written.
    """
    folder = Path(folder)
    check_folder(folder)
    workdirs = list(itertools.islice(workdirs_in(folder), MOST_RUNS + 1))
    if len(workdirs) > MOST_RUNS:
        raise InputError(f"{short(str(folder), 200)} holds more than {MOST_RUNS} runs; name a folder with fewer")
    if not workdirs:
        raise InputError(
            f"{short(str(folder), 200)} is no workdir and holds none; give the folder of a run, or of runs"
        )
    _check_page(folder / PAGE)
    runs = [_read(folder, workdir) for workdir in workdirs]
    runs.sort(key=lambda run: str(run.manifest.get("created", "")), reverse=True)
    records.write_text(folder / PAGE, _render(folder, runs))
    return folder / PAGE


def _check_page(path: Path) -> None:
    """Refuse to write over a page that is none of this command's."""
    if path.exists() and b'content="focalgeo"' not in path.read_bytes()[:1000]:
        raise InputError(f"{short(str(path), 200)} is another's page: move it away, or name a folder of runs alone")


def _read(folder: Path, workdir: Path) -> Run:
    name, has_page = workdir.relative_to(folder).as_posix(), (workdir / "report.html").exists()
    try:
        return Run(name, *read_run(workdir, begun=True), has_page)
    except InputError as error:
        return Run(name, {}, (), has_page, str(error))


def _render(folder: Path, runs: Sequence[Run]) -> str:
    readable = [run for run in runs if not run.trouble]
    differing = {kind: _differing([run for run in readable if _kind(run) == kind]) for kind in map(_kind, readable)}
    shown = [
        {
            "name": short(run.name, 120),
            "page": f"{quote(os.fsencode(run.name))}/report.html" if run.has_page else "",
            "what": _what(run),
            "verdict": _verdict(run),
            "differences": _differences(run, differing.get(_kind(run), ())),
        }
        for run in runs
    ]
    differ = any(differing.values())
    return template("runs.html").render(
        title=f"Runs in {short(folder.resolve().name, 120)}",
        count=f"{len(runs)} run{'s' if len(runs) != 1 else ''}",
        differ=differ,
        table=_table(readable),
        runs=shown,
    )


def _kind(run: Run) -> str:
    """What a run's config is compared with: configs of its own command, sweeps with sweeps."""
    return "calibration" if "calibration" in run.manifest else "sweep" if is_sweep(run.manifest) else "run"


def _what(run: Run) -> str:
    if run.trouble:
        return "cannot be read"
    created = short(str(run.manifest.get("created", ""))[:16].replace("T", " "))
    if _kind(run) == "calibration":
        what = f"calibration of {short(str(run.manifest.get('data', {}).get('name', 'outputs')), 120)}"
    else:
        what = f"{data_title(run.manifest, 'a run')}, {training_loss(run.manifest)}"
    return ", ".join(filter(None, [created, what, "" if run.has_page else "not finished"]))


def _verdict(run: Run) -> str:
    if run.trouble:
        return short(run.trouble, 500)
    say = {"calibration": verdict_words, "sweep": _sweep_words, "run": lambda *run: " ".join(verdict(*run))}
    return say[_kind(run)](run.rows, run.manifest)


def _sweep_words(rows: Sequence[Row], manifest: Manifest) -> str:
    sweep = sweep_of(manifest, rows)
    values = [value_text(sweep, value) for value in sweep.values]
    return f"A sweep of {len(values)} values of {sweep.axis.replace('_', ' ')}: {setting_text(values)}."


def _table(runs: Sequence[Run]) -> Table | None:
    """A line for each run of one network: the numbers by which runs are compared first."""
    entries = metric_entries(runs[0].manifest) if runs else {}
    columns = [(name, column) for name, column in _COLUMNS if name in entries]
    heads = [
        (entries[name].title, "as trained" if column == AS_TRAINED else "after temperature scaling")
        for name, column in columns
    ]
    lines = []
    for run in (each for each in runs if _kind(each) != "sweep"):
        found = [(entries[name], metric(run.rows, column, name, "test")) for name, column in columns]
        cells = [NOTHING if row is None else metric_cell(row, entry, best=False) for entry, row in found]
        if any(cell != NOTHING for cell in cells):
            lines.append(Line(short(run.name, 60), "", cells))
    return Table(heads, lines) if len(lines) > 1 else None


def _settings(run: Run) -> Mapping[str, str]:
    return {name: setting_text(value) for name, value in leaves(run.manifest.get("config", {}))}


def _differing(runs: Sequence[Run]) -> list[str]:
    """The fields that not all configs have with the same value."""
    each = [_settings(run) for run in runs]
    names = dict.fromkeys(name for own in each for name in own)
    return [name for name in names if len({own.get(name) for own in each}) > 1]


def _differences(run: Run, differing: Sequence[str]) -> list[tuple[str, str]]:
    own = _settings(run)
    pairs = [(short(name, 100), short(own[name], 200)) for name in differing if name in own]
    left = len(pairs) - _MOST_DIFFERENCES
    return pairs[:_MOST_DIFFERENCES] + ([("…", f"{left} more")] if left > 0 else [])
