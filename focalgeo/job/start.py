"""Start: the parameters of another run's checkpoint in place of random ones, as config.start says."""

import functools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from focalgeo import records
from focalgeo.config import SWEPT_FIELDS, member_name
from focalgeo.job import say
from focalgeo.job.preparation import Member, names_in
from focalgeo.training import checkpoint, optimiser
from focalgeo.types import InputError, PyTree, TrainState


def described(config) -> dict[str, str]:
    """Folder of the checkpoint that members start from -> its digest; {} without config.start.run."""
    if config.start.run is None:
        return {}
    path = checkpoint.find(Path(config.start.run) / "checkpoints", config.start.step)
    return {str(path.relative_to(config.start.run)): checkpoint.digest(path)}


def begun(config, workdir: Path, members: Sequence[Member], states: TrainState) -> TrainState:
    """The members' states as training begins; says from where.

    Raises:
        InputError: as `started`; or what the workdir's run began with has changed since.
    """
    before = records.read_manifest(workdir).get("start", {})
    for name, digest in described(config).items():
        if before.get(name, digest) != digest:
            source = Path(config.start.run) / name
            raise InputError(f"{source} has changed since the run in {workdir} began; choose another --workdir")
        say(f"starting from {Path(config.start.run) / name}")
    return started(config, members, states)


def started(config, members: Sequence[Member], states: TrainState) -> TrainState:
    """The members' states [members, ...] with the parameters that they start from.

    A member takes those of the run's only member, or of a sweep those of the one whose swept values it has too. Of the
    parts that config.start.modules names, or of all: parameters, batch statistics; where config.start.optimizer is
    "kept" the optimiser's momentum or moments too. Schedules, step and random numbers begin anew.

    Raises:
        InputError: the checkpoint cannot be had, or is of another network or optimiser.
    """
    start = config.start
    if start.run is None:
        return states
    path, indices = checkpoint.find(Path(start.run) / "checkpoints", start.step), _places(start.run, members)
    read = checkpoint.read(path)
    saved = {
        part: jax.tree.map(lambda leaf: leaf[indices], read[part]) for part in ("params", "model_state", "opt_state")
    }
    modules = start.modules or tuple(states.params)
    params = _parts(modules, states.params, saved["params"], path)
    statistics = {
        kind: _parts(set(modules) & own.keys(), own, saved["model_state"].get(kind, {}), path)
        for kind, own in states.model_state.items()
    }
    opt_state = states.opt_state
    if start.optimizer == "kept":
        moments = optimiser.moments(opt_state)
        kept = _fitted(
            moments._asdict(), optimiser.moments(saved["opt_state"]) or {}, f"the optimiser's state in {path}"
        )
        opt_state = optimiser.with_moments(opt_state, moments._replace(**kept))
    return states._replace(params=params, model_state=statistics, opt_state=opt_state)


def _places(run: str, members: Sequence[Member]) -> list[int]:
    """The number of each member's parameters among the members of the run."""
    manifest = records.read_manifest(Path(run))
    names, swept = names_in(manifest), manifest["config"].get("sweep", {})
    fields = {axis: field.split(".") for axis, field in SWEPT_FIELDS.items() if swept.get(axis)}
    places = []
    for member in members:
        name = member_name({axis: functools.reduce(getattr, field, member.config) for axis, field in fields.items()})
        if name not in names:
            raise InputError(f"config.start.run is {run}: it has no member {name}; it has {', '.join(names[:3])}")
        places.append(names.index(name))
    return places


def _parts(modules: Collection[str], here: Mapping[str, PyTree], there: Mapping[str, PyTree], path: Path) -> dict:
    """The members' own parts, but those named as they are saved."""
    for name in modules:
        if name not in here:
            raise InputError.of_choice("config.start.modules", name, here)
    return {
        name: _fitted(own, there.get(name), f"{name} in {path}") if name in modules else own
        for name, own in here.items()
    }


def _fitted(here: PyTree, there: PyTree, what: str) -> PyTree:
    """What is saved, in the structure and dtypes of what the members have."""
    shapes = [
        {jax.tree_util.keystr(key): np.shape(leaf)[1:] for key, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (there, here)
    ]
    for key in shapes[0] | shapes[1]:
        saved, own = (shape.get(key, "none") for shape in shapes)
        if saved != own:
            raise InputError(
                f"{what} does not fit: {key} has shape {saved} there, {own} here; set the same network and optimiser, "
                "or name the parts that fit as config.start.modules"
            )
    leaves = zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)
    return jax.tree.unflatten(jax.tree.structure(here), [np.asarray(saved, own.dtype) for own, saved in leaves])
