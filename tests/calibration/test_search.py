import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import outputs

from focalgeo import calibration, checks
from focalgeo.calibration import GAMMAS, TEMPERATURES, best_point, grid_search, line_search
from focalgeo.calibration.fits import fast_search, search
from focalgeo.calibration.fits.search import GridSearch, plain_surfaces
from focalgeo.types import InputError


def surfaces(logits, labels, gammas, temperatures):
    """The plain ones of both ECEs and of the NLL, the oracle of the fast ones."""
    grid = np.float32(gammas), np.float32(temperatures)
    examples = checks.predicted_logits(logits, labels)
    ece, nll = plain_surfaces(examples, *grid)
    return {"ece": ece, "adaptive_ece": plain_surfaces(examples, *grid, by_rank=True)[0], "nll": nll}


@pytest.mark.long
@pytest.mark.parametrize("at_once", [None, 1])
def test_plain_surfaces_are_the_metrics_of_the_map_at_each_point(monkeypatch, at_once):
    logits, labels = outputs(100, 5)
    if at_once:
        monkeypatch.setattr(search, "TABLE_NUMBERS", at_once)
        jax.clear_caches()
    gammas, temperatures = (0.0, -0.9, 5.0), (0.01, 0.4, 1.0, 3.3)
    found = surfaces(logits, labels, gammas, temperatures)
    for i, j in np.ndindex(3, 4):
        log_probs = calibration.focal_temperature_scaling(logits, gammas[i], temperatures[j])
        for name, surface in found.items():
            np.testing.assert_allclose(
                surface[i, j], getattr(calibration, name)(log_probs, labels), rtol=1e-5, atol=1e-7
            )


@pytest.mark.parametrize(("num_classes", "criterion"), [(2, "ece"), (5, "adaptive_ece"), (60, "ece")])
def test_surface_is_the_metric_at_each_point(criterion, num_classes):
    logits, labels = outputs(300, num_classes)
    gammas, temperatures = (0.0, -0.9, 0.37, 5.0, 20.0), (0.01, 0.4, 1.0, 3.3)
    got = grid_search(logits, labels, gammas, temperatures, criterion=criterion)
    expected = surfaces(logits, labels, gammas, temperatures)
    np.testing.assert_allclose(got.ece, expected[criterion], atol=1e-5)
    np.testing.assert_allclose(got.nll, expected["nll"], rtol=1e-5)
    best = np.float32(gammas) == got.gamma, np.float32(temperatures) == got.temperature
    assert got.value == got.ece.min() == got.ece[best[0]][:, best[1]].item()


@pytest.mark.long
@pytest.mark.parametrize(("num_examples", "num_classes"), [(100, 1000), (400, 18), (2000, 2)])
def test_surface_with_sums_over_the_tail_of_saturated_logits(num_examples, num_classes):
    logits, labels = outputs(num_examples, num_classes, seed=3)
    logits = logits * np.float32(np.linspace(0.1, 30, num_examples)[:, None])
    gammas, temperatures = (0.0, -0.5, 5.0), (0.01, 0.7, 5.0)
    expected = surfaces(logits, labels, gammas, temperatures)
    for criterion in ("ece", "adaptive_ece"):
        got = grid_search(logits, labels, gammas, temperatures, criterion=criterion)
        np.testing.assert_allclose(got.ece, expected[criterion], atol=1e-5)
        np.testing.assert_allclose(got.nll, expected["nll"], rtol=1e-5)


def test_the_most_probable_class_of_the_tail_is_within_the_reach_of_the_polynomial():
    """All of the top class, those that are computed one by one, and the first of the tail share the probability."""
    gammas = (0.0, -0.5, 5.0)
    alike = fast_search.fit_tail(np.float64(gammas), 18)[0] + 2
    assert alike < 18
    logits = np.where(np.arange(18) < alike, 0, np.float32(-60))[None].repeat(2, axis=0)
    got = grid_search(logits, np.int32([0, alike - 1]), gammas, (0.5, 1.0))
    np.testing.assert_allclose(got.nll, np.full((3, 2), np.log(alike)), rtol=1e-5)


def test_a_confidence_at_an_edge_belongs_to_the_bin_below():
    logits, labels = np.float32([[0, 0], [3, 0]]), np.int32([0, 1])  # 1/2 and right, 0.95 and wrong
    expected = 0.5 * 0.5 + 0.5 / (1 + np.exp(-3))  # 0.726; both in one bin give 0.226
    plain, _ = plain_surfaces(checks.predicted_logits(logits, labels), np.float32([0]), np.float32([1]), num_bins=2)
    fast = grid_search(logits, labels, (0.0,), (1.0,), num_bins=2)
    np.testing.assert_allclose((plain[0, 0], fast.ece[0, 0]), expected, rtol=1e-6)


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece"])
def test_weights_count_examples_as_often_as_they_say(criterion):
    logits, labels = outputs(100, 5)
    times = np.arange(100) % 4
    spoiled = np.where(times[:, None], logits, np.nan), np.where(times, labels, 99)  # a weight of 0 leaves it out
    got = grid_search(*spoiled, (0.0, 1.0), (0.5, 1.0), criterion=criterion, weights=times)
    repeated = np.repeat(logits, times, axis=0), np.repeat(labels, times)
    expected = grid_search(*repeated, (0.0, 1.0), (0.5, 1.0), criterion=criterion)
    for left, right in zip(got, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5)
    scaled = grid_search(*spoiled, (0.0, 1.0), (0.5, 1.0), criterion=criterion, weights=0.3 * times)
    np.testing.assert_allclose(scaled.nll, expected.nll, rtol=1e-5)
    np.testing.assert_allclose(scaled.ece, expected.ece, atol=1e-5 if criterion == "ece" else 0.03)  # bins of N / M


def test_blocks_of_temperatures_that_do_not_come_out_even_change_nothing(monkeypatch):
    logits, labels = outputs(300, 5)
    temperatures = (0.2, 0.5, 1.0, 2.0, 3.0)
    whole = grid_search(logits, labels, (0.0, 1.0), temperatures, criterion="adaptive_ece")
    monkeypatch.setattr(fast_search, "_KEPT", 1500)  # two temperatures of two gammas at a time
    parts = grid_search(logits, labels, (0.0, 1.0), temperatures, criterion="adaptive_ece")
    for left, right in zip(whole, parts, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_saturated_logits_and_examples_in_several_padded_chunks(monkeypatch):
    logits, labels = outputs(300, 5)
    logits = logits * np.float32(np.linspace(1, 60, 300)[:, None])
    monkeypatch.setattr(fast_search, "_CHUNK", 200)
    monkeypatch.setattr(fast_search, "_FEWEST", 38)
    gammas, temperatures = (0.0, 5.0), (0.01, 1.0)
    got = grid_search(logits, labels, gammas, temperatures, criterion="nll")
    expected = surfaces(logits, labels, gammas, temperatures)
    np.testing.assert_allclose(got.nll, expected["nll"], rtol=1e-5)
    np.testing.assert_allclose(got.ece, expected["ece"], atol=1e-5)
    assert got.value == got.nll.min()


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece", "nll"])
def test_search_inside_jit_and_vmap_is_the_plain_one(criterion):
    members = [outputs(80, 5, seed=seed) for seed in range(3)]
    logits, labels = (jnp.stack(arrays) for arrays in zip(*members, strict=True))
    keep = jnp.arange(80) % 5 > 0
    options = {"gammas": (0.0, -0.5, 1.0), "temperatures": (0.5, 1.0, 1.7, 3.0), "criterion": criterion}
    found = jax.jit(jax.vmap(lambda z, y: grid_search(z, y, mask=keep, **options)))(logits, labels)
    plain = jax.vmap(
        lambda z, y: best_point(grid_search(z, y, mask=keep, **options), *list(options.values())[:2], gamma=0)
    )
    for i in range(3):
        expected = grid_search(logits[i], labels[i], mask=keep, **options)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got[i], wanted, rtol=1e-5, atol=1e-6)
        row = best_point(expected, options["gammas"], options["temperatures"], gamma=0)
        np.testing.assert_array_equal(plain(logits, labels).temperature[i], row.temperature)


def test_finds_the_temperature_that_was_put_in_and_never_loses_to_it():
    logits, labels = outputs(3000, 5, sharpness=2.5)
    temperatures = TEMPERATURES[::5]
    found = grid_search(logits, labels, GAMMAS, temperatures)
    for criterion in ("ece", "nll"):
        focal = best_point(found, GAMMAS, temperatures, criterion=criterion)
        plain = best_point(found, GAMMAS, temperatures, criterion=criterion, gamma=0.0)
        assert plain.gamma == 0
        assert focal.value == getattr(found, criterion).min() <= plain.value
        np.testing.assert_allclose(plain.temperature, 2.5, atol=0.2)
    assert best_point(found, GAMMAS, temperatures)[:3] == found[:3]
    alone = grid_search(logits, labels, (0.0,), temperatures, criterion="nll")
    np.testing.assert_allclose(alone.value, plain.value, rtol=2e-6)
    with pytest.raises(InputError, match=r"gamma 0.1 is not on the grid \[0.0, -0.5"):
        best_point(found, GAMMAS, temperatures, gamma=0.1)


def test_ties_go_to_the_temperature_nearest_one_then_to_the_smallest_gamma():
    logits = np.float32([[4000, 0, 0], [0, 5000, 0]])  # certain and right at every point: all values are 0
    got = grid_search(logits, np.int32([0, 1]), (5.0, -0.5, 0.5, 0.25), (3.0, 1.6, 0.7, 0.01))
    assert (got.ece == 0).all()
    np.testing.assert_allclose((got.gamma, got.temperature, got.value), (0.25, 0.7, 0))


def test_of_two_tied_points_the_temperature_nearer_one_goes_before_the_smaller_gamma():
    gammas, temperatures = (0.25, 5.0), (3.0, 0.7)
    surface = np.float32([[0, 1], [1, 0]])  # (0.25, T = 3) and (5, T = 0.7) tie
    got = best_point(GridSearch(None, None, None, surface, surface), gammas, temperatures)
    np.testing.assert_allclose((got.gamma, got.temperature, got.value), (5, 0.7, 0))


@pytest.mark.parametrize("criterion", ["ece", "nll"])
def test_line_runs_through_the_two_fits_and_its_points_are_the_grids(criterion):
    logits, labels = outputs(500, 5)
    gammas, temperatures = (0.0, -0.5, 1.0, 5.0), np.arange(0.25, 4, 0.25)
    found = line_search(logits, labels, gammas, temperatures, criterion=criterion)
    ends = [grid_search(logits, labels, [g], temperatures, criterion=criterion).temperature for g in (-0.5, 5.0)]
    np.testing.assert_allclose(found.temperatures, ends[0] + (np.array(gammas) + 0.5) / 5.5 * (ends[1] - ends[0]), 1e-6)
    for i, gamma in enumerate(gammas):
        point = grid_search(logits, labels, [gamma], [found.temperatures[i]], criterion=criterion)
        np.testing.assert_allclose(found.ece[i], point.ece[0, 0], atol=1e-6)
        np.testing.assert_allclose(found.nll[i], point.nll[0, 0], atol=1e-6)
    values = found.nll if criterion == "nll" else found.ece
    assert found.value == values.min()
    best = gammas.index(float(found.gamma))
    assert (found.value, found.temperature) == (values[best], found.temperatures[best])


def test_ties_of_a_line_go_to_the_temperature_nearest_one():
    logits, labels = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    of_line = line_search(logits, labels, np.linspace(-0.5, 1, 400), np.linspace(0.5, 3, 400), criterion="nll")
    assert of_line.nll.shape == (400,)  # 1,200 points, where the grid's 160,000 are too many
    with pytest.raises(InputError, match="160000 points"):
        grid_search(logits, labels, np.linspace(-0.5, 1, 400), np.linspace(0.5, 3, 400))
    found = line_search(logits, labels, (1.0, 0.0), (3.0, 1.0))
    assert (found.gamma, found.temperature) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gammas": (-1.0,)}, r"gammas are \[-1.\]: give a list of numbers above -1 and at most 100"),
        ({"gammas": ()}, "gammas are .*: give a list"),
        ({"temperatures": (0.0, 1.0)}, "temperatures are .*: give a list of numbers above 0"),
        ({"criterion": "acc"}, "criterion is 'acc': choose one of ece, nll, adaptive_ece"),
        ({"mask": np.zeros(6, bool)}, "the mask leaves no example"),
        ({"mask": np.ones(6)}, "mask holds float64: give truth values, or how often each example counts as weights="),
        ({"num_bins": 0}, "num_bins is 0"),
    ],
)
def test_bad_grids_give_one_line(options, message):
    with pytest.raises(InputError, match=message):
        grid_search(*outputs(6, 5), **options)
