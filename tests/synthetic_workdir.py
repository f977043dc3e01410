"""A workdir as the main job leaves it, made by NumPy from an invented classifier; no focalgeo but records."""

import numpy as np

from focalgeo import records

CLASSES, BINS = 10, 15
GAMMAS = np.array([0, 0.1, 0.3, 0.5, 1, 2, 3, 4, 5, 10], np.float32)
TEMPERATURES = np.arange(1, 101, dtype=np.float32) / 20
CONFIG = {
    "data": {"name": "digits", "batch_size": 64, "train_size": None, "val_size": 180},
    "evaluation": {"num_bins": 15, "num_resamples": 60},
    "loss": {"name": "focal_loss", "gamma": 3.0},
    "model": {"name": "cnn", "widths": (32, 64)},
    "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "boundaries": [0.5, 0.75]},
    "num_epochs": 30,
    "seed": 0,
}
MANIFEST = {
    "config": CONFIG,
    "versions": {"python": "3.11.7", "jax": "0.10.2", "flax": "0.12.9", "numpy": "2.4.6", "focalgeo": "0.1.0"},
    "git": "edbc349",
    "devices": ["cpu:0", "cpu:1"],
    "platform": "cpu",
    "data": {"name": "digits", "checksum": "sha256:9c1f", "classes": 10, "train": 1257, "val": 180, "test": 360},
    "command": ["python", "-m", "focalgeo.run", "--config=configs/digits.py", "--workdir=runs/digits"],
    "created": "2025-11-21T01:30:00+00:00",
    "parameters": 56394,
}


def _logits(rng, examples):
    truth = 7.0 * rng.standard_normal((examples, CLASSES))
    labels = np.argmax(truth + rng.gumbel(size=truth.shape), axis=-1)
    return 0.42 * truth, labels


def _probs(logits, gamma, temperature):
    scaled = logits / temperature
    q = np.exp(scaled - scaled.max(-1, keepdims=True))
    q /= q.sum(-1, keepdims=True)
    q = np.clip(q, 1e-12, 1 - 1e-12)
    sharper = 1 / ((1 - q) ** gamma / q - gamma * (1 - q) ** (gamma - 1) * np.log(q)) if gamma else q
    return sharper / sharper.sum(-1, keepdims=True)


def _bins(probs, labels):
    confidence, right = probs.max(-1), probs.argmax(-1) == labels
    index = np.minimum((confidence * BINS).astype(int), BINS - 1)
    for b in np.unique(index):
        inside = index == b
        yield int(b), int(inside.sum()), float(right[inside].mean()), float(confidence[inside].mean())


def _metrics(probs, labels):
    onehot = np.eye(CLASSES)[labels]
    ece = sum(n * abs(accuracy - confidence) for _, n, accuracy, confidence in _bins(probs, labels)) / len(labels)
    return {
        "accuracy": (probs.argmax(-1) == labels).mean(),
        "nll": -np.log(probs[np.arange(len(labels)), labels]).mean(),
        "brier": ((probs - onehot) ** 2).sum(-1).mean(),
        "ece": ece,
        "adaptive_ece": 0.93 * ece,
    }


def _final_rows(split, logits, labels, where, setting):
    probs = _probs(logits, *setting)
    n, rng = len(labels), np.random.default_rng(5)
    draws = [rng.integers(n, size=n) for _ in range(60)]
    resamples = [_metrics(probs[draw], labels[draw]) for draw in draws]
    for name, value in _metrics(probs, labels).items():
        low, high = _corrected(value, [sample[name] for sample in resamples])
        yield {"name": name, "split": split, **where, "value": value, "low": max(low, 0.0), "high": high, "n": n}


def _corrected(value, resamples):
    centre, half = 2 * value - np.mean(resamples), 1.96 * np.std(resamples, ddof=1)
    return centre - half, centre + half


def _difference_row(logits, labels, criterion, settings):
    def difference(draw):
        ece = [_metrics(_probs(logits[draw], *setting), labels[draw])["ece"] for setting in settings]
        return ece[1] - ece[0]

    n, rng = len(labels), np.random.default_rng(6)
    value = difference(np.arange(n))
    low, high = _corrected(value, [difference(rng.integers(n, size=n)) for _ in range(60)])
    place = {"split": "test", "map": "focal_temperature_scaling", "criterion": criterion}
    ends = {"value": value, "low": low, "high": high, "n": n}
    return {"name": "ece_difference", **place, "against": "temperature_scaling", **ends}


def _reliability_rows(logits, labels, where, setting):
    for b, n, p, confidence in _bins(_probs(logits, *setting), labels):
        centre, z2 = (p + 1.92 / n) / (1 + 3.84 / n), 3.84
        half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
        edges = {"bin": b, "lower": b / BINS, "upper": (b + 1) / BINS, "confidence": confidence}
        row = {"name": "reliability", "split": "test", **where, **edges, "value": p}
        yield {**row, "low": max(centre - half, 0.0), "high": min(centre + half, 1.0), "n": n}


def training_rows():
    rng = np.random.default_rng(1)
    for step in range(5, 601, 5):
        loss = 1.3 * np.exp(-step / 90) + 0.03 + 0.03 * rng.random()
        rate = 0.05 * 0.1 ** (step > 300) * 0.1 ** (step > 450)
        values = {
            "loss": loss,
            "accuracy": min(1.0, 1 - loss / 2.2),
            "learning_rate": rate,
            "examples_per_second": 9000.0,
        }
        for name, value in values.items():
            yield {
                "name": name,
                "split": "train",
                "step": step,
                "epoch": step // 20,
                "gamma": 3.0,
                "seed": 0,
                "value": value,
            }
        if step % 20 == 0:
            for name, value in {
                "loss": 1.25 * np.exp(-step / 95) + 0.07,
                "accuracy": 0.96 - 0.9 * np.exp(-step / 60),
            }.items():
                yield {
                    "name": name,
                    "split": "val",
                    "step": step,
                    "epoch": step // 20,
                    "gamma": 3.0,
                    "seed": 0,
                    "value": value,
                }


def draw_splits():
    rng = np.random.default_rng(0)
    return {"val": _logits(rng, 180), "test": _logits(rng, 360)}


def calibration_rows(splits, search):
    settings = {("uncalibrated", None): (0.0, 1.0), **_fits(search)}
    for (name, criterion), setting in settings.items():
        where = {"map": name} if criterion is None else {"map": name, "criterion": criterion}
        if criterion:
            yield {"name": "temperature", "split": "val", **where, "value": setting[1]}
            yield {"name": "calibration_gamma", "split": "val", **where, "value": setting[0]}
        for split, (logits, labels) in splits.items():
            yield from _final_rows(split, logits, labels, where, setting)
        yield from _reliability_rows(*splits["test"], where, setting)
        if name == "focal_temperature_scaling":
            yield _difference_row(*splits["test"], criterion, (settings["temperature_scaling", criterion], setting))


def curvature_rows():
    values = {"cross_entropy": (212.4, 0.31, 1843.0, 61.0), "focal_loss": (41.7, 0.06, 402.0, 17.5)}
    for loss, (top, residual, trace, error) in values.items():
        shared = {"split": "val", "loss": loss, "n": 180}
        counts = {"products": 64, "converged": True}
        yield {"name": "lambda_max", **shared, "value": top, "residual": residual, **counts}
        interval = {"low": trace - 1.96 * error, "high": trace + 1.96 * error}
        counts = {"probes": 60, "method": "hutch++"}
        yield {"name": "trace", **shared, "value": trace, "stderr": error, **interval, **counts}


def epoch_curvature_rows():
    for step in (60, 120, 180):
        for row in curvature_rows():
            ends = {key: row[key] * (1 + step / 100) for key in ("value", "low", "high") if key in row}
            yield {**row, **ends, "step": step, "epoch": step / 20}


def diagnosis_rows():
    """As after epochs 1, 5 and 30: examples are learnt, those still wrong grow sure, gradients shrink."""
    for epoch in (1, 5, 30):
        place = {"step": 20 * epoch, "epoch": float(epoch)}
        yield {"name": "weight_norm", "value": 2 + np.log(epoch), **place}
        for split, n in (("train", 1258), ("val", 180)):
            values = {"nll": (0.5 / epoch, 1.5 + epoch / 10), "entropy": (0.4 / epoch, 1.2 - epoch / 60)}
            values |= {"true_class_probability": (1 - 0.3 / epoch, 0.3 / epoch), "gradient_norm": (1 / epoch, 3.0)}
            wrong = n // (2 * epoch)
            for name, means in values.items():
                for outcome, value, count in zip(("correct", "wrong"), means, (n - wrong, wrong), strict=True):
                    yield {"name": name, "split": split, "outcome": outcome, "value": value, "n": count, **place}
                whole = (means[0] * (n - wrong) + means[1] * wrong) / n
                yield {"name": name, "split": split, "value": whole, "n": n, **place}
            yield from _gradient_rows(split, n, place)
            yield from _share_rows(split, n, place)


def _gradient_rows(split, n, place):
    edges = np.concatenate([[0.0], 10.0 ** (np.arange(-48, 17) / 4)])
    shares = np.exp(-0.5 * ((np.arange(65) - 50 + 8 * np.log(place["epoch"])) / 5) ** 2)
    shares[shares < 1e-3] = 0
    for number in np.flatnonzero(shares):
        ends = {"lower": edges[number], "upper": edges[number + 1], "n": n}
        where = {"name": "gradient_norm_histogram", "split": split, "bin": int(number)}
        yield {**where, "value": shares[number] / shares.sum(), **ends, **place}


def _share_rows(split, n, place):
    counts = np.round(n * 0.5 ** (25 - np.arange(25)))
    for number in np.flatnonzero(counts):
        confidence = (number + 0.6) / 25
        ends = {"low": confidence - 0.1, "high": min(confidence + 0.1, 1.0), "lower": number / 25}
        row = {"name": "reliability", "split": split, "bin": int(number), "value": confidence - 0.02, **ends, **place}
        share = {"share": counts[number] / counts.sum(), "n": int(counts[number])}
        yield {**row, "upper": (number + 1) / 25, "confidence": confidence, **share}


def density_rows():
    edges = np.sinh(np.linspace(-5, 7.6, 61))
    for loss, shift in (("cross_entropy", 0.0), ("focal_loss", 1.6)):
        share = np.exp(-0.5 * (np.linspace(-5, 7.6, 60) + shift) ** 2 / 0.4) + 1e-5 * (np.arange(60) % 7 == 0)
        for index, value in enumerate(share / share.sum()):
            where = {"name": "spectral_density", "split": "val", "loss": loss, "bin": index}
            ends = {"lower": edges[index], "upper": edges[index + 1]}
            yield {**where, "value": value, "stderr": 0.1 * value, **ends, "probes": 10, "products": 400, "n": 180}


def attribution_rows():
    place = {"split": "val", "n": 180}
    traces = {"whole": 402.0, "gauss_newton": 395.0, "softmax_weighted": 250.0, "rank_one": 145.0, "residual": 7.0}
    own = {**traces, "scale_only": 110.0, "beyond_scaling": 292.0}
    plain = {"whole": 1843.0, "gauss_newton": 1830.0, "residual": 13.0}
    for loss, parts in (("cross_entropy", plain), ("focal_loss", own)):
        for part, value in parts.items():
            where = {"name": "attribution", "loss": loss, "part": part, **place}
            error = {"stderr": 0.03 * value, "low": 0.94 * value, "high": 1.06 * value, "probes": 60}
            yield {**where, "of": "trace", "value": value, **error}
            yield {**where, "of": "lambda_max", "value": value / 9}
        yield {"name": "scale_free_trace", "loss": loss, "value": plain["whole"] / 20, "stderr": 0.5, **place}
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        yield {"name": "true_class_probability", "quantile": quantile, "value": quantile**0.1, **place}
    for name, value in {"share_raised": 0.12, "share_negative": 0.01, "mean_weight": 110 / 1843}.items():
        yield {"name": name, "loss": "focal_loss", "value": value, **place}


def search_arrays(splits):
    grid = [
        [_metrics(_probs(splits["val"][0], float(g), float(t)), splits["val"][1]) for t in TEMPERATURES] for g in GAMMAS
    ]
    surfaces = {name: np.array([[point[name] for point in line] for line in grid]) for name in ("ece", "nll")}
    return {"gammas": GAMMAS, "temperatures": TEMPERATURES, **surfaces}


def _fits(search):
    fits = {}
    for criterion in ("ece", "nll"):
        for name, gammas in (("temperature_scaling", 1), ("focal_temperature_scaling", len(GAMMAS))):
            i, j = np.unravel_index(np.argmin(search[criterion][:gammas]), (gammas, len(TEMPERATURES)))
            fits[name, criterion] = (float(GAMMAS[i]), float(TEMPERATURES[j]))
    return fits


def write_workdir(workdir):
    """Write manifest, rows and search of a finished run."""
    splits = draw_splits()
    search = search_arrays(splits)
    records.write_manifest(workdir, MANIFEST)
    for rows in (training_rows(), calibration_rows(splits, search), epoch_curvature_rows(), curvature_rows()):
        records.append_rows(workdir, list(rows))
    for rows in (attribution_rows(), density_rows(), diagnosis_rows()):
        records.append_rows(workdir, list(rows))
    seconds = {"compile": 3.0, "evaluate": 4.5, "prepare": 2.2, "train": 12.34}
    records.append_rows(
        workdir, [{"name": "seconds", "phase": phase, "value": took} for phase, took in seconds.items()]
    )
    records.write_arrays(workdir, "search", search)
