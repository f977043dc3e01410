"""Trained networks at other weights: the same function elsewhere, less sure, or trained to a confidence; what they are.

Curvature is that of a mean loss over the first examples of a split in evaluation mode, for both losses: lambda_max by
Lanczos, trace and scale-free trace (sum of theta^2 H_ii) by XTrace.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize, special

from experiments import digits
from focalgeo import calibration, curvature, losses
from focalgeo.training.step import member_state
from focalgeo.types import Array, PyTree

GAMMA = 3.0  # of the focal loss
EXAMPLES = 500  # of a split, at most, whose loss curvature is of
PRODUCTS, PROBES = 40, 60  # of the search for lambda_max, at most, and of each trace
EXPONENTS = (-8, -4, 0, 4, 8)  # weights are multiplied by powers of two, which round nothing
GAIN = 50.0  # of the multiplier that holds the mean confidence, over all steps
CLASSES = 10


class Trained(NamedTuple):
    """A network: flax's apply, its variables, and split -> normalised inputs and labels."""

    apply: Callable
    variables: PyTree
    splits: dict[str, tuple[Array, Array]]

    def logits(self, split: str) -> np.ndarray:
        """[examples, classes] of a split."""
        return np.asarray(self.apply(self.variables, self.splits[split][0], train=False), np.float64)

    def at(self, variables: PyTree) -> "Trained":
        """The same network at other variables."""
        return self._replace(variables=variables)


# ---- where they come from


def on_digits(examples: int | None, seeds: int) -> Iterator[tuple[int, dict[str, Trained]]]:
    """Seed -> cross-entropy's network, focal loss's, and cross-entropy's that was held at the latter's confidence."""
    recipe = digits.read(examples)
    run, levels, params = jax.jit(jax.vmap(make_run(recipe), in_axes=(0, None, None, 0))), jnp.zeros(seeds), {}
    for name, gamma, held in (("ce", 0.0, 0.0), ("focal", GAMMA, 0.0), ("held", 0.0, 1.0)):
        params[name] = run(jnp.arange(seeds), gamma, held, levels)
        networks = [
            {
                way: Trained(recipe.model.apply, {"params": member_state(params[way], seed)}, recipe.splits)
                for way in params
            }
            for seed in range(seeds)
        ]
        levels = jnp.array([confidence(of_seed[name].logits("train")) for of_seed in networks], jnp.float32)
    return enumerate(networks)


def make_run(recipe: digits.Recipe) -> Callable:
    """(seed, gamma, held, level) -> parameters trained with focal loss + held * multiplier * mean confidence.

    At each step the multiplier moves by GAIN over all steps times what the batch's mean confidence lies above the
    level, from 1 and never below: of an example that is right cross-entropy and the penalty are least at p = 1 / it.
    """
    gain = GAIN / (recipe.epochs * recipe.per_epoch)

    def run(seed, gamma, held, level):
        def objective(params, multiplier, x, y, mask):
            logits, share = recipe.logits(params, x), mask / jnp.sum(mask)
            sure = jnp.sum(share * jnp.max(jax.nn.softmax(logits), -1))
            loss = jnp.sum(share * losses.focal_loss(logits, y, gamma)) + held * multiplier * sure
            return loss, jnp.maximum(multiplier + gain * jax.lax.stop_gradient(sure - level), 1.0)

        return recipe.trained(seed, objective, jnp.float32(1))

    return run


# ---- other weights


def rescaled(variables: PyTree, scale: float) -> PyTree:
    """Variables of the same function: the first layer's weights times a scale, the second's kernel divided by it."""
    params = dict(variables["params"])
    params["Dense_0"] = jax.tree.map(lambda leaf: scale * leaf, params["Dense_0"])
    params["Dense_1"] = params["Dense_1"] | {"kernel": params["Dense_1"]["kernel"] / scale}
    return {"params": params}


def folded(trained: Trained, temperature: float) -> Trained:
    """The network with its last layer, kernel and bias, divided by a temperature."""
    of_last = lambda leaf: leaf / temperature if leaf.shape[-1] == CLASSES else leaf  # noqa: E731
    return trained.at(jax.tree.map(of_last, trained.variables))


def matching(logits: np.ndarray, level: float) -> float:
    """The temperature at which the mean confidence is `level`."""
    return optimize.brentq(lambda temperature: confidence(logits / temperature) - level, 0.02, 50)


def confidence(logits: np.ndarray) -> float:
    """The mean of the largest probability."""
    return float(special.softmax(logits, -1).max(-1).mean())


# ---- what is measured


@partial(jax.jit, static_argnums=0)
def _product(apply, variables, x, y, gamma, vector):
    def loss(params):
        return jnp.mean(losses.focal_loss(apply({**variables, "params": params}, x, train=False), y, gamma))

    return curvature.hvp(loss, variables["params"], vector)


_scaled = jax.jit(partial(jax.tree.map, jnp.multiply))


def surfaces(trained: Trained, splits: tuple[str, ...], gammas: dict[str, float]) -> dict[str, float]:
    """Curvatures as "trace CE val"; gammas: "CE" or "own" -> gamma of the loss."""
    measured, params, key = {}, trained.variables["params"], jax.random.PRNGKey(0)
    for split, (loss, gamma) in itertools.product(splits, gammas.items()):
        batch = (part[:EXAMPLES] for part in trained.splits[split])
        matvec = partial(_product, trained.apply, trained.variables, *batch, jnp.float32(gamma))
        free = lambda vector, matvec=matvec: _scaled(params, matvec(_scaled(params, vector)))  # noqa: E731
        top = curvature.lambda_max(matvec, params, key, max_products=PRODUCTS, tolerance=1e-3)
        measured[f"lambda_max {loss} {split}"] = float(top.value)
        for name, product in (("trace", matvec), ("scale_free_trace", free)):
            total = curvature.trace(product, params, key, PROBES, method="xtrace")
            measured[f"{name} {loss} {split}"] = float(total.value)
    return measured


def outputs(trained: Trained) -> dict[str, float]:
    """Accuracy, NLL and mean confidence on train, of test what digits.scores has, and the mean confidence on val."""
    train, val, test = (trained.logits(split) for split in ("train", "val", "test"))
    labels = np.asarray(trained.splits["train"][1])
    log_probs = calibration.temperature_scaling(train, 1.0)
    of_train = {"train accuracy": float((train.argmax(-1) == labels).mean())}
    of_train |= {"train nll": float(calibration.nll(log_probs, labels)), "train confidence": confidence(train)}
    return of_train | {"confidence": confidence(val)} | digits.scores(val, test, trained)


def same_function(networks: dict[str, Trained]) -> Iterator[dict[str, Any]]:
    """Of cross-entropy's network, at each scale: its curvature on val, ECE, and how far probabilities on test move."""
    trained = networks["ce"]
    before = special.softmax(trained.logits("test"), -1)
    for exponent in EXPONENTS:
        moved = trained.at(rescaled(trained.variables, 2.0**exponent))
        away = float(np.abs(special.softmax(moved.logits("test"), -1) - before).max())
        numbers = surfaces(moved, ("val",), {"CE": 0.0})
        yield {"exponent": exponent, "away": away, "ece": outputs(moved)["ece"]} | numbers


def reverse(networks: dict[str, Trained]) -> Iterator[dict[str, Any]]:
    """Outputs and both losses' curvature of each network, and of cross-entropy's with a temperature folded in.

    folded: to focal loss's mean confidence on val; calibrated: by T as val's NLL fits it.
    """
    plain, level = networks["ce"], confidence(networks["focal"].logits("val"))
    temperatures = {"folded": matching(plain.logits("val"), level), "calibrated": outputs(plain)["temperature"]}
    for way, trained in (networks | {way: folded(plain, t) for way, t in temperatures.items()}).items():
        run = {"way": way, "folded T": temperatures.get(way, 1.0)} | outputs(trained)
        yield run | surfaces(trained, ("val", "train"), {"CE": 0.0, "own": GAMMA})
