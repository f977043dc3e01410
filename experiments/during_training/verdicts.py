"""What the runs say of the statements of Mukhoti et al. on training with cross-entropy and with focal loss.

"Late in training" is from the middle epoch to the last, which was set before any run was seen.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.cells import LOSSES, SAME_ERROR
from experiments.claims import Claim
from experiments.during_training import numbers
from experiments.during_training.numbers import FIRST, MIDDLE, Runs, at, by_seed, change, diagnosed
from experiments.intervals import interval, paired, shown, verdict
from experiments.writing import Interval

Number = Callable[[dict[str, Any]], float | None]
FOCAL = ("fl1", "fl2", "fl3")

# where, statement of cross-entropy late in training, split, curve, whether it falls
CHANGES = (
    ("M Fig. 1", "NLL of the training examples goes on to fall", "train", "nll", True),
    ("M Fig. 1", "NLL of test examples grows", "test", "nll", False),
    ("M Fig. 1", "NLL of test examples predicted wrong grows", "test", "nll wrong", False),
    ("M Fig. 1", "NLL of test examples predicted right does not grow: it falls", "test", "nll correct", True),
    ("M Fig. 1", "entropy of test examples predicted wrong falls", "test", "entropy wrong", True),
    ("M Fig. 1", "entropy of test examples predicted right falls", "test", "entropy correct", True),
    ("M Fig. 1", "test ECE grows", "test", "ece", False),
    ("M Fig. 1", "test error does not grow: it falls", "test", "error", True),
    ("M Fig. 3", "the norm of the last layer's weights grows", "", "weight_norm", False),
)
# where, statement of a focal loss beside cross-entropy, number, whether it is lower
BESIDE = (
    ("M Fig. 3", "NLL of test examples predicted wrong is lower at the end", at("test", "nll wrong"), True),
    (
        "M Fig. 3",
        "NLL of test examples predicted wrong grows less late in training",
        change("test", "nll wrong"),
        True,
    ),
    (
        "M Fig. 3",
        "entropy of test examples predicted wrong falls less late in training",
        change("test", "entropy wrong"),
        False,
    ),
    ("M Fig. 3", "test NLL is lower at the end", at("test", "nll"), True),
    ("M Fig. 3", "entropy of test examples predicted wrong is higher at the end", at("test", "entropy wrong"), False),
    ("M Fig. 3", "entropy of test examples predicted right is higher at the end", at("test", "entropy correct"), False),
    ("M Fig. 3", "test ECE is lower at the end", at("test", "ece"), True),
    ("M Fig. 3", "the last layer's weights are larger after epoch 1", at("", "weight_norm", FIRST), False),
    ("M Fig. 3", "the last layer's weights are smaller at the end", at("", "weight_norm"), True),
    ("M Fig. 4", "gradients of training examples are smaller midway", at("train", "gradient_norm", MIDDLE), True),
    ("M Fig. 4", "gradients of training examples are smaller at the end", at("train", "gradient_norm"), True),
    ("M Fig. 2", "fewer training examples have a confidence above 96% at the end", numbers.surest(), True),
    ("M Fig. 8", "wrong ones of 100 images are less sure as trained", numbers.wrong_confidence("confidence"), True),
    ("M Fig. 8", "wrong ones of 100 images are less sure after T", numbers.wrong_confidence("after"), True),
)
# statement of a loss beside cross-entropy, number, whether it is lower
S99 = (
    ("S99 holds fewer test images as trained", partial(numbers.s99, scaled=False), True),
    ("what S99 holds is more often right as trained", partial(numbers.s99_accuracy, scaled=False), False),
    ("after T S99 holds more test images", partial(numbers.s99, scaled=True), False),
)


def claims(runs: Runs) -> list[Claim]:
    """Every statement with its verdict; those of several losses one by one."""
    own = diagnosed(runs)
    found = [_changes(own, *statement) for statement in CHANGES]
    found += _shifts(own)
    found += [_beside(own, loss, *statement) for statement in BESIDE for loss in FOCAL]
    found += [_keeps_error(own, loss) for loss in FOCAL]
    found += [_beside(runs, "flsd53", "M Table 6", *statement) for statement in S99]
    return found


def _changes(runs: Runs, where: str, statement: str, split: str, name: str, falls: bool) -> Claim:
    found = interval(list(by_seed(runs, "ce", change(split, name)).values()))
    return _claim(where, f"CE, late in training: {statement}", found, falls, "change")


def _shifts(runs: Runs) -> list[Claim]:
    """Fig. 2: training examples move into the highest bin of confidence."""
    late = by_seed(runs, "ce", lambda run: numbers.surest()(run) - numbers.surest(MIDDLE)(run))
    statement = "CE, late in training: training examples move into the highest of 25 bins of confidence"
    return [_claim("M Fig. 2", statement, interval(list(late.values())), False, "change of the share in %")]


def _beside(runs: Runs, loss: str, where: str, statement: str, number: Number, lower: bool) -> Claim:
    difference = paired(by_seed(runs, loss, number), by_seed(runs, "ce", number))
    return _claim(where, f"{LOSSES[loss]} beside CE: {statement}", difference, lower, "difference")


def _keeps_error(runs: Runs, loss: str) -> Claim:
    difference = paired(by_seed(runs, loss, numbers.error), by_seed(runs, "ce", numbers.error))
    said = f"{LOSSES[loss]} beside CE: error on all test examples is at most {SAME_ERROR:g} point higher"
    return _claim("M Fig. 3", said, difference, True, "difference", SAME_ERROR)


def _claim(where: str, statement: str, found: Interval, falls: bool, what: str, margin: float = 0.0) -> Claim:
    because = f"{what} {shown(found, signed=True)}" if shown(found) else "no runs to compare"
    return Claim(where, statement, verdict(found, falls=falls, margin=margin), because)
