"""Statistics of runs, a DataFrame with a row for each: intervals over seeds, paired differences, verdicts, tables.

`column(runs, "ece", loss="fl3")` is the workhorse: a number by seed. `interval` is its mean with 95%, `paired` the mean
of a difference, `told` a claim whose verdict follows from an interval. `table` has a row for each group of runs and
columns that are functions of its runs: `means` and `changes` are those that most questions have, and are joined by |.
An interval of one value or none has infinite ends, and is written as its mean alone.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

SHOWS, NOT, UNTOLD, UNTRIED = VERDICTS = "supported", "contradicted", "undecided", "not tested"
OVERCONFIDENT = 1.3  # the least T of cross-entropy where the papers' claims on calibration are tested
LEARNED = 0.2  # accuracy of ten classes below which a run has learned nothing
RESAMPLES = 2000


class Interval(NamedTuple):
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether both ends are finite: of one value, or none, they are not."""
        return bool(np.isfinite(self.low + self.high))

    def mapped(self, function: Callable) -> "Interval":
        """An increasing function of all three, as exp of an interval of logarithms."""
        return Interval(*(float(function(number)) for number in self))

    def clipped(self, least: float, most: float = math.inf) -> "Interval":
        """Cut where the range of its number ends."""
        return Interval(self.mean, max(self.low, least), min(self.high, most)) if self.known else self


UNKNOWN = Interval(math.nan, -math.inf, math.inf)


class Claim(NamedTuple):
    """One statement with where it is made, its verdict (one of VERDICTS), and the numbers."""

    source: str  # as "Mukhoti et al., Table 1"; "focalgeo" for what the project says itself
    claim: str
    verdict: str
    because: str


class Number(NamedTuple):
    """A number of a run as tables have it; of a share the scale is 100."""

    title: str
    scale: float = 1.0


OUTPUTS = {
    "train accuracy": Number("accuracy on train at the end, %", 100),
    "accuracy": Number("accuracy, %", 100),
    "ece": Number("ECE as trained, %", 100),
    "ece after T": Number("ECE after T, %", 100),
    "nll": Number("NLL as trained"),
    "nll after T": Number("NLL after T"),
    "temperature": Number("T"),
}


def rows_where(runs: pd.DataFrame, **tags: Any) -> pd.DataFrame:
    """The runs with these values."""
    for name, value in tags.items():
        runs = runs[runs[name] == value]
    return runs


def learned(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs that came to their end and are not at chance: of one that is, ECE and curvature say nothing."""
    return runs[runs.accuracy >= LEARNED]


def column(runs: pd.DataFrame, number: str, **tags: Any) -> pd.Series:
    """Seed -> a number, of the runs with these values that have one."""
    return rows_where(runs, **tags).set_index("seed").get(number, pd.Series(dtype=float)).astype(float).dropna()


def interval(values: Iterable[float]) -> Interval:
    """Mean +- t sd / sqrt(n) of independent seeds, t of n - 1 degrees of freedom; infinite ends of one value."""
    values = np.asarray(list(values), np.float64)
    if not len(values):
        return UNKNOWN
    mean = float(values.mean())
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)) if len(values) > 1 else math.inf
    return Interval(mean, mean - half, mean + half)


def resampled_interval(values: Sequence[float]) -> Interval:
    """The mean over random halves of the same examples, with the corrected resampled t interval.

    mean +- t sqrt(1 / J + 1) sd for J halves that are tested after a fit on the other half: halves overlap, so that
    sd / sqrt(J) would be far too little.

    Source: Nadeau & Bengio, Machine Learning 52, 2003, section 4.
    """
    value = interval(values)
    half = float((value.high - value.mean) * np.sqrt(1 + len(values)))
    return Interval(value.mean, value.mean - half, value.mean + half)


def paired(one: pd.Series, other: pd.Series) -> Interval:
    """The mean of one minus other over the seeds that both have."""
    return interval((one - other).dropna())


def level(runs: pd.DataFrame, number: str, **tags: Any) -> Interval:
    """The interval of a number over seeds."""
    return interval(column(runs, number, **tags))


def levels(runs: pd.DataFrame, by: str, number: str, **tags: Any) -> dict[Any, Interval]:
    """Value of `by`, in the order of the runs -> the interval of a number over the seeds."""
    return {at: level(group, number) for at, group in rows_where(runs, **tags).groupby(by, sort=False)}


def change(one: pd.DataFrame, other: pd.DataFrame, number: str) -> Interval:
    """The mean difference of a number of one group of runs minus another, paired by seed."""
    return paired(column(one, number), column(other, number))


def has_log(runs: pd.DataFrame, number: str) -> bool:
    """Whether a number is above 0 in all runs that have it. A trace may be below 0 away from a minimum."""
    return bool((runs[number].dropna() > 0).all())


def ratio(one: pd.DataFrame, other: pd.DataFrame, number: str) -> Interval:
    """The geometric mean of ratios, less 1, paired by seed; unknown where a number is not above 0."""
    if not (has_log(one, number) and has_log(other, number)):
        return UNKNOWN
    return paired(*(np.log(column(runs, number)) for runs in (one, other))).mapped(np.expm1)


def slope(runs: pd.DataFrame, number: str, *, log: bool = True) -> Interval:
    """The least-squares slope over gamma of a number's logarithm, or of the number, over seeds that have all gammas.

    Of a logarithm -0.1 is a fall of 10% for each unit of gamma.
    """
    table = runs.pivot(index="gamma", columns="seed", values=number).dropna(axis=1)
    return interval(np.polyfit(table.index, np.log(table) if log else table, 1)[0])


def bootstrapped(count: int, statistic: Callable[[np.ndarray], np.ndarray], *, least: int = 5) -> Interval:
    """A statistic of drawn places [..., count], with 95% by the bootstrap; unknown of fewer than `least`.

    Resamples of which it is not finite are left out, unless they are half.
    """
    if count < least:
        return UNKNOWN
    value = statistic(np.arange(count))
    values = statistic(np.random.default_rng(0).integers(0, count, (RESAMPLES, count)))
    values = values[np.isfinite(values)]
    if not np.isfinite(value) or len(values) < RESAMPLES / 2:
        return UNKNOWN
    return Interval(float(value), *np.quantile(values, [0.025, 0.975]).round(9).tolist())


def partial_rank_correlation(points: np.ndarray) -> np.ndarray:
    """Of the ranks of two columns, once what a linear function of the others' ranks explains is taken from both.

    points: [..., points, 2 + fixed]. NaN where nothing is left of one of them.
    """
    ranks = stats.rankdata(points, axis=-2)
    ranks -= ranks.mean(-2, keepdims=True)
    left, fixed = ranks[..., :2], ranks[..., 2:]
    left = left - fixed @ (np.linalg.pinv(fixed) @ left)
    lengths = np.sqrt((left**2).sum(-2))
    lengths = np.where(lengths > 1e-9 * ranks.shape[-2], lengths, np.nan)
    return left.prod(-1).sum(-1) / lengths.prod(-1)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> Interval:
    """Spearman's rank correlation with a 95% interval by the bootstrap over its pairs; unknown for fewer than four."""
    pairs = np.column_stack([one, other])
    return bootstrapped(len(pairs), lambda places: partial_rank_correlation(pairs[places]), least=4)


def verdict(difference: Interval, *, falls: bool = True, margin: float = 0.0) -> str:
    """Whether a fall (or rise) is shown: the interval lies on that side of 0, on the other side, or holds 0.

    margin: how far the other side of 0 still counts, for claims such as "at most a point more".
    """
    if not difference.known:
        return UNTOLD
    low, high = (difference.low, difference.high) if falls else (-difference.high, -difference.low)
    return SHOWS if high < margin else NOT if low > margin else UNTOLD


def inside(value: Interval, low: float, high: float) -> str:
    """Whether a number between two ends is shown: its interval lies between, outside, or across an end."""
    if not value.known:
        return UNTOLD
    return SHOWS if low <= value.low and value.high <= high else NOT if value.high < low or value.low > high else UNTOLD


def alike(difference: Interval, room: float) -> str:
    """Whether a difference of at most `room` is shown."""
    return inside(difference, -room, room)


def joined(verdicts: Iterable[str]) -> str:
    """The verdict of a claim that needs several verdicts: NOT if one is NOT, SHOWS if all are."""
    verdicts = set(verdicts)
    return NOT if NOT in verdicts else SHOWS if verdicts == {SHOWS} else UNTOLD


def by_verdict(verdicts: Mapping[str, str]) -> str:
    """Which titles have which verdict, as a sentence for each."""
    titles = {said: [title for title, of in verdicts.items() if of == said] for said in VERDICTS}
    return ". ".join(f"{said}: {'; '.join(names)}" for said, names in titles.items() if names)


def told(
    source: str,
    claim: str,
    difference: Interval,
    *,
    scale: float = 1.0,
    unit: str = "",
    what: str = "difference",
    **how,
) -> Claim:
    """A claim that a difference falls, or as `verdict` is asked to, with the difference as its reason."""
    because = f"{what} {shown(difference, scale=scale, signed=True)} {unit}".strip()
    return Claim(source, claim, verdict(difference, **how), because)


def outside(claim: Claim, why: str) -> Claim:
    """The claim, "not tested" where `why` says that the runs lie outside the regime that the paper speaks of."""
    return claim._replace(verdict=UNTRIED, because=f"{why}; {claim.because}") if why else claim


def too_calm(plain: pd.DataFrame) -> str:
    """Why runs with cross-entropy are none of an overconfident network; "" if they are."""
    mean = plain.temperature.mean()
    return f"cross-entropy is not overconfident, T = {mean:.2f}" if mean < OVERCONFIDENT else ""


def with_own(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs with numbers of the trained loss also where that is cross-entropy, with a penalty or without.

    A penalty is no part of "own": MMCE and both trace penalties have cross-entropy's numbers there.
    """
    of_loss = {name.replace(" CE ", " own "): runs[name] for name in runs if " CE " in name}
    return runs.assign(**{name: runs[name].fillna(other) if name in runs else other for name, other in of_loss.items()})


# ---- as text


def plain(number: float, digits: int = 3, sign: str = "") -> str:
    """So many digits; from 1,000 on, or more than the digits hold, without an exponent; 0 without a minus."""
    text = f"{number + 0.0:{sign},.{digits}g}"
    return f"{float(text):{sign},.0f}" if "e+" in text else text


def shown(value: Interval, *, digits: int = 3, scale: float = 1.0, signed: bool = False) -> str:
    """As "1.2 (0.9 to 1.5)"; of one seed the number alone; signed, and bold where the interval leaves out 0."""
    if np.isnan(value.mean):
        return ""
    mean, low, high = (plain(scale * number, digits, "+" if signed else "") for number in value)
    if not value.known:
        return mean
    text = f"{mean} ({low} to {high})"
    return f"**{text}**" if signed and (scale * value.low > 0 or scale * value.high < 0) else text


def markdown(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A Markdown table."""
    heads = list(heads)
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in [heads, ["---"] * len(heads), *rows])


Columns = Mapping[str, Callable[[pd.DataFrame], Any]]  # title -> the cell of the runs of a row


def table(heads: Sequence[str], groups: Mapping[Any, pd.DataFrame], columns: Columns) -> str:
    """A row for each group of runs: its title, a text or several, and a cell for each column."""
    rows = [
        [*([title] if isinstance(title, str) else title), *(cell(runs) for cell in columns.values())]
        for title, runs in groups.items()
    ]
    return markdown([*heads, *columns], rows)


def _columns(numbers: Mapping[str, Number], cell: Callable[..., str]) -> Columns:
    return {number.title: partial(cell, name=name, number=number) for name, number in numbers.items()}


def means(numbers: Mapping[str, Number]) -> Columns:
    """Means over seeds; a share, in %, is cut at 0 and 100%."""

    def cell(runs, name, number):
        value = level(runs, name)
        value = value.clipped(0, 100 / number.scale) if number.title.endswith("%") else value
        return shown(value, scale=number.scale)

    return _columns(numbers, cell)


def changes(numbers: Mapping[str, Number], base: pd.DataFrame) -> Columns:
    """Numbers minus those of the base, paired by seed; bold where the interval leaves out 0; of the base none."""

    def cell(runs, name, number):
        return "" if runs is base else shown(change(runs, base, name), scale=number.scale, signed=True)

    return _columns(numbers, cell)


def ratios(numbers: Mapping[str, Number], base: pd.DataFrame) -> Columns:
    """Geometric means of ratios to the base, less 1, in %, paired by seed."""
    percent = {name: Number(f"{number.title}, %", 100) for name, number in numbers.items()}
    return _columns(percent, lambda runs, name, number: shown(ratio(runs, base, name), scale=100, signed=True))


def means_table(
    heads: Sequence[str], groups: Mapping[Any, pd.DataFrame], numbers: Mapping[str, Number], count: str = "n"
) -> str:
    """How many runs each group has, and its means over seeds."""
    return table(heads, groups, {count: len} | means(numbers))


def changes_table(
    heads: Sequence[str],
    groups: Mapping[Any, pd.DataFrame],
    numbers: Mapping[str, Number],
    columns: Callable[..., Columns] = changes,
) -> str:
    """Each group but the first beside the first, by changes or ratios."""
    base, *others = groups.items()
    return table(heads, dict(others), columns(numbers, base[1]))


def rounded(value: Any, digits: int = 5) -> Any:
    """Data for JSON: floats to so many digits, an interval by its names with null for no number, runs with theirs."""
    if isinstance(value, pd.DataFrame):
        return [rounded(run.dropna().to_dict(), digits) for _, run in value.iterrows()]
    if isinstance(value, Interval):
        finite = {name: number if np.isfinite(number) else None for name, number in value._asdict().items()}
        return rounded(finite, digits)
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
