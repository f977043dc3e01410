"""The jobs, and numbers of trained networks: Lipschitz constants, Theorem 2 at growing distances, PAC-Bayes bounds."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from scipy import optimize, special

from experiments import digits, jobs
from focalgeo import curvature, data, losses, models, theory, trees
from focalgeo.config import with_values
from focalgeo.job import check_config, preparation
from focalgeo.types import Array, Dataset, PyTree, Split

CONFIG = "configs/digits_gamma.py"
GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)
HALF_GAMMAS = (0.0, 1.0, 3.0, 7.0)
HALF = 539  # of 1,079 training images, those that the prior has seen
MEASURED = {"curvature.splits": ("val",), "curvature.num_probes": 30}
JOBS = {  # name -> gammas, what it has beside; "posterior" goes on from the prior's, at a rate that leaves them near
    "focal": (GAMMAS, MEASURED),
    "penalised": (GAMMAS, MEASURED | {"loss.name": "confidence_penalised_cross_entropy"}),
    "prior": (HALF_GAMMAS, {"data.train_size": HALF, "curvature.examples": 0}),
    "posterior": (
        HALF_GAMMAS,
        {
            "curvature.examples": 0,
            "optimizer.learning_rate": 0.01,
            "optimizer.epochs": 20,
            "optimizer.decay_epochs": (15,),
        },
    ),
}
DISTANCES = (0.001, 0.01, 0.03, 0.1, 0.3, 1.0)  # of the parameters' norm
DIRECTIONS = 4  # random ones
SIGMAS = (0.003, 0.01, 0.03, 0.1)  # of the Gaussian prior and posterior
DRAWS = 1000  # networks of a posterior
DELTA, DRAWN_DELTA = 0.04, 0.01  # with which the bound, and the mean over its draws, may fail; each over all SIGMAS
GROUP = 5  # networks of one finite set of hypotheses
ACTIVATIONS = {"ReLU": nn.relu, "tanh": nn.tanh}
EXPANDED_GAMMAS, EXPANDED_SEEDS = (0.0, 1.0, 3.0), 5  # of the networks about which NLL is expanded
RADII = np.geomspace(1e-3, 1, 13)  # of the parameters' norm
COUNTS = (67, 135, 270)  # examples of the other half that a bound is also of, beside all


def train(out: Path, name: str, seeds: int) -> Path:
    """The finished workdir of a job."""
    gammas, fields = JOBS[name]
    fields = jobs.T_ALONE | {"sweep.gamma": gammas, "sweep.seed": tuple(range(seeds))} | fields
    start = {"start.run": str(out / f"prior,seeds={seeds}")} if name == "posterior" else {}
    return jobs.trained(CONFIG, out / f"{name},seeds={seeds}", fields | start)


def lipschitz() -> list[dict[str, float]]:
    """Largest norm of the focal loss's gradient in the logits, and its largest second derivative, of two classes.

    On 80,001 log-odds from -40 to 40; of two classes both lie along (1, -1) / sqrt 2. More classes reach no more: the
    gradient's norm is largest where one rival has all the rest.
    """
    log_odds = jnp.linspace(-40.0, 40.0, 80_001)
    p, rest = jax.nn.sigmoid(log_odds), jax.nn.sigmoid(-log_odds)
    p, rest = p[(p > 0) & (p < 1)], rest[(p > 0) & (p < 1)]
    rows = []
    for gamma in GAMMAS:
        slope, curved = rest * theory.gradient_ratio(p, gamma), theory.logit_curvature_ratio(p, gamma) * p * rest
        gradient, second = float(2**0.5 * jnp.abs(slope).max()), float(2 * jnp.abs(curved).max())
        rows.append({"gamma": gamma, "gradient": gradient, "second derivative": second})
    return rows


def arrays_of(split: Split) -> tuple[Array, Array]:
    """Normalised images and labels of a split of digits."""
    return jnp.asarray(data.normalise_images(split.x, data.NORMALISATIONS["digits"])), jnp.asarray(split.y)


def dataset(**fields: Any) -> Dataset:
    """The data of the config with these fields."""
    return preparation.prepare(check_config(with_values(jobs.load(CONFIG), fields))).dataset


def apply(params: PyTree, x: Array) -> Array:
    """Logits of the config's network."""
    model = models.build(jobs.load(CONFIG).model.name, 10)
    return model.apply({"params": params}, x, train=False)


@jax.jit
def mean_loss(params: PyTree, x: Array, y: Array) -> Array:
    """Cross-entropy."""
    return jnp.mean(losses.cross_entropy(apply(params, x), y))


@jax.jit
def error(params: PyTree, x: Array, y: Array) -> Array:
    """The share of wrong predictions."""
    return jnp.mean(jnp.argmax(apply(params, x), -1) != y)


def measure(out: Path, seeds: int) -> list[dict[str, Any]]:
    """Every run: of focal loss and its bound's loss from rows and networks, of halves the PAC-Bayes bound."""
    workdirs, everything = {name: train(out, name, seeds) for name in JOBS}, dataset()
    focal, prior, posterior = (jobs.networks(workdirs[name]) for name in ("focal", "prior", "posterior"))
    bounds, runs = gaussian_bounds(prior, posterior, everything), []
    for name in ("focal", "penalised"):
        runs += jobs.measured(workdirs[name], CONFIG, {"loss": name}, tags={"gamma": "gamma", "seed": "seed"})
    for run in runs:
        at = run["gamma"], run["seed"]
        if run["loss"] == "focal":
            for split in ("val", "train"):
                norms = largest_gradients(focal[at], run["gamma"], *arrays_of(getattr(everything, split)))
                run |= {f"gradient in logits, {split}": float(norms[0]), f"gradient, {split}": float(norms[1])}
            run["distances"] = distances(focal[at], jax.random.PRNGKey(run["seed"]), *arrays_of(everything.val))
            run |= {"gaussian": bounds[at]} if at in bounds else {}
    return runs


@jax.jit
def largest_gradients(params: PyTree, gamma: float, x: Array, y: Array) -> tuple[Array, Array]:
    """Largest norm over examples of the focal loss's gradient, in logits and in parameters."""

    def of_example(x, y):
        in_logits = jax.grad(losses.focal_loss)(apply(params, x[None])[0], y, gamma)
        in_params = jax.grad(lambda at: losses.focal_loss(apply(at, x[None])[0], y, gamma))(params)
        return jnp.linalg.norm(in_logits), trees.norm(in_params)

    in_logits, in_params = jax.vmap(of_example)(x, y)
    return in_logits.max(), in_params.max()


def as_long(params: PyTree, direction: PyTree, distance: float = 1.0) -> PyTree:
    """The direction with the norm of the parameters, times a distance."""
    scale = distance * trees.norm(params) / trees.norm(direction)
    return jax.tree.map(lambda leaf: scale * leaf, direction)


@jax.jit
def ratio(params: PyTree, direction: PyTree, distance: float, x: Array) -> Array:
    """KL(p_theta || p_{theta + d}) over d'Fd / 2, means over examples; F is the Fisher matrix of the predictions."""
    step = as_long(params, direction, distance)
    logits, moved = jax.jvp(lambda at: apply(at, x), (params,), (step,))
    there = apply(jax.tree.map(jnp.add, params, step), x)
    exact, fisher = theory.softmax_divergence(logits, there - logits), theory.softmax_fisher(logits)
    return exact.mean() / (0.5 * jnp.einsum("ni,nij,nj->n", moved, fisher, moved).mean())


def distances(params: PyTree, key: Array, x: Array, y: Array) -> dict[str, list[float]]:
    """By kind of direction the `ratio` at each of DISTANCES.

    "random": a geometric mean over DIRECTIONS directions; "uphill": along the gradient of cross-entropy.
    """
    random = [trees.gaussian(drawn, params) for drawn in jax.random.split(key, DIRECTIONS)]
    kinds = {"random": random, "uphill": [jax.grad(mean_loss)(params, x, y)]}

    def mean(directions, distance):
        return float(np.exp(np.mean([np.log(ratio(params, direction, distance, x)) for direction in directions])))

    return {kind: [mean(directions, distance) for distance in DISTANCES] for kind, directions in kinds.items()}


@jax.jit
def drawn_error(params: PyTree, sigma: float, key: Array, x: Array, y: Array) -> Array:
    """The mean error of DRAWS networks of a Gaussian about this one."""

    def of_draw(key):
        noise = trees.gaussian(key, params)
        return error(jax.tree.map(lambda leaf, more: leaf + sigma * more, params, noise), x, y)

    return jnp.mean(jax.lax.map(of_draw, jax.random.split(key, DRAWS), batch_size=50))


def gaussian_bounds(before: dict, after: dict, everything: Dataset) -> dict[tuple[float, int], dict[str, float]]:
    """(gamma, seed) -> the bound on the error, of a Gaussian about the network that went on from half of the data.

    The prior is the same Gaussian about that half's network, the bound is of the other half, whose images the prior has
    not seen. "error": test error of the posterior's centre; "drawn": mean error over draws on the other half; "by
    count": number of its first examples -> the bound of these.
    """
    seen, train = {image.tobytes() for image in dataset(**{"data.train_size": HALF}).train.x}, everything.train
    other = np.array([image.tobytes() not in seen for image in train.x])
    x, y = arrays_of(Split(train.x[other], train.y[other]))
    bounds = {}
    for at, params in after.items():
        squared = float(trees.norm(jax.tree.map(jnp.subtract, params, before[at])) ** 2)
        by_count = {count: least_bound(params, squared, at[1], x[:count], y[:count]) for count in (*COUNTS, len(y))}
        bounds[at] = by_count[len(y)] | {"error": float(error(params, *arrays_of(everything.test))), "examples": len(y)}
        bounds[at]["by count"] = {str(count): least["bound"] for count, least in by_count.items()}
    return bounds


def least_bound(params: PyTree, squared: float, seed: int, x: Array, y: Array) -> dict[str, float]:
    """The least bound over SIGMAS for these examples; squared: the distance of the centres, squared."""
    rows = []
    for number, sigma in enumerate(SIGMAS):
        drawn = float(drawn_error(params, sigma, jax.random.fold_in(jax.random.PRNGKey(seed), number), x, y))
        divergence = squared / (2 * sigma**2)
        value = bound(binomial_upper(drawn, DRAWS, DRAWN_DELTA / len(SIGMAS)), divergence, len(y))
        rows.append({"bound": value, "sigma": sigma, "divergence": divergence, "drawn": drawn})
    return min(rows, key=lambda row: row["bound"])


def bound(expected: float, divergence: float, count: int) -> float:
    """The PAC-Bayes-lambda bound at its best lambda, with DELTA shared by SIGMAS; at most 1, which every error is."""
    settings = {"delta": DELTA / len(SIGMAS)}
    lambda_ = theory.pac_bayes_lambda(expected, divergence, count, **settings)
    return min(1.0, float(theory.pac_bayes_value(expected, divergence, count, lambda_=lambda_, **settings)))


def binomial_upper(mean: float, draws: int, delta: float) -> float:
    """The largest expectation for which a mean of so many numbers from 0 to 1 is not too low, but for delta.

    By kl(mean || expectation) <= log(1 / delta) / draws, Chernoff's bound.
    """

    def excess(expected):
        divergence = special.rel_entr(mean, expected) + special.rel_entr(1 - mean, 1 - expected)
        return min(divergence, 1e9) - np.log(1 / delta) / draws

    return float(optimize.brentq(excess, mean, 1.0, xtol=1e-15)) if mean < 1 else 1.0


def finite_bounds(out: Path, seeds: int) -> list[dict[str, float]]:
    """Bounds on the error of GROUP networks of one gamma by val's examples, priors uniform and Maxwell-Boltzmann.

    The latter's energies are the networks' cross-entropies on train, its mean energy half way from their mean to their
    least: of the training data alone, as a prior may be for a bound on val.
    """
    networks, everything, groups = jobs.networks(train(out, "focal", seeds)), dataset(), []
    train_, val, test = (arrays_of(getattr(everything, name)) for name in ("train", "val", "test"))
    for gamma, group in itertools.product(GAMMAS, range(seeds // GROUP)):
        members = [networks[gamma, seed] for seed in range(group * GROUP, (group + 1) * GROUP)]
        energies = np.array([mean_loss(params, *train_) for params in members])
        on_val, on_test = (np.array([error(params, *split) for params in members]) for split in (val, test))
        _, prior = theory.maxwell_boltzmann(energies, float((energies.mean() + energies.min()) / 2))
        uniform, boltzmann = (
            theory.pac_bayes_bound(on_val, np.asarray(weights, np.float32), len(val[1]))
            for weights in (np.full(GROUP, 1 / GROUP), prior)
        )
        bounds = {"uniform": float(uniform.bound), "boltzmann": float(boltzmann.bound)}
        groups.append({"gamma": gamma, "group": group, **bounds, "error": float(boltzmann.posterior @ on_test)})
    return groups


def expansions() -> list[dict[str, Any]]:
    """NLL of train near trained networks, of each activation, gamma and seed, by direction.

    "ratios": half d'Hd over the rise of NLL, H its Hessian, by radius. The rise is the mean at d and at -d, so that the
    gradient, which training leaves, takes no part. "fisher": d'Fd over d'Hd.
    """
    rows = []
    every = list(itertools.product(EXPANDED_GAMMAS, range(EXPANDED_SEEDS)))
    for name, act in ACTIVATIONS.items():
        layers = [lambda x, train=False: x.reshape(len(x), -1), nn.Dense(32), act, nn.Dense(32), act, nn.Dense(10)]
        measure = partial(expanded, digits.read()._replace(model=nn.Sequential(layers)))
        of_runs = map(np.asarray, jax.jit(jax.vmap(measure))(*map(jnp.array, zip(*every, strict=True))))
        for (gamma, seed), *of_run in zip(every, *of_runs, strict=True):
            for direction, *values in zip(("first eigenvector", "random"), *of_run, strict=True):
                tags = {"activation": name, "direction": direction, "gamma": gamma, "seed": seed}
                numbers = [value.tolist() for value in values]
                rows.append(tags | dict(zip(("ratios", "fisher"), numbers, strict=True)))
    return rows


def expanded(recipe: digits.Recipe, gamma: Array, seed: Array) -> tuple[Array, Array]:
    """A network trained with focal loss: the numbers of `expansions`, [2, RADII] and [2]."""
    (x, y), params, key = recipe.splits["train"], recipe.trained_with_focal(seed, gamma), jax.random.PRNGKey(seed)
    own, radii = jax.nn.one_hot(y, 10, dtype=bool), jnp.asarray(RADII, jnp.float32)
    product = partial(curvature.hvp, lambda at: jnp.mean(losses.cross_entropy(recipe.logits(at, x), y)), params)

    def along(direction):
        step = as_long(params, direction)
        logits, moved = jax.jvp(lambda at: recipe.logits(at, x), (params,), (step,))
        probs = jax.nn.softmax(logits)

        def rise(radius):
            there = jax.tree.map(lambda leaf, more: leaf + radius * more, params, step)
            change = recipe.logits(there, x) - logits
            change -= jnp.sum(change, -1, where=own, keepdims=True)
            return jnp.mean(jnp.log1p(jnp.sum(probs * jnp.expm1(change), -1)))  # a difference of NLLs would cancel

        rises = jax.lax.map(lambda radius: (rise(radius) + rise(-radius)) / 2, radii)
        fisher = jnp.einsum("ni,nij,nj->n", moved, theory.softmax_fisher(logits), moved).mean()
        second = trees.dot(step, product(step))
        return second / 2 * radii**2 / rises, fisher / second

    directions = curvature.lambda_max(product, params, key).vector, trees.gaussian(key, params)
    return jax.lax.map(along, jax.tree.map(lambda *leaves: jnp.stack(leaves), *directions))
