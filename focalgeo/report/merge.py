"""Several workdirs merged into a new one: shards of a sweep become one sweep, other runs stand side by side."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from focalgeo import records
from focalgeo.config import SWEPT_FIELDS
from focalgeo.report.axes import AXIS_TITLES, axis_values
from focalgeo.report.selection import (
    OTHER_EXAMPLES,
    Manifest,
    as_number,
    check_folder,
    check_manifest,
    check_rows,
    read_manifest,
    read_rows,
    setting,
)
from focalgeo.report.style import short
from focalgeo.report.tables import leaves
from focalgeo.rows import Row, Seconds, select, tagged
from focalgeo.types import InputError

_MERGED = "merged"  # in a manifest: the workdirs that it was made of, and the mark that it may be made anew


def merge_workdirs(folders: Sequence[records.Workdir], out: records.Workdir) -> Path:
    """Write manifest.json and metrics.jsonl of all `folders` to `out`, a new folder or an earlier merge; returns it.

    Workdirs of one config, whatever of it they sweep, become one sweep. Rows of other configs get the tag "run", the
    workdir's name, and the report draws a line for each run. Only rows are copied: members' predictions stay where
    they are.

    Raises:
        InputError: a workdir is missing or corrupt, holds no run, two hold the same member, one is named twice, or
            `out` is in use.
    """
    _check_names(folders, out)
    folders, out = [Path(folder) for folder in folders], Path(out)
    _check_out(folders, out)
    manifests = [_run_manifest(folder) for folder in folders]
    rows = [read_rows(folder) for folder in folders]
    if _one_config(manifests):
        _check_data(folders, manifests)
        manifest, found = _one_sweep(folders, manifests, rows)
    else:
        names = _names(folders)
        manifest = {**_common(manifests), "runs": names, OTHER_EXAMPLES: not _same_examples(manifests)}
        found = [row for name, each in zip(names, rows, strict=True) for row in tagged(each, run=name)]
    manifest = {**manifest, _MERGED: [str(folder) for folder in folders]}
    check_manifest(str(out), manifest)
    check_rows(str(out), found)
    records.write_manifest(out, manifest)
    records.replace_rows(out, found, where=lambda row: True)
    return out


def _check_names(folders: Sequence[records.Workdir], out: records.Workdir) -> None:
    if not folders:
        raise InputError("there is no workdir to merge; give one or more")
    if not all(os.fspath(folder) for folder in folders):
        raise InputError("the name of a workdir is empty; give its folder")
    if not os.fspath(out):
        raise InputError("--out= is empty; name a new folder")


def _check_out(folders: Sequence[Path], out: Path) -> None:
    """Refuse an `out` that is in use, and one workdir under two names."""
    for path in folders:
        check_folder(path)
    name = short(str(out), 200)
    with records.writing(f"--out={name}"):
        if out.exists() and not out.is_dir():
            raise InputError(f"--out={name} is a file; name a new folder")
    *where, target = [Path(os.path.realpath(path)) for path in (*folders, out)]
    for index, folder in enumerate(where):
        if folder in where[:index]:
            raise InputError(f"{short(str(folders[index]), 200)} is named twice; give each workdir once")
    if target in where:
        raise InputError(f"--out={name} is one of the workdirs; name a new folder")
    inside = next((folder for folder in where if folder in target.parents), None)
    if inside is not None:
        raise InputError(f"--out={name} lies inside the workdir {short(str(inside), 200)}; name a folder elsewhere")
    with records.writing(name):
        used = not records.is_empty(out)
    if used and not ((out / records.MANIFEST).is_file() and _MERGED in records.read_manifest(out)):
        raise InputError(f"--out={name} holds something else; name a new folder")


def _run_manifest(folder: Path) -> Manifest:
    """The manifest of a workdir whose rows can stand beside others'."""
    manifest = read_manifest(folder)
    if "calibration" in manifest:
        raise InputError(f"{folder} was made by focalgeo.calibrate, and only workdirs of runs are merged; leave it out")
    if manifest.get("runs"):
        raise InputError(f"{folder} is itself a merge of several runs; give the workdirs that it was made of")
    return manifest


def _common(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """The first manifest, with the axes, methods and metrics of all."""
    first = {name: value for name, value in manifests[0].items() if name != "shard"}
    for part in ("methods", "metrics"):
        first[part] = {name: entry for each in manifests for name, entry in each.get(part, {}).items()}
    return {**first, "config": {**first.get("config", {}), "sweep": _union(manifests)}}


def _one_sweep(
    folders: Sequence[Path], manifests: Sequence[Manifest], rows: Sequence[Sequence[Row]]
) -> tuple[dict[str, Any], list[Row]]:
    """Manifest and rows of workdirs of one config."""
    manifest = _common(manifests)
    axes = {axis: values for axis, values in manifest["config"]["sweep"].items() if values}
    rows = [_completed(each, own, axes) for each, own in zip(rows, manifests, strict=True)]
    _check_members(folders, rows)
    found = [_of_workdir(row, folder) for folder, each in zip(folders, rows, strict=True) for row in each]
    manifest["config"]["sweep"] = {axis: _met(found, axis, values) for axis, values in axes.items()}
    return manifest, found


def _config(manifest: Manifest, axes: Iterable[str]) -> dict[str, Any]:
    """The config as dotted names, without the sweep and without what some sweep sets."""
    dotted = dict(leaves(manifest.get("config", {})))
    swept = {SWEPT_FIELDS[axis] for axis in axes}
    return {name: value for name, value in dotted.items() if name not in swept and not name.startswith("sweep.")}


def _one_config(manifests: Sequence[Manifest]) -> bool:
    axes = [axis for axis, values in _union(manifests).items() if values]
    return all(_config(manifest, axes) == _config(manifests[0], axes) for manifest in manifests)


def _union(manifests: Sequence[Manifest]) -> dict[str, Any]:
    """The axes of all sweeps with their values, in the order in which they come first."""
    sweeps = [setting(manifest, "sweep") or {} for manifest in manifests]
    axes = [axis for axis in AXIS_TITLES if any(axis in sweep for sweep in sweeps)]
    return {axis: list(dict.fromkeys(value for sweep in sweeps for value in sweep.get(axis) or ())) for axis in axes}


def _check_data(folders: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Refuse workdirs of one config that were trained on different data of one name."""
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.get("data", {}).get("checksum") != manifests[0].get("data", {}).get("checksum"):
            raise InputError(f"{folder} was trained on other data than {folders[0]}, under the same name; leave it out")


def _same_examples(manifests: Sequence[Manifest]) -> bool:
    """Whether all have the same examples in val and test: data, their division, and how many."""

    def examples(manifest: Manifest) -> list:
        data = manifest.get("data", {})
        chosen = (setting(manifest, f"data.{name}") for name in ("split_seed", "val_size", "test_size"))
        return [*(data.get(name) for name in ("checksum", "val", "test")), *chosen]

    return all(examples(each) == examples(manifests[0]) for each in manifests)


def _completed(rows: Sequence[Row], manifest: Manifest, axes: Iterable[str]) -> list[Row]:
    """Members' rows with a value on every axis: what a workdir did not sweep is what its config says."""
    fixed = {axis: as_number(setting(manifest, SWEPT_FIELDS[axis])) for axis in axes}
    return [row if row.seed is None else _with_defaults(row, fixed) for row in rows]


def _with_defaults(row: Row, fixed: dict[str, Any]) -> Row:
    lacking = {axis: value for axis, value in fixed.items() if getattr(row, axis) is None}
    return replace(row, **lacking)


def _met(rows: Sequence[Row], axis: str, values: Sequence[Any]) -> list:
    """The values of an axis, and those that rows have beside them."""
    met = dict.fromkeys([*values, *(getattr(row, axis) for row in rows)])
    return [value for value in met if value is not None]


def _check_members(folders: Sequence[Path], rows: Sequence[Sequence[Row]]) -> None:
    """Refuse a member that two workdirs have both measured."""
    seen: dict[tuple, Path] = {}
    for folder, each in zip(folders, rows, strict=True):
        members = {axis_values(row) for row in select(each, Seconds, phase="evaluate")}
        for member in sorted(members & seen.keys()):
            what = ", ".join(f"{name} {short(str(value))}" for name, value in member)
            raise InputError(f"{folder} and {seen[member]} both hold the run with {what}; leave one of them out")
        seen |= dict.fromkeys(members, folder)


def _of_workdir(row: Row, folder: Path) -> Row:
    """A row as it is; wall times of members together, which are no member's, say of which workdir they are."""
    together = isinstance(row, Seconds) and row.seed is None
    return replace(row, run=folder.name) if together else row


def _names(folders: Sequence[Path]) -> list[str]:
    names = [Path(os.path.abspath(folder)).name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
