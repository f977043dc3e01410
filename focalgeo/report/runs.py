"""Folders of runs: the page that lists them, newest first, and shards of a sweep merged into one workdir."""

import itertools
import os
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from jinja2 import UndefinedError
from msgspec.structs import replace

from focalgeo import records
from focalgeo.report import page, sections, sweep
from focalgeo.report.sections import NOTHING, Line, Section, Table, say
from focalgeo.report.selection import AS_TRAINED, BY_NLL, ECE, NLL, Run
from focalgeo.report.style import short
from focalgeo.rows import Seconds
from focalgeo.types import InputError

PAGE = "index.html"
_MOST_DIFFERENCES, _DEEPEST = 12, 4
_COLUMNS = {
    ("Accuracy", "as trained"): ("accuracy", AS_TRAINED, ECE),
    ("ECE", "as trained"): ("ece", AS_TRAINED, ECE),
    ("ECE", "after temperature scaling"): ("ece", BY_NLL, ECE),
    ("NLL", "after temperature scaling"): ("nll", BY_NLL, NLL),
}
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
    runs, unreadable = [], []
    for workdir in workdirs_in(folder):
        name = workdir.relative_to(folder)
        try:
            manifest = records.read_manifest(workdir)
            # a run that has just begun has no rows
            rows = records.read_rows(workdir) if (workdir / records.METRICS_FILE).exists() else []
            run = Run(rows, manifest)
            settings = sections.settings(manifest.get("config", {}))
            kind, _, headline = page.kind_of(run)
            runs.append((manifest.get("created", ""), kind, name, run, settings, headline(run)))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, UndefinedError) as error:
            unreadable.append(
                Section(short(str(name), 120), say("listed", what="cannot be read", text=short(str(error), 500)))
            )
    lines, parts, differ = [], [], False
    for created, kind, name, run, settings, headline in sorted(runs, key=itemgetter(0), reverse=True):
        if kind != "sweep":
            cells = [
                sections.metric_cell(run.metric(column, metric, "test"), form)
                for metric, column, form in _COLUMNS.values()
            ]
            if set(cells) != {NOTHING}:
                lines.append(Line(short(str(name), 60), "", cells))
        peers = [others for _, other, _, _, others, _ in runs if other == kind]
        pairs = [pair for pair in settings.items() if any(pair not in others.items() for others in peers)]
        differ |= bool(pairs)
        what = f"calibration of {run.data_title}" if kind == "calibration" else f"{run.data_title}, {run.loss}"
        link = f"{quote(os.fsencode(name))}/report.html" if (folder / name / "report.html").exists() else ""
        parts.append(
            Section(
                say("linked", name=short(str(name), 120), page=link),
                say("listed", created=created, what=what, is_finished=link, text=headline),
                lists={"": dict(pairs[:_MOST_DIFFERENCES])},
            )
        )
    table = Table("Run", list(_COLUMNS), lines if len(lines) > 1 else ())
    return sections.write_page(
        path,
        f"Runs in {short(folder.resolve().name, 120)}",
        [Section("Test split, as trained and after temperature scaling by NLL", tables=[table]), *parts, *unreadable],
        verdict=say("runs", count=len(parts) + len(unreadable), differ=differ),
        contents=False,
    )


def merge_workdirs(folders: Sequence[records.Workdir], out: records.Workdir) -> Path:
    """Write the rows of workdirs that share a sweep's config to `out`, a new folder or an earlier merge; returns it.

    Their axes may hold other values: the merged sweep has all of them. Only rows are copied: members' predictions stay
    where they are.

    Raises:
        InputError: a workdir is missing or corrupt, is no part of the same sweep, two hold the same member, or `out` is
            in use.
    """
    folders, out = list(map(Path, folders)), Path(out)
    manifests = list(map(records.read_manifest, folders))
    if not records.is_empty(out) and _MERGED not in records.read_manifest(out):
        raise InputError(f"--out={out} holds something else; name a new folder")
    rows, members, axes, first = [], {}, [sweep.axes_of(Run((), manifest)) for manifest in manifests], manifests[0]
    configs = [
        {**manifest.get("config", {}), "sweep": list(swept), "checksum": manifest.get("data", {}).get("checksum")}
        for manifest, swept in zip(manifests, axes, strict=True)
    ]
    for folder, config in zip(folders, configs, strict=True):
        if config != configs[0]:
            raise InputError(f"{folder} is no part of the sweep of {folders[0]}: config or data differ; leave it out")
        of_folder = records.read_rows(folder)
        for member in sweep.members_of(of_folder, Seconds, phase="evaluate"):
            if members.setdefault(member, folder) is not folder:
                raise InputError(f"{folder} and {members[member]} both hold the run with {member}; leave one out")
        # Wall times of members together are no member's: they say of which workdir they are.
        rows += [row if row.seed is not None else replace(row, run=folder.name) for row in of_folder]
    values = {name: list(dict.fromkeys(itertools.chain(*(swept[name] for swept in axes)))) for name in axes[0]}
    config = first["config"] | {"sweep": first["config"]["sweep"] | values}
    merged = first | {"config": config, _MERGED: list(map(str, folders))}
    records.write_manifest(out, {name: value for name, value in merged.items() if name != "shard"})
    records.replace_rows(out, rows, where=lambda row: True)
    return out
