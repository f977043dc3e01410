"""The closed forms, the measured errors, the verdicts and the tables of experiments/known_surfaces."""

import json

import numpy as np
import pytest

from experiments.intervals import NOT, SHOWS, UNTOLD
from experiments.known_surfaces import __main__ as command
from experiments.known_surfaces import estimates, surfaces, verdicts
from focalgeo import curvature

DRAWS = 30


@pytest.mark.parametrize(
    "surface",
    [
        surfaces.quadratic("power", "power law", 1 / np.arange(1, 51), 0),
        surfaces.linear_network(inputs=6, hidden=5, outputs=3),
        *surfaces.softmax_regression(60),
    ],
    ids=lambda surface: surface.name,
)
def test_the_closed_form_is_the_hessian(surface):
    found = np.asarray(curvature.dense_hessian(surface.loss, surface.params), np.float64)
    np.testing.assert_allclose(found, surface.hessian, atol=3e-6 * np.abs(surface.hessian).max())


def test_the_quadratics_have_the_eigenvalues_that_they_say():
    for name, (_, eigenvalues) in surfaces.SPECTRA.items():
        found = np.linalg.eigvalsh(surfaces.quadratic(name, "", eigenvalues, 1).hessian)
        np.testing.assert_allclose(found, np.sort(eigenvalues), atol=1e-10)


def test_the_focal_surface_at_random_weights_has_both_signs():
    *_, surface = surfaces.softmax_regression()
    low, *_, high = np.linalg.eigvalsh(surface.hessian)
    assert low < -0.01 * high < 0


@pytest.fixture(scope="module")
def measured():
    return estimates.measure(surfaces.linear_network(inputs=6, hidden=5, outputs=3), DRAWS)


def test_a_row_for_each_estimator_and_cost(measured):
    kinds = {name: [row for row in measured if row["estimator"] == name] for name in verdicts.INTERVALS}
    assert {name: len(own) for name, own in kinds.items()} == {**dict.fromkeys(kinds, 3)}
    for own in kinds.values():
        errors = [row["error"] for row in own]
        assert errors[0] > errors[-1]  # more products, less error
        assert all(0 <= row["held"].low <= row["held"].mean <= row["held"].high <= 1 for row in own)
    searches = [row for row in measured if row["estimator"] == "lambda_max"]
    assert [row["converged"] for row in searches] == sorted(row["converged"] for row in searches)
    assert searches[-1]["error"] < 1e-5


def _row(estimator, held=(0.95, 0.93, 0.97), **more):
    return {"surface": "a", "draws": 500, "estimator": estimator, "products": 60, "error": 0.1, "claimed": 0.1} | {
        "held": held,
        **more,
    }


def _verdict(rows, words):
    (claim,) = [claim for claim in verdicts.claims([*_others(rows), *rows], {"a": "A"}) if words in claim.claim]
    return claim.verdict


def _others(rows):
    """One row of each estimator that `rows` lack."""
    more = (0.0, -0.1, 0.1)
    every = [_row("hutchinson"), _row("hutch++", more=more), _row("xtrace", more=more), _row("density")]
    every += [_row("diagonal"), _row("lambda_max", converged=1.0, elsewhere=0)]
    return [row for row in every if row["estimator"] not in {row["estimator"] for row in rows}]


def test_an_interval_fails_where_it_holds_in_fewer_draws_than_nine_of_ten():
    words = "interval of the trace by Hutch++"
    more = (0.0, -0.1, 0.1)
    assert _verdict([_row("hutch++", more=more)], words) == SHOWS
    assert _verdict([_row("hutch++", more=more), _row("hutch++", held=(0.8, 0.75, 0.85), more=more)], words) == NOT
    assert _verdict([_row("hutch++", held=(0.9, 0.88, 0.93), more=more)], words) == UNTOLD


def test_a_search_that_ended_elsewhere_is_counted():
    words = "says it has converged"
    assert _verdict([_row("lambda_max", converged=1.0, elsewhere=0)], words) == SHOWS
    assert _verdict([_row("lambda_max", converged=1.0, elsewhere=50)], words) == NOT
    assert _verdict([_row("lambda_max", converged=0.0, elsewhere=0)], words) == UNTOLD


def test_nearer_is_told_by_the_paired_difference():
    words = "XTrace is nearer"
    assert _verdict([_row("xtrace", more=(-0.1, -0.2, -0.05))], words) == SHOWS
    assert _verdict([_row("xtrace", more=(0.1, 0.05, 0.2))], words) == NOT


def test_all_is_written_surface_by_surface_and_again_from_what_is_stored(tmp_path, monkeypatch):
    small = [surfaces.linear_network(inputs=3, hidden=3, outputs=2)]
    monkeypatch.setattr(surfaces, "surfaces", lambda: iter(small))
    (tmp_path / "README.md").write_text("<!-- trace -->\n<!-- end -->\n<!-- others -->\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["known_surfaces", f"--draws={DRAWS}", f"--out={tmp_path}"])
    command.main()
    first = (tmp_path / "results.json").read_text()
    assert "| two-layer linear network | " in (tmp_path / "README.md").read_text()
    monkeypatch.setattr(estimates, "measure", None)  # what is stored is not measured again
    command.main()
    monkeypatch.setattr("sys.argv", ["known_surfaces", "--tables", f"--out={tmp_path}"])
    command.main()
    assert (tmp_path / "results.json").read_text() == first
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {"claims.png", "traces.png"}
    assert len(json.loads(first)["rows"]) == 19


def test_the_readme_s_tables_are_those_of_the_stored_rows():
    text = (command.HERE / "README.md").read_text(encoding="utf-8")
    path = command.HERE / "results.json"
    if not path.exists():
        assert "Not yet run" in text
        return
    results = json.loads(path.read_text(encoding="utf-8"))
    for table in (verdicts.trace_table, verdicts.search_table, verdicts.others_table):
        assert table(results["rows"], results["titles"]) in text


@pytest.mark.long
def test_a_surface_measured_again_has_the_stored_errors():
    path = command.HERE / "results.json"
    if not path.exists():
        pytest.skip("not yet run")
    results = json.loads(path.read_text(encoding="utf-8"))
    network = surfaces.linear_network()
    known = [row for row in results["rows"] if row["surface"] == network.name]
    again = estimates.measure(network, 100)
    for old, new in zip(known, again, strict=True):
        assert (old["estimator"], old["products"]) == (new["estimator"], new["products"])
        low, high = old["held"][1] - 0.08, old["held"][2] + 0.08  # of 100 draws
        assert low <= new["held"].mean <= high, old
        if old["error"] > 1e-4:
            np.testing.assert_allclose(new["error"], old["error"], rtol=0.35, err_msg=str(old))
