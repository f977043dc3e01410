"""Devices: the noise and the place of members, what is compared, and how much memory is free."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import files, parallel
from focalgeo.types import RunError, TrainState


def members_of(keys):
    """States that hold nothing but their noise keys."""
    numbers, whole = np.zeros(len(keys), np.float32), np.zeros(len(keys), np.int32)
    state = TrainState(whole, numbers, {}, (), np.asarray(keys), {}, numbers)
    return state._replace(frozen=np.zeros(len(keys), bool), stream=whole)


@pytest.mark.parametrize(
    "at_once", [1, 2, 3, 6]
)  # a batch over both devices, members over both, and what 2 divides not
def test_each_member_keeps_its_place_and_takes_the_noise_of_the_first_device(at_once):
    keys = jax.vmap(jax.random.PRNGKey)(jnp.arange(6))
    program = parallel.make_program(
        lambda states, batch: (states._replace(params=jax.vmap(jax.random.uniform)(states.key)), {}), at_once=at_once
    )
    groups = program.place(members_of(keys))
    assert [len(group.step) for group in program.states(groups)] == [at_once] * (6 // at_once)
    groups, _, _ = program.step(groups, np.zeros((1, 2)))
    found = program.gather(groups)
    expected = [jax.random.uniform(jax.random.fold_in(key, 0)) for key in keys]
    np.testing.assert_array_equal(found.params, expected)
    np.testing.assert_array_equal(found.key, keys)


def test_members_that_are_spread_stay_on_their_own_devices():
    program = parallel.make_program(lambda states, batch: (states, {}), at_once=4)
    (states,) = program.states(program.place(members_of(jax.vmap(jax.random.PRNGKey)(jnp.arange(4)))))
    assert {shard.data.shape for shard in states.params.addressable_shards} == {(4 // jax.device_count(),)}


def test_examples_and_their_labels_lie_on_all_devices_and_what_they_do_not_divide_on_each():
    table, labels, odd, number = parallel.spread((np.ones((4, 3)), np.arange(4), np.ones(5), np.float32(1)))
    parts = [leaf.addressable_shards[0].data.shape for leaf in (table, labels, odd, number)]
    assert parts == [(4 // jax.device_count(), 3), (4 // jax.device_count(),), (5,), ()]


def test_one_process_agrees_with_itself():
    assert (parallel.count(), files.is_first()) == (1, True)
    assert parallel.broadcast("x", lambda: (1, 2)) == (1, 2)
    assert parallel.exchange("x", "own") == ["own"]


def test_fingerprints_of_groups_may_differ_and_those_of_devices_may_not():
    parallel.check_replicas(np.uint32([[1, 1, 1], [2, 2, 2]]))
    for parted in ([[1, 1, 2]], [[1, 1, 1], [2, 3, 2]]):
        with pytest.raises(RunError, match="the devices hold different parameters"):
            parallel.check_replicas(np.uint32(parted))


def test_memory_that_a_device_has_in_use_is_not_free(monkeypatch):
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: stats)])
    assert parallel.free_memory() == 70


@pytest.mark.parametrize("machine", [1000.0, math.inf])
def test_free_memory_of_a_cpu_is_the_machine_s(monkeypatch, machine):
    monkeypatch.setattr(files, "free_memory", lambda: machine)
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(memory_stats=lambda: None)])
    assert parallel.free_memory() == machine


@pytest.mark.parametrize(
    ("machine", "limit", "free"), [(1000, 500, 280), (200, 500, 200), (0, 500, 280), (1000, 0, 1000), (0, 0, math.inf)]
)
def test_free_memory_is_the_machine_s_or_the_container_s_whichever_is_less(monkeypatch, machine, limit, free):
    numbers = {"meminfo": machine / 1024, "memory.max": limit, "memory.current": 300, "memory.stat": 80}
    monkeypatch.setattr(files, "_number_in", lambda path, pattern="": numbers[path.rpartition("/")[2]])
    assert files.free_memory() == free
