"""Sentences of a page: they say what the rows and their intervals say, and no more."""

import math

import pytest
from msgspec.structs import replace
from synthetic_workdir import NAMES, attribution_rows, curvature_rows, training_rows

from focalgeo import losses
from focalgeo.report import Column
from focalgeo.report.choice import elsewhere_words, refused_words, verdict_words
from focalgeo.report.hessian import (
    attribution_tables,
    attribution_words,
    curvature_table,
    curvature_words,
    trace_words,
)
from focalgeo.report.tables import metric_table
from focalgeo.report.words import (
    accuracy_words,
    interval_words,
    loss_implied_words,
    training_loss,
    training_words,
    verdict,
)
from focalgeo.rows import AttributionPart, Difference, Fit, Metric, ReliabilityBin, Scalar, Trace

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


def p_value_of(low, high):
    """The two-sided p-value of no difference that belongs to the 95% interval."""
    middle, half = (low + high) / 2, (high - low) / 2
    return math.erfc(1.959964 * abs(middle) / half / math.sqrt(2)) if half else float(middle == 0)


def nll(column, against, low, high, *, n=359, split="test", name="nll", against_criterion=None):
    fields = {"value": (low + high) / 2, "low": low, "high": high, "p_value": p_value_of(low, high)}
    fields |= {"n": n, "split": split}
    pair = {"method": column.method, "criterion": column.criterion, "against": against.method}
    return Difference(f"{name}_difference", **fields, **pair, against_criterion=against_criterion)


BY_NLL = Column("temperature_scaling", "nll"), Column("focal_temperature_scaling", "nll")
VECTOR_BY_NLL = Column("vector_scaling", "nll")


def run_rows(*differences, gamma=1.0):
    """ECE 20% as trained and 5% by methods fitted by NLL, T of the plain one and gamma of the other."""
    columns = dict.fromkeys([*BY_NLL, *(Column(row.method, row.criterion) for row in differences)])
    rows = [ece(AS_GIVEN, 0.2, 0.15, 0.25), *(ece(column, 0.05) for column in columns)]
    rows += [Fit("temperature", 1.25, 180, "val", *BY_NLL[0]), Fit("calibration_gamma", gamma, 180, "val", *BY_NLL[1])]
    return [*rows, *differences]


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ((-0.02, -0.001), "(γ\u00a0=\u00a01) has a lower NLL than temperature scaling beyond noise (NLL\u00a0−0.0105"),
        ((-0.02, 0.001), "(γ\u00a0=\u00a01) is not told apart from temperature scaling (NLL\u00a0−0.0095"),
        ((-0.001, 0.02), "(γ\u00a0=\u00a01) is not told apart from temperature scaling (NLL\u00a0+0.0095"),
        ((0.001, 0.02), "(γ\u00a0=\u00a01) has a higher NLL than temperature scaling beyond noise (NLL\u00a0+0.0105"),
        ((-0.01, -0.01), "(γ\u00a0=\u00a01) is not told apart from temperature scaling (NLL\u00a0−0.0100\u00a0nats)"),
        ((0.0, 0.0), "(γ\u00a0=\u00a01) has the NLL of temperature scaling to within rounding."),
    ],
)
def test_the_verdict_on_a_run_is_that_of_the_paired_difference_in_nll_alone(ends, says):
    assert says in verdict(run_rows(nll(BY_NLL[1], BY_NLL[0], *ends)), NAMES)[-1]


def test_the_verdict_on_a_run_counts_methods_where_none_is_better():
    other = Column("structured_matrix_scaling", "nll")
    pairs = [nll(each, BY_NLL[0], *ends) for each, ends in ((VECTOR_BY_NLL, (-0.01, 0.02)), (other, (0.01, 0.02)))]
    assert verdict(run_rows(*pairs), NAMES)[-1] == (
        "No method has a lower NLL than temperature scaling beyond noise when all 2 are counted as chances; the nearest"
        " is vector scaling "
        "(NLL\u00a0+0.0050\u00a0nats [−0.0100,\u00a00.0200]); 1 of 2 other methods has a higher one."
    )


def test_the_verdict_on_a_run_names_the_best_of_many_methods_with_nll_and_ece():
    rows = run_rows(
        nll(BY_NLL[1], BY_NLL[0], -0.02, -0.01),
        nll(VECTOR_BY_NLL, BY_NLL[0], -0.04, -0.02),
        nll(VECTOR_BY_NLL, BY_NLL[0], -0.02, 0.01, name="ece"),
    )
    *_, second, last = verdict(rows, NAMES)
    assert second == (
        "Its expected calibration error is 20.00% [15.00,\u00a025.00] as trained and 5.00% [0.10,\u00a010.00] after "
        "temperature scaling (T\u00a0=\u00a01.25)."
    )
    assert last == (
        "2 of 2 other methods have a lower NLL than temperature scaling beyond noise when all 2 are counted as chances,"
        " vector scaling the lowest "
        "(NLL\u00a0−0.0300\u00a0nats [−0.0400,\u00a0−0.0200], ECE\u00a0−0.50 percentage points [−2.00,\u00a01.00])."
    )


def test_the_verdict_on_a_run_counts_many_methods_as_many_chances():
    """Each interval leaves out 0, but of two methods one would do so by chance 1 time in 10."""
    ends = {BY_NLL[1]: (-0.041, -0.001), VECTOR_BY_NLL: (-0.03, -0.01)}
    rows = run_rows(*(nll(column, BY_NLL[0], *each) for column, each in ends.items()))
    last = verdict(rows, NAMES)[-1]
    assert last.startswith("1 of 2 other methods has a lower NLL than temperature scaling beyond noise when all 2 are")
    assert "vector scaling the lowest (NLL\u00a0−0.0200" in last
    alone = verdict(run_rows(nll(BY_NLL[1], BY_NLL[0], *ends[BY_NLL[1]])), NAMES)[-1]
    assert "has a lower NLL than temperature scaling beyond noise" in alone


def test_the_verdict_on_a_run_says_nothing_that_has_no_rows():
    assert len(verdict(run_rows(), NAMES)) == 2
    assert verdict([ece(AS_GIVEN, 0.2, 0.15, 0.25)], NAMES)[-1] == (
        "Its expected calibration error is 20.00% [15.00,\u00a025.00] as trained."
    )
    assert verdict([ece(AS_GIVEN, 0.2, 0.2, 0.2, n=8)], {})[-1] == (
        "Its expected calibration error is 20.00% as trained."
    )


def test_the_verdict_on_a_run_with_few_examples_or_gamma_0_does_not_compare():
    few = verdict(run_rows(nll(BY_NLL[1], BY_NLL[0], -0.02, -0.01, n=99)), NAMES)[-1]
    assert few == "There are too few examples here (99) to compare the methods."
    assert "beyond noise" in verdict(run_rows(nll(BY_NLL[1], BY_NLL[0], -0.02, -0.01, n=100)), NAMES)[-1]
    same = verdict(run_rows(nll(BY_NLL[1], BY_NLL[0], 0.0, 0.0), gamma=0.0), NAMES)[-1]
    assert same == "The fit chose γ = 0, so focal temperature scaling is temperature scaling here."


def test_whether_a_method_changes_the_accuracy_is_told_from_the_rows_and_the_methods():
    rows = [Metric("accuracy", 0.9, split="test", method=column.method) for column in (AS_GIVEN, PLAIN)]
    assert accuracy_words(rows, NAMES, "test").startswith("These methods keep the predicted class")
    equal = [*rows, Metric("accuracy", 0.9, split="test", method=VECTOR.method)]
    assert accuracy_words(equal, NAMES, "test") == ""
    methods = {**NAMES["methods"], VECTOR.method: {"title": "Vector scaling", "keeps_class": False}}
    assert accuracy_words(equal, {"methods": methods}, "test").startswith("A method may change the predicted class")
    before = {name: {"title": entry["title"]} for name, entry in NAMES["methods"].items()}
    assert accuracy_words(rows, {"methods": before}, "test") == ""
    rows.append(Metric("accuracy", 0.92, split="test", method=VECTOR.method))
    assert accuracy_words(rows, NAMES, "test").startswith("A method may change the predicted class")
    assert accuracy_words([], NAMES, "test") == ""


def compared_rows(differences, *, split="test", gamma=1.0, n=359):
    """ECE of both methods with the paired differences (low, high) of (column, against)."""
    rows = [*ece_rows((0.05, 0.04), gamma=gamma, n=n, split=split), Fit("temperature", 0.5, n, "val", *PLAIN)]
    return rows + [difference(*pair, *ends, n=n, split=split) for pair, ends in differences.items()]


BETTER, BELOW, ABOVE, WORSE = (-0.2, -0.1), (-0.2, 0.1), (-0.1, 0.2), (0.1, 0.2)  # both in the middle hold 0
ENDS = {"better": BETTER, "alike": BELOW, "worse": WORSE}


def chosen(column, **fields):
    choice = {"method": column.method, "criterion": column.criterion, "parameters": {}}
    beaten = {AS_GIVEN.method: BY_NLL[0].method}
    calibration = {"split": "test", "criterion": "nll", "choice": choice, "beaten": beaten, **fields}
    return {**NAMES, "calibration": calibration}


def choice_rows(column, against, val, test, of_ece=None, *, n=(500, 359)):
    """Differences of one pair: NLL on val and on test, ECE on test."""
    columns = (AS_GIVEN, *BY_NLL, VECTOR_BY_NLL)
    rows = [ece(each, 0.05, split=split) for each in columns for split in ("cross_fit", "test")]
    rows += [Fit("temperature", 1.25, 180, "val", *BY_NLL[0])]
    rows += [nll(column, against, *ENDS[val], n=n[0], split="cross_fit"), nll(column, against, *ENDS[test], n=n[1])]
    return [*rows, nll(column, against, *ENDS[of_ece or test], n=n[1], name="ece")]


@pytest.mark.parametrize(
    ("test", "of_ece", "says"),
    [
        ("better", "better", "The test set agrees ("),
        ("alike", "alike", "The test set does not tell the two apart ("),
        ("worse", "worse", "The test set speaks against it ("),
        ("better", "alike", "The test set agrees by NLL (−0.1500\u00a0nats [−0.2000,\u00a0−0.1000]) and does not tell"),
        ("worse", "better", "The test set speaks against it by NLL"),
    ],
)
@pytest.mark.parametrize(
    ("column", "against"), [(BY_NLL[0], AS_GIVEN), (VECTOR_BY_NLL, BY_NLL[0]), (VECTOR_BY_NLL, BY_NLL[1])]
)
def test_the_method_to_use_is_told_by_val_and_what_test_adds_apart_from_it(column, against, test, of_ece, says):
    beaten = dict.fromkeys([AS_GIVEN.method, against.method], column.method)
    words = verdict_words(choice_rows(column, against, "better", test, of_ece), chosen(column, beaten=beaten))
    first, second = words.split(". ")
    other = {AS_GIVEN: "no calibration"}.get(against, against.method.replace("_", " "))
    name = "temperature scaling (T\u00a0=\u00a01.25)" if column == BY_NLL[0] else "vector scaling"
    assert first == (
        f"Use {name}: on held-out parts of val it is better than {other} "
        "(NLL\u00a0−0.1500\u00a0nats [−0.2000,\u00a0−0.1000]), and no other beats it"
    )
    assert second.startswith(says)
    assert "does not beat" not in words


def test_no_method_to_use_is_told_by_what_the_plainest_does():
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "alike", "worse")
    words = verdict_words(rows, chosen(AS_GIVEN, beaten={}))
    assert words.startswith(
        "Leave the outputs as they are: on held-out parts of val no method is better beyond noise (temperature scaling "
        "less none: NLL\u00a0−0.0500\u00a0nats [−0.2000,\u00a00.1000]). The test set agrees ("
    )
    assert "speaks against it" in verdict_words(choice_rows(BY_NLL[0], AS_GIVEN, "alike", "better"), chosen(AS_GIVEN))


def test_a_method_that_is_chosen_for_what_another_beats_says_so():
    rows = choice_rows(BY_NLL[1], BY_NLL[0], "alike", "alike")
    manifest = chosen(BY_NLL[1], beaten={AS_GIVEN.method: "x", BY_NLL[0].method: "vector_scaling"})
    words = verdict_words(rows, manifest)
    assert (
        "on held-out parts of val vector scaling is better than temperature scaling, and no other beats this method, "
        "whose own difference to temperature scaling is NLL\u00a0−0.0500\u00a0nats [−0.2000,\u00a00.1000]."
    ) in words
    assert "it is better than" not in words


def test_an_interval_and_a_choice_that_counts_chances_do_not_contradict_each_other():
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "alike", "alike")
    one_sided = verdict_words(rows, chosen(BY_NLL[0]))
    assert (
        "it is better than no calibration (NLL\u00a0−0.0500\u00a0nats [−0.2000,\u00a00.1000], "
        "one-sided p\u00a0=\u00a00.26), and no other beats it."
    ) in one_sided
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "alike")
    counted = verdict_words(rows, chosen(AS_GIVEN, beaten={}))
    assert "no method is better beyond noise when all of them are counted as chances (temperature scaling" in counted


def test_where_the_score_test_decided_the_verdict_says_it_beside_the_difference():
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "alike", "alike")
    words = verdict_words(rows, chosen(BY_NLL[0], score_test={"statistic": -3.2, "p_value": 0.0014}))
    assert words.startswith(
        "Use temperature scaling (T\u00a0=\u00a01.25): on val the outputs as given are overconfident beyond noise "
        "(score test of T\u00a0=\u00a01: p\u00a0=\u00a00.0014), on held-out parts the difference to no calibration is "
        "NLL\u00a0−0.0500\u00a0nats [−0.2000,\u00a00.1000], and no other beats it. The test set"
    )
    assert "better than" not in words
    words = verdict_words(rows, chosen(BY_NLL[0], score_test={"statistic": 30, "p_value": 0}))
    assert "underconfident beyond noise (score test of T\u00a0=\u00a01: p\u00a0<\u00a00.0001)" in words
    words = verdict_words(rows, chosen(AS_GIVEN, beaten={}, score_test={"statistic": 0.7, "p_value": 0.48}))
    assert words.startswith(
        "Leave the outputs as they are: on val they are neither overconfident nor underconfident beyond noise "
        "(score test of T\u00a0=\u00a01: p\u00a0=\u00a00.48), and on held-out parts no other method is better"
    )
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "alike")
    words = verdict_words(rows, chosen(AS_GIVEN, beaten={}, score_test={"statistic": 0.7, "p_value": 0.48}))
    assert "beyond noise when all methods are counted as chances (score test" in words


@pytest.mark.parametrize(
    "found", [3, [], {}, {"statistic": "a", "p_value": 0}, {"statistic": 1, "p_value": 2}, {"p_value": 1e99}]
)
def test_a_score_test_that_is_none_is_not_told(found):
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "alike")
    assert verdict_words(rows, chosen(BY_NLL[0], score_test=found)) == verdict_words(rows, chosen(BY_NLL[0]))


def test_few_examples_conclude_nothing():
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "better", n=(99, 99))
    assert verdict_words(rows, chosen(BY_NLL[0], beaten={})) == (
        "Use temperature scaling (T\u00a0=\u00a01.25) for want of evidence: 99 examples are too few to compare "
        "methods, and nothing is concluded. The test set of 99 examples is too small to add to this."
    )
    enough = verdict_words(choice_rows(BY_NLL[0], AS_GIVEN, "better", "better", n=(100, 100)), chosen(BY_NLL[0]))
    assert "it is better than no calibration" in enough


def test_outputs_are_left_where_every_method_is_refused_and_the_words_say_why():
    why = "its fit ended at the end of the range searched"
    refused = dict.fromkeys([BY_NLL[0].method, BY_NLL[1].method, VECTOR_BY_NLL.method], why)
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "better")
    assert verdict_words(rows, chosen(AS_GIVEN, beaten={}, refused=refused)).startswith(
        f"Leave the outputs as they are: every method was refused ({why}); on held-out parts of val temperature scaling"
        " less none is NLL\u00a0−0.1500\u00a0nats [−0.2000,\u00a0−0.1000]. The test set"
    )
    few = choice_rows(BY_NLL[0], AS_GIVEN, "better", "better", n=(99, 99))
    assert verdict_words(few, chosen(AS_GIVEN, beaten={}, refused=refused)).startswith(
        f"Leave the outputs as they are: every method was refused ({why}). The test set of 99"
    )
    del refused[VECTOR_BY_NLL.method]
    assert "every method" not in verdict_words(rows, chosen(AS_GIVEN, beaten={}, refused=refused))


def test_gamma_0_is_called_temperature_scaling():
    rows = [*choice_rows(BY_NLL[1], AS_GIVEN, "better", "better"), Fit("calibration_gamma", 0.0, 9, "val", *BY_NLL[1])]
    manifest = chosen(BY_NLL[1])
    assert verdict_words(rows, manifest).startswith("Use temperature scaling (γ\u00a0=\u00a00): on held-out parts")
    pair = nll(BY_NLL[1], BY_NLL[0], -0.02, -0.01, split="cross_fit")
    beaten = dict.fromkeys([AS_GIVEN.method, BY_NLL[0].method], BY_NLL[1].method)
    assert "better than no calibration" in verdict_words([*rows, pair], chosen(BY_NLL[1], beaten=beaten))
    table = metric_table(rows, manifest, "test", chosen=BY_NLL[1])
    (line,) = [line for line in table.lines if line.mark]
    assert (line.mark, line.note) == ("chosen", "by NLL, γ\u00a0=\u00a00, that is temperature scaling")


def test_without_a_test_file_nothing_checks_the_choice():
    rows = choice_rows(BY_NLL[0], AS_GIVEN, "better", "better")
    words = verdict_words(rows, chosen(BY_NLL[0], split="cross_fit"))
    assert words.endswith("no other beats it. There was no test file, so no other examples check this.")


def test_methods_that_are_refused_or_better_and_from_elsewhere_are_named():
    why = "its NLL is worse than temperature scaling's beyond noise"
    refused = {"focal_temperature_scaling": why, "other": "its fit ended at the end of the range", "isotonic": why}
    rows, manifest = choice_rows(BY_NLL[0], AS_GIVEN, "better", "better"), chosen(BY_NLL[0], refused=refused)
    assert refused_words(rows, manifest) == (
        f"Not recommended: focal temperature scaling, isotonic ({why}); other (its fit ended at the end of the range)."
    )
    assert "no other to choose from beats it" in verdict_words(rows, manifest)
    theirs = Column("theirs")
    rows.append(Metric("nll", 0.2, split="test", method="theirs"))
    for ends, named in ((BETTER, True), (BELOW, False), (WORSE, False)):
        lines = elsewhere_words([*rows, nll(theirs, BY_NLL[0], *ends, against_criterion="nll")], manifest)
        assert bool(lines) == named, ends
    (line,) = elsewhere_words([*rows, nll(theirs, BY_NLL[0], *BETTER, against_criterion="nll")], manifest)
    assert line.startswith("Theirs, from elsewhere, is better than the method to use: NLL\u00a0−0.1500\u00a0nats")


def test_a_choice_by_ece_is_told_with_its_nll():
    rows = choice_rows(PLAIN, AS_GIVEN, "worse", "worse", "better")
    rows.append(nll(PLAIN, AS_GIVEN, *BETTER, n=500, split="cross_fit", name="ece"))
    words = verdict_words([*rows, ece(PLAIN, 0.05, split="cross_fit")], chosen(PLAIN, criterion="ece"))
    assert "(ECE\u00a0−15.00 percentage points [−20.00,\u00a0−10.00], NLL\u00a0+0.1500\u00a0nats" in words
    assert "The test set speaks against it by NLL (+0.1500" in words


@pytest.mark.parametrize("calibration", [{}, {"choice": {}}, {"refused": 3, "beaten": [1]}, {"refused": {"a": 1}}])
def test_a_folder_that_names_no_method_says_so(calibration):
    assert verdict_words([], {"calibration": calibration}) == "This folder does not say which method to use."
    assert refused_words([], {"calibration": calibration}) == ""
    assert verdict_words([], {"calibration": {**calibration, "choice": {"method": "x"}}}) == "Use x."


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
    assert curvature_words([replace(row, stderr=0.0) if isinstance(row, Trace) else row for row in rows]) == ""
    lines = curvature_table(rows).lines
    assert [cell.text for cell in lines[0].cells] == ["212.4", "± 0.31", "64", "180"]
    assert lines[2].cells[2][:3] == ("60", "Hessian products (Hutch++)", False)
    failed = curvature_table([replace(rows[0], converged=False)]).lines[0].cells[0]
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
    plain_rows = [replace(row, estimator="hutchinson") if isinstance(row, Trace) else row for row in rows]
    assert trace_words(plain_rows).startswith("estimated from random samples")
    assert curvature_table(plain_rows).lines[2].cells[2].note == "Hessian products (Hutchinson)"


def test_the_intervals_are_explained_with_the_runs_own_numbers():
    words = interval_words({"config": {"evaluation": {"num_resamples": 60, "num_bins": 15}}})
    assert "from 60 resamples of the examples: (2 × value − mean of the resamples) ±\u00a01.96 standard" in words
    assert (
        "where the resamples of a positive mean such as NLL are skewed to the right, what the logarithms give" in words
    )
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
        return [Scalar("loss", 1.0, split="train", step=step) for step in steps]

    assert training_words(rows(range(20, 101, 20))).startswith("A training row is the mean of 20 batches,")
    assert training_words(rows(range(1, 9))).startswith("A training row is a single batch,")
    kept = training_words([*training_rows(), Scalar("selected_epoch", 12.0)])
    assert kept.endswith("The parameters kept are those after epoch 12, the best on val.")
    assert training_words([]) == ""
