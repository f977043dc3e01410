"""What calibration takes for granted, tried where it does not hold: independent rows, no zeros, no missing class.

Each is measured twice: as it is answered now, and without that answer.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy.special import log_softmax
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier

from experiments.posthoc import measured
from focalgeo import calibration
from focalgeo.data.logits_files import rounded_floor
from focalgeo.rows import Difference, Metric, select
from focalgeo.types import PROBABILITY_FLOOR, floored_log

CLUSTERS = {
    "equal": ((100, 100), (30, 100), (100, 10)),
    "unequal": ((100, 20), (30, 50)),
}  # how many, of what mean size
TOGETHER = 0.3  # correlation of the latent noise of two rows of a cluster
OVERCONFIDENCE = 0.1
VOTERS = {
    "forest of 10 trees": (10, RandomForestClassifier(10)),
    "forest of 50 trees": (50, RandomForestClassifier(50)),
    "10 nearest neighbours": (10, KNeighborsClassifier(10)),
}
PIXEL_NOISE = 6.0  # added to digits of 0 to 16, so that a forest errs as often as people's do
DECIMALS = (2, 3, 4, 6)
ABSENT = {"two of ten by design": (10, 3000), "of a long tail by chance": (100, 1500)}  # classes, examples of val

FEW = {"criteria": ("nll",), "metrics": ("nll", "accuracy"), "num_resamples": 200}
METRICS = jax.jit(partial(calibration.all_metrics, names=("accuracy", "nll", "ece")))


def coverage(sizes: str, clusters: int, size: int, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Of each seed, whether the 95% intervals by cluster and of independent rows hold the true accuracy, NLL and ECE.

    Confidences are uniform between 0.55 and 0.95, and right in 0.1 less; rows of a cluster are right together.
    """
    share, rows = np.linspace(0.55, 0.95, 100_001), []
    right = share - OVERCONFIDENCE
    nll = -np.mean(right * np.log(share) + (1 - right) * np.log(1 - share))
    truth = {"accuracy": np.mean(right), "nll": nll, "ece": OVERCONFIDENCE}
    for seed in seeds:
        generator = np.random.default_rng([seed, clusters, size])
        weights = np.ones(clusters) if sizes == "equal" else generator.exponential(size=clusters)
        counts = 1 + generator.multinomial(clusters * (size - 1), weights / weights.sum())  # one shape for one program
        index = np.repeat(np.arange(clusters), counts)
        confidence = generator.uniform(0.55, 0.95, len(index))
        noise = TOGETHER**0.5 * generator.normal(size=clusters)[index]
        noise += (1 - TOGETHER) ** 0.5 * generator.normal(size=len(index))
        labels = (noise > norm.ppf(confidence - OVERCONFIDENCE)).astype(np.int32)
        log_probs = np.log(np.stack([confidence, 1 - confidence], axis=1)).astype(np.float32)
        for answer, given in (("by cluster", index), ("as independent", None)):
            found = calibration.bootstrap(METRICS, log_probs, labels, jax.random.key(seed), 200, clusters=given)
            held = {name: int(found[name].low <= true <= found[name].high) for name, true in truth.items()}
            rows.append({"sizes": sizes, "clusters": clusters, "size": size, "seed": seed, "answer": answer, **held})
    return rows


def votes(voters: str, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """NLL on test of noisy digits as given, after temperature scaling and after the choice, by the floor of zeros."""
    images, labels = load_digits(return_X_y=True)
    number, model = VOTERS[voters]
    rows = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        noisy = images + PIXEL_NOISE * generator.standard_normal(images.shape)
        train, *halves = np.split(generator.permutation(len(labels)), [300, 1050])
        if hasattr(model, "random_state"):
            model.set_params(random_state=seed)
        probs = model.fit(noisy[train], labels[train]).predict_proba(noisy)
        for answer, floor in (("half a vote", 0.5 / number), ("1.2e-38", PROBABILITY_FLOOR)):
            logits = np.asarray(calibration.log_probabilities(probs, floor=floor))
            rows.append({"voters": voters, "seed": seed, "answer": answer, **_of_choice(logits, labels, halves)})
    return rows


def _of_choice(logits, labels, halves):
    val, test = ((logits[half], labels[half].astype(np.int32)) for half in halves)
    found = calibration.compare(val, test, **FEW)
    nll = {row.method: row.value for row in select(found.rows, Metric, name="nll", split="test")}
    chosen = found.choice.fitted.method.name
    return {"uncalibrated": nll["uncalibrated"], "temperature": nll[measured.PLAIN], "chosen": nll[chosen]}


def rounding(decimals: int, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """NLL on test after temperature scaling of probabilities of 10 classes, too sure by 2, given to some decimals."""
    rows = []
    for seed in seeds:
        (logits, labels), (fresh, of_fresh) = (_drawn(10, 5000, [seed, part], scale=2.0) for part in (0, 1))
        for answer in ("exact", "shared", "half a unit", "1.2e-38"):
            val, test = logits, fresh
            if answer != "exact":
                written = [np.round(np.exp(each.astype(np.float64)), decimals) for each in (val, test)]
                floors = {"half a unit": 0.5 * 10.0**-decimals, "1.2e-38": PROBABILITY_FLOOR}
                val, test = (
                    floored_log(probs, floors.get(answer) or rounded_floor(probs, 10**decimals)) for probs in written
                )
            fitted = calibration.fit(measured.PLAIN, val, labels)
            nll = float(calibration.nll(fitted.predict_log_proba(test), of_fresh))
            rows.append(
                {
                    "decimals": decimals,
                    "seed": seed,
                    "answer": answer,
                    "nll": nll,
                    "temperature": fitted.searched["temperature"],
                }
            )
    return rows


def _drawn(classes, examples, seed, *, scale=1.0, shares=None):
    """Log-probabilities of a model that is too sure by `scale`, and labels; shares of the classes, equal by default."""
    generator = np.random.default_rng(seed)
    logits = measured.SPREAD[classes] / 2 * generator.standard_normal((examples, classes))
    logits += 0.0 if shares is None else np.log(shares)
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    return log_softmax(scale * logits, axis=1).astype(np.float32), labels


def absent(case: str, seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Accuracy and NLL on test of the choice, where val lacks classes, with and without the rule about these."""
    classes, examples = ABSENT[case]
    rows = []
    for seed in seeds:
        shares = None if classes == 10 else np.geomspace(1, 0.002, classes)
        (logits, labels), test = (_drawn(classes, examples, [seed, part], scale=1.5, shares=shares) for part in (0, 1))
        kept = labels < classes - 2 if classes == 10 else labels >= 0
        found = calibration.compare((logits[kept], labels[kept]), test, **FEW)
        held_out = select(found.rows, Difference, split="cross_fit")
        anyway = calibration.choose(found.fits, held_out, criterion="nll", test=found.choice.test)
        values = {(row.name, row.method): row.value for row in select(found.rows, Metric, split="test", group=None)}
        lacking = classes - len(set(labels[kept].tolist()))
        for answer, fitted in (("no candidate", found.choice.fitted), ("a candidate", anyway.fitted)):
            name = fitted.method.name
            of = {"case": case, "seed": seed, "answer": answer, "chosen": name, "absent": lacking}
            less = {score: values[score, name] - values[score, "uncalibrated"] for score in ("accuracy", "nll")}
            rows.append(of | less)
    return rows
