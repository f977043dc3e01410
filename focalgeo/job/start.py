"""Start: the manifest, by which a run goes on with the same config and data alone, and the parameters it begins with.

Those are random, or those of another run's checkpoint, as config.start says.
"""

import operator
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from focalgeo import losses, parallel, records, trees
from focalgeo.config import SWEPT_FIELDS, member_name
from focalgeo.job import provenance, say
from focalgeo.job.preparation import Member, names_in
from focalgeo.training import checkpoint, optimiser
from focalgeo.types import Dataset, InputError, PyTree, TrainState, shown


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
        began_with = records.read_manifest(workdir).get("data", {}).get("checksum")
        if began_with != dataset.checksum:
            raise InputError(
                f"{dataset.name} has changed since the run in {workdir} began (checksum {shown(began_with, most=12)} "
                f"there, {dataset.checksum[:12]} now); restore the data or choose another --workdir"
            )
        return
    started(config, members, states)
    splits = {name: len(getattr(dataset, name).y) for name in ("train", "val", "test")}
    words = [word.encode(errors="replace").decode() for word in sys.argv[1:]]
    manifest = {
        "config": config.to_dict(),
        **({"shard": shard} if shard else {}),
        **({"start": _digest(config)} if config.start.run else {}),
        "data": {"name": dataset.name, "checksum": dataset.checksum, "classes": list(dataset.class_names), **splits},
        "devices": [str(device.device_kind) for device in jax.devices()],
        "processes": parallel.count(),
        "loss_values": list(losses.hyperparameters(losses.FUNCTIONS[config.loss.name])),
        "parameters": trees.size(states.params) // len(members),
        **provenance.of_program(["python", "-m", "focalgeo.run", *words]),
    }
    records.write_manifest(workdir, manifest)


def _source(config) -> Path:
    return checkpoint.find(Path(config.start.run) / "checkpoints", config.start.step)


def _digest(config) -> dict[str, str]:
    """The folder of the checkpoint that members start from, and its digest."""
    path = _source(config)
    return {str(path.relative_to(config.start.run)): checkpoint.digest(path)}


def begun(config, workdir: Path, members: Sequence[Member], states: TrainState) -> TrainState:
    """The members' states as training begins; says from where.

    Raises:
        InputError: as `started`; or what the workdir's run began with has changed since.
    """
    if config.start.run is not None:
        ((name, digest),) = _digest(config).items()
        source = Path(config.start.run) / name
        if records.read_manifest(workdir).get("start", {}).get(name, digest) != digest:
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
    path, places, modules = _source(config), _places(config.start.run, members), config.start.modules
    read = checkpoint.read(path)
    parts = [read[part] for part in ("params", "model_state", "opt_state")]
    params, statistics, opt_state = jax.tree.map(lambda leaf: leaf[places], parts)
    for name in modules:
        if name not in states.params:
            raise InputError.of_choice("config.start.modules", name, states.params)

    def taken(here: Mapping[str, PyTree], there: Mapping[str, PyTree]) -> dict[str, PyTree]:
        return {
            name: _fitted(part, there.get(name), f"{name} in {path}") if name in (modules or here) else part
            for name, part in here.items()
        }

    statistics = {kind: taken(here, statistics.get(kind, {})) for kind, here in states.model_state.items()}
    states = states._replace(params=taken(states.params, params), model_state=statistics)
    if config.start.optimizer == "kept":
        moments, there = optimiser.moments(states.opt_state), optimiser.moments(opt_state) or {}
        moments = moments._replace(**_fitted(moments._asdict(), there, f"the optimiser's state in {path}"))
        states = states._replace(opt_state=optimiser.with_moments(states.opt_state, moments))
    return states


def _places(run: str, members: Sequence[Member]) -> list[int]:
    """The number of each member's parameters among the members of the run."""
    manifest = records.read_manifest(Path(run))
    names, swept = names_in(manifest), manifest["config"].get("sweep", {})
    fields = {axis: field for axis, field in SWEPT_FIELDS.items() if swept.get(axis)}
    places = []
    for member in members:
        name = member_name({axis: operator.attrgetter(field)(member.config) for axis, field in fields.items()})
        if name not in names:
            raise InputError(f"config.start.run is {run}: it has no member {name}; it has {', '.join(names[:3])}")
        places.append(names.index(name))
    return places


def _fitted(here: PyTree, there: PyTree, what: str) -> PyTree:
    """What is saved, in the structure and dtypes of what the members have."""
    saved, shapes = (
        {jax.tree_util.keystr(key): np.shape(leaf)[1:] for key, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (there, here)
    )
    for key in saved | shapes:
        shape, wanted = saved.get(key, "none"), shapes.get(key, "none")
        if shape != wanted:
            raise InputError(
                f"{what} does not fit: {key} has shape {shape} there, {wanted} here; set the same network and "
                "optimiser, or name the parts that fit as config.start.modules"
            )
    leaves = map(np.asarray, jax.tree.leaves(there), [leaf.dtype for leaf in jax.tree.leaves(here)])
    return jax.tree.unflatten(jax.tree.structure(here), leaves)
