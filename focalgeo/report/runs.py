"""Folders of runs: the page that lists them, newest first, and shards of a sweep merged into one workdir."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from focalgeo import records
from focalgeo.report import page, sweep
from focalgeo.report.sections import (
    NOTHING,
    Line,
    Section,
    Table,
    joined,
    leaves,
    metric_cell,
    say,
    setting_text,
    write_page,
)
from focalgeo.report.selection import AS_TRAINED, PLAIN, Column, Run, read_run
from focalgeo.report.style import short
from focalgeo.rows import Seconds, select
from focalgeo.types import InputError

PAGE = "index.html"
_MOST_DIFFERENCES, _DEEPEST = 12, 4
_COLUMNS = (("accuracy", AS_TRAINED), ("ece", AS_TRAINED), ("ece", Column(PLAIN, "nll")), ("nll", Column(PLAIN, "nll")))
_MERGED = "merged"  # in a manifest: the workdirs that it was made of, and the mark that it may be made anew


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
        InputError: the folder's index.html is another's, or the page cannot be written.
    """
    folder = Path(folder)
    path = folder / PAGE
    if path.exists() and b'content="focalgeo"' not in path.read_bytes()[:1000]:
        raise InputError(f"{path} is another's page: move it away, or name a folder of runs alone")
    runs, troubles = {}, {}
    for workdir in workdirs_in(folder):
        try:
            runs[workdir] = read_run(workdir, begun=True)
        except InputError as error:
            runs[workdir], troubles[workdir] = Run((), {}), short(str(error), 500)
    kinds = {workdir: page.kind_of(run) for workdir, run in runs.items() if workdir not in troubles}
    settings = {workdir: _settings(run) for workdir, run in runs.items()}
    differing = {kind: _differing([settings[of] for of in kinds if kinds[of] == kind]) for kind in kinds.values()}

    def section(workdir: Path, run: Run) -> Section:
        name, has_page = workdir.relative_to(folder), (workdir / "report.html").exists()
        link = f"{quote(os.fsencode(name))}/report.html" if has_page else ""
        what = f"calibration of {run.data_title}" if "calibration" in run.manifest else f"{run.data_title}, {run.loss}"
        what = joined(_created(run)[:16].replace("T", " "), what, "" if has_page else "not finished")
        own = settings[workdir]
        pairs = [(field, own[field]) for field in differing.get(kinds.get(workdir), ()) if field in own]
        lists = [("", pairs[:_MOST_DIFFERENCES])] if pairs else []
        said = ("cannot be read", troubles[workdir]) if workdir in troubles else (what, page.headline(run))
        words = say("paragraph", text=said[0], kind="how") + say("paragraph", text=said[1])
        return Section(say("linked", name=short(name.as_posix(), 120), page=link), words, lists=lists)

    order = sorted(runs, key=lambda workdir: _created(runs[workdir]), reverse=True)
    singles = {of.relative_to(folder).as_posix(): runs[of] for of in order if kinds.get(of) in ("run", "calibration")}
    first = Section("Test split, as trained and after temperature scaling by NLL", tables=[_table(singles)])
    verdict = say("runs", count=len(runs), differ=any(differing.values()))
    title = f"Runs in {short(folder.resolve().name, 120)}"
    sections = [first, *(section(workdir, runs[workdir]) for workdir in order)]
    return write_page(path, title, sections, verdict=verdict, contents=False)


def _created(run: Run) -> str:
    return str(run.manifest.get("created", ""))


def _table(runs: Mapping[str, Run]) -> Table | None:
    """A line for each run of one network: the numbers by which runs are compared first."""
    titles = next(iter(runs.values())).metrics if runs else {}
    columns = [(titles[name], name, column) for name, column in _COLUMNS if name in titles]
    lines = [
        Line(short(name, 60), "", [metric_cell(run.metric(column, metric), title) for title, metric, column in columns])
        for name, run in runs.items()
    ]
    lines = [line for line in lines if set(line.cells) != {NOTHING}]
    after = {True: "as trained", False: "after temperature scaling"}
    heads = [(title.title, after[column == AS_TRAINED]) for title, _, column in columns]
    return Table("Run", heads, lines) if len(lines) > 1 else None


def _settings(run: Run) -> dict[str, str]:
    return {name: setting_text(value) for name, value in leaves(run.manifest.get("config", {}))}


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The fields that not all configs have with the same value."""
    names = dict.fromkeys(name for own in settings for name in own)
    return [name for name in names if len({own.get(name) for own in settings}) > 1]


def merge_workdirs(folders: Sequence[records.Workdir], out: records.Workdir) -> Path:
    """Write the rows of workdirs that share a sweep's config to `out`, a new folder or an earlier merge; returns it.

    Their axes may hold other values: the merged sweep has all of them. Only rows are copied: members' predictions stay
    where they are.

    Raises:
        InputError: a workdir is missing or corrupt, is no part of the same sweep, two hold the same member, or `out` is
            in use.
    """
    folders, out = [Path(folder) for folder in folders], Path(out)
    manifests = [records.read_manifest(folder) for folder in folders]
    if not records.is_empty(out) and _MERGED not in records.read_manifest(out):
        raise InputError(f"--out={out} holds something else; name a new folder")
    rows, members = [], {}
    for folder, manifest in zip(folders, manifests, strict=True):
        if _shared(manifest) != _shared(manifests[0]) or "calibration" in manifest:
            raise InputError(f"{folder} is no part of the sweep of {folders[0]}: config or data differ; leave it out")
        own = records.read_rows(folder)
        for member in {sweep.member_text(row) for row in select(own, Seconds, phase="evaluate")}:
            if members.setdefault(member, folder) is not folder:
                raise InputError(f"{folder} and {members[member]} both hold the run with {member}; leave one out")
        # Wall times of members together are no member's: they say of which workdir they are.
        rows += [row if row.seed is not None else replace(row, run=folder.name) for row in own]
    swept = [manifest["config"]["sweep"] for manifest in manifests]
    axes = {name: list(dict.fromkeys(value for own in swept for value in own.get(name) or ())) for name in sweep.AXES}
    config = {**manifests[0]["config"], "sweep": {**swept[0], **axes}}
    merged = {name: value for name, value in manifests[0].items() if name != "shard"}
    records.write_manifest(out, {**merged, "config": config, _MERGED: list(map(str, folders))})
    records.replace_rows(out, rows, where=lambda row: True)
    return out


def _shared(manifest: Mapping[str, Any]) -> tuple:
    """What the parts of one sweep have in common: the config but for the values of the axes swept, and the data."""
    config, data = manifest.get("config", {}), manifest.get("data", {})
    axes = {name: bool(values) for name, values in config.get("sweep", {}).items() if name in sweep.AXES}
    return {**config, "sweep": axes}, data.get("checksum")
