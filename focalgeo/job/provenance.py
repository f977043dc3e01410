"""Provenance: the manifest, which identifies a run, and by which it goes on with the same config and data alone."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from focalgeo import losses, parallel, records, trees
from focalgeo.config import axes
from focalgeo.job import preparation, program
from focalgeo.job.members import Member, make_members, of_shard
from focalgeo.types import Dataset, InputError, TrainState, shown


def make_manifest(
    config, dataset: Dataset, state: TrainState, shard: str | None, start: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest of a run; state: that of one member, leaves [1, ...]; start: of `job.start.described`."""
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    return {
        "config": config.to_dict(),
        **({"shard": shard} if shard else {}),
        **({"start": dict(start)} if start else {}),
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": parallel.count(),
        "loss_values": list(losses.hyperparameters(losses.FUNCTIONS[config.loss.name])),
        "parameters": trees.size(state.params),
        **program.of_program(_command()),
    }


def _command() -> list[str]:
    return ["python", "-m", "focalgeo.run", *(word.encode(errors="replace").decode() for word in sys.argv[1:])]


def check_processes(config, shard: str | None) -> None:
    """Refuse to run with another config or shard than process 0 has.

    Raises:
        InputError: the first fields that differ.
    """
    here = json.loads(json.dumps({**config.to_dict(), "shard": shard}))
    there = parallel.broadcast("config", lambda: here)
    if there != here:
        what = "; ".join(records.differences(there, here)[:3])
        raise InputError(f"process 0 has another config ({what}): give the same command and config on every host")


def check_workdir(workdir: Path, config, members: Sequence[Member], shard: str | None) -> str:
    """Whether a run starts "fresh" in `workdir` or goes on there ("resume"); a sweep may gain members.

    Raises:
        InputError: the folder holds something else, another config, another shard, or members that the sweep lacks.
    """
    how = records.check_workdir(workdir, config.to_dict(), but="sweep")
    if how == "fresh":
        return how
    manifest = records.read_manifest(workdir)
    if manifest.get("shard") != shard:
        there, here = (
            f"shard {shown(each, most=24)}" if each else "all of the sweep" for each in (manifest.get("shard"), shard)
        )
        raise InputError(f"{workdir} holds {there}, this run is {here}; choose another --workdir")
    before = of_shard(_members_before(workdir, config, manifest), shard)
    lost = [member.name or "a run without sweep" for member in before if member.name not in {m.name for m in members}]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"{workdir} holds {lost[0]}{more}, which config.sweep no longer names: "
            "name all old values beside the new ones, or choose another --workdir"
        )
    return how


def _members_before(workdir: Path, config, manifest: Mapping[str, Any]) -> list[Member]:
    """The members of the sweep that the manifest names, of a config that is the same beside it."""
    swept = {**dict.fromkeys(config.sweep, ()), **manifest["config"].get("sweep", {})}
    try:
        before = preparation.check_config(ConfigDict({**config.to_dict(), "sweep": swept}))
    except (InputError, KeyError, TypeError, ValueError) as error:
        what = f"{workdir / records.MANIFEST} is corrupt: config.sweep is no sweep"
        raise InputError(f"{what}; restore it or choose another --workdir") from error
    there, here = (math.prod(map(len, axes(each).values())) for each in (before, config))
    if there > 10 * here:  # some are lost, and to name them takes long
        what = f"{workdir} holds {there} members, config.sweep names {here}"
        raise InputError(f"{what}: name all old values beside the new ones, or choose another --workdir")
    return make_members(before)


def update_manifest(workdir: Path, config) -> None:
    """Write the config of a sweep that has gained members."""
    manifest = records.read_manifest(workdir)
    if manifest["config"] != json.loads(json.dumps(config.to_dict())):
        records.write_manifest(workdir, {**manifest, "config": config.to_dict(), "command": _command()})


def check_data(workdir: Path, dataset: Dataset) -> None:
    """Refuse to go on with other data than the run began with."""
    began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
    if began_with != dataset.checksum:
        there, here = shown(str(began_with)[:12]), dataset.checksum[:12]
        raise InputError(
            f"{dataset.name} has changed since the run in {workdir} began (checksum {there} there, "
            f"{here} now); restore the data or choose another --workdir"
        )
