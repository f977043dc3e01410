"""How many products the estimates of lambda_max and of the trace take, and how far off the dense Hessian they are."""

import jax
import numpy as np

from experiments.benchmarks.hessian_peers import pyhessian_estimates
from experiments.benchmarks.problems import Problem, trained_digits
from focalgeo import curvature
from focalgeo.curvature.traces import LEAST_PRODUCTS

PROBES = (6, 12, 18, 24, 36, 48, 72, 96, 144, 192, 288, 384, 576, 768, 1152)


def estimates(*, epochs: int, seeds: int, wanted: float = 0.02) -> dict:
    """Ours and PyHessian's estimates on one trained digits network, each with its true error; values in nats."""
    problem = trained_digits(epochs)
    matrix = np.asarray(curvature.dense_hessian(lambda p: problem.loss(p, problem.x, problem.y), problem.params))
    matrix = matrix.astype(np.float64)
    top, total = float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]), float(np.trace(matrix))
    peers = pyhessian_estimates(problem, seeds=seeds)
    return {
        "parameters": len(matrix),
        "examples": len(problem.y),
        "lambda_max": top,
        "trace": total,
        "eigenvalue rows": [*_lanczos(problem, top, seeds), *_peer_rows(peers.get("eigenvalues()", []), top)],
        "trace rows": [
            *_trace_rows(problem, total, seeds, wanted),
            _planned_row(problem, total, seeds, wanted),
            *_peer_rows(peers.get("trace()", []), total),
        ],
    }


def _matvec(problem: Problem):
    product = jax.jit(lambda v, p, x, y: curvature.hvp(lambda q: problem.loss(q, x, y), p, v))
    return lambda vector: product(vector, problem.params, problem.x, problem.y)


def _lanczos(problem: Problem, top: float, seeds: int) -> list[dict]:
    """The worst of the seeds: most products, largest residual and error."""
    matvec = _matvec(problem)
    pairs = [curvature.lambda_max(matvec, problem.params, jax.random.key(seed)) for seed in range(seeds)]
    products = [int(pair.num_matvecs) for pair in pairs]
    errors = [abs(float(pair.value) / top - 1) for pair in pairs]
    claimed = max(float(pair.residual / pair.value) for pair in pairs)
    return [_row("ours, lambda_max", products, errors, claimed)]


def _trace_rows(problem: Problem, total: float, seeds: int, wanted: float) -> list[dict]:
    """For every method the fewest products of PROBES whose standard error over the trace has a median of `wanted`."""
    matvec, rows = _matvec(problem), []
    for method in LEAST_PRODUCTS:
        for probes in PROBES:
            if probes < LEAST_PRODUCTS[method]:
                continue
            found = [
                curvature.trace(matvec, problem.params, jax.random.key(seed), probes, method=method)
                for seed in range(seeds)
            ]
            claimed = float(np.median([float(each.stderr) for each in found])) / total
            if claimed <= wanted:
                break
        rows.append(
            _row(f"ours, {method}", [probes] * seeds, [abs(float(e.value) / total - 1) for e in found], claimed)
        )
    return rows


def _planned_row(problem: Problem, total: float, seeds: int, wanted: float) -> dict:
    """trace_to, which finds the number of products itself; the others of `_trace_rows` are told the best one."""
    matvec, keys = _matvec(problem), map(jax.random.key, range(seeds))
    found = [curvature.trace_to(matvec, problem.params, key, relative_error=wanted) for key in keys]
    errors = [abs(float(each.estimate.value) / total - 1) for each in found]
    claimed = float(np.median([float(each.estimate.stderr) for each in found])) / total
    return _row("ours, trace_to", [each.num_matvecs for each in found], errors, claimed)


def _peer_rows(found: list[tuple[float, int]], true: float) -> list[dict]:
    if not found:
        return [{"way": "PyHessian", "missing": True}]
    errors = [abs(value / true - 1) for value, _ in found]
    return [_row("PyHessian", [count for _, count in found], errors, None)]


def _row(way: str, products: list[int], errors: list[float], claimed: float | None) -> dict:
    return {
        "way": way,
        "products": [min(products), max(products)],
        "claimed error": claimed,
        "true error, median": float(np.median(errors)),
        "true error, worst": max(errors),
    }
