"""What every row of a measurement holds to."""

import math

from focalgeo.types import Array, RunError


def make_row(place: dict, numbers: dict[str, Array]) -> dict:
    """A row of Python floats; one that is not finite is an error of the measurement, never a value of a row."""
    numbers = {field: float(number) for field, number in numbers.items()}
    for field, number in numbers.items():
        if not math.isfinite(number):
            where = ", ".join(f"{key} {value}" for key, value in place.items() if key != "name")
            raise RunError(
                f"{place['name']} ({where}) has {field} {number}: the numbers it comes from are too large for float32; "
                "if training has diverged, lower the learning rate, else look for outlying inputs"
            )
    return {**place, **numbers}
