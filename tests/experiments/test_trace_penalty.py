import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from experiments.benchmarks import trace_forms
from experiments.trace_penalty import runs, tables
from focalgeo import job, records
from focalgeo.rows import Eigenvalue, Metric, Tags, Trace

FOLDER = Path(__file__).parents[2] / "experiments" / "trace_penalty"


def test_the_tables_of_the_readme_are_those_of_the_results():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    stored = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert stored.keys() <= runs.TASKS.keys()
    assert len(stored["digits"]["runs"]) == 70
    for name, table in tables.all_tables(stored).items():
        assert table in readme, name


@pytest.mark.parametrize("name", runs.TASKS)
def test_every_form_is_a_job_and_the_quarter_is_a_quarter_of_the_batch(name):
    configs = {form: job.check_config(runs.make_config(name, form, 3)) for form in runs.FORMS}
    assert configs["hessian"].sweep.trace_penalty[0] == 0
    assert 4 * configs[runs.QUARTER].loss.trace_examples == configs["hessian"].optimizer.batch_size
    assert [config.loss.trace_of for config in configs.values()] == ["hessian", "gauss_newton", "gauss_newton"]
    assert all(config.sweep.seed == (0, 1, 2) for config in configs.values())


def test_the_interval_is_student_s():
    values = [1.0, 2.0, 3.5, 7.0, 4.0]
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    np.testing.assert_allclose(tables.interval(values), (3.5, *expected), rtol=1e-12)


def test_differences_are_of_the_same_seed_and_leave_out_what_learned_nothing():
    one = {seed: {"accuracy": 0.9 + seed / 100} for seed in (0, 1, 2, 3)}
    other = {2: {"accuracy": 0.5}, 1: {"accuracy": 0.1}, 0: {"accuracy": 0.8}}
    np.testing.assert_allclose(tables.differences(one, other, "accuracy"), [0.1, 0.42])


def test_numbers_are_read_of_each_run_that_is_complete(tmp_path):
    folder = runs.workdir(tmp_path, "digits", "hessian")
    folder.mkdir()
    rows = []
    for seed, penalty in ((0, 0.0), (0, 0.1), (1, 0.0)):
        tags = Tags(seed=seed, trace_penalty=penalty)
        rows += [Metric(name, seed + penalty, split="test", method="uncalibrated", tags=tags) for name in runs.METRICS]
        rows += [Metric("ece", 9.0, split="test", method="temperature_scaling", tags=tags)]
        for split in ("val", "train"):
            of = {"n": 5, "split": split, "loss": "cross_entropy", "tags": tags}
            rows += [Trace("trace", 3.0, 2.0, 4.0, stderr=0.5, probes=6, **of)]
            if seed == 0:
                rows += [Eigenvalue("lambda_max", 2.0, residual=0.1, products=3, converged=True, **of)]
    records.append_rows(folder, rows)
    found = runs.measured(tmp_path, "digits")
    assert [(run["form"], run["seed"], run["ece"]) for run in found] == [("none", 0, 0.0), ("hessian", 0, 0.1)]
    assert found[0]["trace val"] == 3.0


@pytest.mark.long
def test_a_quick_benchmark_of_the_forms_prints_each_and_writes_nothing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(trace_forms, "RESULTS", tmp_path / "results.json")
    trace_forms.main(["--quick"])
    printed = capsys.readouterr().out
    assert all(f"| {name} |" in printed for name in ("gradient", *trace_forms.FORMS))
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "said"), [("--rounds=0", "fewer than 1"), ("--tpu=v5e:2x2", "needs the TPU compiler")]
)
def test_what_the_benchmark_cannot_do_is_said(flag, said, capsys, monkeypatch):
    monkeypatch.setattr(trace_forms.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        trace_forms.main([flag])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
