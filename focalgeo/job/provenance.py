"""Provenance: the manifest, which identifies a run, and by which it goes on with the same config and data alone."""

import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from focalgeo import losses, parallel, records, trees
from focalgeo.job import program, start
from focalgeo.job.members import Member
from focalgeo.types import Dataset, InputError, TrainState, shown


def check_workdir(workdir: Path, config, shard: str | None) -> str:
    """Whether a run starts "fresh" in `workdir` or goes on there ("resume").

    Raises:
        InputError: the folder holds something else, another config or another shard.
    """
    how = records.check_workdir(workdir, config.to_dict())
    there = records.read_manifest(workdir).get("shard") if how == "resume" else shard
    if there != shard:
        parts = [f"shard {shown(part, most=24)}" if part else "all of the sweep" for part in (there, shard)]
        raise InputError(f"{workdir} holds {parts[0]}, this run is {parts[1]}; choose another --workdir")
    return how


def begin(
    workdir: Path, how: str, config, dataset: Dataset, members: Sequence[Member], states: TrainState, shard: str | None
) -> None:
    """Write the manifest of a "fresh" run; of one that goes on, refuse other data than it began with.

    states: of the members, leaves [members, ...], as training begins.
    """
    if how == "resume":
        began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
        if began_with != dataset.checksum:
            raise InputError(
                f"{dataset.name} has changed since the run in {workdir} began (checksum {shown(began_with, most=12)} "
                f"there, {dataset.checksum[:12]} now); restore the data or choose another --workdir"
            )
        return
    began_from = start.described(config)
    start.started(config, members, states)  # refuses another network before anything is written
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    words = [word.encode(errors="replace").decode() for word in sys.argv[1:]]
    manifest = {
        "config": config.to_dict(),
        **({"shard": shard} if shard else {}),
        **({"start": began_from} if began_from else {}),
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": parallel.count(),
        "loss_values": list(losses.hyperparameters(losses.FUNCTIONS[config.loss.name])),
        "parameters": trees.size(states.params) // len(members),
        **program.of_program(["python", "-m", "focalgeo.run", *words]),
    }
    records.write_manifest(workdir, manifest)
