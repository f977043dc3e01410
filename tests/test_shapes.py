import numpy as np
import pytest
import shapes
from jaxtyping import Float, Int

from focalgeo import theory
from focalgeo.types import Array, InputError


@shapes.checked
def picked(logits: Float[Array, "examples classes"], labels: Int[Array, " examples"]) -> Float[Array, " examples"]:
    if logits.ndim != 2:
        raise InputError("no classes")
    return logits[np.arange(len(logits)), labels[: len(logits)]]


@shapes.checked
def scaled(x: Float[Array, "*#batch"] | float, factor: float) -> Float[Array, "*batch"]:
    return np.asarray(x * factor)


def test_shapes_that_fit_pass():
    assert picked(np.ones((3, 2)), np.zeros(3, int)).shape == (3,)
    assert scaled(2, 3.0) == 6  # an int is a float too
    assert scaled(np.ones((2, 3)), 2).shape == (2, 3)


def test_an_axis_of_two_lengths_is_refused():
    with pytest.raises(shapes.ShapeError, match=r"picked: labels is no .*float64\[3, 2\], labels: int64\[4\]"):
        picked(np.ones((3, 2)), np.zeros(4, int))


def test_another_type_is_refused():
    with pytest.raises(shapes.ShapeError, match="logits"):
        picked(np.ones((3, 2), int), np.zeros(3, int))


def test_a_result_is_checked():
    def doubled(x: Float[Array, " n"]) -> Float[Array, " n"]:
        return np.concatenate([x, x])

    with pytest.raises(shapes.ShapeError, match="return"):
        shapes.checked(doubled)(np.ones(2))


def test_what_a_function_refuses_itself_stays_so():
    with pytest.raises(InputError, match="no classes"):
        picked(np.ones(3), np.zeros(3, int))


def test_a_function_without_shapes_is_left_as_it_is():
    def plain(x: int) -> int:
        return x

    assert shapes.checked(plain) is plain


def test_the_package_is_checked_while_tests_run():
    with pytest.raises(shapes.ShapeError, match="gradient_ratio"):
        theory.gradient_ratio(np.ones(3, np.float32), np.ones(2, np.int32)[:1])
