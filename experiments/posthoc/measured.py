"""What is measured: methods, criteria and the choice, on random halves of predictions and where the truth is known.

Truth: logits at random and labels drawn from a map of them. The excess NLL is that of true probabilities on 10,000
other rows, so that it has no noise of labels: 0 is the truth itself.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import log_softmax

from experiments import timing
from experiments.posthoc import peers
from focalgeo import calibration
from focalgeo.calibration import newton
from focalgeo.data.logits_files import Keys, read_outputs

MOST_EXAMPLES = 10_000  # of each network, so that the halves of all are of one size
FILES = {"Wide ResNet": "logits/wide-resnet-16-4-cifar100.npz", "DenseNet": "logits/densenet-cifar100.npz"}
OWN = "small CNN"
JOINT = "focal_vector_scaling, jointly"
PLAIN = peers.PLAIN
CRITERIA = ("nll", "ece")
COMPARED = ("nll", "brier", "accuracy", "ece")
CLIP = float(np.finfo(np.float32).eps)  # below it scikit-learn's log_loss of float32 probabilities does not go
NUM_RESAMPLES, FRESH = 1000, 10_000
SPREAD = {
    3: 2.0,
    10: 4.0,
    100: 6.0,
}  # of the logits, by classes: a calibrated model then is right 70 to 75 times in 100
TEMPERATURE, GAMMA, SCALE_SPREAD, BIAS_SPREAD = 1.3, 2.0, 0.2, 0.5
Truth = Callable[[np.ndarray], np.ndarray]  # from logits [examples, classes] to true log-probabilities


class Half(NamedTuple):
    """Logits [examples, classes] float32, the exponentials of a row summing to 1, and labels [examples] int32."""

    logits: np.ndarray
    labels: np.ndarray


def sources(predictions: Path | None) -> dict[str, tuple[Path, ...]]:
    """The files of each network that are there: in the folder FOCALGEO_DATA, and those of a run of the main job."""
    data = Path(os.environ.get("FOCALGEO_DATA") or "unset")
    found = {name: (data / path,) for name, path in FILES.items()}
    if predictions is not None:
        found[OWN] = (predictions / "val.npz", predictions / "test.npz")
    return {name: paths for name, paths in found.items() if all(path.exists() for path in paths)}


@functools.lru_cache(maxsize=4)
def pooled(paths: tuple[Path, ...]) -> Half:
    """All examples of some files, their logits as log-probabilities, which other libraries can be given too."""
    parts = [read_outputs(str(path), Keys(), where=path.stem) for path in paths]
    log_probs = log_softmax(np.concatenate([part.logits for part in parts]).astype(np.float64), axis=1)
    return Half(log_probs.astype(np.float32), np.concatenate([part.labels for part in parts]))


def halves(paths: tuple[Path, ...], seed: int) -> tuple[Half, Half]:
    """A split of at most MOST_EXAMPLES of the examples, to fit on and to measure on."""
    logits, labels = pooled(paths)
    places = np.array_split(np.random.default_rng(seed).permutation(len(labels))[:MOST_EXAMPLES], 2)
    return tuple(Half(logits[half], labels[half]) for half in places)


def scores(log_probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """NLL in nats, ECE of 15 bins, Brier score and accuracy; and what share of the labels has a probability of 0.

    The NLL is of probabilities no less than CLIP: isotonic regression and histograms say 0 of labels that come.
    """
    log_probs = np.asarray(log_probs, np.float64)
    of_label = log_probs[np.arange(len(labels)), labels]
    return {
        "nll": float(-np.maximum(of_label, np.log(CLIP)).mean()),
        "ece": float(calibration.ece(log_probs.astype(np.float32), labels)),
        "brier": float((np.square(np.exp(log_probs)).sum(1) - 2 * np.exp(of_label) + 1).mean()),
        "accuracy": float((log_probs.argmax(1) == labels).mean()),
        "zeros": float(np.isneginf(of_label).mean()),
    }


def method_names() -> list[str]:
    """The methods that can be fitted without knowing how a network was trained, plainest first, and the joint fit."""
    return [*calibration.usable(calibration.METHODS, {}, 100), JOINT]


@jax.jit
def fitted_jointly(logits: jax.Array, labels: jax.Array, first: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """All numbers of focal vector scaling together, by the NLL and the ridge of its second stage, from `first` on."""
    start = {"scales": first["scales"] - 1, "biases": first["biases"]}
    ridge = jax.tree.map(lambda leaf: jnp.full_like(leaf, logits.shape[1] / len(labels)), start)
    start["focal"] = jnp.stack([first["gamma"], jnp.log(first["temperature"])])

    def scores(params):
        log_probs = calibration.focal_temperature_scaling(logits, params["focal"][0], jnp.exp(params["focal"][1]))
        return log_probs * (1 + params["scales"][None]) + params["biases"][None]

    ridge["focal"] = jnp.zeros_like(start["focal"])
    found = newton.ridge_fit(scores, start, ridge, labels, jnp.ones(len(labels))).params
    gamma, log_temperature = found.pop("focal")
    return {"gamma": gamma, "temperature": jnp.exp(log_temperature), **found, "scales": 1 + found["scales"]}


def fitted(name: str, val: Half) -> Callable:
    """A function from logits to log-probabilities: a peer's, or by the method here fitted by NLL."""
    if name in peers.PEERS:
        return peers.fitted(name, *val)
    if name == JOINT:
        first = calibration.fit("focal_vector_scaling", *val).params
        params = jax.block_until_ready(fitted_jointly(*val, first))
        return functools.partial(calibration.METHODS["focal_vector_scaling"].apply, params)
    found = calibration.fit(name, *val)
    jax.block_until_ready(found.params)
    return found.predict_log_proba


def fits(paths: tuple[Path, ...], of: dict[str, str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Scores on the second half of each split of a method fitted on the first, and the processor seconds of its fit."""
    rows, method = [], of["method"]
    try:
        fitted(method, halves(paths, 0)[0])  # what is loaded and compiled is in no row's seconds
        for seed in seeds:
            val, test = halves(paths, seed)
            predict = []
            _, seconds = timing.timed(lambda val=val, predict=predict: predict.append(fitted(method, val)))
            found = scores(np.asarray(predict[0](test.logits)), test.labels)
            rows.append({**of, "seed": seed, **found, "processor_seconds": seconds})
    except Exception as error:  # whatever a library raises is its answer
        if method not in peers.PEERS:
            raise
        rows = [{**of, "seed": seed, "error": f"{type(error).__name__}: {error}".splitlines()[0]} for seed in seeds]
    version = {"version": timing.version(peers.PEERS[method].package)} if method in peers.PEERS else {}
    return [row | version for row in rows]


def less(metric: Callable, log_probs: Any, against: Any, labels: np.ndarray, seed: int) -> Any:
    """A metric, or each of several, of one method less that of another, with its 95% interval by the bootstrap."""
    found = calibration.paired_bootstrap(metric, log_probs, against, labels, jax.random.key(seed), NUM_RESAMPLES)
    pairs = found if isinstance(found, dict) else {"": found}
    values = {name: [float(pair.difference), float(pair.low), float(pair.high)] for name, pair in pairs.items()}
    return values if isinstance(found, dict) else values[""]


def by_criteria(paths: tuple[Path, ...], network: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Scores of fits by NLL and by ECE on the second half, and NLL less that of temperature scaling by NLL."""
    rows = []
    for seed in seeds:
        val, test = halves(paths, seed)
        log_probs = {}
        for method in (PLAIN, "focal_temperature_scaling"):
            for criterion in CRITERIA:
                found = calibration.fit(method, *val, criterion=criterion)
                log_probs[method, criterion] = np.asarray(found.predict_log_proba(test.logits))
        plain = log_probs[PLAIN, "nll"]
        for (method, criterion), own in log_probs.items():
            row = {"network": network, "method": method, "criterion": criterion, "seed": seed}
            difference = less(calibration.nll, own, plain, test.labels, seed)
            rows.append(row | scores(own, test.labels) | {"nll_difference": difference})
    return rows


def choices(paths: tuple[Path, ...], network: str, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The method chosen on the first half of each split, and its differences to the plain ones on the second."""

    def metrics(log_probs: Any, labels: Any, mask: Any = None) -> dict[str, Any]:
        return {name: calibration.METRICS[name].function(log_probs, labels, mask=mask) for name in COMPARED}

    rows = []
    for seed in seeds:
        val, test = halves(paths, seed)
        found = calibration.compare(val, criteria=("nll",), metrics=("nll",), seed=seed)
        of_test = {fit.method.name: fit.predict_log_proba(test.logits) for fit in found.fits}
        chosen = found.choice.fitted.method.name
        against = {
            name: less(metrics, of_test[chosen], of_test[name], test.labels, seed)
            for name in ("uncalibrated", PLAIN)
            if name != chosen
        }
        rows.append({"network": network, "seed": seed, "chosen": chosen, "against": against})
    return rows


# ---- where the truth is known


def _calibrated(classes: int, generator: np.random.Generator) -> Truth:
    return lambda logits: log_softmax(logits, axis=1)


def _hot(classes: int, generator: np.random.Generator) -> Truth:
    return lambda logits: log_softmax(logits / TEMPERATURE, axis=1)


def _bent(classes: int, generator: np.random.Generator) -> Truth:
    """What a model minimises the focal loss to is q; its truth is the focal map of q."""
    return lambda logits: np.asarray(calibration.focal_calibration(log_softmax(logits, axis=1), GAMMA))


def _by_class(classes: int, generator: np.random.Generator) -> Truth:
    scales = np.exp(SCALE_SPREAD * generator.standard_normal(classes))
    biases = BIAS_SPREAD * generator.standard_normal(classes)
    return lambda logits: log_softmax(scales * log_softmax(logits, axis=1) + biases, axis=1)


TRUTHS: dict[str, tuple[str, Callable[[int, np.random.Generator], Truth]]] = {  # the plainest method that mends it
    "calibrated": ("uncalibrated", _calibrated),
    "temperature": (PLAIN, _hot),
    "focal map": ("focal_temperature_scaling", _bent),
    "classes": ("vector_scaling", _by_class),
}


def drawn(truth: str, classes: int, examples: int, seed: int) -> tuple[Half, np.ndarray, np.ndarray]:
    """Examples, and fresh logits with their true log-probabilities."""
    generator = np.random.default_rng([seed, classes, examples])
    true = TRUTHS[truth][1](classes, generator)
    logits, fresh = (SPREAD[classes] * generator.standard_normal((count, classes)) for count in (examples, FRESH))
    labels = (true(logits) + generator.gumbel(size=logits.shape)).argmax(1).astype(np.int32)
    return Half(np.float32(logits), labels), np.float32(fresh), true(fresh).astype(np.float64)


def repetition(truth: str, classes: int, examples: int, seed: int) -> dict[str, Any]:
    """The method chosen on examples drawn in `seed`, and the excess NLL of each method's fit on fresh ones.

    "least" is the excess of the method of least NLL by fits of the other folds: the choice without a test.
    "at_least_temperature": of temperature scaling wherever the choice says to leave the outputs as they are.
    """
    val, fresh, true = drawn(truth, classes, examples, seed)
    found = calibration.compare(val, criteria=("nll",), metrics=("nll",), seed=seed)
    excess = {}
    for fit in found.fits:
        predicted = np.asarray(fit.predict_log_proba(fresh), np.float64)
        excess[fit.method.name] = float((np.exp(true) * (true - predicted)).sum(1).mean())
    held_out = {fit.method.name: float(calibration.nll(fit.log_probs, val.labels)) for fit in found.held_out}
    chosen = found.choice.fitted.method.name
    rules = {"chosen": chosen, "least": min(held_out, key=held_out.get)}
    rules["at_least_temperature"] = PLAIN if chosen == "uncalibrated" else chosen
    return {"chosen": chosen, "excess": excess | {rule: excess[name] for rule, name in rules.items()}}


def cell(of: dict[str, Any], repetitions: int) -> dict[str, Any]:
    """Of a truth, number of classes and of examples: how often each method was chosen, and the mean excess NLL."""
    rows = [repetition(**of, seed=seed) for seed in range(repetitions)]
    excess = {name: float(np.mean([row["excess"][name] for row in rows])) for name in rows[0]["excess"]}
    chosen = Counter(row["chosen"] for row in rows)
    return {**of, "repetitions": repetitions, "chosen": dict(chosen), "excess": excess}
