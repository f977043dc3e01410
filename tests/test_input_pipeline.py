"""Training examples on the devices or sent batch by batch: the same steps, for one run and for a sweep."""

from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from focalgeo import parallel
from focalgeo.config import load_config as config_file
from focalgeo.job import preparation, training

CONFIG = Path(__file__).parent.parent / "configs" / "digits.py"


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_examples_that_do_not_fit_are_sent_and_change_nothing(monkeypatch, seeds):
    config = config_file(CONFIG, "quick")
    config.model.options.hidden = (8,)
    config.data.augment = "crop_flip"
    config.data.train_size = 140  # the last of three batches is short
    config.sweep.seed = seeds
    run_members = preparation.make_members(config)
    prepared = preparation.prepare(config)
    state = preparation.initial_state(prepared, run_members)
    needed = prepared.dataset.train.x.nbytes + prepared.dataset.train.y.nbytes
    ended = []
    for free in (2 * needed, 2 * needed - 1):
        monkeypatch.setattr(parallel, "free_memory", lambda free=free: free)
        pipeline = preparation.make_pipeline(config, prepared.dataset, preparation.stream_seeds(run_members))
        assert len(pipeline.resident) == (free == 2 * needed)
        assert all(split.x.ndim == 2 for split in pipeline.resident)  # else a TPU lays them out anew in every step
        program, _ = training.choose_program(prepared, len(seeds), state, pipeline)
        groups = program.place(state)
        for spec in pipeline.specs(0, 0):
            groups, metrics, _ = program.step(groups, spec)
        assert int(np.ravel(metrics[0]["count"])[0]) == 140 - 2 * config.optimizer.batch_size
        ended.append(program.gather(groups))
    assert int(ended[0].step[0]) == 3
    # one array holds all gradients for the sum over devices, and the compiler fuses it with what comes before
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-6, atol=1e-8), *(states.params for states in ended))


def test_absent_classes_and_shared_examples_are_said(monkeypatch, capsys):
    config = config_file(CONFIG, "quick")
    monkeypatch.setattr(preparation.data, "gaps", lambda dataset: [f"train of {len(dataset.train.y)} is odd"])
    config.data.train_size = 7
    preparation.prepare(config)
    assert capsys.readouterr().err == "digits: train of 7 is odd\n"
