"""Numbers of trained networks: Lipschitz constants, Theorem 2 at growing distances, PAC-Bayes bounds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import jobs
from experiments.bounds.runs import CONFIG, FOCAL, HALF, PENALISED, POSTERIOR, PRIOR, networks, workdir_of
from experiments.curvature_rows import numbers, train_accuracy
from focalgeo import data, losses, models, theory, trees
from focalgeo.config import load_config, with_values
from focalgeo.job import check_config, preparation
from focalgeo.rows import Metric, Seconds, select
from focalgeo.types import Array, Dataset, PyTree, Split

DISTANCES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the parameters' norm
DIRECTIONS = 4  # random ones
SIGMAS = (0.003, 0.01, 0.03, 0.1)  # of the Gaussian prior and posterior
DRAWS = 1000  # networks of a posterior
DELTA, DRAWN_DELTA = 0.04, 0.01  # with which the bound, and the mean over its draws, may fail; each over all SIGMAS
GROUP = 5  # networks of one finite set of hypotheses


def lipschitz(gammas: tuple[float, ...]) -> list[dict[str, float]]:
    """Largest norm of the focal loss's gradient in the logits, and its largest second derivative, of two classes.

    On 80,001 log-odds from -40 to 40; of two classes both lie along (1, -1) / sqrt 2. More classes reach no more: the
    gradient's norm is largest where one rival has all the rest.
    """
    log_odds = jnp.linspace(-40.0, 40.0, 80_001)
    p, rest = jax.nn.sigmoid(log_odds), jax.nn.sigmoid(-log_odds)
    found = []
    for gamma in gammas:
        slope = jax.vmap(jax.grad(lambda s, g=gamma: losses.focal_loss(jnp.stack([s, 0.0 * s]), 0, g)))(log_odds)
        ratio = theory.logit_curvature_ratio(p, gamma)
        curved = jnp.where((p > 0) & (rest > 0), ratio * p * rest, 0)
        found.append(
            {
                "gamma": gamma,
                "gradient": float(jnp.sqrt(2.0) * jnp.max(jnp.abs(slope))),
                "second derivative": float(2 * jnp.max(jnp.abs(curved))),
            }
        )
    return found


def arrays_of(split: Split) -> tuple[Array, Array]:
    """Normalised images and labels of a split of digits."""
    return jnp.asarray(data.normalise_images(split.x, data.NORMALISATIONS["digits"])), jnp.asarray(split.y)


def dataset(**fields: Any) -> Dataset:
    """The data of the config with these fields."""
    config = with_values(load_config(jobs.ROOT / CONFIG, ""), fields)
    return preparation.prepare(check_config(config)).dataset


def apply_of() -> Callable[[PyTree, Array], Array]:
    """(params, x) -> logits of the config's network."""
    model = models.build(load_config(jobs.ROOT / CONFIG, "").model.name, 10)
    return lambda params, x: model.apply({"params": params}, x, train=False)


def of_rows(workdir: Path, name: str) -> list[dict[str, Any]]:
    """Numbers of each network from the job's rows: calibration, and curvature of cross-entropy on val."""
    rows = jobs.rows_of(workdir)
    record = jobs.record(workdir, CONFIG) | {"seconds": round(sum(row.value for row in select(rows, Seconds)), 1)}
    tests = select(rows, Metric, name="ece", split="test", method="uncalibrated")
    found = []
    for gamma, seed in dict.fromkeys((row.gamma, row.seed) for row in tests):
        own = [row for row in rows if (row.gamma, row.seed) == (gamma, seed)]
        run = {"loss": name, "gamma": gamma, "seed": seed, "train accuracy": train_accuracy(own)}
        kept = {key: value for key, value in numbers(own) if not key.startswith("trace,")}
        found.append(run | kept | {"record": record})
    return found


def measure(out: Path, seeds: int) -> list[dict[str, Any]]:
    """Every run: of focal loss and its bound's loss from rows and networks, of halves the PAC-Bayes bound."""
    own = [*of_rows(workdir_of(out, FOCAL, seeds), "focal"), *of_rows(workdir_of(out, PENALISED, seeds), "penalised")]
    trained = networks(workdir_of(out, FOCAL, seeds))
    everything = dataset()
    gradients, distances = make_gradients(everything), make_distances(everything.val)
    for run in own:
        if run["loss"] == "focal":
            params = trained[run["gamma"], run["seed"]]
            run |= gradients(params, run["gamma"])
            run |= {"distances": distances(params, jax.random.PRNGKey(run["seed"]))}
    bounds = gaussian_bounds(out, seeds, everything)
    for run in own:
        if run["loss"] == "focal" and (run["gamma"], run["seed"]) in bounds:
            run |= {"gaussian": bounds[run["gamma"], run["seed"]]}
    return own


def make_gradients(everything: Dataset) -> Callable[[PyTree, float], dict[str, float]]:
    """(params, gamma) -> largest norm over examples of the focal loss's gradient, in logits and in parameters."""
    apply = apply_of()

    @jax.jit
    def largest(params, gamma, x, y):
        def of_example(x, y):
            logits = apply(params, x[None])[0]
            in_logits = jax.grad(losses.focal_loss)(logits, y, gamma)
            in_params = jax.grad(lambda own: losses.focal_loss(apply(own, x[None])[0], y, gamma))(params)
            return jnp.linalg.norm(in_logits), trees.norm(in_params)

        return [jnp.max(each) for each in jax.vmap(of_example)(x, y)]

    splits = {"val": arrays_of(everything.val), "train": arrays_of(everything.train)}

    def measured(params: PyTree, gamma: float) -> dict[str, float]:
        found = {}
        for name, (x, y) in splits.items():
            in_logits, in_params = largest(params, jnp.float32(gamma), x, y)
            found |= {f"gradient in logits, {name}": float(in_logits), f"gradient, {name}": float(in_params)}
        return found

    return measured


def make_distances(split: Split) -> Callable[[PyTree, Array], dict[str, list[float]]]:
    """(params, key) -> by kind of direction, KL(p_theta || p_{theta + d}) over d'Fd / 2 at each of DISTANCES.

    Means over the split's examples; F is the Fisher matrix of the predictions. "random": a geometric mean over
    DIRECTIONS directions; "uphill": along the gradient of cross-entropy on the split.
    """
    apply, (x, y) = apply_of(), arrays_of(split)

    def uphill(params):
        return jax.grad(lambda own: jnp.mean(losses.cross_entropy(apply(own, x), y)))(params)

    @jax.jit
    def ratio(params, direction, distance):
        scale = distance * trees.norm(params) / trees.norm(direction)
        step = jax.tree.map(lambda leaf: scale * leaf, direction)
        logits, moved = jax.jvp(lambda own: apply(own, x), (params,), (step,))
        there = apply(jax.tree.map(jnp.add, params, step), x)
        exact = jnp.mean(theory.softmax_divergence(logits, there - logits))
        fisher = theory.softmax_fisher(logits)
        return exact / (0.5 * jnp.mean(jnp.einsum("ni,nij,nj->n", moved, fisher, moved)))

    def measured(params: PyTree, key: Array) -> dict[str, list[float]]:
        drawn = [trees.gaussian(each, params) for each in jax.random.split(key, DIRECTIONS)]
        random = [
            float(np.exp(np.mean([np.log(ratio(params, each, distance)) for each in drawn]))) for distance in DISTANCES
        ]
        along = uphill(params)
        return {"random": random, "uphill": [float(ratio(params, along, distance)) for distance in DISTANCES]}

    return measured


def gaussian_bounds(out: Path, seeds: int, everything: Dataset) -> dict[tuple[float, int], dict[str, float]]:
    """(gamma, seed) -> the bound on the error, of a Gaussian about the network that went on from half of the data.

    The prior is the same Gaussian about that half's network, the bound is of the other half, whose images the prior has
    not seen. "error": test error of the posterior's centre; "drawn": mean error over draws on the other half.
    """
    seen = {image.tobytes() for image in dataset(**{"data.train_size": HALF}).train.x}
    other = np.array([image.tobytes() not in seen for image in everything.train.x])
    x, y = arrays_of(Split(everything.train.x[other], everything.train.y[other]))
    test_x, test_y = arrays_of(everything.test)
    apply = apply_of()

    @jax.jit
    def errors(params, sigma, key):
        def of_draw(key):
            moved = jax.tree.map(lambda leaf, noise: leaf + sigma * noise, params, trees.gaussian(key, params))
            return jnp.mean(jnp.argmax(apply(moved, x), -1) != y)

        return jnp.mean(jax.lax.map(of_draw, jax.random.split(key, DRAWS), batch_size=50))

    before, after = (networks(workdir_of(out, job, seeds)) for job in (PRIOR, POSTERIOR))
    found = {}
    for at, params in after.items():
        squared = float(trees.norm(jax.tree.map(jnp.subtract, params, before[at])) ** 2)
        each = []
        for number, sigma in enumerate(SIGMAS):
            key = jax.random.fold_in(jax.random.PRNGKey(at[1]), number)
            drawn = float(errors(params, jnp.float32(sigma), key))
            least = binomial_upper(drawn, DRAWS, DRAWN_DELTA / len(SIGMAS))
            each.append((bound(least, squared / (2 * sigma**2), len(y)), sigma, squared / (2 * sigma**2), drawn))
        names = ("bound", "sigma", "divergence", "drawn")
        error = float(jnp.mean(jnp.argmax(apply(params, test_x), -1) != test_y))
        found[at] = dict(zip(names, min(each), strict=True)) | {"error": error, "examples": len(y)}
    return found


def bound(expected: float, divergence: float, count: int) -> float:
    """The PAC-Bayes-lambda bound at its best lambda, with DELTA shared by SIGMAS; at most 1, which every error is."""
    settings = {"delta": DELTA / len(SIGMAS)}
    lambda_ = theory.pac_bayes_lambda(expected, divergence, count, **settings)
    return min(1.0, float(theory.pac_bayes_value(expected, divergence, count, lambda_=lambda_, **settings)))


def binomial_upper(mean: float, draws: int, delta: float) -> float:
    """The largest expectation for which a mean of so many numbers from 0 to 1 is not too low, but for delta.

    By kl(mean || expectation) <= log(1 / delta) / draws, Chernoff's bound, by bisection.
    """
    low, high = mean, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        inside = _divergence(mean, middle) <= np.log(1 / delta) / draws
        low, high = (middle, high) if inside else (low, middle)
    return high


def _divergence(p: float, q: float) -> float:
    first = p * np.log(p / q) if p > 0 else 0.0
    return first + ((1 - p) * np.log((1 - p) / (1 - q)) if p < 1 else 0.0)


def finite_bounds(out: Path, seeds: int) -> list[dict[str, float]]:
    """Bounds on the error of GROUP networks of one gamma by val's examples, priors uniform and Maxwell-Boltzmann.

    The latter's energies are the networks' cross-entropies on train, its mean energy half way from their mean to their
    least: of the training data alone, as a prior may be for a bound on val.
    """
    trained, everything, apply = networks(workdir_of(out, FOCAL, seeds)), dataset(), apply_of()
    splits = {name: arrays_of(getattr(everything, name)) for name in ("train", "val", "test")}
    mean_loss = jax.jit(lambda params, x, y: jnp.mean(losses.cross_entropy(apply(params, x), y)))
    wrong = jax.jit(lambda params, x, y: jnp.mean(jnp.argmax(apply(params, x), -1) != y))
    found = []
    for gamma in dict.fromkeys(gamma for gamma, _ in trained):
        for group in range(seeds // GROUP):
            own = [trained[gamma, seed] for seed in range(group * GROUP, (group + 1) * GROUP)]
            energies = np.array([float(mean_loss(params, *splits["train"])) for params in own])
            errors = {
                name: np.array([float(wrong(params, *splits[name])) for params in own]) for name in ("val", "test")
            }
            _, prior = theory.maxwell_boltzmann(energies, float((energies.mean() + energies.min()) / 2))
            count = len(splits["val"][1])
            uniform, boltzmann = (
                theory.pac_bayes_bound(errors["val"], each, count)
                for each in (np.full(GROUP, 1 / GROUP, np.float32), np.asarray(prior))
            )
            found.append(
                {
                    "gamma": gamma,
                    "group": group,
                    "uniform": float(uniform.bound),
                    "boltzmann": float(boltzmann.bound),
                    "error": float(np.asarray(boltzmann.posterior) @ errors["test"]),
                }
            )
    return found
