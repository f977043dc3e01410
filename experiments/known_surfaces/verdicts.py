"""Which claims of the estimators hold on the surfaces, and the tables that tell which to take."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.claims import Claim
from experiments.intervals import NOT, SHOWS, UNTOLD, joined, shown, verdict
from experiments.known_surfaces.estimates import PRODUCTS, TRACES
from experiments.writing import Interval, markdown, plain
from focalgeo.calibration import wilson_interval

Rows = Sequence[dict[str, Any]]
LEAST = 0.9  # of the draws, in which an interval of 95% must hold the truth
MOST_WRONG = 0.01  # of the searches that say they have converged
COST = PRODUCTS[1]  # at which the methods for the trace are compared
NAMES = {"hutchinson": "Hutchinson", "hutch++": "Hutch++", "xtrace": "XTrace", "lambda_max": "λ_max"}
INTERVALS = {  # estimator -> what its 95% interval should hold
    **{name: f"the trace by {NAMES[name]}" for name in TRACES},
    "density": "the distribution function of the eigenvalues by the spectral density",
    "diagonal": "the entries of the diagonal",
}


def claims(rows: Rows, titles: dict[str, str]) -> list[Claim]:
    """Of intervals, of the search for lambda_max, and of the methods for the trace at equal cost."""
    found = [_coverage(rows, name, words, titles) for name, words in INTERVALS.items()]
    found += [_converged(rows, titles), _residual(rows, titles)]
    return found + [_nearer(rows, name, titles) for name in TRACES[1:]]


def _coverage(rows: Rows, name: str, words: str, titles: dict[str, str]) -> Claim:
    own = [(row, Interval(*row["held"])) for row in rows if row["estimator"] == name]
    each = [SHOWS if held.low >= LEAST else NOT if held.high < LEAST else UNTOLD for _, held in own]
    row, least = min(own, key=lambda pair: pair[1].mean)
    claim = (
        f"the 95% interval of {words} holds in {100 * LEAST:g}% of the draws or more, on every surface at every cost"
    )
    because = f"least: {_percent(least)}% on {titles[row['surface']]}, {row['products']} products; "
    return Claim("focalgeo", claim, joined(each), because + f"{each.count(NOT)} of {len(each)} fail")


def _converged(rows: Rows, titles: dict[str, str]) -> Claim:
    """Of the searches with most products, surface by surface."""
    most = max(row["products"] for row in rows if row["estimator"] == "lambda_max")
    own = [row for row in rows if row["estimator"] == "lambda_max" and row["products"] == most]
    each = [(row["elsewhere"], round(row["converged"] * row["draws"])) for row in own]
    ends = [tuple(map(float, wilson_interval(*pair))) for pair in each]
    said = [SHOWS if high < MOST_WRONG else NOT if low > MOST_WRONG else UNTOLD for low, high in ends]
    worst = max(range(len(own)), key=lambda place: ends[place][0])
    (wrong, ended), (low, high) = each[worst], ends[worst]
    claim = (
        f"a search for λ_max that says it has converged has found it to its tolerance, but for {100 * MOST_WRONG:g}%, "
        "on every surface"
    )
    ends = [plain(100 * end, 2) for end in (low, high)]
    because = f"most: {wrong} of {ended} had not on {titles[own[worst]['surface']]}, {' to '.join(ends)}%"
    return Claim("focalgeo", claim, joined(said), because)


def _residual(rows: Rows, titles: dict[str, str]) -> Claim:
    own = [(row, Interval(*row["held"])) for row in rows if row["estimator"] == "lambda_max"]
    each = [SHOWS if held.low >= LEAST else NOT if held.high < LEAST else UNTOLD for _, held in own]
    row, least = min(own, key=lambda pair: pair[1].mean)
    claim = f"λ_max lies within the residual of its estimate in {100 * LEAST:g}% of the draws or more, converged or not"
    because = f"least: {_percent(least)}% on {titles[row['surface']]}, {row['products']} products"
    return Claim("focalgeo", claim, joined(each), because)


def _nearer(rows: Rows, name: str, titles: dict[str, str]) -> Claim:
    own = [row for row in rows if row["estimator"] == name and row["products"] == COST]
    each = {titles[row["surface"]]: verdict(Interval(*row["more"])) for row in own}
    named = {said: [title for title, its in each.items() if its == said] for said in (SHOWS, NOT, UNTOLD)}
    because = ". ".join(f"{said}: {'; '.join(surfaces)}" for said, surfaces in named.items() if surfaces)
    claim = f"{NAMES[name]} is nearer to the trace than Hutchinson with {COST} products, on every surface"
    return Claim("focalgeo", claim, joined(list(each.values())), because)


def trace_table(rows: Rows, titles: dict[str, str]) -> str:
    """Of each surface at one cost: each method's root mean square error and claim, mean error less Hutchinson's."""
    heads = ["surface", *(f"{NAMES[name]}: root mean square error (claimed), %" for name in TRACES)]
    heads += [f"{NAMES[name]}: mean absolute error less Hutchinson's, %" for name in TRACES[1:]]
    lines = []
    for surface, title in titles.items():
        own = {row["estimator"]: row for row in _of(rows, surface) if row["products"] == COST}
        cells = [_error(own[name]) for name in TRACES]
        cells += [shown(Interval(*own[name]["more"]), scale=100, digits=2, signed=True) for name in TRACES[1:]]
        lines.append([title, *cells])
    return markdown(heads, lines)


def search_table(rows: Rows, titles: dict[str, str]) -> str:
    """Of each surface and most products: error (residual) of lambda_max, and the share of searches that converged."""
    costs = sorted({row["products"] for row in rows if row["estimator"] == "lambda_max"})
    lines = []
    for surface, title in titles.items():
        own = {row["products"]: row for row in _of(rows, surface) if row["estimator"] == "lambda_max"}
        cells = [f"{_error(own[cost])}; {100 * own[cost]['converged']:.3g}" for cost in costs]
        lines.append([title, *cells, plain(own[costs[-1]]["made"])])
    heads = [f"at most {cost}: error (residual), %; converged, %" for cost in costs]
    return markdown(["surface", *heads, f"products made of {costs[-1]}"], lines)


def others_table(rows: Rows, titles: dict[str, str]) -> str:
    """Of each surface: density and diagonal with the share of the truth that their intervals hold, at each cost."""
    lines, heads = [], ["surface"]
    for surface, title in titles.items():
        own = [row for row in _of(rows, surface) if row["estimator"] in ("density", "diagonal")]
        heads = ["surface", *(f"{_what(row)}: error (claimed), %; held, %" for row in own)]
        lines.append([title, *(f"{_error(row)}; {100 * row['held'][0]:.3g}" for row in own)])
    return markdown(heads, lines)


def _what(row: dict[str, Any]) -> str:
    if row["estimator"] == "diagonal":
        return f"diagonal, {row['products']}"
    return f"density, {row['probes']} x {row['steps']}"


def _of(rows: Rows, surface: str) -> Iterable[dict[str, Any]]:
    return (row for row in rows if row["surface"] == surface)


def _error(row: dict[str, Any]) -> str:
    return f"{plain(100 * row['error'], 2)} ({plain(100 * row['claimed'], 2)})"


def _percent(held: Interval) -> str:
    return shown(held, scale=100)
