import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from experiments import jobs
from experiments.claims import claims_table
from experiments.trace_penalty import __main__ as command
from experiments.trace_penalty import choice, runs, tables, verdicts, weight_tables, weights
from focalgeo import job, records
from focalgeo.rows import Eigenvalue, Metric, Scalar, Trace

FOLDER = Path(__file__).parents[2] / "experiments" / "trace_penalty"


def test_the_tables_of_the_readme_are_those_of_the_results():
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    stored = json.loads((FOLDER / "results.json").read_text(encoding="utf-8"))
    assert stored.keys() <= {*runs.TASKS, "about", "claims", "weights"}
    assert len(stored["digits"]["runs"]) == 70
    made = tables.all_tables(stored) | weight_tables.all_tables(stored["weights"])
    for name, table in (made | {"claims": claims_table(verdicts.claims(stored["weights"]))}).items():
        assert table in readme, name
    assert [claim._asdict() for claim in verdicts.claims(stored["weights"])] == stored["claims"]


def test_every_job_of_the_weights_is_one_that_focalgeo_takes():
    for name in weights.TASKS:
        for (form, seeds), scale in itertools.product(weights.pieces(name, 3), ("small", "paper")):
            jobs.check(weights.task_of(name, scale).config, weights.fields(name, form, seeds, scale))


@pytest.mark.parametrize("name", runs.TASKS)
def test_every_form_is_a_job_and_the_quarter_is_a_quarter_of_the_batch(name):
    configs = {form: job.check_config(runs.make_config(name, form, 3)) for form in runs.FORMS}
    assert configs["hessian"].sweep.trace_penalty[0] == 0
    assert 4 * configs[runs.QUARTER].loss.trace_examples == configs["hessian"].optimizer.batch_size
    assert [config.loss.trace_of for config in configs.values()] == ["hessian", "gauss_newton", "gauss_newton"]
    assert all(config.sweep.seed == (0, 1, 2) for config in configs.values())


def test_differences_are_of_the_same_seed_and_leave_out_what_learned_nothing():
    one = {seed: {"accuracy": 0.9 + seed / 100} for seed in (0, 1, 2, 3)}
    other = {2: {"accuracy": 0.5}, 1: {"accuracy": 0.1}, 0: {"accuracy": 0.8}}
    np.testing.assert_allclose(tables.differences(one, other, "accuracy"), [0.1, 0.42])


def test_numbers_are_read_of_each_run_that_is_complete(tmp_path):
    folder = runs.workdir(tmp_path, "digits", "hessian")
    folder.mkdir()
    rows = []
    for seed, penalty in ((0, 0.0), (0, 0.1), (1, 0.0)):
        tags = {"seed": seed, "trace_penalty": penalty}
        rows += [Metric(name, seed + penalty, split="test", method="uncalibrated", **tags) for name in runs.METRICS]
        rows += [Metric("ece", 9.0, split="test", method="temperature_scaling", **tags)]
        for split in ("val", "train"):
            of = {"n": 5, "split": split, "loss": "cross_entropy", "tags": tags}
            rows += [Trace("trace", 3.0, 2.0, 4.0, stderr=0.5, probes=6, **of)]
            if seed == 0:
                rows += [Eigenvalue("lambda_max", 2.0, residual=0.1, products=3, converged=True, **of)]
    records.append_rows(folder, rows)
    found = runs.measured(tmp_path, "digits")
    assert [(run["form"], run["seed"], run["ece"]) for run in found] == [("none", 0, 0.0), ("hessian", 0, 0.1)]
    assert found[0]["trace val"] == 3.0


RECORD = {"commit": "0", "config": "c", "date": "2026-01-01", "versions": {}, "seconds": 3.0}


def _weighted(ece: float = -2.0, accuracy: float = 0.0, seeds: int = 4) -> list[dict]:
    """Runs whose ECE and accuracy change by so much for a unit of the penalty; rate 0.1 is best on val, 0.3 on test."""
    found = []
    for penalty in (0.0, 0.001, 0.002, 0.004):
        for form in ("none",) if penalty == 0 else weights.FORMS:
            for rate, seed in itertools.product((0.1, 0.3), range(seeds)):
                run = dict.fromkeys([*weights.COLUMNS, weights.CRITERION], 0.5)
                run |= {"task": "digits", "form": form, "penalty": penalty, "rate": rate, "seed": seed}
                run |= {"ece": 0.05 + ece * penalty + 1e-4 * seed, "accuracy": 0.9 + accuracy * penalty}
                run |= {"trace train": 3 * np.exp(-100 * penalty), "record": RECORD}
                run |= {weights.CRITERION: rate - 10 * penalty, "nll": -rate}
                found.append(run)
    return found


def _verdict(claims: list, text: str) -> str:
    return next(claim.verdict for claim in claims if text in claim.claim)


def test_verdicts_on_the_weights_follow_the_numbers():
    falls, best, kept = "digits, Hessian: ECE as trained falls", "of least NLL on val", "costs less than a point"
    for claim in (falls, best):
        assert _verdict(verdicts.claims(_weighted()), claim) == "shows"
        assert _verdict(verdicts.claims(_weighted(ece=2.0)), claim) == "does not show"
        assert _verdict(verdicts.claims(_weighted(seeds=1)), claim) == "cannot be told"
    assert _verdict(verdicts.claims(_weighted()), kept) == "shows"
    assert _verdict(verdicts.claims(_weighted(accuracy=-10.0)), kept) == "does not show"


def test_the_rate_is_chosen_on_val_and_runs_at_chance_are_left_out():
    own = _weighted()
    assert choice.chosen_rate(own, "hessian", 0.004) == 0.1
    cells = choice.at_chosen(own, "hessian")
    assert {run["rate"] for cell in cells.values() for run in cell.values()} == {0.1}
    cells[0.004][1]["accuracy"] = 0.1
    assert sorted(choice.column(cells[0.004], "ece")) == [0, 2, 3]
    assert "| 0.004 | 0.1 | 4 | 1 |" in weight_tables.table(own, "hessian")
    assert _verdict(verdicts.claims(own), "costs less than a point") == "cannot be told"


def test_a_rate_at_which_a_run_stopped_is_not_chosen():
    own = _weighted()
    stopped = next(run for run in own if (run["form"], run["penalty"], run["rate"]) == ("hessian", 0.004, 0.1))
    stopped |= dict.fromkeys([*weights.COLUMNS, weights.CRITERION])
    assert choice.chosen_rate(own, "hessian", 0.004) == 0.3
    assert choice.chosen_rate(own, "gauss_newton", 0.004) == 0.1
    assert len(choice.complete(choice.at_rate(own, "hessian", 0.1))) == 3
    assert "| Hessian | 0.004 | stopped (1 at chance) | **26** |" in weight_tables.rates_table(own)


def test_a_run_that_stopped_is_kept_without_numbers(tmp_path):
    of = {"penalty": 0.001, "rate": 0.1, "seed": 3}
    tags = {"trace_penalty": 0.001, "learning_rate": 0.1, "seed": 3}
    records.append_rows(tmp_path, [Scalar("stopped", 7, **tags)])
    manifest = {"versions": dict.fromkeys(("python", "jax", "flax"), "1"), "git": "0", "created": "2026-01-01"}
    (tmp_path / records.MANIFEST).write_text(json.dumps(manifest))
    (run,) = weights.measured(tmp_path, "digits", "hessian", "c")
    assert run.items() >= {"task": "digits", "form": "hessian", **of, "accuracy": None, "val nll": None}.items()


@pytest.mark.parametrize("flag", ["--seeds=1", "--cifar10=folder:nowhere"])
def test_bad_input_is_one_line(flag, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["trace_penalty", "--pieces", "weights", f"--out={tmp_path}", flag])
    with pytest.raises(SystemExit) as stopped:
        command.main()
    assert stopped.value.code == 2
    assert flag.rpartition(":")[2].rpartition("=")[2] in capsys.readouterr().err.splitlines()[-1]
    assert not any(tmp_path.iterdir())


def test_weights_are_added_to_what_is_stored(tmp_path):
    known = command.merged(_weighted(seeds=2), _weighted(seeds=3, ece=1.0))
    assert len(known) == 7 * 2 * 3
    assert known[0]["seed"] == 0
    (tmp_path / "README.md").write_text("<!-- digits hessian -->\n<!-- end -->\n<!-- claims -->\n<!-- end -->\n")
    command.write({"digits": {"runs": []}, "weights": known}, tmp_path)
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == ["about", "claims", "digits", "weights"]
    assert "| 0.002 | 0.1 | 3 | 0 |" in (tmp_path / "README.md").read_text()
    assert (tmp_path / "figures" / "weights.png").exists()
    asked = argparse.Namespace(again=False, pieces=["weights"], tasks=["digits", "cifar10"], seeds=None)
    left = command._missing(asked, [run | {"seed": seed} for run in known for seed in range(10)])
    assert left[0] == ("cifar10", "hessian", (0,))
    assert len(left) == 6


@pytest.mark.long
def test_the_numbers_of_a_tiny_sweep_over_weights_and_rates(tmp_path):
    small = weights.TASKS["digits"]._replace(config="configs/digits_trace_sweep.py:quick", weights=(0.0, 0.001))
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(weights.TASKS, "digits", small._replace(rates=(0.05, 0.1)))
        found = weights.train(tmp_path, "digits", "hessian", (0, 1), None, "small")
    assert len(found) == 8
    assert {run["form"] for run in found if run["penalty"]} == {"hessian"}
    assert all(run.keys() >= {*weights.COLUMNS, weights.CRITERION} for run in found)


def test_ranks_that_are_alike_by_chance_show_nothing_and_an_order_that_all_seeds_share_does():
    def cells_of(orders):
        return {
            penalty: {seed: {"accuracy": 0.9, "ece": float(order[i])} for seed, order in enumerate(orders)}
            for i, penalty in enumerate((0.0, 0.1, 0.2, 0.3))
        }

    alike = choice.slope(cells_of([(1, 3, 0, 2)] * 3), "ece")  # rank correlation 0 of each
    some = choice.slope(cells_of([(0, 3, 2, 1)] * 3), "ece")  # 0.2 of each
    falling = choice.slope(cells_of([(3, 2, 1, 0)] * 3), "ece")
    assert alike.low <= 0 <= alike.high
    np.testing.assert_allclose(some, (0.2, 0, 0.2), atol=1e-12)
    np.testing.assert_allclose(falling, (-1, -1, -1))
