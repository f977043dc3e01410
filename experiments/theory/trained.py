"""What is derived of the focal map, and what the stored runs say: T by gamma_ev, entropy at equal NLL on train."""

from itertools import product

import numpy as np
import pandas as pd
from scipy import optimize, special, stats

from experiments.cells import GAMMAS

NEAR = np.array(GAMMAS) <= 1  # the gammas of evaluation over which slopes are taken
LEVELS = (1.0, 0.5, 0.3)  # nats: NLL on train that cross-entropy and gamma 1, 2 and 3 all pass


def mapped(s: float, gamma: float, rivals: float = 1.0) -> float:
    """Log-odds, in float64, of the predicted class to one rival after the focal map; before it they are s."""

    def log_h(s):
        q, rest, log_q, log_rest = *special.expit([s, -s]), *special.log_expit([s, -s])
        return log_q - (gamma - 1) * log_rest - np.log(rest - gamma * q * log_q)

    return log_h(s - np.log(rivals)) - log_h(-s - np.log1p((rivals - 1) * np.exp(-s)))


def temperature_ratio(gamma: float, top: float, rivals: float) -> float:
    """T at gamma_ev over T at gamma_ev 0, where the predicted class keeps its probability `top`."""
    log_odds = np.log(top * rivals / (1 - top))
    return log_odds / optimize.brentq(lambda s: mapped(s, gamma, rivals) - log_odds, 1e-9, 30)


def slopes(cells: pd.DataFrame) -> pd.DataFrame:
    """Slopes of the best T on val over gamma_ev up to 1, over T at 0, measured and derived: means of task and seed.

    "at 5": T by NLL at gamma_ev 5 over what is derived, of runs where it is not at the end of the grid.
    """
    gammas, rows = np.array(GAMMAS)[NEAR], []
    for run in cells.itertuples():
        after = run.metrics["val"]["temperature_scaling/nll"]
        top, best = after["accuracy"], np.array([run.temperatures["val"][name] for name in ("ece", "nll")])
        rivals = np.exp((after["nll"] - stats.entropy([top, 1 - top])) / (1 - top)).clip(1, run.classes - 1)
        best = np.where(best < 5, best, np.nan) / best[:, [GAMMAS.index(0.0)]]
        row = {"task": run.task, "seed": run.seed, "rivals": rivals}
        row |= dict(zip(("by ECE", "by NLL"), np.polyfit(gammas, best[:, NEAR].T, 1)[0], strict=True))
        row["at 5"] = best[1, -1] / temperature_ratio(5.0, top, rivals)
        row["derived"] = np.polyfit(gammas, [temperature_ratio(gamma, top, rivals) for gamma in gammas], 1)[0]
        rows.append(row)
    return pd.DataFrame(rows).groupby(["task", "seed"], sort=False, as_index=False).mean()


def entropies(cells: pd.DataFrame) -> pd.DataFrame:
    """A row a run and level: entropy on train when its NLL there first is so low, on the line between two epochs."""
    rows = []
    for level, run in product(LEVELS, cells[cells.diagnostics.notna() & (cells.task == "cifar10")].itertuples()):
        nll, entropy = (run.diagnostics["means"]["train"][name] for name in ("nll", "entropy"))
        at = int(np.argmax(np.array(nll) <= level))
        value = np.interp(-level, [-nll[at - 1], -nll[at]], entropy[at - 1 : at + 1])
        rows.append({"loss": run.loss, "seed": run.seed, "level": level, "entropy": value})
    return pd.DataFrame(rows)
