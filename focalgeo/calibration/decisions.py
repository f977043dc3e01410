"""Decisions on calibrated probabilities: sets of classes, answers or none, actions of least cost, net benefit.

Thresholds are set on examples that neither trained the classifier nor fitted or chose its calibration. These and the
examples that are decided on are taken for exchangeable. On the host.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Integer
from scipy import special
from scipy.cluster import vq

from focalgeo import checks
from focalgeo.calibration.examples import Clusters
from focalgeo.calibration.metrics.binning import LogProbs
from focalgeo.types import ON_EDGE, Array, DataWarning, InputError, shown

KINDS = ("lac", "aps", "raps")
PARTS = ("all", "class", "class_cluster", "group")  # of the examples, of which coverage is promised
_ENDS = np.array([0.025, 0.975])
THRESHOLDS = 20  # that are tested for an abstention
_ROUNDING = 1e-9  # of a rank
_OF_CLASS, _OF_CLUSTER = 10, 150  # examples at least
# From next to none to one that cuts sets short; the best of them is known well enough by a fifth of val.
_PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)
_QUANTILES = np.linspace(0.5, 0.9, 5)  # of a class's scores: classes are alike by these


PerPart = Float[Array, " parts"]


class PredictionSets(NamedTuple):
    """Sets of classes, and what is known of their coverage before any label is seen."""

    members: Bool[Array, "examples classes"]
    thresholds: PerPart  # the largest score of a member; inf where all classes are
    parts: tuple[str, ...]  # what has a threshold: "all", a group's name, or numbers of classes
    part: Int[Array, "examples classes"]  # whose threshold decides
    counts: Int[Array, " parts"]  # examples of val, or clusters of them, that set the threshold
    expected: PerPart  # coverage over all val
    low: PerPart  # the ends between which the coverage of examples to come is with probability 0.95
    high: PerPart  # given val, by the Beta distribution


def prediction_sets(
    val_log_probs: Float[Array, "n classes"],
    val_labels: Integer[Array, " n"],
    log_probs: LogProbs,
    *,
    coverage: float = 0.9,
    kind: str = "lac",
    part: str = "all",
    groups: tuple[Array, Array] | tuple[()] = (),
    clusters: Array | None = None,
    penalty: float | None = None,
    free: int | None = None,
    least_one: bool = False,
    seed: int = 0,
) -> PredictionSets:
    """Sets of classes that hold the label with probability `coverage` or more, by split conformal prediction.

    Class k is a member where its score is at most the threshold, the ceil((n + 1) coverage)-th smallest score of a
    label among the n examples of val, or of that part of them; if they are fewer than that, all classes are members,
    and a DataWarning says so. Scores are

        lac   1 - p_k: sets are smallest on average, and may be empty
        aps   the sum of p_j over classes ranked before k, and u p_k, u uniform from 0 to 1: larger where it is harder
        raps  the score of aps, and penalty max(0, rank of k - free): large sets are rare

    Args:
        val_log_probs: Float [n, classes], by a calibration that has not seen these examples.
        val_labels: Int [n].
        log_probs: Float [examples, classes], by the same calibration.
        coverage: Above 0 and below 1.
        kind: "lac", "aps" or "raps".
        part: What has that coverage: "all" examples taken together, those of each "class", those of each "group", or
            those of each "class_cluster", classes whose scores are alike on one half of val; the other half gives the
            thresholds, and classes too rare to be compared are one cluster.
        groups: For "group": the name of each example's group, (of val [n], of the others [examples]).
        clusters: [n], which examples of val belong together. Sets then hold the label of an example of a new cluster
            with that probability; every cluster counts as one example.
        penalty: For "raps", 0 or more; None takes the one of 0.001, 0.01, 0.1, 0.2 and 0.5 with the smallest sets on a
            fifth of val, which then sets no threshold.
        free: Ranks that have no penalty in "raps"; None takes the rank within which the label lies with probability
            `coverage` on that fifth.
        least_one: Whether the predicted class is always a member, so that no set is empty. Sets then contain the
            label more often than promised: `expected`, `low` and `high` are for sets without it.
        seed: Seed of u, of that fifth, of the halves of val and of the clusters of classes.

    Source: Vovk, Gammerman & Shafer (2005); Sadinle, Lei & Wasserman, JASA 114 (2019), lac; Romano, Sesia & Candes,
    NeurIPS 2020, aps; Angelopoulos et al., ICLR 2021, raps; Ding et al., NeurIPS 2023, clusters of classes; Lee,
    Barber & Willett, arXiv 2306.06342, clusters of examples.

    Example:
        >>> sets = calibration.prediction_sets(log_probs, labels, log_probs, coverage=0.6)
        >>> print(sets.members.astype(int), round(float(sets.thresholds[0]), 4), sets.expected)
        [[1 0 0]
         [0 1 0]
         [1 0 1]
         [0 1 0]] 0.6928 [0.6]
    """
    checks.check_choice("kind", kind, KINDS)
    checks.check_choice("part", part, PARTS)
    check_share("coverage", coverage)
    seed = checks.count("seed", seed, 0)
    val, labels, others = _checked(val_log_probs, val_labels, log_probs)
    generator, n = np.random.default_rng(seed), len(val)
    used, cluster = np.ones(n, bool), np.arange(n) if clusters is None else Clusters.of(clusters, labels).index
    checks.check_interval("penalty", penalty or 0.0, 0)
    checks.count("free", free or 0, 0)
    if kind == "raps" and (penalty is None or free is None):
        used = generator.permutation(cluster.max() + 1)[cluster] % 5 > 0
        rows, truth = val[~used], labels[~used]
        each = np.arange(len(rows))
        if free is None:
            ranks = (rows > rows[each, truth][:, None]).sum(axis=1) + 1
            free = np.quantile(ranks, coverage, method="higher") if len(rows) else 1
        sizes = {}
        for tried in _PENALTIES if penalty is None and len(rows) else ():
            scores = _scores(rows, "raps", tried, free, generator)
            threshold, _, _ = _threshold(scores[each, truth], each, coverage)
            sizes[tried] = (scores <= threshold).sum()
        penalty = min(sizes, key=sizes.get, default=penalty or 0.0)
    of_val, of_others = (_scores(rows, kind, penalty, free, generator) for rows in (val, others))
    of_label = of_val[np.arange(n), labels]
    names, place, index, used = _parts(part, of_label, labels, of_others, groups, used, generator)
    thresholds, ranks, counts = np.transpose(
        [
            _threshold(of_label[rows], cluster[rows], coverage)
            for rows in used & (index == np.arange(len(names))[:, None])
        ]
    )
    rest = counts + 1 - ranks
    ends = np.where(rest > 0, special.betaincinv(ranks, rest, _ENDS[:, None]), 1)
    few = np.array(names)[np.isinf(thresholds)]
    if few.size:
        of = "" if part == "all" else f" of {part} {shown(', '.join(few))}"
        what = f"fewer than {np.ceil(coverage / (1 - coverage) - _ROUNDING):.0f} examples of val are too few for a"
        warnings.warn(
            f"{what} threshold{of}: every class that it would decide on is in the sets", DataWarning, stacklevel=2
        )
    members, expected = of_others <= thresholds[place], ranks / (counts + 1)
    if least_one:
        members |= others == others.max(axis=1, keepdims=True)
    return PredictionSets(members, thresholds, (*names,), place, counts.astype(int), expected, *ends)


def _parts(part, of_label, labels, of_others, groups, used, generator):
    """Names of the parts that a coverage is promised of, the part of each set's member and of each example of val.

    And which examples of val may set thresholds: of clusters of classes one half makes the clusters.
    """
    n, classes = len(labels), of_others.shape[1]
    if part == "group":
        groups = [np.asarray(group).astype(str) for group in (() if groups is None else groups)]
        if [group.shape for group in groups] != [(n,), (len(of_others),)]:
            raise InputError(f"groups are to name the group of each example, {n} of val and {len(of_others)} others")
        names, place = np.unique(np.concatenate(groups), return_inverse=True)
        return names, np.broadcast_to(place[n:, None], of_others.shape), place[:n], used
    place = np.arange(classes) if part == "class" else np.zeros(classes, int)
    if part == "class_cluster":
        first = generator.permutation(n) % 2 == 0
        used, scores, labels_of = used & first, of_label[~first], labels[~first]
        # by k-means of quantiles of the label's scores; 0 is the cluster of classes with too few examples to be told
        counts, number = np.bincount(labels_of, minlength=classes), np.zeros(classes, int)
        told = np.flatnonzero(counts >= _OF_CLASS)
        clusters = min(counts[told].sum() // _OF_CLUSTER, len(told) - 1)
        if clusters > 1:
            points = np.array([np.quantile(scores[labels_of == k], _QUANTILES) for k in told])
            number[told] = vq.kmeans2(points, clusters, minit="++", seed=generator)[1] + 1
        _, place = np.unique(number, return_inverse=True)
    names = [", ".join(map(str, np.flatnonzero(place == number))) for number in range(place.max() + 1)]
    names = ["all"] if part == "all" else names
    return names, np.broadcast_to(place, of_others.shape), place[labels], used


class Answers(NamedTuple):
    """Which examples are answered, by how sure their prediction is."""

    answered: Bool[Array, " examples"]
    threshold: float  # those more confident than it are; inf: none is
    share: float  # of val that is answered
    error: float  # share of these that is wrong; NaN where none is
    high: float  # Clopper and Pearson's upper bound of it


def answers(
    val_log_probs: Float[Array, "n classes"],
    val_labels: Integer[Array, " n"],
    log_probs: LogProbs,
    *,
    error_at_most: float = 0.05,
    confidence: float = 0.95,
) -> Answers:
    """The predictions to give, and where to abstain, so that at most a share `error_at_most` of the answers is wrong.

    The bound holds for new examples with probability `confidence` over val. Thresholds that answer 1/20, 2/20, ... of
    val are tested in turn by the exact binomial test, whose null hypothesis is an error above the bound. The last
    threshold before a test fails is taken. The tests begin where half of the allowed errors would pass.

    Args:
        val_log_probs: Float [n, classes], by a calibration that has not seen these examples.
        val_labels: Int [n].
        log_probs: Float [examples, classes], by the same calibration.
        error_at_most: Above 0 and below 1.
        confidence: Above 0 and below 1.

    Source: Angelopoulos et al., learn then test, arXiv 2110.01052; Geifman & El-Yaniv, NeurIPS 2017; Clopper & Pearson,
    Biometrika 26 (1934).

    Example:
        >>> val = np.repeat(log_probs, 100, axis=0), np.repeat(labels, 100)  # half is wrong, and less sure
        >>> found = calibration.answers(*val, log_probs, error_at_most=0.1)
        >>> found.answered.tolist(), round(found.share, 2), round(found.high, 4)
        ([True, True, False, False], 0.5, 0.0149)
    """
    check_share("error_at_most", error_at_most)
    check_share("confidence", confidence)
    val, labels, others = _checked(val_log_probs, val_labels, log_probs)
    sure, level = val.max(axis=1), 1 - confidence
    cuts = np.append(np.quantile(sure, np.arange(THRESHOLDS - 1, 0, -1) / THRESHOLDS, method="lower"), -np.inf)
    wrong = val.argmax(axis=1) != labels
    sizes, errors = ((each & (sure > cuts[:, None])).sum(axis=1) for each in (True, wrong))
    able, passed = (special.bdtr(some, sizes, error_at_most) <= level for some in (sizes * error_at_most // 2, errors))
    # cuts that even half of the errors allowed would fail have too few examples to be tested
    first = able.argmax()
    last = first + np.cumprod(passed[first:]).sum() - 1
    if not able.any() or last < first:
        return Answers(np.zeros(len(others), bool), np.inf, 0.0, np.nan, np.nan)
    cut, size, error = (float(each[last]) for each in (cuts, sizes, errors))
    high = float(special.betaincinv(error + 1, size - error, 1 - level))
    return Answers(others.max(axis=1) > cut, float(np.exp(cut)), size / len(val), error / size, high)


class Actions(NamedTuple):
    """The action of least expected cost for each example."""

    action: Int[Array, " examples"]
    cost: Float[Array, " examples"]  # that is to be expected


def least_cost(log_probs: LogProbs, costs: Float[Array, "classes actions"]) -> Actions:
    """The action a with the least sum_k p_k costs[k, a], for each example; of equal ones the first.

    Args:
        log_probs: Float [examples, classes], calibrated: only then do costs come out as expected.
        costs: Float [classes, actions], the cost of each action where k is the label, in any unit. With costs of 1
            minus the identity, the action is the predicted class, and its cost the share of errors.

    Source: Elkan, IJCAI 2001.

    Example:
        >>> costs = np.float32([[0, 1, 0.3], [1, 0, 0.3], [1, 1, 0.3]])  # name class 0, name class 1, ask
        >>> action, cost = calibration.least_cost(log_probs, costs)
        >>> print(action, cost.round(4))
        [2 1 2 2] [0.3    0.1562 0.3    0.3   ]
    """
    rows = _rows(log_probs, None)
    costs = np.asarray(checks.number_array("costs", costs), np.float64)
    checks.check_array(f"costs for log_probs {rows.shape}", costs, shape=(rows.shape[1], None))
    checks.count("the number of actions that costs has", costs.shape[1], 1)
    checks.check_finite("costs", costs)
    expected = np.exp(rows) @ costs
    return Actions(expected.argmin(axis=1), expected.min(axis=1))


def gains(log_probs: LogProbs, labels: Array, thresholds: Array) -> Float[np.ndarray, "examples thresholds"]:
    """What each example adds to the net benefit of acting where P(1) is at least t, in units of a true positive.

    Their mean is TP / n - FP / n t / (1 - t): a false positive costs t / (1 - t) true positives. An example whose P(1)
    is within 1e-6 of t is acted on.

    Source: Vickers & Elkin, Medical Decision Making 26 (2006); R's dcurves computes the same.
    """
    acted = np.exp(np.float64(log_probs)[:, 1:]) >= thresholds - ON_EDGE
    return acted * np.where(np.asarray(labels)[:, None] == 1, 1.0, -thresholds / (1 - thresholds))


def check_share(name: str, value: Any) -> None:
    """Refuse what is no share above 0 and below 1."""
    number = np.asarray(value).tolist()
    if not isinstance(number, float) or not 0 < number < 1:
        raise InputError(f"{name} is {shown(value)}: give a share above 0 and below 1, for example 0.9")


def _checked(val_log_probs, val_labels, log_probs):
    val, labels, _ = checks.examples(val_log_probs, val_labels)
    return np.asarray(val, np.float64), np.asarray(labels), _rows(log_probs, val.shape[1])


def _rows(log_probs, classes):
    """Log-probabilities [examples, classes] that are so: logits are refused."""
    rows = checks.score_rows("log_probs", log_probs, shape=(None, classes))
    return np.asarray(checks.examples(rows, np.zeros(len(rows), int))[0], np.float64)


def _scores(log_probs, kind, penalty, free, generator):
    """Scores [examples, classes]; what a probability near 1 lacks is kept."""
    if kind == "lac":
        return -np.expm1(log_probs)
    order = np.argsort(-log_probs, axis=1, kind="stable")
    p = np.exp(np.take_along_axis(log_probs, order, axis=1))
    ranked = np.cumsum(p, axis=1) - p * generator.uniform(size=(len(p), 1))
    if kind == "raps":
        ranked += penalty * np.maximum(np.arange(1, p.shape[1] + 1) - free, 0)
    scores = np.empty_like(ranked)
    np.put_along_axis(scores, order, ranked, axis=1)
    return scores


def _threshold(scores, cluster, coverage):
    """The threshold, its rank and the number of examples, or of clusters, each of which weighs 1."""
    _, index, sizes = np.unique(cluster, return_inverse=True, return_counts=True)
    order = np.argsort(scores, kind="stable")
    # (n + 1) coverage is a whole number up to rounding: 10.000000001 is not the 11th score
    least = (len(sizes) + 1) * coverage - _ROUNDING
    reached = np.cumsum(1 / sizes[index[order]]) >= least
    threshold = scores[order[reached.argmax()]] if reached.any() else np.inf
    return threshold, np.ceil(least), len(sizes)
