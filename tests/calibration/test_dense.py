"""Dense outputs: fits and metrics of images in parts against those of all pixels at once."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

from focalgeo import calibration
from focalgeo.rows import Difference, Fit, Metric, select
from focalgeo.types import DataWarning, InputError

IGNORED = 255


def drawn(images=12, height=20, width=15, classes=5, *, seed=0, scale=2.0):
    """Logits [images, height, width, classes] that are too large by `scale`, and uint8 labels, a tenth ignored."""
    rng = np.random.default_rng(seed)
    of_image = rng.normal(1, 0.3, (images, 1, 1, 1))
    truth = rng.normal(size=(images, height, width, classes)) * 2
    labels = (truth * of_image + rng.gumbel(size=truth.shape)).argmax(-1).astype(np.uint8)
    labels[rng.random(labels.shape) < 0.1] = IGNORED
    labels[1] = IGNORED  # an image of which nothing counts
    return (scale * truth).astype(np.float16), labels


def flat(logits, labels):
    counted = labels != IGNORED
    image = np.broadcast_to(np.arange(len(labels))[:, None, None], labels.shape)[counted]
    return logits[counted].astype(np.float32), labels[counted].astype(np.int32), image


@pytest.fixture(scope="module")
def fitted():
    return calibration.dense(drawn(), drawn(seed=1), ignore_label=IGNORED)


def test_the_temperature_is_that_of_all_pixels_at_once(fitted):
    logits, labels, _ = flat(*drawn())
    whole = calibration.fit("temperature_scaling", logits, labels)
    chosen = fitted.choice.fitted
    assert_allclose(chosen.params["temperature"], whole.params["temperature"], rtol=2e-5)
    assert chosen.converged
    assert chosen.to_json()
    (row,) = select(fitted.rows, Fit)
    assert (row.value, row.n) == (pytest.approx(float(whole.params["temperature"]), rel=2e-5), len(labels))
    images = drawn()[0].astype(np.float32)
    flat_rows = chosen.predict_log_proba(images.reshape(-1, images.shape[-1]))
    assert_allclose(chosen.predict_log_proba(images).reshape(flat_rows.shape), flat_rows, atol=1e-6)


def test_metrics_are_those_of_all_pixels_and_intervals_those_of_whole_images(fitted):
    logits, labels, image = flat(*drawn(seed=1))
    temperature = float(fitted.choice.fitted.params["temperature"])
    for method, at in (("uncalibrated", 1.0), ("temperature_scaling", temperature)):
        log_probs = calibration.temperature_scaling(logits, at)
        for name in ("accuracy", "nll", "brier", "ece"):
            metric = calibration.METRICS[name].function
            whole = calibration.bootstrap(metric, log_probs, labels, jax.random.PRNGKey(0), 2000, clusters=image)
            (row,) = select(fitted.rows, Metric, name=name, method=method, split="test")
            assert_allclose(row.value, whole.value, atol=2e-6)
            assert row.n == whole.n
            width = float(whole.high - whole.low)
            assert_allclose([row.low, row.high], [whole.low, whole.high], atol=0.12 * width)
    pairs = (calibration.temperature_scaling(logits, at) for at in (temperature, 1.0))
    paired = calibration.paired_bootstrap(calibration.nll, *pairs, labels, jax.random.PRNGKey(0), 2000, clusters=image)
    (row,) = select(fitted.rows, Difference, name="nll_difference")
    assert_allclose(row.value, paired.difference, atol=2e-6)
    assert_allclose(row.high - row.low, paired.high - paired.low, rtol=0.1)


def test_files_and_classes_first_give_the_same_numbers(fitted, tmp_path):
    splits = []
    for seed in (0, 1):
        logits, labels = drawn(seed=seed)
        paths = tmp_path / f"z{seed}.npy", str(tmp_path / f"y{seed}.npy")
        np.save(paths[0], np.moveaxis(logits, -1, 1))
        np.save(paths[1], labels.astype(np.int64))
        splits.append(paths)
    again = calibration.dense(*splits, class_axis=1, ignore_label=IGNORED)
    assert again.rows == fitted.rows


def test_a_fit_at_the_end_of_its_range_is_not_chosen():
    labels = drawn()[1]
    right = np.where(labels == IGNORED, 0, labels)
    val = 4 * np.eye(5, dtype=np.float32)[right], right
    found = calibration.dense(val, drawn(seed=1), ignore_label=IGNORED)
    assert found.choice.fitted.method.name == "uncalibrated"
    assert list(found.choice.refused) == ["temperature_scaling"]
    assert (found.fits[1].converged, found.fits[1].params["temperature"]) == (False, pytest.approx(0.01))


def test_what_speaks_against_the_outputs_is_said_and_faults_name_split_and_image():
    logits, labels = drawn(seed=1)
    with pytest.warns(DataWarning, match="Columns of test seem"):
        found = calibration.dense(drawn(), (logits[..., [1, 2, 3, 4, 0]], labels), ignore_label=IGNORED)
    assert "another order" in found.suspicions[0]
    logits[2][tuple(np.argwhere(labels[2] != IGNORED)[0])] = np.nan
    with pytest.raises(InputError, match=r"^test, image 2: logits of 1 examples are not finite"):
        calibration.dense(drawn(), (logits, labels), ignore_label=IGNORED)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"class_axis": 1}, "name the classes' axis"),
        ({"ignore_label": None}, "255"),
        ({"num_resamples": 1}, "num_resamples"),
        ({"val": (drawn()[0], drawn()[1][:3])}, "name the classes' axis"),
        ({"val": (np.float32(drawn()[0]) + np.nan, drawn()[1])}, "not finite"),
        ({"val": ("z.npz", "y.npy")}, "z.npz is no .npy, which alone is read in parts"),
        ({"val": ("gone.npy", "y.npy")}, "gone.npy"),
    ],
)
def test_what_cannot_be_read_is_one_line(change, says):
    arguments = {"val": drawn(), "test": drawn(seed=1), "ignore_label": IGNORED} | change
    with pytest.raises(InputError) as caught:
        calibration.dense(**arguments)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
