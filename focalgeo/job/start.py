"""Start: the parameters of another run's checkpoint in place of random ones, as config.start says."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from focalgeo import records
from focalgeo.config import SWEPT_FIELDS, member_name
from focalgeo.job import say
from focalgeo.job.members import Member, names_in
from focalgeo.training import checkpoint, optimiser
from focalgeo.training.step import member_state, stack
from focalgeo.types import InputError, PyTree, TrainState

FIELD = "config.start.run"


class Place(NamedTuple):
    """The place of a member's parameters: a checkpoint's folder, and the number among the members there."""

    checkpoint: Path
    index: int


def places(config, members: Sequence[Member]) -> list[Place]:
    """The place of each member: the run's only member, or of a sweep the one whose swept values this member has too.

    Raises:
        InputError: config.start.run is no workdir, lacks such a member, or holds no such checkpoint.
    """
    run = Path(config.start.run)
    if not (run / records.MANIFEST).is_file():
        raise InputError(f"{FIELD} is {run}: it holds no {records.MANIFEST}; name the workdir of a run")
    manifest = records.read_manifest(run)
    swept = manifest.get("config", {}).get("sweep", {})
    path = checkpoint.find(run / "checkpoints", config.start.step)
    there = {name: Place(path, index) for index, name in enumerate(names_in(manifest))}
    found = []
    for member in members:
        name = member_name({axis: _value(member, field) for axis, field in SWEPT_FIELDS.items() if swept.get(axis)})
        if name not in there:
            raise InputError(f"{FIELD} is {run}: it has no member {name}; it has {', '.join(list(there)[:3])}")
        found.append(there[name])
    return found


def _value(member: Member, field: str) -> Any:
    return functools.reduce(getattr, field.split("."), member.config)


def described(config, members: Sequence[Member]) -> dict[str, str]:
    """Folder of each checkpoint that members start from -> its digest; {} without config.start.run."""
    if config.start.run is None:
        return {}
    used = dict.fromkeys(place.checkpoint for place in places(config, members))
    return {str(path.relative_to(config.start.run)): checkpoint.digest(path) for path in used}


def begun(config, workdir: Path, members: Sequence[Member], state: TrainState) -> TrainState:
    """The members' states as training begins; says from where.

    Raises:
        InputError: as `started`; or what the workdir's run began with has changed since.
    """
    found, before = described(config, members), records.read_manifest(workdir).get("start", {})
    changed = [name for name, digest in found.items() if before.get(name, digest) != digest]
    if changed:
        raise InputError(
            f"{config.start.run} has changed since the run in {workdir} began ({changed[0]}); choose another --workdir"
        )
    for name in found:
        say(f"starting from {Path(config.start.run) / name}")
    return started(config, members, state)


def started(config, members: Sequence[Member], state: TrainState) -> TrainState:
    """The members' states [members, ...] with the parameters that they start from.

    Of the parts that config.start.modules names, or of all: parameters, batch statistics; where config.start.optimizer
    is "kept" the optimiser's momentum or moments too. Schedules, step and random numbers begin anew.

    Raises:
        InputError: the checkpoint cannot be had, or is of another network or optimiser.
    """
    if config.start.run is None:
        return state
    read = functools.cache(checkpoint.read)
    own = (member_state(state, index) for index in range(len(members)))
    return stack(
        _taken(config.start, one, _of_member(read(place.checkpoint), place.index), place.checkpoint)
        for one, place in zip(own, places(config, members), strict=True)
    )


def _of_member(saved: dict[str, Any], index: int) -> dict[str, Any]:
    parts = {name: saved[name] for name in ("params", "model_state", "opt_state")}
    return jax.tree.map(lambda leaf: leaf[index], parts)


def _taken(settings, state: TrainState, saved: dict[str, Any], where: Path) -> TrainState:
    modules = settings.modules or tuple(state.params)
    params = _parts(modules, state.params, saved["params"], where)
    model_state = {
        kind: _parts([name for name in modules if name in own], own, saved["model_state"].get(kind, {}), where)
        for kind, own in state.model_state.items()
    }
    opt_state = state.opt_state
    if settings.optimizer == "kept":
        moments = optimiser.moments(opt_state)
        try:
            kept = _fitted(moments._asdict(), optimiser.moments(saved["opt_state"]) or {}, where, "")
        except InputError as error:
            raise InputError(
                f"config.start.optimizer is kept, and the state of {settings.run}'s optimiser does not fit this one's: "
                "set it to fresh, or the same config.optimizer.name and momentum"
            ) from error
        opt_state = optimiser.with_moments(opt_state, moments._replace(**kept))
    return state._replace(params=params, model_state=model_state, opt_state=opt_state)


def _parts(modules: Sequence[str], own: Mapping[str, PyTree], saved: Mapping[str, PyTree], where: Path) -> dict:
    """Own parts, but those named as they are saved."""
    for name in modules:
        if name not in own:
            raise InputError.of_choice("config.start.modules", name, own)
        if name not in saved:
            has = ", ".join(saved) or "none"
            raise InputError(f"{where} has no part {name} (it has {has}): name the parts to take as start.modules")
    return {name: _fitted(own[name], saved[name], where, name) if name in modules else own[name] for name in own}


def _fitted(own: PyTree, saved: PyTree, where: Path, what: str) -> PyTree:
    """What is saved, in the structure and dtypes of what a member has."""
    here, there = ({jax.tree_util.keystr(path): leaf for path, leaf in _leaves(tree)} for tree in (own, saved))
    for path in dict.fromkeys([*here, *there]):
        shapes = [np.shape(each[path]) if path in each else "none" for each in (there, here)]
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{where} does not fit: {what}{path} has shape {shapes[0]} there, {shapes[1]} here; set the same "
                "network, or name the parts that fit as config.start.modules"
            )
    leaves = [np.asarray(there[jax.tree_util.keystr(path)], leaf.dtype) for path, leaf in _leaves(own)]
    return jax.tree.unflatten(jax.tree.structure(own), leaves)


def _leaves(tree: PyTree) -> list[tuple]:
    return jax.tree_util.tree_flatten_with_path(tree)[0]
