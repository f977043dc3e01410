"""The README's tables, each from results.json alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.intervals import resampled_interval
from experiments.posthoc import folds
from experiments.posthoc.collected import less
from experiments.posthoc.methods import names
from experiments.posthoc.peers import PEERS
from experiments.posthoc.simulation import KINDS
from experiments.posthoc.splits import TITLES
from experiments.writing import Interval, markdown
from focalgeo.calibration import METHODS

PLAIN = "temperature_scaling"
COUNTERPARTS = {
    "probmetrics temperature": PLAIN,
    "probmetrics ts-mix": PLAIN,
    "probmetrics svs": "vector_scaling",
    "probmetrics sms": "structured_matrix_scaling",
    "scikit-learn temperature": PLAIN,
    "scikit-learn isotonic": None,
    "scikit-learn pooled isotonic": "isotonic",
    "netcal temperature": PLAIN,
    "netcal temperature float64": PLAIN,
    "netcal histogram": None,
}


def all_tables(results: dict[str, Any]) -> dict[str, str]:
    """Every table by its name."""
    return {
        "methods": methods_table(results),
        "choice": choice_table(results),
        "simulation": simulation_table(results),
        "excess": excess_table(results),
        "folds": folds_table(results),
        "criterion": criterion_table(results),
        "peers": peers_table(results),
    }


def methods_table(results: dict[str, Any]) -> str:
    """Each method less temperature scaling."""
    rows = []
    for network, methods in results["methods"].items():
        recommended = [row["chosen"] for row in results["choice"].get(network, ())]
        for name in filter(methods.get, names()):
            own = methods[name]
            cells = [_less(own, methods[PLAIN], score, scale) for score, scale in _SCORES.items()]
            rows.append([TITLES[network], title(name), *cells, str(recommended.count(name)), _seconds(own)])
    heads = ("network", "method", *(f"{_HEADS[score]}" for score in _SCORES), "recommended", "processor s")
    return markdown(heads, rows)


def choice_table(results: dict[str, Any]) -> str:
    """The recommended methods, and on how many splits they were beyond noise worse / better than the plain ones."""
    rows = []
    for network, splits in results["choice"].items():
        chosen = [row["chosen"] for row in splits]
        said = ", ".join(f"{title(name)} {chosen.count(name)}" for name in dict.fromkeys(chosen))
        for against in ("uncalibrated", PLAIN):
            compared = [row["against"][against] for row in splits if against in row["against"]]
            cells = [_beyond(compared, metric) for metric in ("nll", "brier", "ece", "accuracy")]
            means = [row["against"][against]["nll"][0] if against in row["against"] else 0.0 for row in splits]
            mean = _shown(resampled_interval(1000 * np.array(means)))
            rows.append([TITLES[network], said, title(against), f"{len(compared)} of {len(splits)}", mean, *cells])
    heads = ("network", "recommended, splits", "against", "another than it", _HEADS["nll"])
    return markdown((*heads, "NLL worse / better", "Brier", "ECE", "accuracy"), rows)


def simulation_table(results: dict[str, Any]) -> str:
    """What was chosen, in percent of the repetitions."""
    order = list(METHODS)
    rows = []
    for cell in results["simulation"]:
        right = KINDS[cell["truth"]].right
        sides = {"plainer": 0, "right": 0, "beyond": 0}
        for name, count in cell["chosen"].items():
            side = np.sign(order.index(name) - order.index(right))
            sides[("plainer", "right", "beyond")[side + 1]] += count
        shares = [f"{100 * sides[side] / cell['repetitions']:.0f}" for side in sides]
        most = sorted(cell["chosen"].items(), key=lambda item: -item[1])
        said = ", ".join(f"{title(name)} {100 * count / cell['repetitions']:.0f}" for name, count in most)
        rows.append([*_cell_heads(cell), title(right), *shares, said])
    heads = (
        "truth",
        "classes",
        "examples",
        "repetitions",
        "right method",
        "plainer %",
        "right %",
        "more complex %",
        "chosen %",
    )
    return markdown(heads, rows)


def excess_table(results: dict[str, Any]) -> str:
    """The mean excess NLL over the truth, in thousandths of a nat."""
    rules = ("uncalibrated", PLAIN, "right", "chosen", "at_least_temperature", "least")
    rows = []
    for cell in results["simulation"]:
        excess = cell["excess"] | {"right": cell["excess"][KINDS[cell["truth"]].right]}
        rows.append([*_cell_heads(cell), *(f"{abs(1000 * excess[rule]):.1f}" for rule in rules)])
    heads = ("truth", "classes", "examples", "repetitions", "as given", title(PLAIN), "right method", "chosen")
    return markdown((*heads, "chosen or temperature", "least"), rows)


def folds_table(results: dict[str, Any]) -> str:
    """Held-out NLL less temperature scaling's by two kinds of folds, and on fresh examples: means and their errors."""
    rows = []
    for classes, examples in folds.CELLS:
        cell = [row for row in results["folds"] if (row["classes"], row["examples"]) == (classes, examples)]
        for name in folds.METHODS[1:]:
            found = [[row[kind][name] - row[kind][PLAIN] for row in cell] for kind in _KINDS]
            shown = [
                f"{1000 * np.mean(each):+.1f} ± {1000 * np.std(each, ddof=1) / len(each) ** 0.5:.1f}" for each in found
            ]
            rows.append([f"{classes}", f"{examples:,}", f"{len(cell)}", title(name), *shown])
    return markdown(("classes", "examples", "repetitions", "method", *_KINDS.values()), rows)


def criterion_table(results: dict[str, Any]) -> str:
    """Fits by NLL and by ECE, less temperature scaling by NLL."""
    rows = []
    for network, fits in results["criterion"].items():
        plain = fits[f"{PLAIN} by nll"]
        for name, own in fits.items():
            if own is plain:
                continue
            method, _, criterion = name.partition(" by ")
            cells = [_less(own, plain, score, scale) for score, scale in _SCORES.items() if score != "accuracy"]
            worse = sum(low > 0 for _, low, _ in own["nll_difference"])
            better = sum(high < 0 for _, _, high in own["nll_difference"])
            said = f"{worse} / {better} of {len(own['nll'])}"
            rows.append([TITLES[network], title(method), criterion.upper(), *cells, said])
    heads = ("network", "method", "fitted by", *(_HEADS[s] for s in _SCORES if s != "accuracy"), "NLL worse / better")
    return markdown(heads, rows)


def peers_table(results: dict[str, Any]) -> str:
    """Other libraries' NLL less that of temperature scaling here, and less that of the same method here."""
    rows = []
    for network, peers in results["peers"].items():
        methods = results["methods"].get(network, {})
        for name in filter(peers.get, PEERS):
            own = peers[name]
            named = [TITLES[network], f"{PEERS[name].package} {own['version']}", PEERS[name].title]
            if "nll" not in own:
                rows.append([*named, own["error"], "", "", "", ""])
                continue
            same = COUNTERPARTS[name]
            plain = _less(own, methods[PLAIN], "nll", 1000) if PLAIN in methods else ""
            less = _less(own, methods[same], "nll", 1000) if same in methods else ""
            ours = _seconds(methods[same]) if same in methods else ""
            zeros = f"{100 * np.mean(own['zeros']):.1f}%" if max(own["zeros"]) else "none"
            rows.append([*named, plain, less, zeros, _seconds(own), ours])
    heads = ("network", "library", "method", "NLL less temperature scaling", "NLL less the same here")
    return markdown((*heads, "labels given 0", "processor s", "here"), rows)


def title(name: str) -> str:
    """A method's title, as a part of a sentence."""
    plain, comma, rest = name.partition(",")
    return METHODS[plain].title.lower() + comma + rest if plain in METHODS else name


_KINDS = {"stratified": "held out, stratified folds", "unstratified": "held out, folds at random", "fresh": "fresh"}
_SCORES = {"nll": 1000, "ece": 1000, "brier": 1000, "accuracy": 100}
_HEADS = {"nll": "NLL, 1/1000 nat", "ece": "ECE, 1/1000", "brier": "Brier, 1/1000", "accuracy": "accuracy, points"}


def _less(own: dict, against: dict, score: str, scale: float) -> str:
    if own is against:
        return "0"
    return _shown(Interval(*(scale * each for each in less(own, against, score))))


def _shown(found: Interval) -> str:
    if found.low == found.high == 0:
        return "0"
    return f"{_signed(found.mean)} ({_signed(found.low)} to {_signed(found.high)})"


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return "0.0" if float(text) == 0 else text


def _beyond(compared: Sequence[dict], metric: str) -> str:
    sign = -1 if metric == "accuracy" else 1
    ends = [sorted((sign * each[metric][1], sign * each[metric][2])) for each in compared]
    return f"{sum(low > 0 for low, _ in ends)} / {sum(high < 0 for _, high in ends)}"


def _seconds(own: dict) -> str:
    return f"{np.median(own['processor_seconds']):.2g}"


def _cell_heads(cell: dict) -> list[str]:
    return [cell["truth"], f"{cell['classes']}", f"{cell['examples']:,}", f"{cell['repetitions']}"]
