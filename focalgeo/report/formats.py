"""Numbers as a page prints them."""

import math

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUS = str.maketrans("-", "−")


def significant(value: float, digits: int = 4) -> str:
    """Return `value` with that many significant digits, never in e-notation: 1,234, 0.01235, −3.2 × 10⁻⁷."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 <= exponent < 7:
        return f"{value:,.{max(digits - 1 - exponent, 0)}f}".translate(_MINUS)
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.translate(_MINUS)} × 10{str(int(power)).translate(_SUPERSCRIPTS)}"


def power_of_ten(value: float) -> str:
    """Return the power of ten nearest to a value above 0: 0.001 -> 10⁻³."""
    return f"10{str(round(math.log10(value))).translate(_SUPERSCRIPTS)}"


def plain(value: float) -> str:
    """Return a number without needless zeros: 0.05, 1, 3,000."""
    return f"{value:,.6f}".rstrip("0").rstrip(".").translate(_MINUS) if abs(value) >= 1e-4 else significant(value, 2)


def percent(value: float, digits: int = 2) -> str:
    """Return a fraction as a percentage: 0.0123 -> 1.23%."""
    return f"{100 * value:.{digits}f}%"


def points(value: float, digits: int = 2) -> str:
    """Return a difference of fractions in percentage points: -0.0123 -> −1.23."""
    return f"{100 * value:.{digits}f}".translate(_MINUS)


def interval(low: float, high: float, *, scale: float = 1.0, digits: int = 2) -> str:
    """Return an interval in brackets that no line break splits, each end times `scale`: [1.20, 3.40]."""
    return f"[{scale * low:.{digits}f},\u00a0{scale * high:.{digits}f}]".translate(_MINUS)
