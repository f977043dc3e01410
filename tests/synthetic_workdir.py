"""A workdir as the main job leaves it, of invented numbers that fit together: rows by their kinds, no training."""

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from focalgeo import records
from focalgeo.config import load_config as config_file
from focalgeo.rows import (
    OUTCOMES,
    AttributionPart,
    DensityBin,
    Diagnostic,
    Difference,
    Eigenvalue,
    Fit,
    HistogramBin,
    Metric,
    ReliabilityBin,
    Scalar,
    Seconds,
    Trace,
    tagged,
)

METHODS = {
    "uncalibrated": {"title": "Uncalibrated", "criteria": [], "keeps_class": True},
    "temperature_scaling": {"title": "Temperature scaling", "criteria": ["ece", "nll"], "keeps_class": True},
    "focal_temperature_scaling": {
        "title": "Focal temperature scaling",
        "criteria": ["ece", "nll"],
        "keeps_class": True,
    },
    "loss_implied_map": {"title": "Loss-implied map", "criteria": [], "keeps_class": True},
}
SHARE = {"unit": "%", "scale": 100.0, "digits": 2, "best": "low"}
METRICS = {
    "accuracy": {**SHARE, "title": "Accuracy", "note": "higher is better", "best": "high"},
    "ece": {**SHARE, "title": "ECE", "note": "equal-width bins"},
    "adaptive_ece": {**SHARE, "title": "Adaptive ECE", "note": "equal-mass bins"},
    "nll": {"title": "NLL", "unit": "nats", "note": "", "scale": 1.0, "digits": 4, "best": "low"},
    "brier": {"title": "Brier score", "unit": "", "note": "", "scale": 1.0, "digits": 4, "best": "low"},
}
NAMES = {"methods": METHODS, "metrics": METRICS}
CONFIG = config_file(Path(__file__).parent.parent / "configs" / "digits.py").to_dict()
MANIFEST = {
    "config": CONFIG,
    "loss_values": ["gamma"],
    **NAMES,
    "versions": {"python": "3.11.7", "jax": "0.10.2", "flax": "0.12.9", "numpy": "2.4.6", "focalgeo": "0.1.0"},
    "git": "edbc349",
    "devices": ["cpu:0", "cpu:1"],
    "platform": "cpu",
    "data": {"name": "digits", "checksum": "sha256:9c1f", "train": 1257, "val": 180, "test": 360},
    "command": ["python", "-m", "focalgeo.run", "--config=configs/digits.py", "--workdir=runs/digits"],
    "created": "2025-11-21T01:30:00+00:00",
    "parameters": 56394,
}
# (method, criterion) -> how far accuracy lies above confidence, and what was fitted
COLUMNS = {
    ("uncalibrated", None): (0.08, {}),
    ("temperature_scaling", "ece"): (0.02, {"calibration_gamma": 0.0, "temperature": 0.42}),
    ("temperature_scaling", "nll"): (0.03, {"calibration_gamma": 0.0, "temperature": 0.45}),
    ("focal_temperature_scaling", "ece"): (0.01, {"calibration_gamma": 1.0, "temperature": 0.8}),
    ("focal_temperature_scaling", "nll"): (0.02, {"calibration_gamma": 0.5, "temperature": 0.6}),
    ("loss_implied_map", None): (0.05, {}),
}
COUNTS = np.array([0, 0, 0, 1, 1, 2, 3, 5, 7, 11, 16, 24, 40, 70, 180])  # examples in each bin, 360 in all
GAMMAS = np.array([0, 0.5, 1, 2, 3, 5], np.float32)
TEMPERATURES = np.arange(1, 101, dtype=np.float32) / 20


def reliability_rows(gap, *, split="test", **fields):
    """Bins whose accuracy lies `gap` above their confidence, as far as it can."""
    for number in np.flatnonzero(COUNTS).tolist():
        confidence = (number + 0.5) / 15
        accuracy = min(confidence + gap, 1.0)
        ends = {"low": max(accuracy - 0.1, 0.0), "high": min(accuracy + 0.1, 1.0)}
        edges = {"lower": number / 15, "upper": (number + 1) / 15, "confidence": confidence}
        yield ReliabilityBin(
            "reliability", accuracy, bin=number, n=int(COUNTS[number]), split=split, **ends, **edges, **fields
        )


def metric_rows(gap, *, split="test", n=360, **fields):
    """Metrics of which the ECE is that of the bins."""
    bins = list(reliability_rows(gap))
    ece = sum(row.n * abs(row.value - row.confidence) for row in bins) / COUNTS.sum()
    values = {"accuracy": 0.95, "ece": ece, "adaptive_ece": 0.93 * ece, "nll": 0.2 + gap, "brier": 0.1 + gap / 2}
    for name, value in values.items():
        yield Metric(name, value, 0.9 * value, min(1.2 * value, 1.0), n, split, **fields)


def method_rows(method, criterion, gap, fitted):
    """All that a method has after training."""
    fields = {"method": method, "criterion": criterion}
    for name, value in fitted.items():
        yield Fit(name, value, 180, "val", **fields)
    yield from metric_rows(gap, split="val", n=180, **fields)
    yield from metric_rows(gap, **fields)
    yield from reliability_rows(gap, **fields)
    pairs = [("temperature_scaling", -0.01)] if criterion and method != "temperature_scaling" else []
    pairs += [("uncalibrated", -0.05)] if method != "uncalibrated" else []
    for against, value in pairs:
        for name in ("ece_difference", "nll_difference"):
            yield Difference(name, value, value - 0.02, value + 0.02, 0.05, 360, "test", against=against, **fields)


def calibration_rows(columns=COLUMNS):
    return [row for (name, by), (gap, fitted) in columns.items() for row in method_rows(name, by, gap, fitted)]


def training_rows():
    """A row of four batches each, and val after each epoch of 20."""
    rows = []
    for step in range(4, 601, 4):
        loss = 1.3 * np.exp(-step / 90) + 0.03 + 0.02 * (step % 7)
        train = {"loss": loss, "accuracy": max(0.0, 1 - loss / 2.2), "examples_per_second": 9000.0}
        train["learning_rate"] = 0.05 * 0.1 ** (step > 300) * 0.1 ** (step > 450)
        val = {"loss": 1.25 * np.exp(-step / 95) + 0.07, "accuracy": 0.96 - 0.9 * np.exp(-step / 60)}
        for split, values in {"train": train, **({} if step % 20 else {"val": val})}.items():
            tags = {"gamma": 3.0, "seed": 0, "step": step, "epoch": step / 20}
            rows += [Scalar(name, float(value), split=split, **tags) for name, value in values.items()]
    return rows


def curvature_rows(scale=1.0, **tags):
    """Largest eigenvalue and trace of both losses."""
    values = {"cross_entropy": (212.4, 0.31, 1843.0, 61.0), "focal_loss": (41.7, 0.06, 402.0, 17.5)}
    for loss, (top, residual, trace, error) in values.items():
        of = {"n": 180, "split": "val", "loss": loss, **tags}
        yield Eigenvalue("lambda_max", top * scale, residual, 64, converged=True, **of)
        ends = {"low": scale * trace - 1.96 * error, "high": scale * trace + 1.96 * error}
        yield Trace("trace", trace * scale, stderr=error, probes=60, estimator="hutch++", **ends, **of)


def epoch_curvature_rows():
    return [row for step in (60, 120, 180) for row in curvature_rows(1 + step / 100, step=step, epoch=step / 20)]


def diagnosis_rows():
    """As after epochs 1, 5 and 30: examples are learnt, those still wrong grow sure, gradients shrink."""
    rows = []
    for epoch in (1, 5, 30):
        found = [Diagnostic("weight_norm", 2 + float(np.log(epoch)))]
        for split, n in (("train", 1258), ("val", 180)):
            found += [*_mean_rows(epoch, split, n), *_gradient_rows(epoch, split, n), *_share_rows(split)]
        rows += tagged(found, step=20 * epoch, epoch=float(epoch))
    return rows


def _mean_rows(epoch, split, n):
    values = {"nll": (0.5 / epoch, 1.5 + epoch / 10), "entropy": (0.4 / epoch, 1.2 - epoch / 60)}
    values |= {"true_class_probability": (1 - 0.3 / epoch, 0.3 / epoch), "gradient_norm": (1 / epoch, 3.0)}
    wrong = n // (2 * epoch)
    for name, means in values.items():
        for outcome, value, count in zip(OUTCOMES, means, (n - wrong, wrong), strict=True):
            yield Diagnostic(name, value, count, split, outcome=outcome)
        yield Diagnostic(name, (means[0] * (n - wrong) + means[1] * wrong) / n, n, split)


def _gradient_rows(epoch, split, n):
    edges = np.concatenate([[0.0], 10.0 ** (np.arange(-48, 17) / 4)])
    shares = np.exp(-0.5 * ((np.arange(65) - 50 + 8 * np.log(epoch)) / 5) ** 2)
    for number in np.flatnonzero(shares > 1e-3).tolist():
        share, lower, upper = (float(each) for each in (shares[number], edges[number], edges[number + 1]))
        yield HistogramBin("gradient_norm_histogram", share / shares.sum(), number, lower, upper, n, split)


def _share_rows(split):
    return [replace(row, share=row.n / int(COUNTS.sum())) for row in reliability_rows(-0.02, split=split)]


def density_rows():
    edges = np.sinh(np.linspace(-5, 7.6, 61)).tolist()
    for loss, shift in (("cross_entropy", 0.0), ("focal_loss", 1.6)):
        shares = np.exp(-0.5 * (np.linspace(-5, 7.6, 60) + shift) ** 2 / 0.4) + 1e-5 * (np.arange(60) % 7 == 0)
        for index, share in enumerate((shares / shares.sum()).tolist()):
            ends = edges[index : index + 2]
            yield DensityBin("spectral_density", share, 0.1 * share, index, *ends, 10, 400, 180, "val", loss)


def attribution_rows(**beyond):
    """Parts of both losses; `beyond` replaces fields of what the training loss adds to cross-entropy's scale."""
    of = {"split": "val", "n": 180}
    plain = {"whole": 1843.0, "gauss_newton": 1830.0, "residual": 13.0}
    own = {"whole": 402.0, "gauss_newton": 395.0, "softmax_weighted": 250.0, "rank_one": 145.0, "residual": 7.0}
    own |= {"scale_only": 110.0, "beyond_scaling": 292.0}
    rows = []
    for loss, parts in (("cross_entropy", plain), ("focal_loss", own)):
        for part, value in parts.items():
            where = {"part": part, "loss": loss, **of}
            error = {"stderr": 0.03 * value, "low": 0.94 * value, "high": 1.06 * value, "probes": 60}
            row = AttributionPart("attribution", "trace", value=value, **where, **error)
            rows.append(replace(row, **beyond) if part == "beyond_scaling" else row)
            rows.append(AttributionPart("attribution", "lambda_max", value=value / 9, **where))
        free = plain["whole"] / 20
        rows.append(Trace("scale_free_trace", free, free - 1, free + 1, stderr=0.5, probes=60, loss=loss, **of))
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        rows.append(Diagnostic("true_class_probability", quantile**0.1, quantile=quantile, **of))
    for name, value in {"share_raised": 0.12, "share_negative": 0.01, "mean_weight": 110 / 1843}.items():
        rows.append(Diagnostic(name, value, loss="focal_loss", **of))
    return rows


def search_arrays():
    """A valley of one best temperature for each gamma, deepest at gamma = 1."""
    gammas, temperatures = np.meshgrid(GAMMAS, TEMPERATURES, indexing="ij")
    ece = 0.01 + 0.05 * np.log(temperatures / (0.42 + 0.38 * gammas)) ** 2 + 0.005 * (gammas - 1) ** 2
    return {"gammas": GAMMAS, "temperatures": TEMPERATURES, "ece": np.minimum(ece, 0.9), "nll": 0.2 + ece}


def write_workdir(workdir, *, manifest=MANIFEST, columns=COLUMNS, extra=()):
    """Write manifest, rows and search of a finished run; `extra` rows stand after its own."""
    seconds = {"compile": 3.0, "evaluate": 4.5, "prepare": 2.2, "train": 12.34}
    records.write_manifest(workdir, manifest)
    records.append_rows(workdir, [*training_rows(), *calibration_rows(columns), *epoch_curvature_rows()])
    records.append_rows(workdir, [*curvature_rows(), *attribution_rows(), *density_rows(), *diagnosis_rows()])
    records.append_rows(workdir, [*extra, *(Seconds("seconds", phase, took) for phase, took in seconds.items())])
    records.write_arrays(workdir, "search", search_arrays())
