"""What manifest, rows and search must hold before a page is made of them: the files may be anybody's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo.report.selection import Row
from focalgeo.types import InputError

_MANIFEST = {"config": dict, "data": dict, "command": list, "calibration": dict}
_BIN = ("bin", "lower", "upper", "confidence", "low", "high", "n")
_NUMBERS = (*_BIN, "step", "residual", "stderr", "probes", "products", "quantile")
_NEEDED = {
    "reliability": _BIN,
    "class1_reliability": _BIN,
    "seconds": ("phase",),
    "attribution": ("of", "loss", "part"),
    "true_class_probability": ("n",),
    "gradient_norm_histogram": ("split", "bin", "lower", "upper"),
    "spectral_density": ("loss", "split", "bin", "lower", "upper", "stderr"),
    **dict.fromkeys(("scale_free_trace", "mean_weight", "share_raised", "share_negative"), ("loss",)),
}
_MEND = "restore it or choose another workdir"


def check_manifest(manifest: Mapping[str, Any], folder: Path) -> None:
    """Refuse a manifest whose config or data is no object, or whose command is no list.

    Raises:
        InputError: names the field.
    """
    for name, kind in _MANIFEST.items():
        if name in manifest and not isinstance(manifest[name], kind):
            wanted = {dict: "an object", list: "a list"}[kind]
            raise InputError(f"{folder / 'manifest.json'} is damaged: {name} is not {wanted}; {_MEND}")


def check_rows(rows: Sequence[Row], folder: Path) -> None:
    """Refuse a row without name or value, with a text where a number belongs, or without a field that its name needs.

    Raises:
        InputError: names the row, counted from 1, and the field.
    """
    for number, row in enumerate(rows, start=1):
        named = isinstance(row.get("name"), str)
        wrong = [] if named else ["name"]
        wrong += [key for key in ("value", *_NUMBERS) if key in (*row, "value") and not _is_number(row.get(key))]
        wrong += [key for key in _NEEDED.get(row["name"], ()) if key not in row] if named else []
        if wrong:
            place = f"{folder / 'metrics.jsonl'} is damaged at row {number}"
            raise InputError(f"{place}: {wrong[0]} is missing or of the wrong kind; delete that line")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_search(search: Mapping[str, np.ndarray], folder: Path) -> None:
    """Refuse a search without gammas, temperatures, and ece and nll of shape [gammas, temperatures].

    Raises:
        InputError: says what it should hold.
    """
    axes = [search.get(name) for name in ("gammas", "temperatures")]
    sizes = tuple(axis.size for axis in axes if axis is not None and axis.ndim == 1)
    if len(sizes) < 2 or any(name not in search or search[name].shape != sizes for name in ("ece", "nll")):
        raise InputError(
            f"{folder / 'search.npz'} does not hold gammas, temperatures, ece and nll [gammas, temperatures]; {_MEND}"
        )
