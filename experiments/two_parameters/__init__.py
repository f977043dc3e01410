"""With two parameters: are the weights of focal loss smaller, and its errors less confident?

Points are of four clusters about (+-1, +-1), a tenth of the labels flipped; p = sigmoid(w1 x1 + w2 x2). 1,000
training and 1,000 test points a sample, gradient descent on all of them from zero, rate 0.3, 2,000 steps, by which
the optimum is reached. Deviations 0, 0.25, 0.5 and 1; at 0 the optimum is known: the logit of 0.9, ln 9 = 2.1972, and
for focal loss the logit whose focal calibration is 0.9, 1.2335. Intervals are over samples of the points, which both
losses share.
"""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from experiments import figures, numbers
from experiments.numbers import NOT, SHOWS, Claim, Number, column, rows_where, shown
from experiments.question import Job, Question
from focalgeo import calibration, losses
from focalgeo.data.registry import make_clusters

DEVIATIONS = (0.0, 0.25, 0.5, 1.0)  # of the clusters; 0 is the limit whose optimum is known
GAMMAS = {"ce": 0.0, "fl1": 1.0}
TITLES = {"ce": "CE", "fl1": "FL-1"}
LIMITS = {"ce": 2.1972245773362196, "fl1": 1.2334701342764571}  # ‖w‖ where the clusters are points: logit of p = 0.9
SHARPEST = 1e-3
STEPS, RATE, EVERY = 2000, 0.3, 20
BINS = np.linspace(0.5, 1, 21)
COLUMNS = {
    "weight norm": Number("‖w‖"),
    "logit norm": Number("mean size of the logit, test"),
    "error": Number("error, %", 100),
    "ece": Number("ECE, %", 100),
    "confidence of wrong": Number("confidence of wrong, %", 100),
    "nll of wrong": Number("NLL of wrong, nats"),
}
STATEMENTS = (
    ("M App. G, text", "the norm of the weights is larger with focal loss", "weight norm", False),
    ("M Fig. 5", "the norm of the weights is smaller with focal loss", "weight norm", True),
    ("M Fig. 5", "the logits are smaller with focal loss", "logit norm", True),
    ("M Fig. 6", "misclassified test points are classified with less confidence", "confidence of wrong", True),
    ("M App. G", "misclassified test points have a smaller NLL", "nll of wrong", True),
)


def sample(deviation: float, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points and labels of the train and the test split, 1,000 each."""
    splits = make_clusters(str(deviation), seed=seed).splits
    return {name: (splits[name].x, splits[name].y) for name in ("train", "test")}


def logits_of(weights: jax.Array, points: jax.Array) -> jax.Array:
    """[0, w.x] of each point: class 1 has the probability sigma(w.x)."""
    score = points @ weights
    return jnp.stack([jnp.zeros_like(score), score], axis=-1)


@jax.jit
@jax.vmap
def descend(points: jax.Array, labels: jax.Array, gamma: jax.Array) -> jax.Array:
    """The weights [STEPS / EVERY + 1, 2] of gradient descent from zero, every EVERY steps."""

    def mean_loss(weights):
        return jnp.mean(losses.focal_loss(logits_of(weights, points), labels, gamma))

    def steps(weights, _):
        after = jax.lax.fori_loop(0, EVERY, lambda _, at: at - RATE * jax.grad(mean_loss)(at), weights)
        return after, after

    start = jnp.zeros(points.shape[-1])
    return jnp.concatenate([start[None], jax.lax.scan(steps, start, length=STEPS // EVERY)[1]])


def measure(seeds: int) -> list[dict[str, Any]]:
    """A run for each deviation, loss and seed; runs of one seed see the same points."""
    runs = []
    for deviation in DEVIATIONS:
        samples = [sample(deviation, seed) for seed in range(seeds)]
        points, labels = (np.stack([group["train"][part] for group in samples]) for part in (0, 1))
        for loss, gamma in GAMMAS.items():
            paths = np.asarray(descend(points, labels, np.full(seeds, gamma, np.float32)))
            for seed, (path, group) in enumerate(zip(paths, samples, strict=True)):
                runs.append({"deviation": deviation, "loss": loss, "seed": seed, **_numbers(path, *group["test"])})
    return runs


def _numbers(path: np.ndarray, points: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    log_probs = np.asarray(calibration.temperature_scaling(logits_of(path[-1], points), 1.0))
    confidence = np.exp(log_probs.max(-1))
    wrong = log_probs.argmax(-1) != labels
    return {
        "weights": path[-1].tolist(),
        "weight norm": float(np.linalg.norm(path[-1])),
        "logit norm": float(np.abs(points @ path[-1]).mean()),
        "error": float(wrong.mean()),
        "ece": float(calibration.ece(log_probs, labels)),
        "confidence of wrong": float(confidence[wrong].mean()),
        "nll of wrong": float(-log_probs[np.flatnonzero(wrong), labels[wrong]].mean()),
        "histogram of wrong": (np.histogram(confidence[wrong], BINS)[0] / wrong.sum()).tolist(),
        "norms": np.linalg.norm(path, axis=-1)[:: len(path) // 25].tolist(),
        "logits": np.abs(points @ path.T).mean(0)[:: len(path) // 25].tolist(),
    }


def less(runs, deviation: float, name: str) -> numbers.Interval:
    """Focal loss minus cross-entropy, paired by sample."""
    return numbers.paired(*(column(runs, name, deviation=deviation, loss=loss) for loss in ("fl1", "ce")))


def claims(runs):
    """Each statement for each deviation above 0, and the known limit."""
    for (source, words, name, falls), deviation in product(STATEMENTS, DEVIATIONS[1:]):
        difference = less(runs, deviation, name)
        yield numbers.told(source, f"deviation {deviation:g}: {words}", difference, falls=falls, what="FL-1 minus CE")
    for deviation, group in rows_where(runs, loss="ce").query("deviation > 0").groupby("deviation"):
        share = numbers.interval(np.stack(group["histogram of wrong"])[:, BINS[:-1] > 0.89].sum(-1)).clipped(0, 1)
        claim = f"deviation {deviation:g}: at least 90% of cross-entropy's errors have a confidence above 0.9"
        yield Claim("M Fig. 6", claim, numbers.inside(share, 0.9, 1), f"{shown(share, scale=100)}%")
    for loss, limit in LIMITS.items():
        error = (column(runs, "weight norm", deviation=0.0, loss=loss) - limit).abs().max()
        claim = f"without spread ‖w‖ of {TITLES[loss]} is {limit:.4f}"
        yield Claim("focalgeo", claim, SHOWS if error < SHARPEST else NOT, f"largest difference {error:.1g}")


def norms_table(runs):
    """Means over samples for each deviation and loss, and the paired differences."""
    means = numbers.means(COLUMNS)
    yield "deviation", "loss", *means
    for deviation, group in runs.groupby("deviation"):
        every = {title: rows_where(group, loss=loss) for loss, title in TITLES.items()}
        for title, of_loss in every.items():
            of_loss = of_loss if deviation else of_loss[:1]  # without spread all samples are the same points
            yield f"{deviation:g}", title, *(cell(of_loss) for cell in means.values())
        if deviation:
            changes = numbers.changes(COLUMNS, every["CE"])
            yield "", "FL-1 minus CE", *(cell(every["FL-1"]) for cell in changes.values())


COLOURS = {"ce": figures.BLUE, "fl1": figures.RED}
DEVIATION = 0.5  # of the figures


def norms(runs):
    """Fig. 5: norms over training, all samples; the confidences of misclassified test points."""
    figure, [[norms, logits, wrong]] = figures.panels(1, 3, 11, 3.4)
    for loss, title in TITLES.items():
        group, colour = rows_where(runs, deviation=DEVIATION, loss=loss), COLOURS[loss]
        figures.faint(norms, [0, STEPS], group.norms, colour, label=title)
        figures.faint(logits, [0, STEPS], group.logits, colour, label=title)
        shares = np.array(group["histogram of wrong"].tolist())
        wrong.stairs(100 * shares.mean(0), BINS, color=colour, linewidth=1.8)
    for axis, label in ((norms, "‖w‖"), (logits, "mean size of test logits")):
        axis.set(xlim=(0, 40 * EVERY), xlabel="steps of gradient descent", ylabel=label)
    wrong.set(xlabel="confidence of misclassified test points", ylabel="share, %")
    norms.legend()
    return figure


def planes(runs):
    """Fig. 6: the probabilities of both losses over the plane, with the test points of the first sample."""
    points, labels = sample(DEVIATION, 0)["test"]
    figure, panels = figures.row(TITLES.items(), 8.4, 3.9, sharey=True)
    across = np.linspace(-2.8, 2.8, 200)
    plane = np.stack(np.meshgrid(across, across), axis=-1)
    for axis, (loss, title) in panels:
        weights = np.array(rows_where(runs, deviation=DEVIATION, loss=loss, seed=0).weights.iloc[0])
        shades = axis.contourf(across, across, special.expit(plane @ weights), np.linspace(0, 1, 11), cmap="RdBu_r")
        sizes = np.where((points @ weights > 0) != (labels > 0), 24, 7)  # the wrong ones are larger
        axis.scatter(*points.T, sizes, labels, cmap="RdBu_r", edgecolors="black", linewidths=0.3)
        limits = across[[0, -1]]
        axis.set(title=f"{title}: ‖w‖ = {np.linalg.norm(weights):.2f}", xlabel="x1", xlim=limits, ylim=limits)
    figure.axes[0].set_ylabel("x2")
    figure.colorbar(shades, ax=figure.axes, label="probability of class 1", shrink=0.9)
    return figure


QUESTION = Question(
    "two_parameters",
    "With two parameters: are the weights of focal loss smaller, and its errors less confident?",
    claims,
    tables={"norms": norms_table},
    figures={"norms": norms, "planes": planes},
    jobs=lambda flags, parts: [Job({}, range(flags.seeds), lambda out: measure(flags.seeds), 2)],
    keys={"deviation": (), "loss": GAMMAS},
    answers=("M Fig. 5", "M Fig. 6"),
    cost="160 runs, 20 samples for each deviation and loss, 21.7 s of 2 cores",
    seeds=20,
)
