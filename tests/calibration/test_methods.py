"""Methods, what is fitted by them, and calibrator.json, which is read back as it was or refused in one line."""

import copy
import functools
import importlib.util
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outputs import outputs
from scipy import special

from focalgeo import calibration
from focalgeo.calibration import CRITERIA, METHODS, Fitted, Method, calibrator_json, fit, fit_methods, read_calibrator
from focalgeo.calibration.methods import fitting
from focalgeo.types import InputError

GAMMAS = (0.0, -0.5, 0.5, 2.0)
TEMPERATURES = tuple(np.arange(0.25, 4, 0.25))
GRID = {name: METHODS[name] for name in ("temperature_scaling", "focal_temperature_scaling")}
SETTINGS = {"gammas": GAMMAS, "temperatures": TEMPERATURES, "trained_gamma": 3.0, "num_bins": 10}
PARAMS = {"gamma": np.float32(0.51), "temperature": np.float32(1.37), "converged": np.True_}
FOCAL = Fitted(METHODS["focal_temperature_scaling"], "nll", PARAMS, 4)


predictions = functools.partial(outputs, 400, 4, sharpness=1.6)
LOGITS = predictions()[0][:40]
OF_FOUR = {name: method for name, method in METHODS.items() if method.most_classes != 2}


@functools.cache
def fitted_by(name):
    given = predictions() if name in OF_FOUR else outputs(400, 2)
    return fit(name, *given, **{"trained_gamma": 1.5} if "trained_gamma" in METHODS[name].options else {})


def names_of(fits):
    return [(fitted.method.name, fitted.criterion) for fitted in fits]


def mixed(space, softmax):
    """The application of a method of a share of the uniform distribution, which knows nothing of -inf."""
    return lambda params, logits: space.log(
        (1 - params["share"]) * softmax(logits, axis=-1) + params["share"] / logits.shape[-1]
    )


def test_two_functions_alone_serve_what_is_promised_of_all_or_say_in_a_line_what_they_lack():
    method = Method("mixing", "Mixing", lambda *_, **__: {"share": np.float32(0.4)}, mixed(jnp, jax.nn.softmax))
    logits = np.float32([[0, 1, 2], [1, -np.inf, 0], [-np.inf, -np.inf, 3]])
    p = special.softmax(logits[1, [0, 2]].astype(float)) * 0.6 + 0.4 / 3
    (fitted,) = fit_methods({"mixing": method}, logits, np.int32([0, 2, 2]), settings={})
    expected = [[p[0] / p.sum(), 0, p[1] / p.sum()], [0, 0, 1]]
    np.testing.assert_allclose(fitted.predict_proba(logits)[1:], expected, atol=1e-6)
    np.testing.assert_allclose(np.exp(jax.jit(fitted.predict_log_proba)(logits))[1:], expected, atol=1e-6)
    assert json.loads(fitted.to_json())["parameters"] == {"share": 0.4}
    with pytest.raises(InputError, match="mixing has no lines of NumPy alone: take to_onnx or to_torch"):
        fitted.to_numpy()
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        np.testing.assert_allclose(fitted.to_torch()(torch.from_numpy(logits)).exp()[1:], expected, atol=1e-6)
    on_host = fitted._replace(method=method._replace(apply=mixed(np, special.softmax)))
    np.testing.assert_allclose(on_host.predict_proba(logits)[1:], expected, atol=1e-6)
    with pytest.raises(InputError, match="mixing cannot be traced for jit, ONNX and PyTorch: write its apply in jax"):
        jax.jit(on_host.predict_log_proba)(logits)


def test_short_names_are_methods_and_a_fit_reads_as_its_numbers():
    assert {fitting.named(name).name for name in fitting.ALIASES} == {*fitting.ALIASES.values()}
    assert repr(FOCAL) == "<Fitted Focal temperature scaling: criterion nll, gamma 0.51, temperature 1.37>"
    assert repr(fitted_by("vector_scaling")).endswith(", scales (4,), biases (4,)>")
    assert "criterion nll, share_of_uncalibrated" in repr(fitted_by("stacking"))


def test_every_method_is_fitted_by_each_of_its_criteria_in_the_order_of_the_table():
    assert all(name == method.name for name, method in METHODS.items())
    every = [(name, criterion) for name, method in OF_FOUR.items() for criterion in method.criteria or (None,)]
    assert names_of(fit_methods(OF_FOUR, *predictions(), settings={**SETTINGS, "criteria": CRITERIA})) == every
    usual = [pair for pair in every if pair[1] in ("nll", "ece", None)]
    assert names_of(fit_methods(OF_FOUR, *predictions(), settings=SETTINGS)) == usual
    by_ece = fit_methods(OF_FOUR, *predictions(), settings={**SETTINGS, "criteria": ("ece",)})
    assert {fitted.criterion for fitted in by_ece if fitted.method.criteria == ("nll",)} == {"nll"}


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece"])
def test_temperature_scaling_by_an_ece_is_the_row_of_gamma_0_of_the_same_search(criterion):
    logits, labels = predictions()
    keep = np.arange(400) % 5 > 0
    search = calibration.grid_search(logits, labels, GAMMAS, TEMPERATURES, criterion=criterion, num_bins=10, mask=keep)
    for fitted in fit_methods(GRID, logits, labels, settings={**SETTINGS, "criteria": (criterion,)}, mask=keep):
        gamma = 0 if fitted.method.name == "temperature_scaling" else None
        best = calibration.best_point(search, GAMMAS, TEMPERATURES, criterion=criterion, gamma=gamma)
        assert fitted.params["temperature"] == best.temperature
        assert fitted.params.get("gamma", 0) == best.gamma


@pytest.mark.parametrize("name", ["loss_implied_temperature_scaling", "loss_implied_map"])
def test_a_method_that_needs_the_gamma_of_the_training_asks_for_it(name):
    with pytest.raises(InputError, match=f"{name} needs the gamma .*: give trained_gamma"):
        fit(name, *predictions())


def test_a_fit_that_did_not_converge_warns_once_where_values_are_concrete():
    logits, _ = predictions()
    with pytest.warns(calibration.ConvergenceWarning) as told:
        fit("vector_scaling", logits, logits.argmax(1))
    assert [str(warning.message) for warning in told] == [
        "vector scaling: its fit ended at the end of the range searched (temperature 0.01): look at the labels, give"
        " more examples or take another method"
    ]
    fit_methods(GRID, logits, logits.argmax(1), settings=SETTINGS)  # of the command, which has a line of its own


def test_methods_that_promise_it_keep_the_class_and_the_others_say_so():
    logits, labels = predictions()
    labels = np.where(labels == 1, 2, labels)  # class 1 is predicted and never right
    changed = set()
    for fitted in fit_methods(OF_FOUR, logits, labels, settings=SETTINGS):
        log_probs = np.asarray(fitted.predict_log_proba(logits))
        np.testing.assert_allclose(np.exp(np.float64(log_probs)).sum(axis=1), 1, atol=1e-5)
        if not np.array_equal(log_probs.argmax(axis=1), logits.argmax(axis=1)):
            changed.add(fitted.method.name)
    assert changed == {name for name, method in OF_FOUR.items() if not method.keeps_class}


def test_methods_of_the_same_gamma_and_temperature_agree_to_the_bit():
    logits, _ = outputs(1000, 10)
    apply = {name: METHODS[name].apply for name in METHODS}
    for temperature in np.float32([0.3, 1.0, 1.37]):
        plain = apply["temperature_scaling"]({"temperature": temperature}, logits)
        focal = {"gamma": np.float32(0), "temperature": temperature}
        np.testing.assert_array_equal(plain, apply["focal_temperature_scaling"](focal, logits))
        if temperature == 1:
            np.testing.assert_array_equal(plain, apply["uncalibrated"]({}, logits))
            np.testing.assert_allclose(plain, jax.nn.log_softmax(logits), atol=2e-5)
    numbers = {"gamma": np.float32(2), "temperature": np.float32(1)}
    implied, focal = (apply[name](numbers, logits) for name in ("loss_implied_map", "focal_temperature_scaling"))
    np.testing.assert_array_equal(implied, focal)


@pytest.mark.filterwarnings("ignore::focalgeo.calibration.ConvergenceWarning")
def test_a_number_at_the_end_of_its_grid_has_not_converged():
    by_ece = functools.partial(fit, "temperature_scaling", *predictions(), criterion="ece")
    found = by_ece(temperatures=(0.5, 1.0))
    assert (found.params["temperature"], found.converged) == (1, False)
    assert by_ece(temperatures=(0.5,)).converged
    with pytest.raises(InputError, match=r"gamma 0.0 is not on the grid"):
        by_ece(gammas=(1.0,), temperatures=(0.5,))
    focal = functools.partial(fit, "focal_temperature_scaling", *predictions(), temperatures=TEMPERATURES)
    for criterion in ("ece", "line_search"):
        for gammas in ((0.0, 0.01), (-0.01, 0.0), (0.0, -0.5, 0.5, 2.0)):
            found = focal(criterion=criterion, gammas=gammas)
            assert found.converged == (min(gammas) < found.params["gamma"] < max(gammas))


@pytest.mark.parametrize(
    ("logits", "says"),
    [
        ([[0.0, np.nan, 1.0, 2.0]], "logits of 1 examples are not finite, the first in row 0"),
        (np.ones((1, 3)), r"logits: has shape \(1, 3\) but expected \(\.\.\., 4\)"),
    ],
)
def test_logits_that_are_none_are_refused(logits, says):
    with pytest.raises(InputError, match=says) as raised:
        FOCAL.predict_log_proba(logits)
    assert "\n" not in str(raised.value)


def test_parameters_are_plain_numbers_and_lists_with_the_fewest_digits():
    assert FOCAL.parameters == {"gamma": 0.51, "temperature": 1.37}
    matrix = FOCAL._replace(params={"weights": np.float32([[1, 0.1], [2, 0.3]]), "converged": np.False_})
    assert matrix.parameters == {"weights": [[1, 0.1], [2, 0.3]]}
    assert not matrix.converged


def test_what_cannot_be_written_is_one_line():
    with pytest.raises(InputError, match="the number of classes is not known: give num_classes"):
        calibrator_json(FOCAL._replace(num_classes=None))
    with pytest.raises(InputError, match="temperature is nan"):
        FOCAL._replace(params={"temperature": np.float32(np.nan)}).to_json()


@pytest.mark.parametrize("name", METHODS)
def test_what_is_fitted_is_saved_copied_and_pickled_and_predicts_the_same(tmp_path, name):
    """Pickled as joblib does, and as processes hand it on."""
    fitted, path = fitted_by(name), tmp_path / "calibrator.json"
    path.write_text(json.dumps(calibrator_json(fitted, inputs={"val": {"checksum": "sha256:1"}}, fits=[fitted])))
    found = read_calibrator(path)
    logits = LOGITS[:, : fitted.num_classes]
    for again in (found, copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(again.predict_log_proba(logits), fitted.predict_log_proba(logits))
        assert again.to_json() == fitted.to_json()
    written = json.loads(path.read_text())
    assert written["inputs"] == {"val": {"checksum": "sha256:1"}}
    ((listed,), converged) = written["fits"], {"converged": fitted.converged} if "converged" in fitted.params else {}
    assert listed == {"method": name, "criterion": fitted.criterion, "parameters": {**found.parameters, **converged}}


def refused(path, calibrator, changes):
    path.write_text(json.dumps({**calibrator, **changes}))
    with pytest.raises(InputError, match=r"calibrator\.json") as raised:
        read_calibrator(path)
    assert "\n" not in str(raised.value)


def test_a_calibrator_is_written_so_and_a_corrupt_one_is_refused(tmp_path):
    path, calibrator = tmp_path / "calibrator.json", json.loads(FOCAL.to_json())
    assert calibrator == {
        "format": "focalgeo-calibrator",
        "version": 2,
        "method": "focal_temperature_scaling",
        "criterion": "nll",
        "num_classes": 4,
        "parameters": {"gamma": 0.51, "temperature": 1.37},
        "inputs": {},
        "fits": [],
    }
    for changes in (
        {"version": 1},
        {"format": "other"},
        {"method": "temperature"},
        {"criterion": "mse"},
        {"num_classes": 1},
        {"parameters": {"gamma": 1.0}},
        {"parameters": {"gamma": "one", "temperature": 1}},
        {"parameters": {"gamma": 1.0, "temperature": 0}},
        {"parameters": {"gamma": 1.0, "temperature": [1.0, 2.0]}},
        {"parameters": {"gamma": float("nan"), "temperature": 1}},
    ):
        refused(path, calibrator, changes)
    path.write_text("[" * 10**5)
    for place in (path, tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(InputError):
            read_calibrator(place)


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("focal_temperature_scaling", {"gamma": -0.8432209, "temperature": 2.290208}, [-0.63330173, -1.81823492]),
        (
            "vector_scaling",
            {
                "temperature": 2.28861,
                "scales": [0.9129785, 1.0070025, 1.0782524],
                "biases": [-0.11977913, -0.021075064, 0.14078295],
            },
            [-0.66899389, -1.74340272],
        ),
        (
            "histogram_binning",
            {
                "edges": [0.50345373, 1.2269752, 1.9347196],
                "accuracies": [0.44230768, 0.59615386, 0.59615386, 0.6730769],
            },
            [-0.5172565, -2.09210730],
        ),
    ],
)
def test_a_file_of_version_2_gives_the_numbers_that_it_gave_before_the_rooms(tmp_path, method, parameters, expected):
    """Written by focalgeo of commit 2d99825, with its log-probabilities of the first class."""
    stored = {"format": "focalgeo-calibrator", "version": 2, "method": method, "criterion": "nll", "num_classes": 3}
    path = tmp_path / "calibrator.json"
    path.write_text(json.dumps(stored | {"parameters": parameters, "inputs": {}, "fits": []}))
    logits = np.float32([[1, 0, -2], [0, 3, 0.5]])
    np.testing.assert_allclose(read_calibrator(path).predict_log_proba(logits)[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "parameter", "change"),
    [
        ("vector_scaling", "scales", lambda x: x[:2]),
        ("structured_matrix_scaling", "weights", lambda x: [x[0][:2], *x[1:]]),
        ("ensemble_temperature_scaling", "shares", lambda x: [1.5, -0.5, 0]),
        ("histogram_binning", "edges", lambda x: x[:-1]),
        ("isotonic", "probabilities", lambda x: [*x[1:-1], "a"]),
        ("binary_isotonic", "probabilities", lambda x: x[:-1]),
        ("platt_scaling", "a", lambda x: [x, x]),
    ],
)
def test_arrays_of_another_shape_or_out_of_range_are_one_line(tmp_path, name, parameter, change):
    calibrator = json.loads(fitted_by(name).to_json())
    parameters = {**calibrator["parameters"], parameter: change(calibrator["parameters"][parameter])}
    refused(tmp_path / "calibrator.json", calibrator, {"parameters": parameters})
