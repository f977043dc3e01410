"""What the experiments write their results with: rounded numbers, tables, and the places of tables in a README."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MARK = re.compile(r"(<!-- (?P<name>[\w ]+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


class Interval(NamedTuple):
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float


def rounded(value: Any, digits: int = 6) -> Any:
    """The same data with floats to so many digits, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def plain(number: float, digits: int = 3, sign: str = "") -> str:
    """So many digits; from 1,000 on, or more than the digits hold, without an exponent; 0 without a minus."""
    text = f"{number + 0.0:{sign},.{digits}g}"
    return f"{float(text):{sign},.0f}" if "e+" in text else text


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [heads, ["---"] * len(heads), *rows])


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The text with each table between its marks, <!-- name --> and <!-- end -->; other marks stay as they are."""

    def of_mark(match: re.Match) -> str:
        name = match["name"]
        return f"{match[1]}\n{tables[name]}\n{match[3]}" if name in tables else match[0]

    return MARK.sub(of_mark, text)
