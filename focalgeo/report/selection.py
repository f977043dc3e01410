"""Rows and manifest of a workdir, and what a page asks of them by kind, method and metric.

The methods and metrics, their titles, order, units and scales are the manifest's.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from msgspec.structs import replace

from focalgeo.report.style import METHOD_COLOURS, fixed, interval, rounded, short
from focalgeo.rows import Difference, Eigenvalue, Fit, Metric, Row, Sharpness, Title, Trace, select

# The methods that sentences are about; any other is known by its entry in the manifest alone.
UNCALIBRATED, PLAIN, FOCAL = "uncalibrated", "temperature_scaling", "focal_temperature_scaling"
LOSS_IMPLIED = "loss_implied_map"
HELD_OUT = "cross_fit"  # the split of rows of val by fits of the other folds
CRITERION = "nll"  # by which the methods shown are fitted where no other is chosen
_CRITERIA = {"adaptive_ece": "adaptive ECE", "line_search": "line search"}
_AT_GAMMA_0 = {FOCAL: PLAIN, "focal_vector_scaling": "vector_scaling"}  # what a method of the focal map is at gamma 0
_SHARE = "share_of_"  # of a mixture: in calibrator.json, too many for a line
_SYMBOLS = {"calibration_gamma": "γ", "temperature": "T"}
NLL, ECE = Title("NLL", "nats"), Title("ECE", "%", scale=100.0, digits=2)


Rows = Sequence[Row]  # of a workdir, in the order written
Curvature = Eigenvalue | Trace | Sharpness


class Column(NamedTuple):
    """A column of the tables: a method, and the criterion it was fitted by (None: nothing fitted)."""

    method: str
    criterion: str | None = None


AS_TRAINED = Column(UNCALIBRATED)
BY_NLL = Column(PLAIN, CRITERION)


class Run(NamedTuple):
    """The rows and the manifest of a workdir."""

    rows: Rows
    manifest: Mapping[str, Any]

    def setting(self, name: str) -> Any:
        """Return a field of the config by its dotted name, such as "evaluation.num_bins"; None where there is none."""
        return self.entry(f"config.{name}")

    def entry(self, name: str) -> Any:
        """Return an entry of the manifest by its dotted name, such as "data.classes"; None where there is none."""
        value = self.manifest
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    def select(self, kind: type, column: Column | None = None, **fields: Any) -> list[Any]:
        """Return the rows of one kind with these fields, of one column's fit where that is named."""
        return select(self.rows, kind, **fields, **(column._asdict() if column else {}))

    @property
    def methods(self) -> Mapping[str, Any]:
        """The manifest's methods by name, in the order of tables."""
        return self.manifest.get("methods", {})

    @property
    def criterion(self) -> str:
        """By which the methods shown are fitted where they can be; what NLL fits is steadier than by an ECE."""
        return self.entry("calibration.criterion") or CRITERION

    @property
    def chosen(self) -> Column | None:
        """The method that a calibration says to use."""
        choice = self.entry("calibration.choice")
        return Column(choice["method"], choice["criterion"]) if choice else None

    @property
    def ends(self) -> list[Column]:
        """The outputs as given and the method that a calibration says to use, which may be the same."""
        return list(dict.fromkeys((AS_TRAINED, self.chosen)))

    @property
    def is_binary(self) -> bool:
        """Whether it is of two classes, so that it is about P(1)."""
        return bool(self.metric(AS_TRAINED, "class1_ece"))

    @property
    def measured_on(self) -> str:
        """The split that the page is about: test, or of a calibration without a test cross-fitted val."""
        return self.entry("calibration.split") or "test"

    @property
    def metrics(self) -> dict[str, Title]:
        """The manifest's metrics by name, in the order of tables."""
        return {name: Title(**entry) for name, entry in self.manifest.get("metrics", {}).items()}

    @property
    def data_title(self) -> str:
        """The data set's name, of a path its last part alone: "newsgroups:/data/20news.tar.xz" is "20news"; or ""."""
        name = self.entry("data.name") or ""
        return short(PurePath(name).name.split(".")[0] if "/" in name else name)

    @property
    def loss(self) -> str:
        """The training loss in words, such as "focal loss, γ = 3" (with spaces that do not break)."""
        name = self.setting("loss.name")
        if not name:
            return "an unnamed loss"
        gamma = self.setting("loss.gamma") if "gamma" in (self.entry("loss_values") or ()) else None
        numbers = {"γ": gamma, "trace penalty": self.setting("loss.trace_penalty") or None}
        values = [f"{title}\u00a0=\u00a0{rounded(value)}" for title, value in numbers.items() if value is not None]
        return ", ".join([loss_title(short(name)), *values])

    def at_chance(self) -> list[Metric]:
        """Return the test accuracies as trained that guessing could reach, of K classes from 1 / K."""
        classes = len(self.entry("data.classes") or ())
        return [
            row
            for row in self.select(Metric, name="accuracy", split="test", method=UNCALIBRATED, group=None)
            if classes and row.low is not None and row.low <= 1 / classes
        ]

    def method_title(self, column: Column) -> str:
        """Return the title of a column's method, such as "Temperature scaling"."""
        return self.entry(f"methods.{column.method}.title") or column.method.replace("_", " ").capitalize()

    def fitted_title(self, column: Column) -> str:
        """Return the title of what was fitted: that of temperature scaling where a focal map came to gamma 0."""
        is_plain = column.method in _AT_GAMMA_0 and self.fits(column).get("calibration_gamma") == 0
        return self.method_title(Column(_AT_GAMMA_0[column.method]) if is_plain else column)

    def in_words(self, column: Column) -> str:
        """Return a method with what was fitted: "focal temperature scaling (γ = 1, T = 0.8)"."""
        values = self.fitted_values(column)
        if shares := [row for row in self.select(Fit, column) if row.name.startswith(_SHARE)]:
            return f"the mixture of {len(shares)} methods ({column.method})"
        return self.in_text(column) + (f" ({', '.join(values)})" if values else "")

    def in_text(self, column: Column) -> str:
        """Return the title of a method within a sentence."""
        return self.fitted_title(column).lower().replace("platt", "Platt")

    def after(self, column: Column) -> str:
        """Return when something is measured: "without calibration", or "after temperature scaling"."""
        return "without calibration" if column == AS_TRAINED else f"after {self.in_text(column)}"

    def method_colour(self, column: Column) -> str:
        """Return the colour of a column's method: grey as trained, two that stay, others by place in the manifest."""
        known = {UNCALIBRATED: "grey", PLAIN: "blue", FOCAL: "orange"}
        others = [name for name in self.methods if name not in known]
        known |= zip(others, itertools.cycle(METHOD_COLOURS[2:]), strict=False)
        return known.get(column.method, METHOD_COLOURS[-1])

    def columns(self, split: str = "") -> list[Column]:
        """Return every method by every criterion that has metrics on the split, in the manifest's order."""
        rows = self.select(Metric, split=split or self.measured_on, group=None)
        columns = dict.fromkeys(Column(row.method, row.criterion) for row in rows)
        # methods from elsewhere are not in the manifest, and come last
        order = [*self.methods, *(column.method for column in columns)]
        return sorted(columns, key=lambda column: order.index(column.method))

    def column_of_each(self, split: str = "") -> list[Column]:
        """Return each method once, fitted by the run's criterion, or by the first that has metrics where it has none.

        The loss-implied map is left out: it has a section of its own.
        """
        columns = {}
        for column in self.columns(split):
            if column.method != LOSS_IMPLIED and (column.method not in columns or column.criterion == self.criterion):
                columns[column.method] = column
        return list(columns.values())

    def metric(self, column: Column, name: str, split: str = "", group: str | None = None) -> Metric | None:
        """Return the last row of one metric of one column."""
        return [None, *self.select(Metric, column, name=name, split=split or self.measured_on, group=group)][-1]

    def difference(self, name: str, split: str, column: Column, against: Column) -> Difference | None:
        """Return a metric with one method minus that with another, whichever of them is first in the rows."""
        for first, second in ((column, against), (against, column)):
            by = None if second.criterion == first.criterion else second.criterion
            fields = {"name": f"{name}_difference", "split": split, "against": second.method, "against_criterion": by}
            # a part of a job that ran twice writes twice: the last row counts
            for row in self.select(Difference, first, **fields)[-1:]:
                return row if first == column else replace(row, value=-row.value, low=-row.high, high=-row.low)
        return None

    def fits(self, column: Column) -> dict[str, float]:
        """Return a column's fitted numbers by name; the γ of temperature scaling, 0 by definition, is none."""
        return {
            row.name: row.value
            for row in self.select(Fit, column)
            if (column.method, row.name) != (PLAIN, "calibration_gamma") and not row.name.startswith(_SHARE)
        }

    def fitted_values(self, column: Column) -> list[str]:
        """Return the fitted numbers of a column with their symbols, four digits of each: "T = 0.8"."""
        fitted = self.fits(column)
        return [f"{symbol}\u00a0=\u00a0{rounded(fitted[name])}" for name, symbol in symbols_of(fitted).items()]


def criterion_title(criterion: str) -> str:
    """Return a criterion's name in words: "NLL", "adaptive ECE"."""
    return _CRITERIA.get(criterion) or criterion.replace("_", " ").upper()


def symbols_of(fitted: Iterable[str]) -> dict[str, str]:
    """Return name -> symbol of fitted numbers, γ and T first; the symbol of an unknown one is its name."""
    return {name: _SYMBOLS.get(name, name.replace("_", " ")) for name in [*_SYMBOLS, *fitted] if name in fitted}


def latest(rows: Iterable[Row], kind: type, **fields: Any) -> Any:
    """Return the last row that `select` finds (a part of a job that ran twice writes twice); None if it finds none."""
    return [None, *select(rows, kind, **fields)][-1]


def grouped(rows: Iterable[Row], field: str) -> list[list[Any]]:
    """Return the rows of each value of a field, sorted by that value; rows without it are left out."""
    groups = defaultdict(list)
    for row in rows:
        groups[getattr(row, field)].append(row)
    groups.pop(None, None)
    return [groups[value] for value in sorted(groups)]


def latest_by(rows: Iterable[Row], field: str) -> list[Any]:
    """Return the last row of each value of a field, as `grouped` sorts them."""
    return [group[-1] for group in grouped(rows, field)]


def splits_of(rows: Iterable[Any]) -> list[str]:
    """Return the splits of rows, in the order written."""
    return list(dict.fromkeys(row.split for row in rows if row.split))


def in_training(rows: Iterable[Row]) -> list[Row]:
    """Return the rows measured after an epoch."""
    return [row for row in rows if row.epoch is not None]


def measured(rows: Iterable[Row], name: str) -> list[Any]:
    """Return the last row of curvature `name` after training for each loss and split, in the order written."""
    return list({(row.loss, row.split): row for row in select(rows, Curvature, name=name, epoch=None)}.values())


def finding(row: Difference | None, best: str = "low") -> str:
    """Return "better" or "worse": on which side of 0 the interval of a difference lies, for its first method; else "".

    One without width says that the resamples agree, which is no certainty.
    """
    if row is None or not has_interval(row) or row.low <= 0 <= row.high:
        return ""
    return "better" if (row.high < 0) == (best == "low") else "worse"


def has_interval(row: Any) -> bool:
    """Whether a row has an interval with a width; one without width means that the resamples agree, not certainty."""
    return row.low is not None and row.low < row.high


def loss_title(loss: str) -> str:
    """Return a loss's name in words: "focal_loss" -> "focal loss", "flsd_53" -> "FLSD-53"."""
    if loss in ("mmce", "weighted_mmce"):
        return f"cross-entropy with {loss.replace('mmce', 'MMCE').replace('_', ' ')}"
    if loss.rpartition("_")[2].isdigit():
        return loss.replace("_", "-").upper()
    return loss.replace("cross_entropy", "cross-entropy").replace("_", " ")


def measured_title(row: Any) -> str:
    """Return the loss and the split of the Hessian that a row of curvature measures: "cross-entropy, val"."""
    return f"{loss_title(row.loss)}, {row.split}"


def difference_text(row: Difference, title: Title, *, named: bool = True) -> str:
    """Return a metric's difference with its unit and interval: "NLL −0.0261 nats [−0.0303, −0.0219]"."""
    unit = {"%": " percentage points", "": ""}.get(title.unit, f"\u00a0{title.unit}")
    value, low, high = (title.scale * number for number in (row.value, row.low, row.high))
    text, ends = fixed(value, title.digits), interval(low, high, title.digits) if low < high else ""
    sign = "+" if value > 0 and text.strip("0.,") else ""
    name = f"{title.title}\u00a0" if named else ""
    return f"{name}{sign}{text}{unit} {ends}".strip()
