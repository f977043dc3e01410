"""The loop and its checkpoints: stop anywhere, go on, end with the same bits; damage is said in one line."""

import functools
import itertools
import os
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
from focalgeo.training import checkpoint, loop, optimiser
from focalgeo.training.loop import Meter
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
    schedule = optimiser.step_schedule([8], 0.1)
    tx = optimiser.make_optimiser("sgd", schedule, momentum=0.9, nesterov=True, weight_decay=1e-3, clip_norm=1.0)
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

    def batches(epoch: int, start: int):
        size = {"batch_size": 8, "multiple_of": parallel.device_count()}
        made = data.batch_specs(split, seed=3, epoch=epoch, start=start, augmentation=augmentation, **size)
        return (jax.tree.map(lambda leaf: leaf[None], spec) for spec in made)

    program = parallel.make_program(make_members_step(step_of_spec), at_once=1, shared=(split,))
    return Workshop(checkpoint.Checkpoint(stack([state]), {}), program, batches)


def train(
    workshop,
    *,
    start=None,
    tags=({},),
    adapt=lambda states, epoch: states,
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


def stopped_and_resumed(workshop, folder, stop_after, **options):
    """The state and rows of a run that is stopped after a step and goes on from what it has saved."""
    calls, rows = iter(range(1, 100)), []
    with pytest.raises(Interrupted, match=f"stopped at step {stop_after} of 12 and saved"):
        train(
            workshop,
            rows=rows,
            save=functools.partial(checkpoint.save, folder, keep=2),
            interrupted=lambda: signal.SIGTERM if next(calls) >= stop_after else None,
            **options,
        )
    restored = checkpoint.restore_latest(folder, workshop.start.state)
    assert int(restored.state.step[0]) == stop_after
    return train(workshop, start=restored, rows=rows, **options), rows


@pytest.fixture(scope="module")
def whole(workshop):
    rows = []
    return train(workshop, rows=rows), rows


@pytest.mark.parametrize(
    ("stop_after", "name"), [(1, "runs"), (3, "runs [2]"), (4, "a\\b"), (7, "what? * {x} %20"), (11, "läufe")]
)
def test_stop_and_resume_gives_the_same_bits_and_rows_in_a_folder_of_any_name(
    workshop, whole, tmp_path, stop_after, name
):
    final, rows = stopped_and_resumed(workshop, tmp_path / name, stop_after)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    chex.assert_trees_all_equal(final, whole[0])
    assert without_times(rows) == without_times(whole[1])
    assert [row.value for row in rows if row.name == "examples_seen"][-1] == 3 * 29  # each once an epoch


def test_what_adapts_between_epochs_survives_stops_anywhere(workshop, tmp_path):
    epochs = []

    def halved(state, epoch):
        epochs.append(epoch)
        bias = jnp.sum(jnp.abs(state.params["Dense_0"]["bias"]))  # an update that depends on what was learnt so far
        gamma = parallel.replicated(jnp.full(1, 3 / (1 + epoch), jnp.float32) + jnp.reshape(bias, 1))
        return state._replace(loss_values={"gamma": gamma})

    expected = train(workshop, adapt=halved)
    assert epochs == [0, 1, 2]
    assert 1 < float(expected.loss_values["gamma"][0]) < 3
    for stop_after in (2, 4, 9):  # 4 is the end of an epoch, whose update belongs to the next
        final, _ = stopped_and_resumed(workshop, tmp_path / str(stop_after), stop_after, adapt=halved)
        chex.assert_trees_all_equal(final, expected)


def test_a_signal_during_the_last_step_is_not_lost(workshop):
    asked, saved = iter([None] * PLAN.steps + [signal.SIGINT] * 2), []
    with pytest.raises(Interrupted, match="stopped at step 12 of 12 and saved") as caught:
        train(workshop, save=lambda made: saved.append(int(made.state.step[0])), interrupted=lambda: next(asked))
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


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step_and_parameters_are_never_saved(workshop):
    saved = []

    def poisoned(state, epoch):
        factor = np.nan if epoch == 2 else 1
        return state._replace(loss_values={"gamma": state.loss_values["gamma"] * factor})

    with pytest.raises(RunError, match="loss is nan at step 9; what was saved before is kept"):
        train(workshop, save=lambda made: saved.append(int(made.state.step[0])), adapt=poisoned)
    assert saved == [5]
    infinite = workshop.start.state._replace(learning_rate=np.array([np.inf], np.float32))
    with pytest.raises(RunError, match=r"parameter norm is (nan|inf) at step 1"):
        train(workshop, start=workshop.start._replace(state=infinite), save=saved.append)
    assert saved == [5]


def test_a_member_that_stopped_stays_so_and_is_noted_before_the_checkpoint(workshop, capsys):
    start = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), workshop.start.state)
    happened, saved, calls = [], {}, itertools.count()

    def poisoned_for_an_epoch(state, epoch):
        is_second = next(calls) % 2 == 1
        gamma = parallel.replicated(np.float32([np.nan if epoch == 1 and is_second else 1]))
        return state._replace(loss_values={"gamma": gamma})

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
    later = [row for row in happened if row != "saved" and row.split == "train" and row.step > 6]
    assert {row.seed for row in later} == {0}
    assert saved[12].sums["seen"].tolist() == [3 * 29, 29]
    assert capsys.readouterr().err.count("stops, the others go on") == 1


def test_devices_that_part_after_the_first_step_are_found(workshop):
    calls = iter(range(1, 100))

    def step(groups, batch):
        groups, metrics, fingerprints = workshop.program.step(groups, batch)
        return groups, metrics, fingerprints if next(calls) < 5 else [np.uint32([1, 2])]

    saved = []
    with pytest.raises(RunError, match="the devices hold different parameters"):
        train(workshop._replace(program=workshop.program._replace(step=step)), save=saved.append)
    assert len(saved) <= 1


FINITE = {"loss": 6.0, "penalty": 0.0, "correct": 5, "count": 10, "gradient_norm": 1.0, "parameter_norm": 1.0}


def meter(*tags, **sums):
    """A meter, and the rows that it writes."""
    rows, state = [], SimpleNamespace(frozen=[False] * len(tags))
    return Meter(checkpoint.Checkpoint(state, sums), PLAN, tags, rows.extend, sweep=len(tags) > 1), rows


def test_the_rate_of_all_members_is_shared_among_them(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    counted, _ = meter({"seed": 0}, {"seed": 1}, seen=[100.0, 100.0])
    for step in (1, 2):
        counted.add(step, [{name: np.array([value, value]) for name, value in FINITE.items()}])
    with counted.paused():
        clock[0] = 4.0
    clock[0] = 8.0
    assert counted.text() == "loss 0.6000, accuracy 0.500, 10 examples/s"
    rows = {row.name: row.value for row in counted.rows(np.array([0.1, 0.2])) if row.seed == 1}
    shown = {"loss": 0.6, "accuracy": 0.5, "learning_rate": 0.2, "examples_per_second": 5.0, "examples_seen": 120.0}
    assert rows == pytest.approx(shown)


@pytest.fixture
def saved(workshop, tmp_path):
    """The folder of a run's checkpoints."""
    folder = tmp_path / "checkpoints"
    train(workshop, save=functools.partial(checkpoint.save, folder, keep=3))
    return folder


def damage_at(newest, kind):
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    if kind == "flipped":
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 0x40
        largest.write_bytes(bytes(content))
    elif kind == "truncated":
        largest.write_bytes(largest.read_bytes()[:-7])
    elif kind == "pipe":
        largest.unlink()
        os.mkfifo(largest)
    elif kind == "no digest":
        (newest / checkpoint.DIGEST).unlink()
    elif kind == "no digest's fields":
        (newest / checkpoint.DIGEST).write_text("[]")
    elif kind == "another step's":
        (newest.parent / "10").rename(newest.parent / "13")
    else:
        newest.rename(newest.parent.parent / "outside")
        newest.symlink_to("../outside") if kind == "link" else newest.write_text("")


KINDS = ("flipped", "truncated", "pipe", "no digest", "no digest's fields", "another step's", "link", "file")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_can_be_saved_again(workshop, saved, capfd, kind):
    assert sorted(int(path.name) for path in saved.iterdir()) == [5, 10, 12]
    capfd.readouterr()
    damage_at(saved / "12", kind)
    restored = checkpoint.restore_latest(saved, workshop.start.state)
    expected = 12 if kind == "another step's" else 10
    assert int(restored.state.step[0]) == expected
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert "is corrupt or incomplete; falling back to the one before" in error
    again = restored._replace(state=restored.state._replace(step=np.int32([12])), at_once=1)
    checkpoint.save(saved, again, keep=3)
    found = checkpoint.restore_latest(saved, workshop.start.state)
    chex.assert_trees_all_equal(found, again)
    outside = saved.parent / "outside"
    assert not outside.exists() or any(outside.iterdir())


def test_checkpoints_are_found_by_their_step_and_the_newest_stay(workshop, saved):
    assert checkpoint.find(saved).name == "12"
    assert checkpoint.find(saved, 5) == saved / "5"
    with pytest.raises(InputError, match=r"holds no valid checkpoint of step 7 \(steps there: 5, 10, 12\)"):
        checkpoint.find(saved, 7)
    later = workshop.start._replace(state=workshop.start.state._replace(step=np.int32([20])))
    checkpoint.save(saved, later, keep=2)
    assert sorted(int(path.name) for path in saved.iterdir()) == [12, 20]
    assert checkpoint.restore_latest(saved / "nowhere", workshop.start.state) is None


def test_a_checkpoint_of_another_network_or_that_cannot_be_written_is_one_line(workshop, saved, tmp_path):
    other = workshop.start.state._replace(params={"Dense_7": {"bias": np.zeros(3, np.float32)}})
    with pytest.raises(InputError, match="does not fit this network"):
        checkpoint.restore_latest(saved, other)
    (tmp_path / "in the way").write_text("")
    with pytest.raises(InputError, match=r"cannot write checkpoint .*: Not a directory; free some space or") as caught:
        checkpoint.save(tmp_path / "in the way", workshop.start, keep=3)
    assert "\n" not in str(caught.value)
