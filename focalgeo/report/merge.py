"""Several workdirs laid over each other in a new one: shards of a sweep become one, other runs stand side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focalgeo import records
from focalgeo.config import SWEPT_FIELDS
from focalgeo.report.checks import check_manifest, check_rows
from focalgeo.report.members import AXIS_TITLES
from focalgeo.report.selection import Row, setting
from focalgeo.report.tables import settings
from focalgeo.types import InputError

_MERGED = "merged"  # in a manifest: the workdirs that it was made of, and the mark that it may be made anew


def merge_workdirs(folders: Sequence[records.Workdir], out: records.Workdir) -> Path:
    """Write manifest.json and metrics.jsonl of all `folders` to `out`, a new folder or an earlier merge; returns it.

    Workdirs of one config, whatever of it they sweep, become one sweep. Rows of other configs get a field "run", the
    workdir's name, and the report draws a line for each run. Only rows travel: members' predictions stay where they
    are.

    Raises:
        InputError: a workdir is missing or damaged, two hold the same member, two have one name, or `out` is in use.
    """
    folders, out = [Path(folder) for folder in folders], Path(out)
    _check_out(folders, out)
    manifests, rows = [], []
    for folder in folders:
        manifests.append(records.read_manifest(folder))
        rows.append(records.read_rows(folder))
        check_manifest(manifests[-1], folder)
        check_rows(rows[-1], folder)
    first = {key: value for key, value in manifests[0].items() if key != "shard"}
    first |= {
        _MERGED: [str(folder) for folder in folders],
        "config": {**first.get("config", {}), "sweep": _union(manifests)},
    }
    if _one_config(manifests):
        _check_data(folders, manifests)
        axes = [axis for axis, values in first["config"]["sweep"].items() if values]
        rows = [_completed(each, manifest, axes) for each, manifest in zip(rows, manifests, strict=True)]
        _check_members(folders, rows)
        found = [_of_workdir(row, folder) for folder, each in zip(folders, rows, strict=True) for row in each]
        first["config"]["sweep"] = {axis: _met(found, axis, first["config"]["sweep"][axis]) for axis in axes}
    else:
        names = _names(folders)
        first["runs"] = names
        found = [{**row, "run": name} for name, each in zip(names, rows, strict=True) for row in each]
    out.mkdir(parents=True, exist_ok=True)
    records.write_manifest(out, first)
    records.replace_rows(out, found, where=lambda row: True)
    return out


def _check_out(folders: Sequence[Path], out: Path) -> None:
    if out in folders:
        raise InputError(f"--out={out} is one of the workdirs; name a new folder")
    if out.exists() and any(out.iterdir()) and _MERGED not in records.read_manifest(out):
        raise InputError(f"--out={out} holds something else; name a new folder")


def _config(manifest: dict[str, Any], axes: Sequence[str]) -> dict[str, Any]:
    """The config as dotted names, without the sweep and without what some sweep sets."""
    dotted = dict(settings(manifest.get("config", {})))
    swept = {SWEPT_FIELDS[axis] for axis in axes}
    return {name: value for name, value in dotted.items() if name not in swept and not name.startswith("sweep.")}


def _one_config(manifests: Sequence[dict]) -> bool:
    axes = [axis for axis, values in _union(manifests).items() if values]
    return all(_config(manifest, axes) == _config(manifests[0], axes) for manifest in manifests)


def _union(manifests: Sequence[dict]) -> dict[str, Any]:
    """The axes of all sweeps with their values, in the order in which they come first."""
    sweeps = [manifest.get("config", {}).get("sweep") or {} for manifest in manifests]
    axes = [axis for axis in AXIS_TITLES if any(axis in sweep for sweep in sweeps)]
    return {axis: list(dict.fromkeys(value for sweep in sweeps for value in sweep.get(axis) or ())) for axis in axes}


def _check_data(folders: Sequence[Path], manifests: Sequence[dict]) -> None:
    """Refuse workdirs of one config that were trained on different data of one name."""
    for folder, manifest in zip(folders, manifests, strict=True):
        if manifest.get("data", {}).get("checksum") != manifests[0].get("data", {}).get("checksum"):
            raise InputError(f"{folder} was trained on other data than {folders[0]}, under the same name; leave it out")


def _completed(rows: Sequence[Row], manifest: dict, axes: Sequence[str]) -> list[Row]:
    """Rows with a value on every axis: what a workdir did not sweep is what its config says."""
    fixed = {axis: setting(manifest, SWEPT_FIELDS[axis]) for axis in axes}
    fixed = {axis: value for axis, value in fixed.items() if value is not None}
    return [{**fixed, **row} if "seed" in row else row for row in rows]


def _met(rows: Sequence[Row], axis: str, values: Sequence[Any]) -> list:
    """The values of an axis, and those that rows have beside them."""
    return list(dict.fromkeys([*values, *(row[axis] for row in rows if axis in row)]))


def _check_members(folders: Sequence[Path], rows: Sequence[Sequence[Row]]) -> None:
    """Refuse a member that two workdirs have both measured."""
    seen: dict[tuple, Path] = {}
    for folder, each in zip(folders, rows, strict=True):
        members = {_member(row) for row in each if row.get("phase") == "evaluate"}
        for member in sorted(members & seen.keys()):
            what = ", ".join(f"{name} {value}" for name, value in member)
            raise InputError(f"{folder} and {seen[member]} both hold the run with {what}; leave one of them out")
        seen |= dict.fromkeys(members, folder)


def _member(row: Row) -> tuple:
    return tuple((name, row[name]) for name in AXIS_TITLES if name in row)


def _of_workdir(row: Row, folder: Path) -> Row:
    """A row as it is; wall times of a round, which are no member's, say whose round it was."""
    return {**row, "workdir": folder.name} if "round" in row else row


def _names(folders: Sequence[Path]) -> list[str]:
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    if len(set(names)) < len(names):
        raise InputError(f"{names[0]} is named twice; give each workdir once")
    return names
