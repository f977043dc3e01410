"""Finding rows: which rows match, and the columns in which a report compares them."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Column(NamedTuple):
    """One way to make probabilities from logits: a map, and the criterion it was fitted by (None: not fitted)."""

    map: str
    criterion: str | None

    @property
    def where(self) -> dict[str, Any]:
        """The conditions its rows meet; None means that the row has no such key."""
        return {"map": self.map, "criterion": self.criterion}


UNCALIBRATED = Column("uncalibrated", None)
COLUMNS = (
    UNCALIBRATED,
    Column("temperature_scaling", "ece"),
    Column("temperature_scaling", "nll"),
    Column("focal_temperature_scaling", "ece"),
    Column("focal_temperature_scaling", "nll"),
)
MAP_TITLES = {
    "uncalibrated": "Uncalibrated",
    "temperature_scaling": "Temperature scaling",
    "focal_temperature_scaling": "Focal temperature scaling",
    "unfocalled": "Un-focalled",
}


def matching(rows: Sequence[Row], where: Mapping[str, Any]) -> list[Row]:
    """Return the rows that agree with every condition; a condition of None asks that the key be absent."""
    return [row for row in rows if all(row.get(key) == value for key, value in where.items())]


def latest(rows: Sequence[Row], where: Mapping[str, Any]) -> Row | None:
    """Return the last matching row, as a part of a job that ran twice wrote twice; None where none matches."""
    found = matching(rows, where)
    return found[-1] if found else None


def latest_by(rows: Sequence[Row], where: Mapping[str, Any], key: str) -> list[Row]:
    """Return the last matching row for each value of `key`, sorted by that value."""
    found = {row[key]: row for row in matching(rows, where) if key in row}
    return [found[value] for value in sorted(found)]


def calibrated_columns(rows: Sequence[Row]) -> list[Column]:
    """Return uncalibrated, then each map once, fitted by ECE where there is such a fit and else by NLL."""
    chosen: dict[str, Column] = {}
    for column in COLUMNS:
        if matching(rows, column.where):
            chosen.setdefault(column.map, column)
    return list(chosen.values())


def measured(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the last row of curvature `name` after training for each loss and split, in the order written."""
    final = [row for row in rows if row.get("name") == name and "loss" in row and "epoch" not in row]
    places = dict.fromkeys((row["loss"], row.get("split")) for row in final)
    return [latest(final, {"loss": loss, "split": split}) for loss, split in places]


def measured_title(row: Row) -> str:
    """Return whose Hessian a row of curvature is of: "cross-entropy, val"."""
    return ", ".join([loss_title(row["loss"]), *([row["split"]] if "split" in row else [])])


def loss_title(loss: str) -> str:
    """Return a loss's name in words: "focal_loss" -> "focal loss", "flsd_53" -> "FLSD-53"."""
    if loss in ("mmce", "weighted_mmce"):
        return f"cross-entropy with {loss.replace('mmce', 'MMCE').replace('_', ' ')}"
    if loss.rpartition("_")[2].isdigit():
        return loss.replace("_", "-").upper()
    return loss.replace("cross_entropy", "cross-entropy").replace("_", " ")


def fit(rows: Sequence[Row], column: Column, name: str) -> float | None:
    """Return the fitted "temperature" or "calibration_gamma" of a column; None where it was not fitted."""
    row = latest(rows, {**column.where, "name": name, "split": "val"})
    return None if row is None else float(row["value"])


def batches_of_row(rows: Sequence[Row]) -> int:
    """Return the number of batches over which a training row is the mean: the usual distance between rows' steps."""
    steps = sorted({row["step"] for row in rows})
    apart = [later - earlier for earlier, later in itertools.pairwise([0, *steps])]
    return int(statistics.mode(apart)) if apart else 0


def setting(manifest: Mapping[str, Any], name: str) -> Any:
    """Return a field of the config by its dotted name, such as "evaluation.num_bins"; None where there is none."""
    found: Any = manifest.get("config", {})
    for key in name.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def has_interval(row: Row) -> bool:
    """Whether a row has an interval with a width; one without says that the resamples do not differ, not certainty."""
    return "low" in row and "high" in row and row["low"] < row["high"]
