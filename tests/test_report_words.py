"""Sentences of a page: they say what the rows and their intervals say, and no more."""

import pytest
from synthetic_workdir import NAMES, attribution_rows, curvature_rows, training_rows

from focalgeo import losses
from focalgeo.report import Column
from focalgeo.report.hessian import (
    attribution_tables,
    attribution_words,
    curvature_table,
    curvature_words,
    trace_words,
)
from focalgeo.report.words import (
    accuracy_words,
    choice_words,
    interval_words,
    loss_implied_words,
    training_loss,
    training_words,
    verdict,
)
from focalgeo.rows import AttributionPart, Difference, Fit, Metric, ReliabilityBin, Scalar, Tags, Trace

AS_GIVEN = Column("uncalibrated")
PLAIN, FOCAL = Column("temperature_scaling", "ece"), Column("focal_temperature_scaling", "ece")
IMPLIED, VECTOR = Column("loss_implied_map"), Column("vector_scaling", "ece")


def ece(column, value, low=0.001, high=0.1, *, n=359, split="test"):
    return Metric("ece", value, low, high, n, split, *column)


def difference(column, against, low, high, *, value=None, n=359, split="test"):
    value = (low + high) / 2 if value is None else value
    return Difference("ece_difference", value, low, high, 0.5, n, split, column.method, against, column.criterion)


def ece_rows(values, ends=None, *, gamma=1.0, n=359, split="test"):
    """ECE 20% as given, and with both methods; `ends` is (value, low, high) of their difference."""
    rows = [ece(AS_GIVEN, 0.2, 0.15, 0.25, n=n, split=split)]
    rows += [ece(column, value, n=n, split=split) for column, value in zip((PLAIN, FOCAL), values, strict=True)]
    rows.append(Fit("calibration_gamma", gamma, n, "val", *FOCAL))
    if ends:
        rows.append(difference(FOCAL, PLAIN.method, *ends[1:], value=ends[0], n=n, split=split))
    return rows


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (
            (-0.01, -0.02, -0.001),
            "−1.00 percentage points, 95% interval [−2.00,\u00a0−0.10]: focal temperature scaling is better",
        ),
        (
            (0.01, 0.001, 0.02),
            "1.00 percentage points, 95% interval [0.10,\u00a02.00]: focal temperature scaling is worse",
        ),
        ((-0.01, -0.02, 0.001), "this test set does not tell the two methods apart"),
        ((0.01, -0.001, 0.02), "this test set does not tell the two methods apart"),
        ((-0.01, -0.01, -0.01), "too few examples here (359)"),
    ],
)
def test_the_verdict_is_that_of_the_paired_difference_alone(ends, says):
    assert says in verdict(ece_rows((0.09, 0.01), ends), NAMES)[-1]
    assert verdict(ece_rows((0.01, 0.09), ends), NAMES)[-1] == verdict(ece_rows((0.09, 0.01), ends), NAMES)[-1]


def test_the_verdict_says_nothing_without_the_paired_difference():
    sentences = verdict(ece_rows((0.09, 0.01)), NAMES)
    assert len(sentences) == 2
    assert sentences[-1].endswith("after focal temperature scaling (γ\u00a0=\u00a01) it is 1.00% [0.10,\u00a010.00].")
    assert verdict(ece_rows((0.09, 0.01))[:1], NAMES)[-1] == (
        "Its expected calibration error is 20.00% [15.00,\u00a025.00] as trained."
    )
    assert verdict([ece(AS_GIVEN, 0.2, 0.2, 0.2, n=8)], {})[-1] == (
        "Its expected calibration error is 20.00% as trained."
    )


def test_the_verdict_with_few_examples_or_gamma_0_does_not_compare():
    apart = (-0.01, -0.02, -0.001)
    assert verdict(ece_rows((0.09, 0.01), apart, n=99), NAMES)[-1] == (
        "There are too few examples here (99) to compare the two methods."
    )
    assert "is better" in verdict(ece_rows((0.09, 0.01), apart, n=100), NAMES)[-1]
    same = verdict(ece_rows((0.05, 0.05), (0.0, 0.0, 0.0), gamma=0.0), NAMES)[-1]
    assert same == "The fit chose γ = 0, so focal temperature scaling is temperature scaling here."


def test_the_verdict_is_of_whatever_methods_the_rows_compare():
    rows = [*ece_rows((0.09, 0.01)), ece(VECTOR, 0.03), Fit("bias", 0.5, 359, "val", *VECTOR)]
    rows += [difference(VECTOR, PLAIN.method, -0.04, -0.02), difference(VECTOR, AS_GIVEN.method, -0.2, -0.1)]
    *_, first, last = verdict(rows, {})
    assert first.endswith("and after vector scaling (bias\u00a0=\u00a00.5) it is 3.00% [0.10,\u00a010.00].")
    assert last == (
        "On the same examples, vector scaling minus temperature scaling's ECE is −3.00 percentage points,"
        " 95% interval [−4.00,\u00a0−2.00]: vector scaling is better calibrated here."
    )


def test_whether_a_method_changes_the_accuracy_is_told_from_the_rows():
    rows = [Metric("accuracy", 0.9, split="test", method=column.method) for column in (AS_GIVEN, PLAIN)]
    assert accuracy_words(rows, NAMES, "test").startswith("These methods keep the order of the classes")
    rows.append(Metric("accuracy", 0.92, split="test", method=VECTOR.method))
    assert accuracy_words(rows, NAMES, "test").startswith("A method may change the predicted class")
    assert accuracy_words([], NAMES, "test") == ""


def compared_rows(differences, *, split="test", gamma=1.0, n=359):
    """ECE of both methods with the paired differences (low, high) of (column, against)."""
    rows = [*ece_rows((0.05, 0.04), gamma=gamma, n=n, split=split), Fit("temperature", 0.5, n, "val", *PLAIN)]
    return rows + [difference(*pair, *ends, n=n, split=split) for pair, ends in differences.items()]


def chosen(column):
    return {"method": column.method, "criterion": column.criterion, "parameters": {}}


FOCAL_BETTER, FOCAL_ALIKE = (-0.02, -0.01), (-0.02, 0.01)
BETTER, BELOW, ABOVE, WORSE = (-0.2, -0.1), (-0.2, 0.1), (-0.1, 0.2), (0.1, 0.2)  # both in the middle hold 0


@pytest.mark.parametrize(
    ("column", "focal", "before", "starts", "says"),
    [
        (FOCAL, FOCAL_BETTER, BETTER, "Use focal temperature scaling (γ\u00a0=\u00a01).", "beats"),
        (PLAIN, FOCAL_ALIKE, BETTER, "Use temperature scaling (T\u00a0=\u00a00.5).", "does not beat"),
        (PLAIN, FOCAL_ALIKE, BELOW, "Use temperature scaling", "not told apart from no calibration"),
        (PLAIN, FOCAL_ALIKE, ABOVE, "Use temperature scaling", "not told apart from no calibration"),
        (AS_GIVEN, FOCAL_ALIKE, WORSE, "Leave the outputs as they are", "worse beyond noise"),
    ],
)
@pytest.mark.parametrize("split", ["test", "cross_fit"])
def test_the_method_to_use_is_told_with_its_paired_differences(column, focal, before, starts, says, split):
    first = PLAIN if column == AS_GIVEN else column
    rows = compared_rows({(FOCAL, PLAIN.method): focal, (first, AS_GIVEN.method): before}, split=split)
    words = " ".join(choice_words(rows, NAMES, chosen(column), split=split, criterion="ece"))
    assert words.startswith(starts)
    assert says in words
    assert "20.00% [15.00,\u00a025.00] as given" in words
    beats = "beats" if focal == FOCAL_BETTER else "does not beat"
    assert words.endswith(f"So focal temperature scaling {beats} plain temperature scaling beyond noise.")


def test_few_examples_or_gamma_0_give_no_verdict_on_focal_temperature_scaling():
    differences = {(FOCAL, PLAIN.method): FOCAL_BETTER, (PLAIN, AS_GIVEN.method): BETTER}
    of = {"split": "test", "criterion": "ece"}
    few = " ".join(choice_words(compared_rows(differences, n=99), NAMES, chosen(PLAIN), **of))
    same = " ".join(choice_words(compared_rows(differences, gamma=0.0), NAMES, chosen(PLAIN), **of))
    assert few.endswith("There are too few examples here (99) to compare the two methods.")
    assert same.endswith("The fit chose γ = 0, so focal temperature scaling is temperature scaling here.")
    for words in (few, same):
        assert "beyond noise." not in words


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        (BETTER, "Undoing the loss makes it better calibrated, and turns it from underconfident to overconfident"),
        (WORSE, "Undoing the loss makes calibration worse here"),
        (BELOW, "do not show that the loss itself caused"),
        (ABOVE, "do not show that the loss itself caused"),
    ],
)
def test_what_the_focal_loss_caused_is_told_by_its_interval(ends, says):
    rows = [*compared_rows({(IMPLIED, AS_GIVEN.method): ends}), ece(IMPLIED, 0.03, 0.02, 0.04)]
    for column, confidence in ((AS_GIVEN, 0.6), (IMPLIED, 0.8)):
        edges = {"low": 0.5, "high": 0.9, "bin": 5, "lower": 0.5, "upper": 1.0, "n": 9, "split": "test"}
        rows.append(ReliabilityBin("reliability", 0.7, confidence=confidence, method=column.method, **edges))
    words = loss_implied_words(rows, 3.0, "test")
    assert "γ\u00a0=\u00a03. The calibration map" in words[0]
    assert "from 20.00% [15.00,\u00a025.00] to 3.00% [2.00,\u00a04.00]" in words[0]
    assert words[1].startswith(says) or says in words[1]
    assert loss_implied_words([row for row in rows if row.name != "ece"], 3.0, "test") == []


def test_curvature_is_told_with_its_errors_and_a_search_that_failed_is_named():
    rows = list(curvature_rows())
    ratio = 402.0 / 1843.0
    half = 1.96 * ratio * ((17.5 / 402.0) ** 2 + (61.0 / 1843.0) ** 2) ** 0.5
    assert curvature_words(rows) == (
        f"At the trained parameters the focal loss's trace is {ratio:.3f} times that of cross-entropy"
        f" (approximate 95% interval [{ratio - half:.3f},\u00a0{ratio + half:.3f}], from the two standard errors)."
    )
    assert curvature_words([row._replace(stderr=0.0) if isinstance(row, Trace) else row for row in rows]) == ""
    lines = curvature_table(rows).lines
    assert [cell.text for cell in lines[0].cells] == ["212.4", "± 0.31", "64", "180"]
    assert lines[2].cells[2] == ("60", "Hessian products (Hutch++)", False)
    failed = curvature_table([rows[0]._replace(converged=False)]).lines[0].cells[0]
    assert failed.note == "not converged"


def test_the_parts_of_curvature_stand_side_by_side():
    ((split, table),) = attribution_tables(attribution_rows())
    assert split == "val"
    parts = ["Loss in the logits", "– softmax × weight", "– change of weight", "Network in its parameters"]
    assert [line.title for line in table.lines] == ["Whole", *parts, "By scale alone", "Scale-free trace"]
    losses = ["cross-entropy", "focal loss"]
    assert table.heads == [(of, loss) for of in ("Trace", "Largest eigenvalue") for loss in losses]
    assert [cell.text for cell in table.lines[3].cells] == ["–", "145.0", "–", "16.11"]
    assert table.lines[3].cells[1].note == "± 4.3"
    assert [cell.text for cell in table.lines[6].cells] == ["92.15", "92.15", "–", "–"]


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (280, 300, "more than scaling leaves"),
        (-300, -280, "less than scaling leaves"),
        (-3, 3, "which the errors do not tell from scaling"),
    ],
)
def test_whether_the_loss_only_scaled_is_told_by_the_paired_interval(low, high, says):
    first, *others = attribution_words(attribution_rows(low=low, high=high))
    assert first.startswith(
        "Had the focal loss only scaled cross-entropy by its mean weight of 0.060, the trace would be"
    )
    assert says in first
    assert others == [
        "The true class's probability is 0.933 in the median of these 180 examples, 5% lie below 0.741 and 5% above"
        " 0.9949.",
        "The focal loss's second derivative in the true logit exceeds cross-entropy's for 12.0% of them, and is below 0"
        " for 1.0%.",
    ]


def test_a_difference_that_is_rounding_is_no_finding():
    tiny = {"value": 1e-6, "low": 0.9e-6, "high": 1.1e-6}
    assert "nothing but rounding" in attribution_words(attribution_rows(**tiny))[0]


def test_a_loss_without_weight_or_rows_is_told_without_them():
    unweighted = [row for row in attribution_rows() if row.name != "mean_weight"]
    assert len(attribution_words(unweighted)) == 2
    parts = [row for row in unweighted if isinstance(row, AttributionPart) and row.part in ("whole", "residual")]
    ((_, table),) = attribution_tables(parts)
    assert [line.title for line in table.lines] == ["Whole", "Network in its parameters"]
    assert (attribution_words([]), attribution_tables([])) == ([], [])


def test_the_trace_is_explained_by_its_estimator():
    rows = list(curvature_rows())
    assert "two thirds of the Hessian products build a part that is exact" in trace_words(rows)
    plain_rows = [row._replace(estimator="hutchinson") if isinstance(row, Trace) else row for row in rows]
    assert trace_words(plain_rows).startswith("estimated from random samples")
    assert curvature_table(plain_rows).lines[2].cells[2].note == "Hessian products (Hutchinson)"


def test_the_intervals_are_explained_with_the_runs_own_numbers():
    words = interval_words({"config": {"evaluation": {"num_resamples": 60, "num_bins": 15}}})
    assert "from 60 resamples of the examples: (2 × value − mean of the resamples) ±\u00a01.96 standard" in words
    assert words.endswith("Both ECEs have 15 bins.")
    assert interval_words({}).startswith("In brackets, bias-corrected bootstrap 95% intervals: (2")


def test_training_loss_in_words():
    focal = {"config": {"loss": {"name": "focal_loss", "gamma": 3.0}}, "loss_values": ["gamma"]}
    assert training_loss(focal) == "focal loss, γ\u00a0=\u00a03"
    assert training_loss({"config": {"loss": {"name": "cross_entropy", "gamma": 0.0}}}) == "cross-entropy"
    flat = {"config": {"loss": {"name": "mmce", "gamma": 3.0, "trace_penalty": 0.01}}}
    assert training_loss(flat) == "cross-entropy with MMCE, trace penalty\u00a0=\u00a00.01"
    assert training_loss({"config": {"loss": {"name": "flsd_53", "trace_penalty": 0.0}}}) == "FLSD-53"
    for name in ("adafocal_loss", "flsd_53", "scheduled_focal_loss"):  # their gammas are not config.loss.gamma
        taken = losses.hyperparameters(losses.FUNCTIONS[name])
        assert "γ" not in training_loss({"config": {"loss": {"name": name, "gamma": 3.0}}, "loss_values": taken})
    assert training_loss({}) == "an unnamed loss"


def test_a_training_row_is_told_by_the_distance_between_rows():
    def rows(steps):
        return [Scalar("loss", 1.0, split="train", tags=Tags(step=step)) for step in steps]

    assert training_words(rows(range(20, 101, 20))).startswith("A training row is the mean of 20 batches,")
    assert training_words(rows(range(1, 9))).startswith("A training row is a single batch,")
    kept = training_words([*training_rows(), Scalar("selected_epoch", 12.0)])
    assert kept.endswith("The parameters kept are those after epoch 12, the best on val.")
    assert training_words([]) == ""
