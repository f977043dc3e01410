"""Surfaces whose Hessian is known in closed form: which estimator of its curvature to take, and when its error lies.

Seven quadratics of 500 parameters with chosen eigenvalues in a random basis; a two-layer linear network (450
parameters) at random weights; softmax regression on digits (650 parameters): cross-entropy where it was trained,
focal loss with gamma 5 there, and at random weights, where it has eigenvalues of both signs. Closed forms are in
surfaces.py, in float64.

An interval fails on a surface at a cost where the share of draws in which it holds lies below 90%, interval included;
a method is nearer where the paired difference of its |error| to Hutchinson's, with the same keys, has an interval
below 0. Errors of the trace are shares of the sum of |eigenvalues|, those of lambda_max of the largest |eigenvalue|,
those of the diagonal of its root mean square; of the distribution function shares of all eigenvalues, at 20 points
evenly over the spectrum. 95% intervals over draws, that is keys.

Hypotheses, written before the run: 1. intervals of the trace hold in 90% of the draws by each method on every
surface; 2. the interval of the distribution function holds less often; 3. a search that says it has converged has
found lambda_max; 4. Hutch++ and XTrace are nearer than Hutchinson where few eigenvalues carry the trace, and further
where it is flat.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from experiments import figures
from experiments.known_surfaces.surfaces import SURFACES, Surface
from experiments.numbers import (
    NOT,
    SHOWS,
    UNTOLD,
    Claim,
    Interval,
    by_verdict,
    inside,
    interval,
    joined,
    plain,
    rows_where,
    shown,
    verdict,
)
from experiments.question import Flags, Job, Parts, Question, at_least
from focalgeo import calibration, curvature

PRODUCTS, SEARCHES = (30, 60, 120), (10, 20, 40, 80)
DENSITY = ((10, 20), (10, 40), (30, 40))  # probes, Lanczos steps of each
COST = PRODUCTS[1]  # at which the methods for the trace are compared
TOLERANCE = 1e-3  # of the search for lambda_max
ROUNDING = 100 * float(np.finfo(np.float32).eps)  # as a share: what float32 products leave open
POINTS = 20  # of the distribution function, over the range of the spectrum
LEAST = 0.9  # of the draws, in which an interval of 95% must hold the truth
MOST_WRONG = 0.01  # of the searches that say they have converged
FLOOR = 1e-7  # of float32; what lies below is drawn there
TITLES = {name: title for name, (title, _) in SURFACES.items()}
TRACES = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace"}
ESTIMATORS = (*TRACES, "lambda_max", "density", "diagonal")
INTERVALS = {  # estimator -> what its 95% interval should hold
    **{name: f"the trace by {title}" for name, title in TRACES.items()},
    "density": "the distribution function of the eigenvalues by the spectral density",
    "diagonal": "the entries of the diagonal",
}


def measure(surface: Surface, draws: int) -> list[dict[str, Any]]:
    """A row for each estimator and cost: true and claimed error, and how often the claim holds, with 95% over keys."""
    keys = jax.random.split(jax.random.PRNGKey(0), draws)
    eigenvalues, diagonal = np.linalg.eigvalsh(surface.hessian), np.diag(surface.hessian)
    spread = np.abs(eigenvalues).sum()
    points = np.linspace(eigenvalues[0], eigenvalues[-1], POINTS + 2)[1:-1]
    below = (eigenvalues[:, None] <= points).mean(0)
    of = (curvature.linearized_hvp(surface.loss, surface.params), surface.params)

    def distribution(key, probes, steps):
        density = curvature.spectral_density(*of, key, num_probes=probes, steps=steps)
        return curvature.cumulative_distribution(density, jnp.asarray(points, jnp.float32))

    rows, errors = [], {}

    def add(name, estimate, products, truth, scale):
        batch = _of_keys(estimate, keys)
        error = errors[name, products] = (batch.value - truth) / scale
        away = np.maximum(batch.low - truth, truth - batch.high) <= ROUNDING * scale  # as near as float32 tells apart
        held = interval(away.reshape(draws, -1).mean(1)).clipped(0, 1)
        row = {"error": _rms(error), "claimed": _rms(batch.stderr) / scale, "held": list(held)}
        if name in ("hutch++", "xtrace"):
            row["more"] = list(interval(np.abs(error) - np.abs(errors["hutchinson", products])))
        rows.append({"estimator": name, "products": products, **row})

    for cost in PRODUCTS:
        for name in TRACES:
            add(name, partial(curvature.trace, *of, num_probes=cost, method=name), cost, eigenvalues.sum(), spread)
        add("diagonal", partial(curvature.diagonal, *of, num_probes=cost), cost, diagonal, _rms(diagonal))
    for probes, steps in DENSITY:
        add("density", partial(distribution, probes=probes, steps=steps), probes * steps, below, 1.0)
    for cost in SEARCHES:
        search = partial(curvature.lambda_max, *of, max_products=cost, tolerance=TOLERANCE)
        rows.append(search_row(_of_keys(search, keys), cost, eigenvalues[-1], np.abs(eigenvalues).max()))
    return rows


def search_row(estimates: Any, products: int, truth: float, scale: float) -> dict[str, Any]:
    """Of searches for lambda_max; claimed: the residual.

    converged: share of searches; elsewhere: how many of them have not found lambda_max to their tolerance.
    """
    errors, rounding, converged = np.abs(estimates.value - truth), ROUNDING * scale, estimates.converged.astype(bool)
    held = interval(errors <= np.maximum(estimates.residual, rounding)).clipped(0, 1)
    return {
        "estimator": "lambda_max",
        "products": products,
        "error": _rms(errors / scale),
        "claimed": _rms(estimates.residual / scale),
        "held": list(held),
        "converged": float(converged.mean()),
        "elsewhere": int((converged & (errors > max(TOLERANCE * abs(truth), rounding))).sum()),
    }


def _of_keys(estimate, keys):
    """The estimates of all keys, in float64."""
    estimates = jax.jit(lambda keys: jax.lax.map(estimate, keys, batch_size=50))(keys)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), estimates)


def _rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def plan(flags: Flags, parts: Parts) -> Iterator[Job]:
    """Surface by surface."""
    for name, (_, make) in SURFACES.items():
        of = {"surface": name, "draws": flags.draws}
        yield Job(of, (), lambda out, of=of, make=make: [of | row for row in measure(make(), of["draws"])], part="rows")


def claims(rows):
    """Of intervals, of the search for lambda_max, and of the methods for the trace at equal cost."""
    rows = pd.DataFrame(rows)
    words = "the 95% interval of {} holds in 90% of the draws or more, on every surface at every cost"
    for name, what in INTERVALS.items():
        yield _holds(rows, name, words.format(what), "; {} of {} fail")
    yield _converged(rows)
    words = "λ_max lies within the residual of its estimate in 90% of the draws or more, converged or not"
    yield _holds(rows, "lambda_max", words, "")
    for name in list(TRACES)[1:]:
        yield _nearer(rows, name)


def _holds(rows, name, words, fails):
    rows = rows_where(rows, estimator=name)
    verdicts = [inside(Interval(*held), LEAST, 1.0) for held in rows.held]
    worst = rows.loc[rows.held.str[0].idxmin()]
    because = f"least: {shown(Interval(*worst.held), scale=100)}% on {TITLES[worst.surface]}, {worst.products} products"
    return Claim("focalgeo", words, joined(verdicts), because + fails.format(verdicts.count(NOT), len(verdicts)))


def _converged(rows):
    """Of the searches with most products, surface by surface."""
    rows = rows_where(rows, estimator="lambda_max", products=SEARCHES[-1])
    rows = rows.assign(ended=(rows.converged * rows.draws).round().astype(int))
    ends = np.array([calibration.wilson_interval(row.elsewhere, row.ended) for row in rows.itertuples()], float)
    verdicts = [SHOWS if high < MOST_WRONG else NOT if low > MOST_WRONG else UNTOLD for low, high in ends]
    worst = ends[:, 0].argmax()
    row, least_to_most = rows.iloc[worst], " to ".join(plain(100 * end, 2) for end in ends[worst])
    because = f"most: {row.elsewhere:.0f} of {row.ended} had not on {TITLES[row.surface]}, {least_to_most}%"
    words = "a search for λ_max that says it has converged has found it to its tolerance, but for 1%, on every surface"
    return Claim("focalgeo", words, joined(verdicts), because)


def _nearer(rows, name):
    rows = rows_where(rows, estimator=name, products=COST)
    verdicts = {TITLES[row.surface]: verdict(Interval(*row.more)) for row in rows.itertuples()}
    words = f"{TRACES[name]} is nearer to the trace than Hutchinson with {COST} products, on every surface"
    return Claim("focalgeo", words, joined(verdicts.values()), by_verdict(verdicts))


def _table(rows, columns):
    """A line for each surface; a column has a head, an estimator, its products, and what is said of their row."""
    yield "surface", *(head for head, *_ in columns)
    for name, group in pd.DataFrame(rows).groupby("surface", sort=False):
        group = group.set_index(["estimator", "products"])
        yield TITLES[name], *(cell(group.loc[of, products]) for _, of, products, cell in columns)


def _error(row):
    return f"{plain(100 * row.error, 2)} ({plain(100 * row.claimed, 2)})"


def trace_table(rows):
    """Of each surface at one cost: each method's root mean square error and claim."""
    words = "root mean square error (claimed), %"
    return _table(rows, [(f"{title}: {words}", name, COST, _error) for name, title in TRACES.items()])


def search_table(rows):
    """Of each surface and most products: error (residual) of lambda_max, and the share of searches that converged."""
    converged = lambda row: f"{_error(row)}; {100 * row.converged:.3g}"  # noqa: E731
    words, name = "error (residual), %; converged, %", "lambda_max"
    return _table(rows, [(f"at most {cost}: {words}", name, cost, converged) for cost in SEARCHES])


def others_table(rows):
    """Of each surface: density and diagonal with the share of the truth that their intervals hold, at each cost."""
    held, words = lambda row: f"{_error(row)}; {100 * row.held[0]:.3g}", "error (claimed), %; held, %"
    density = [(f"density, {probes} x {steps}: {words}", "density", probes * steps, held) for probes, steps in DENSITY]
    return _table(rows, density + [(f"diagonal, {cost}: {words}", "diagonal", cost, held) for cost in PRODUCTS])


def draw_claims(rows):
    """Every estimator on every surface at every cost; above the line the error is larger than it says."""
    figure, [[axis]] = figures.panels(1, 1, 5.6, 4.6)
    labels, ends = TRACES | {"lambda_max": "λ_max (claimed: residual)"}, (FLOOR, 2.0)
    for place, name in enumerate(ESTIMATORS):
        group = rows_where(pd.DataFrame(rows), estimator=name)[["claimed", "error"]].clip(lower=FLOOR)
        axis.scatter(group.claimed, group.error, s=22, alpha=0.75, label=labels.get(name, name), **figures.look(place))
    axis.plot(ends, ends, color="0.5", linewidth=0.8, zorder=0)
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axis.set(xlabel="claimed error, as a share", ylabel="true error (root mean square), as a share")
    axis.legend()
    return figure


QUESTION = Question(
    "known_surfaces",
    "Which estimator of curvature is right about its own error, and which is nearest at equal cost?",
    claims,
    tables={"trace": trace_table, "search": search_table, "others": others_table},
    figures={"claims": draw_claims},
    jobs=plan,
    keys={"surface": SURFACES, "estimator": ESTIMATORS, "products": ()},
    cost="11 surfaces, 500 draws each, 3252.2 s of 2 cores",
    seeds=None,
    flags={"--draws": {"type": at_least(20), "default": 500, "help": "keys of every estimate (default 500)"}},
)
