"""Workdirs as the jobs leave them, of invented numbers that fit together: rows by their kinds, no training."""

import numpy as np
from msgspec.structs import replace

from focalgeo import records
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
    Sharpness,
    Trace,
    tagged,
)

SHARE = {"unit": "%", "scale": 100.0, "digits": 2, "best": "low"}
METRICS = {
    "accuracy": {**SHARE, "title": "Accuracy", "note": "higher is better", "best": "high"},
    "ece": {**SHARE, "title": "ECE", "note": "equal-width bins"},
    "nll": {"title": "NLL", "unit": "nats", "digits": 4},
    "brier": {"title": "Brier score"},
}
TITLES = {"uncalibrated": "Uncalibrated", "temperature_scaling": "Temperature scaling"}
TITLES |= {"focal_temperature_scaling": "Focal temperature scaling", "vector_scaling": "Vector scaling"}
TITLES["loss_implied_map"] = "Loss-implied map"
METHODS = {name: {"title": title, "keeps_class": name != "vector_scaling"} for name, title in TITLES.items()}
NAMES = {"methods": METHODS, "metrics": METRICS}
CONFIG = {
    "data": {"name": "digits", "train_size": None},
    "loss": {"name": "focal_loss", "gamma": 3.0, "trace_penalty": 0.0},
    "evaluation": {"num_bins": 15, "num_resamples": 1000, "methods": [], "metrics": ["accuracy", "ece"]},
    "curvature": {"examples": 180},
    "list": list(range(20)),
}
MANIFEST = {
    **NAMES,
    "config": CONFIG,
    "loss_values": ["gamma"],
    "data": {"name": "digits", "checksum": "sha256:9c1f", "train": 1257, "val": 180, "test": 360},
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
    "command": ["python", "-m", "focalgeo.run", "--workdir=runs/my digits"],
    "created": "2025-11-21T01:30:00+00:00",
    "platform": "cpu",
}
# (method, criterion) -> how far accuracy lies above confidence, and what was fitted
COLUMNS = {
    ("uncalibrated", None): (0.08, {}),
    ("temperature_scaling", "ece"): (0.02, {"calibration_gamma": 0.0, "temperature": 0.42}),
    ("temperature_scaling", "nll"): (0.03, {"calibration_gamma": 0.0, "temperature": 0.45}),
    ("focal_temperature_scaling", "nll"): (-0.02, {"calibration_gamma": 0.5, "temperature": 0.6}),
    ("vector_scaling", "nll"): (0.005, {"temperature": 0.45, "norm_of_scales": 1.25}),
    ("loss_implied_map", None): (-0.05, {}),
}
COUNTS = np.array([0, 0, 0, 1, 1, 2, 3, 5, 7, 11, 16, 24, 40, 70, 180])  # examples in each bin, 360 in all


def bins_of(gap, *, name="reliability", **fields):
    """Bins whose accuracy lies `gap` above their confidence, as far as it can."""
    fields = {"split": "test", **fields}
    for number in np.flatnonzero(COUNTS).tolist():
        confidence = (number + 0.5) / 15
        value = min(confidence + gap, 1.0)
        ends = (max(value - 0.1, 0.0), min(value + 0.1, 1.0))
        edges = {"lower": number / 15, "upper": (number + 1) / 15, "confidence": confidence, "n": int(COUNTS[number])}
        yield ReliabilityBin(name, value, *ends, number, **edges, **fields)


def metric_rows(gap, **fields):
    """Metrics of which the ECE is that of the bins."""
    fields = {"split": "test", "n": 360, **fields}
    bins = list(bins_of(gap))
    ece = sum(row.n * abs(row.value - row.confidence) for row in bins) / COUNTS.sum()
    values = {"accuracy": 0.95, "ece": ece, "nll": 0.3 - gap, "brier": 0.1 + gap / 2}
    return [Metric(name, float(value), 0.9 * value, 1.05 * value, **fields) for name, value in values.items()]


def difference(column, against, low, high, *, name="nll", n=360, split="test", p_value=0.01, **fields):
    """A paired difference between two fits."""
    numbers = ((low + high) / 2, low, high, p_value, n)
    pair = {"method": column[0], "criterion": column[1], "against": against, **fields}
    return Difference(f"{name}_difference", *numbers, split, **pair)


def method_rows(columns=COLUMNS, splits=("test", "val")):
    """All that the methods have after training, with differences to the first two."""
    rows = []
    for (method, criterion), (gap, fitted) in columns.items():
        fields = {"method": method, "criterion": criterion}
        rows += [Fit(name, value, 180, "val", **fields) for name, value in fitted.items()]
        rows += [row for split in splits for row in metric_rows(gap, split=split, **fields)]
        rows += bins_of(gap, split=splits[0], **fields)
        for against, shift in (("temperature_scaling", 0.01), ("uncalibrated", 0.05)):
            known = method == "loss_implied_map" and against != "uncalibrated"
            if method not in ("uncalibrated", against) and not known:
                for split in splits[:1] if splits[0] == "cross_fit" else (splits[0], "cross_fit"):
                    ends = (gap - shift - 0.02, gap - shift + 0.02)
                    own = (method, criterion)
                    rows += [difference(own, against, *ends, name=name, split=split) for name in ("nll", "ece")]
    return rows


def training_rows():
    """A row of four batches each, and val after each epoch of 20."""
    rows = [Scalar("selected_epoch", 27.0)]
    for step in range(4, 601, 4):
        tags = {"step": step, "epoch": step / 20}
        loss = 1.3 * np.exp(-step / 90) + 0.03 + 0.02 * (step % 7)
        values = {"loss": loss, "accuracy": max(0.0, 1 - loss / 2.2), "learning_rate": 0.05 * 0.1 ** (step > 300)}
        rows += [Scalar(name, float(value), split="train", **tags) for name, value in values.items()]
        if step % 20 == 0:
            val = {"loss": 1.25 * np.exp(-step / 95) + 0.07, "accuracy": 0.96 - 0.9 * np.exp(-step / 60)}
            rows += [Scalar(name, float(value), split="val", **tags) for name, value in val.items()]
    return rows


def curvature_rows(scale=1.0, **tags):
    """Largest eigenvalue, trace and scale-free trace of both losses."""
    values = {"cross_entropy": (212.4, 0.31, 1843.0, 61.0), "focal_loss": (41.7, 0.06, 402.0, 17.5)}
    for loss, (top, residual, trace, error) in values.items():
        of = {"n": 180, "split": "val", "loss": loss, **tags}
        yield Eigenvalue("lambda_max", top * scale, residual, 64, loss == "focal_loss", **of)
        for name, size in (("trace", trace * scale), ("scale_free_trace", trace * scale / 20)):
            ends = (size, size - 1.96 * error, size + 1.96 * error, error, 60)
            yield Trace(name, *ends, estimator="hutch++", **of)


def diagnosis_rows(epochs=(1, 5, 30), **tags):
    """Examples are learnt, those still wrong grow sure, gradients shrink."""
    rows = []
    for epoch in epochs:
        found = [Diagnostic("weight_norm", 2 + float(np.log(epoch)))]
        values = {"nll": (0.5 / epoch, 1.5 + epoch / 10), "true_class_probability": (1 - 0.3 / epoch, 0.3 / epoch)}
        for split, n in (("train", 1258), ("val", 180)):
            for name, means in values.items():
                pairs = zip(OUTCOMES, means, strict=True)
                found += [Diagnostic(name, value, n, split, outcome=outcome) for outcome, value in pairs]
            edges = np.concatenate([[0.0], 10.0 ** (np.arange(-12, 5) / 4)])
            shares = np.exp(-0.5 * ((np.arange(17) - 12 + 3 * np.log(epoch)) / 3) ** 2)
            for number in np.flatnonzero(shares > 0.05).tolist():
                numbers = (float(shares[number]), number, *map(float, edges[number : number + 2]))
                found.append(HistogramBin("gradient_norm_histogram", *numbers, n, split))
            found += [tagged([row], share=row.n / 360)[0] for row in bins_of(-0.02, split=split)]
        rows += tagged(found, step=20 * epoch, epoch=float(epoch), **tags)
    return rows


def density_rows():
    """A bulk near 0 and a few eigenvalues far out."""
    edges = np.sinh(np.linspace(-5, 7.6, 31))
    for loss, shift in (("cross_entropy", 0.0), ("focal_loss", 1.6)):
        shares = np.exp(-0.5 * (np.linspace(-5, 7.6, 30) + shift) ** 2 / 0.4) + 1e-5 * (np.arange(30) % 7 == 0)
        for index, share in enumerate((shares / shares.sum()).tolist()):
            ends = (share, 0.1 * share, index, *map(float, edges[index : index + 2]))
            yield DensityBin("spectral_density", *ends, 10, 400, 180, "val", loss)


def attribution_rows():
    """Parts of both losses; `beyond_scaling` is what the training loss adds to cross-entropy's scale."""
    of, rows = {"split": "val", "n": 180}, []
    plain = {"whole": 1843.0, "gauss_newton": 1830.0, "residual": 13.0}
    own = {"whole": 402.0, "gauss_newton": 395.0, "softmax_weighted": 250.0, "rank_one": 145.0, "residual": 7.0}
    own |= {"scale_only": 110.0, "beyond_scaling": 292.0}
    for loss, parts in (("cross_entropy", plain), ("focal_loss", own)):
        for part, value in parts.items():
            error = {"stderr": 0.03 * abs(value), "low": 0.94 * value, "high": 1.06 * value, "probes": 60}
            rows.append(AttributionPart("attribution", "trace", part, value, loss=loss, **of, **error))
            rows.append(AttributionPart("attribution", "lambda_max", part, value / 9, loss=loss, **of))
    quantiles = (0.05, 0.5, 0.95)
    rows += [Diagnostic("true_class_probability", at**0.1, quantile=at, **of) for at in quantiles]
    shares = {"share_raised": 0.12, "share_negative": 0.01, "mean_weight": 110 / 1843}
    return rows + [Diagnostic(name, value, loss="focal_loss", **of) for name, value in shares.items()]


def search_arrays():
    """A valley of one best temperature for each gamma, deepest at gamma = 1."""
    gammas, temperatures = np.array([0, 0.5, 1, 2, 3, 5], np.float32), np.arange(1, 101, dtype=np.float32) / 20
    across, along = np.meshgrid(gammas, temperatures, indexing="ij")
    ece = 0.01 + 0.05 * np.log(along / (0.42 + 0.38 * across)) ** 2 + 0.005 * (across - 1) ** 2
    return {"gammas": gammas, "temperatures": temperatures, "ece": np.minimum(ece, 0.9), "nll": 0.2 + ece}


def run_rows():
    """All rows of a run."""
    seconds = {"compile": 3.0, "train": 12.34, "evaluate": 4.5}
    rows = [*training_rows(), *method_rows(), *curvature_rows(), *attribution_rows(), *density_rows()]
    of = {"loss": "cross_entropy", "n": 180, "split": "val"}
    rows += [Sharpness("pac_bayes_sigma", 0.0766, 0.0029, **of), Sharpness("adaptive_sharpness", 0.0768, 1e-6, **of)]
    rows += [row for step in (60, 120) for row in curvature_rows(1 + step / 100, step=step, epoch=step / 20)]
    return [*rows, *diagnosis_rows(), *(Seconds("seconds", phase, took) for phase, took in seconds.items())]


def member_rows(gamma, seed, penalty=0.0):
    """The rows of one run of a sweep."""
    shift = 0.01 * gamma + 0.002 * seed**2 * (1 - gamma) + penalty
    columns = {
        own: (gap + shift, {name: number * (1 + shift) for name, number in fitted.items()})
        for own, (gap, fitted) in COLUMNS.items()
        if own[1] != "ece" and own[0] != "loss_implied_map"
    }
    rows = method_rows(columns)
    # On val the larger gamma looks better than it is on test.
    rows = [replace(r, value=0.8 * r.value) if gamma and getattr(r, "split", "") == "val" else r for r in rows]
    rows += [*curvature_rows(1 / (1 + gamma + seed / 10)), *diagnosis_rows((1, 2 + seed))]
    return tagged([*rows, Seconds("seconds", "evaluate", 2.0)], gamma=gamma, seed=seed, trace_penalty=penalty)


def sweep_manifest(**axes):
    """The manifest of a sweep over these axes."""
    return {**MANIFEST, "config": {**CONFIG, "sweep": {"gamma": [0.0, 1.0], "seed": [0, 1, 2], **axes}}}


def calibration_manifest(method="focal_temperature_scaling", **entry):
    """The manifest of a calibration that chose a method."""
    choice = {"method": method, "criterion": None if method == "uncalibrated" else "nll"}
    choice["parameters"] = {"gamma": 0.5, "temperature": 0.6, "weights": [[1.0, 2.0], [3.0, 4.0]]}
    inputs = {"val": {"path": "val.npz", "given": "probs"}}
    plainest = {"method": "temperature_scaling", "criterion": "nll"}
    always = {"plainest": plainest, "refused": {}, "warnings": []}
    files = {"outputs": "test.npz", "folder": "runs/mine", "keys": "Keys(probs='p')"}
    calibration = {"split": "test", "criterion": "nll", "choice": choice, "files": files, **always, **entry}
    config = {"evaluation": {**CONFIG["evaluation"], "methods": ["x"], "thresholds": [0.1, 0.4]}, "inputs": inputs}
    return {**MANIFEST, "data": {"name": "mine"}, "config": config, "calibration": calibration}


def calibration_rows(split="test"):
    """All rows of a calibration of two classes and two groups."""
    rows = method_rows(splits=(split,))
    for own, (gap, _) in COLUMNS.items():
        fields = {"split": split, "method": own[0], "criterion": own[1]}
        rows += bins_of(-gap, name="class1_reliability", **fields)
        rows.append(Metric("class1_ece", gap**2, 0.5 * gap**2, 2 * gap**2, 360, **fields))
        rows.append(Metric("class1_noise_floor", 0.001, 0.0, 0.002, 360, **fields))
        rows.append(Metric("calibration_slope", 1 + gap, 0.9 + gap, 1.1 + gap, 360, **fields))
        for percent in range(5, 100, 5):
            numbers = (0.1 - gap - percent / 500, -0.1, 0.2, 360)
            rows.append(Metric("net_benefit", *numbers, group=f"{percent / 100:g}", **fields))
        for number, name in enumerate(("north", "south")):
            value = abs(gap) * (1 + number)
            rows.append(Metric("group_ece", value, value / 2, 2 * value, 40 + number, group=name, **fields))
            rows.append(Metric("group_class1_ece", value / 2, value / 3, value, 40 + number, group=name, **fields))
            middle = (0.004 + gap) * (1 - 2 * number)
            rows.append(Metric("class_gap", middle, middle - 0.02, middle + 0.02, 360, group=str(number), **fields))
    fields = {"n": 360, "split": split, "method": "uncalibrated"}
    rows += [Metric("net_benefit_of_all", 0.2 - k / 20, group=f"{k / 20:g}", **fields) for k in range(1, 20)]
    return [*rows, Metric("events", 72.0, **fields), Seconds("seconds", "evaluate", 1.0)]


def write_workdir(folder, rows, manifest=MANIFEST, *, search=False):
    """Write a workdir's files; returns the folder."""
    records.write_manifest(folder, manifest)
    records.append_rows(folder, rows)
    if search:
        records.write_arrays(folder, "search", search_arrays())
    return folder
