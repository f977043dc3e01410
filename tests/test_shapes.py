import numpy as np
import pytest
import shapes
from jaxtyping import Float, Int

from focalgeo import theory
from focalgeo.types import Array


@shapes.checked
def picked(logits: Float[Array, "examples classes"], labels: Int[Array, " examples"]) -> Float[Array, " examples"]:
    return logits[np.arange(len(logits)), labels[: len(logits)]][: labels.max() + 1]


def test_axes_of_two_lengths_other_types_and_results_are_refused_in_the_package_too():
    assert picked(np.ones((3, 4)), np.array([0, 1, 2])).shape == (3,)
    for logits, labels in (
        (np.ones((3, 2)), np.zeros(4, int)),
        (np.ones((3, 2), int), np.ones(3, int)),
        (np.ones((3, 4)), np.zeros(3, int)),  # the result is of another length
    ):
        with pytest.raises(shapes.ShapeError, match="picked"):
            picked(logits, labels)
    with pytest.raises(shapes.ShapeError, match="gradient_ratio"):
        theory.gradient_ratio(np.ones(3, np.float32), np.ones(2, np.int32)[:1])
