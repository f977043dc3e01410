"""The loop and its checkpoints: stop anywhere, go on, end with the same bits; damage is said in one line."""

import functools
import signal
from types import SimpleNamespace
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import data, losses, models, parallel
from focalgeo.rows import Scalar
from focalgeo.training import checkpoint, loop, meter, optimiser
from focalgeo.training.meter import Meter
from focalgeo.training.step import make_members_step, make_step, stack
from focalgeo.types import InputError, Interrupted, RunError, Split, TrainState

PLAN = loop.Plan(epochs=3, steps_per_epoch=4, log_every=3, checkpoint_every=5)


class Workshop(NamedTuple):
    """Everything that a run of the loop needs, compiled once."""

    start: checkpoint.Checkpoint
    program: object
    batches: object


@pytest.fixture(scope="module")
def workshop():
    model = models.build("mlp", 3, hidden=(8,), axis_name=parallel.AXIS)
    tx = optimiser.make_optimiser(
        "sgd", optimiser.step_schedule([8], 0.1), momentum=0.9, nesterov=True, weight_decay=1e-3, clip_norm=1.0
    )
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 255, (29, 6, 6, 1), np.uint8), rng.integers(0, 3, 29).astype(np.int32))
    params = dict(model.init(jax.random.PRNGKey(0), jnp.zeros((1, 6, 6, 1))))["params"]
    values, rate = {"gamma": jnp.float32(1)}, jnp.float32(0.1)
    state = TrainState(jnp.int32(0), params, {}, tx.init(params), jax.random.PRNGKey(1), values, rate)
    step = make_step(model.apply, losses.make_loss("focal_loss"), tx, parallel.reduce_sum)
    augmentation = data.AUGMENTATIONS["crop_flip"]
    options = {"augmentation": augmentation, "normalise": data.Normalisation((0.5,), (0.5,), 255.0)}

    def step_of_spec(state, spec, split):
        return step(state, data.make_batch(split, spec, **options))

    program = parallel.make_program(make_members_step(step_of_spec), at_once=1, shared=(split,))

    def batches(epoch: int, start: int):
        made = data.batch_specs(
            split,
            batch_size=8,
            seed=3,
            epoch=epoch,
            start=start,
            augmentation=augmentation,
            multiple_of=parallel.device_count(),
        )
        return (jax.tree.map(lambda leaf: leaf[None], spec) for spec in made)

    return Workshop(checkpoint.Checkpoint(stack([state]), {}), program, batches)


def unchanged(groups, epoch):
    return groups


def train(
    workshop,
    *,
    start=None,
    tags=({},),
    adapt=unchanged,
    rows=None,
    save=lambda saved: None,
    interrupted=lambda: None,
):
    start = start or workshop.start
    start = start._replace(state=jax.tree.map(np.copy, start.state))  # the step donates its state
    return loop.run(
        start,
        workshop.program,
        PLAN,
        tags=tags,
        sweep=len(tags) > 1,
        batches=workshop.batches,
        validate=lambda groups: [Scalar("norm", float(jnp.sum(groups[0].params["Dense_0"]["bias"])), split="val")],
        adapt=adapt,
        learning_rate=lambda index: np.full(len(tags), 0.1),
        write=([] if rows is None else rows).extend,
        save=save,
        interrupted=interrupted,
    ).state


def without_times(rows):
    return [row for row in rows if row.name != "examples_per_second"]


@pytest.fixture(scope="module")
def whole(workshop):
    rows = []
    return train(workshop, rows=rows), rows


@pytest.mark.parametrize("stop_after", [1, 3, 4, 7, 11])
def test_stop_and_resume_gives_the_same_bits_and_rows(workshop, whole, tmp_path, stop_after):
    manager = checkpoint.make_manager(tmp_path, keep=2)
    calls, rows = iter(range(1, 100)), []
    with pytest.raises(Interrupted, match=f"stopped at step {stop_after} of 12 and saved"):
        train(
            workshop,
            rows=rows,
            save=functools.partial(checkpoint.save, manager),
            interrupted=lambda: signal.SIGTERM if next(calls) == stop_after else None,
        )
    restored = checkpoint.restore_latest(manager, workshop.start.state)
    assert int(restored.state.step[0]) == stop_after
    final = train(workshop, start=restored, rows=rows)
    chex.assert_trees_all_equal(final, whole[0])
    assert without_times(rows) == without_times(whole[1])


def test_what_adapts_between_epochs_survives_stops_anywhere(workshop, tmp_path):
    epochs = []

    def halved(groups, epoch):
        (state,) = groups
        epochs.append(epoch)
        bias = jnp.sum(jnp.abs(state.params["Dense_0"]["bias"]))  # an update that depends on what was learnt so far
        gamma = parallel.replicated(jnp.full(1, 3 / (1 + epoch), jnp.float32) + jnp.reshape(bias, 1))
        return [state._replace(loss_values={"gamma": gamma})]

    expected = train(workshop, adapt=halved)
    assert epochs == [0, 1, 2]
    assert 1 < float(expected.loss_values["gamma"][0]) < 3
    for stop_after in (2, 4, 9):  # 4 is the end of an epoch, whose update belongs to the next
        manager = checkpoint.make_manager(tmp_path / str(stop_after), keep=2)
        calls = iter(range(1, 100))
        with pytest.raises(Interrupted):
            train(
                workshop,
                adapt=halved,
                save=functools.partial(checkpoint.save, manager),
                interrupted=lambda calls=calls, last=stop_after: signal.SIGTERM if next(calls) == last else None,
            )
        restored = checkpoint.restore_latest(manager, workshop.start.state)
        chex.assert_trees_all_equal(train(workshop, start=restored, adapt=halved), expected)


def test_a_signal_during_the_last_step_is_not_lost(workshop):
    asked, saved = iter([None] * PLAN.steps + [signal.SIGINT] * 2), []
    with pytest.raises(Interrupted, match="stopped at step 12 of 12 and saved") as caught:
        train(workshop, save=lambda each: saved.append(int(each.state.step[0])), interrupted=lambda: next(asked))
    assert caught.value.exit_code == 130
    assert saved[-1] == 12


def test_the_step_is_compiled_for_all_calls_at_the_first(workshop, whole):
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    groups = workshop.program.place(jax.tree.map(np.copy, workshop.start.state))
    batch = next(workshop.batches(0, 0))
    for _ in range(2):
        groups, *_ = workshop.program.step(groups, batch)
    assert not [event for event in compiled if "backend_compile" in event]  # `whole` has made the first call
    jax.jit(lambda x: x + 41.5)(1.0)
    assert [event for event in compiled if "backend_compile" in event]


def test_every_example_is_seen_once_an_epoch(whole):
    seen = [row.value for row in whole[1] if row.name == "examples_seen"]
    assert seen[-1] == 3 * 29


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step(workshop):
    saved = []

    def poisoned(groups, epoch):
        if epoch < 2:
            return groups
        return [states._replace(loss_values={"gamma": states.loss_values["gamma"] * np.nan}) for states in groups]

    with pytest.raises(RunError, match="loss is nan at step 9; what was saved before is kept"):
        train(workshop, save=lambda each: saved.append(int(each.state.step[0])), adapt=poisoned)
    assert saved == [5]


def test_a_member_that_stopped_stays_so_and_is_noted_before_the_checkpoint(workshop):
    start = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), workshop.start.state)
    happened, saved = [], {}

    def poisoned_for_an_epoch(groups, epoch):
        gamma = parallel.replicated(np.float32([np.nan if epoch == 1 else 1]))
        return [groups[0], groups[1]._replace(loss_values={"gamma": gamma})]

    def save(made):
        happened.append("saved")
        saved[int(made.state.step[0])] = made

    rows = SimpleNamespace(extend=lambda rows: happened.extend(rows))
    tags = [{"seed": 0}, {"seed": 1}]
    start = workshop.start._replace(state=start)
    final = train(workshop, start=start, tags=tags, adapt=poisoned_for_an_epoch, rows=rows, save=save)
    assert final.frozen.tolist() == [False, True]
    kernels = [state.params["Dense_0"]["kernel"] for state in (saved[5].state, final)]
    np.testing.assert_array_equal(kernels[0][1], kernels[1][1])
    assert np.any(kernels[0][0] != kernels[1][0])
    (stopped,) = [row for row in happened if getattr(row, "name", "") == "stopped"]
    assert (stopped.value, stopped.seed, stopped.epoch) == (5, 1, 1.25)
    assert happened.index(stopped) < happened.index("saved")
    later = [row for row in happened if row != "saved" and row.split == "train" and row.step > 5]
    assert {row.seed for row in later if row.step > 6} == {0}
    assert saved[12].sums["seen"] == [3 * 29, 29]


def test_devices_that_part_after_the_first_step_are_found(workshop):
    calls = iter(range(1, 100))

    def step(groups, batch, stop):
        groups, metrics, fingerprints = workshop.program.step(groups, batch)
        return groups, metrics, fingerprints if next(calls) < 5 else [np.uint32([1, 2])]

    saved = []
    with pytest.raises(RunError, match="the devices hold different parameters"):
        train(workshop._replace(program=workshop.program._replace(step=step)), save=saved.append)
    assert len(saved) <= 1


def test_the_rate_of_all_members_is_shared_among_them(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(meter.time, "perf_counter", lambda: clock[0])
    counted = Meter({"seen": [100.0, 100.0]}, [{"seed": 0}, {"seed": 1}], [False, False], sweep=True)
    values = {"loss": 6.0, "penalty": 0.0, "correct": 5, "count": 10, "gradient_norm": 1, "parameter_norm": 1}
    for step in (1, 2):
        counted.add(step, [{name: np.array([value, value]) for name, value in values.items()}])
    counted.settle()
    clock[0] = 4.0
    assert counted.text() == "loss 0.6000, accuracy 0.500, 10 examples/s"
    rows = {row.name: row.value for row in counted.rows(2, 0.5, np.array([0.1, 0.2])) if row.seed == 1}
    shown = {"loss": 0.6, "accuracy": 0.5, "learning_rate": 0.2, "examples_per_second": 5.0, "examples_seen": 120.0}
    assert rows == pytest.approx(shown)


def test_a_gradient_that_is_not_finite_stops_the_run():
    meter = Meter({}, [{}], [False], sweep=False)
    values = {"loss": 1.0, "penalty": 0.0, "correct": 1, "count": 1, "gradient_norm": np.inf, "parameter_norm": 1}
    meter.add(4, [{name: np.array([value]) for name, value in values.items()}])
    with pytest.raises(RunError, match="gradient norm is inf at step 4"):
        meter.settle()


def test_a_member_that_stopped_counts_no_examples_from_then_on(capsys):
    meter = Meter({}, [{"seed": 0}, {"seed": 1}], [False, False], sweep=True)
    finite = {"loss": 1.0, "penalty": 0.0, "correct": 1, "count": 4, "gradient_norm": 1.0, "parameter_norm": 1.0}
    for step, loss in enumerate((1.0, np.nan, 1.0, 1.0), 1):
        values = {name: np.full(2, value, float) for name, value in finite.items()}
        values["loss"][0] = loss
        meter.add(step, [values])
    meter.settle()
    assert meter.sums["seen"] == [4, 16]
    assert meter.sums["loss"] == [1, 4]
    rows = meter.rows(4, 1.0, np.array([0.1, 0.1]))
    assert [(row.seed, row.value) for row in rows if row.name == "examples_seen"] == [(0, 4), (1, 16)]
    assert [(row.seed, row.value) for row in meter.stops(4)] == [(0, 2)]
    assert capsys.readouterr().err.count("stops, the others go on") == 1


def test_parameters_that_are_not_finite_are_never_saved(workshop):
    saved = []
    state = workshop.start.state._replace(learning_rate=np.array([np.inf], np.float32))
    start = workshop.start._replace(state=state)
    with pytest.raises(RunError, match=r"parameter norm is (nan|inf) at step 1"):
        train(workshop, start=start, save=lambda each: saved.append(int(each.state.step[0])))
    assert saved == []


def saved_run(workshop, folder):
    manager = checkpoint.make_manager(folder, keep=3)
    train(workshop, save=functools.partial(checkpoint.save, manager))
    return manager


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x40
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing digest", "no digest's fields"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(workshop, tmp_path, capfd, damage):
    manager = saved_run(workshop, tmp_path)
    assert sorted(manager.all_steps()) == [5, 10, 12]
    capfd.readouterr()
    newest = tmp_path / "12"
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    if damage == "flipped":
        flip_a_byte(largest)
    elif damage == "truncated":
        largest.write_bytes(largest.read_bytes()[:-7])
    elif damage == "missing digest":
        (newest / checkpoint.DIGEST).unlink()
    else:
        (newest / checkpoint.DIGEST).write_text("[]")
    restored = checkpoint.restore_latest(checkpoint.make_manager(tmp_path, keep=3), workshop.start.state)
    assert int(restored.state.step[0]) == 10
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "12 is corrupt or incomplete; falling back to the one before" in error


def test_without_a_whole_checkpoint_there_is_none(workshop, tmp_path):
    assert checkpoint.restore_latest(checkpoint.make_manager(tmp_path, keep=3), workshop.start.state) is None


def test_a_checkpoint_of_another_network_is_one_line(workshop, tmp_path):
    manager = saved_run(workshop, tmp_path)
    other = workshop.start.state._replace(params={"Dense_7": {"bias": np.zeros(3, np.float32)}})
    with pytest.raises(InputError, match="does not fit this network"):
        checkpoint.restore_latest(manager, other)


def test_a_checkpoint_under_the_number_of_another_step_is_refused(workshop, tmp_path):
    saved_run(workshop, tmp_path)
    (tmp_path / "12").rename(tmp_path / "99")
    with pytest.raises(InputError, match="does not fit this network"):
        checkpoint.restore_latest(checkpoint.make_manager(tmp_path, keep=3), workshop.start.state)


def test_a_checkpoint_that_cannot_be_written_is_one_line(workshop, tmp_path):
    manager = checkpoint.make_manager(tmp_path / "checkpoints", keep=3)
    (tmp_path / "checkpoints").rmdir()
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write checkpoint .*; free some space or choose") as caught:
        checkpoint.save(manager, workshop.start)
    assert "\n" not in str(caught.value)
