"""Forest figure: each method's NLL less that of temperature scaling, with its interval."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments.posthoc.collected import Interval, less
from experiments.posthoc.methods import names
from experiments.posthoc.peers import PEERS
from experiments.posthoc.splits import TITLES
from experiments.posthoc.tables import PLAIN, title
from focalgeo.report.style import COLOURS, styled

REACH = 32.0  # thousandths of a nat; what lies beyond is at the edge with its number


def differences(results: dict[str, Any], network: str) -> dict[str, Interval]:
    """Thousandths of a nat by the name on the axis: methods, then those of other libraries that gave an answer."""
    methods, peers = results["methods"][network], results["peers"].get(network, {})
    named = {title(name): methods[name] for name in names() if name in methods and name != PLAIN}
    answered = [name for name in PEERS if "nll" in peers.get(name, ())]
    named |= {f"{PEERS[name].package}: {PEERS[name].title}": peers[name] for name in answered}
    found = {name: less(own, methods[PLAIN], "nll") for name, own in named.items()}
    return {name: Interval(*(1000 * number for number in each)) for name, each in found.items()}


def draw(results: dict[str, Any], path: Path) -> None:
    """A panel for each network, as PNG; other libraries in orange."""
    networks = list(results["methods"])
    found = {network: differences(results, network) for network in networks}
    places = list(max(found.values(), key=len))
    with styled():
        size = (3.2 + 2.6 * len(networks), 0.8 + 0.22 * len(places))
        figure, axes = plt.subplots(1, len(networks), figsize=size, sharey=True, squeeze=False)
        for panel, network in zip(axes[0], networks, strict=True):
            _panel(panel, found[network], places)
            panel.set_title(TITLES[network].replace(", ", "\n"))
        axes[0][0].set_yticks(range(len(places)), places)
        axes[0][0].set_ylim(len(places) - 0.4, -0.6)
        figure.supxlabel("NLL less temperature scaling's, thousandths of a nat (left is better)", fontsize=9)
        figure.savefig(path, dpi=100, metadata={"Software": None})
        plt.close(figure)


def _panel(panel: Axes, found: dict[str, Interval], places: list[str]) -> None:
    panel.axvline(0, color=COLOURS["muted"], linewidth=1)
    panel.set_xlim(-REACH, REACH)
    for place, name in enumerate(places):
        if name not in found:
            continue
        colour = COLOURS["orange" if ":" in name else "blue"]
        mean, low, high = found[name]
        if abs(mean) > REACH:
            panel.text(REACH if mean > 0 else -REACH, place, f"{mean:+.0f} ▸", color=colour, ha="right", va="center")
            continue
        panel.plot(np.clip([low, high], -REACH, REACH), [place, place], color=colour, linewidth=1.6)
        panel.plot([mean], [place], "o", color=colour, markersize=4)
