"""Start: the manifest, by which a run goes on with the same config and data alone, and the parameters it begins with.

Those are random, or those of another run's checkpoint, as config.start says.
"""

import operator
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
from ml_collections import ConfigDict

from focalgeo import checks, losses, parallel, records, trees
from focalgeo.config import SWEPT_FIELDS, combinations, member_name
from focalgeo.job import provenance, say
from focalgeo.job.preparation import Member, of_shard
from focalgeo.training import checkpoint, optimiser
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
    workdir: Path,
    how: str,
    config,
    dataset: Dataset,
    members: Sequence[Member],
    states: TrainState,
    shard: str | None,
) -> None:
    """Write the manifest of a "fresh" run; of one that goes on, refuse other data than it began with.

    Raises:
        InputError: as well where `started` raises it, before anything is written.
    """
    if how == "resume":
        manifest, now = records.read_manifest(workdir), provenance.versions(*provenance.PACKAGES)
        began_with = manifest.get("data", {}).get("checksum")
        if began_with != dataset.checksum:
            raise InputError(
                f"{dataset.name} has changed since the run in {workdir} began (checksum {shown(began_with, most=12)} "
                f"there, {dataset.checksum[:12]} now); restore the data or choose another --workdir"
            )
        there = manifest.get("versions", {})
        if changed := [f"{name} {there[name]}, now {now.get(name)}" for name in there if there[name] != now.get(name)]:
            say(f"the run in {workdir} began with {'; '.join(changed)}: its last digits may differ")
        return
    started(config, members, states)
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    words = [word.encode(errors="replace").decode() for word in sys.argv[1:]]
    manifest = {
        "config": config.to_dict(),
        "shard": shard,
        "start": _digest(config),
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": dataset.class_names, **splits},
        "features": dataset.features,
        "devices": [device.device_kind for device in jax.devices()],
        "processes": parallel.count(),
        "loss_values": losses.hyperparameters(losses.FUNCTIONS[config.loss.name]),
        "parameters": trees.size(states.params) // len(members),
        **provenance.of_program(["python", "-m", "focalgeo.run", *words], *provenance.PACKAGES),
    }
    records.write_manifest(workdir, manifest)


def _source(config) -> Path:
    return checkpoint.find(Path(config.start.run) / "checkpoints", config.start.step)


def _digest(config) -> dict[str, str]:
    """The checkpoint that members start from, and its digest; {} without one."""
    return {} if config.start.run is None else {str(_source(config)): checkpoint.digest(_source(config))}


def begun(config, workdir: Path, members: Sequence[Member], states: TrainState) -> TrainState:
    """The members' states as training begins; says from where.

    Raises:
        InputError: as `started`; or what the workdir's run began with has changed since.
    """
    before = records.read_manifest(workdir).get("start", {})
    for source, digest in _digest(config).items():
        if before.get(source, digest) != digest:
            raise InputError(f"{source} has changed since the run in {workdir} began; choose another --workdir")
        say(f"starting from {source}")
    return started(config, members, states)


def started(config, members: Sequence[Member], states: TrainState) -> TrainState:
    """The members' states [members, ...] with the parameters that they start from.

    A member takes those of the run's only member, or of a sweep those of the one whose swept values it has too. Of the
    parts that config.start.modules names, or of all: parameters, batch statistics; where config.start.optimizer is
    "kept" the optimiser's momentum or moments too. Schedules, step and random numbers begin anew.

    Raises:
        InputError: the checkpoint cannot be had, or is of another network or optimiser.
    """
    if config.start.run is None:
        return states
    path, run, modules = _source(config), config.start.run, config.start.modules
    manifest = records.read_manifest(run)
    values = of_shard(combinations(ConfigDict(manifest["config"])), manifest.get("shard"))
    names, places = list(map(member_name, values)), []
    for member in members:
        name = member_name({axis: operator.attrgetter(SWEPT_FIELDS[axis])(member.config) for axis in values[0]})
        if name not in names:
            raise InputError(f"config.start.run is {run}: it has no member {name}; it has {', '.join(names[:3])}")
        places.append(names.index(name))
    parts = operator.itemgetter("params", "model_state", "opt_state")(checkpoint.read(path))
    params, statistics, opt_state = jax.tree.map(lambda leaf: leaf[places], parts)
    for name in modules:
        if name not in states.params:
            raise InputError.of_choice("config.start.modules", name, states.params)

    def taken(here, there):
        parts = {name: there.get(name) if name in (modules or here) else part for name, part in here.items()}
        for name, part in parts.items():
            checks.check_alike(f"{name} in {path}", part, "here", here[name])
        return parts

    statistics = {kind: taken(here, statistics.get(kind, {})) for kind, here in states.model_state.items()}
    states = states._replace(params=taken(states.params, params), model_state=statistics)
    if config.start.optimizer == "kept":
        of_chain, kept = list(states.opt_state), opt_state[optimiser.MOMENTS] or {}
        moments = of_chain[optimiser.MOMENTS]
        checks.check_alike(f"the optimiser's state in {path}", kept, "here", moments._asdict())
        of_chain[optimiser.MOMENTS] = moments._replace(**kept)
        states = states._replace(opt_state=tuple(of_chain))
    return states
