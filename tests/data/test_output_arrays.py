"""What files of outputs mean: columns named for classes, one column of two, weights, choices that cannot be."""

import json

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_expit, log_softmax, softmax

from focalgeo.data.logits_files import Keys, read_outputs
from focalgeo.types import InputError

N = 60
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (N, 3))
LABELS = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(1)
CLASSES = ("owl", "cat", "a_dog")
SCORE = LOGITS[:, 1] - LOGITS[:, 0]
TRUTH = (RNG.random(N) < 1 / (1 + np.exp(-SCORE))).astype(int)
TRUTH[:2] = 0, 1


def read(path, *, where="val", **keys):
    return read_outputs(str(path), Keys(**keys), where=where)


def csv(path, **columns):
    pandas.DataFrame(columns).to_csv(path, index=False)
    return path


def jsonl(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def refused(path, *, where="val", **keys):
    with pytest.raises(InputError) as caught:
        read(path, where=where, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def named(prefix, values=LOGITS):
    return {f"{prefix}{name}": values[:, k] for k, name in enumerate(CLASSES)}


NAMES = np.array(CLASSES)[LABELS]
WAYS = {
    "by default": (named("logits_"), {}),
    "prob_ by default": (named("prob_", softmax(LOGITS, axis=1)), {}),
    "a prefix": (named("z_"), {"scores": "z_"}),
    "a prefix of probabilities": (named("z_", softmax(LOGITS, axis=1)), {"scores": "z"}),
    "a key": (named("z_"), {"logits": "z"}),
    "a list": (named(""), {"logits": "owl, cat,a_dog"}),
}


@pytest.mark.parametrize("labels", [NAMES, LABELS], ids=["names", "numbers"])
@pytest.mark.parametrize("way", WAYS)
def test_columns_named_for_classes(tmp_path, way, labels):
    columns, keys = WAYS[way]
    found = read(csv(tmp_path / "a.csv", id=np.arange(N), label=labels, **columns), **keys)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_allclose(log_softmax(found.logits, 1), log_softmax(LOGITS, 1), atol=1e-5)
    assert (found.classes, found.unread) == (CLASSES, ("id",))
    assert found.kind == ("probs" if "prob" in way else "logits")
    assert not found.looks_like_probs


def test_a_label_of_no_class_names_its_line(tmp_path):
    labels = np.where(np.arange(N) == 7, "cow", NAMES)
    said = refused(csv(tmp_path / "a.csv", label=labels, **named("logits_")))
    assert said.startswith("val, line 9: label 'cow' is none of owl, cat, a_dog: ")


def test_class_numbers_that_are_names_are_taken_for_names(tmp_path):
    found = read(csv(tmp_path / "a.csv", label=2 - LABELS, **{str(2 - k): LOGITS[:, k] for k in range(3)}), probs=None,
                 logits="2,1,0")  # fmt: skip
    np.testing.assert_array_equal(found.labels, LABELS)


BINARY = {
    "0 and 1": (TRUTH, {}),
    "-1 and 1": (2 * TRUTH - 1, {}),
    "booleans": (TRUTH == 1, {}),
    "floats": (TRUTH.astype(float), {}),
    "names": (np.array(["ham", "spam"])[TRUTH], {"positive": "spam"}),
    "0 for class 1": (1 - TRUTH, {"positive": "0"}),
}


@pytest.mark.parametrize("way", BINARY)
@pytest.mark.parametrize("kind", ["csv", "npz", "jsonl"])
def test_one_column_is_class_1_of_two(tmp_path, way, kind):
    labels, keys = BINARY[way]
    for name, values in {"y_prob": 1 / (1 + np.exp(-SCORE)), "logits": SCORE, "y_score": SCORE}.items():
        arrays, path = {"y_true": labels, name: values}, tmp_path / f"a.{kind}"
        if kind == "npz":
            np.savez(path, **arrays)
        elif kind == "csv":
            csv(path, **arrays)
        else:
            jsonl(path, pandas.DataFrame(arrays).to_dict("records"))
        found = read(path, **keys)
        np.testing.assert_array_equal(found.labels, TRUTH)
        expected = np.stack([log_expit(-SCORE), log_expit(SCORE)], 1)
        np.testing.assert_allclose(log_softmax(found.logits.astype(float), 1), expected, atol=1e-5)
        assert found.kind == ("probs" if name == "y_prob" else "logits")
        if found.kind == "logits":
            np.testing.assert_array_equal(found.logits, np.stack([0 * SCORE, SCORE], 1).astype(np.float32))


BAD = {
    "a third name": (TRUTH + 5 * (np.arange(N) == 9), SCORE, {}, "line 11: label '.' is none of 0, 1"),
    "names alone": (np.array(["ham", "spam"])[TRUTH], SCORE, {}, "--positive=NAME"),
    "a wrong name": (np.array(["ham", "spam"])[TRUTH], SCORE, {"positive": "eggs"}, "label '.*' is none of .*, eggs"),
    "no probability": (TRUTH, np.where(np.arange(N) == 4, 1.5, 0.5), {"probs": "y_score"}, "the first is line 6"),
    "an empty cell": (TRUTH, np.where(np.arange(N) == 4, np.nan, SCORE), {}, "are NaN, .*, the first in line 6"),
    "a word": (TRUTH, np.where(np.arange(N) == 4, "x", SCORE.astype(str)), {}, "line 6: y_score is 'x', no number"),
    "infinite": (TRUTH, np.where(np.arange(N) == 4, np.inf, SCORE), {}, "infinite or .*, the first in line 6"),
    "a label without one": (np.where(np.arange(N) == 4, "", TRUTH.astype(str)), SCORE, {}, "line 6: label '' is none"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_value_names_its_line(tmp_path, fault):
    labels, scores, keys, says = BAD[fault]
    with pytest.raises(InputError, match=f"val.*{says}"):
        read(csv(tmp_path / "a.csv", y_true=labels, y_score=scores), **keys)


def test_weights_stand_beside_clusters_and_groups(tmp_path):
    weight = RNG.random(N)
    columns = {"labels": LABELS, "w": weight, "patient": LABELS // 2, "group": NAMES, **named("logits_")}
    found = read(csv(tmp_path / "a.csv", **columns), weight="w", cluster="patient")
    np.testing.assert_array_equal(found.weight, weight)
    np.testing.assert_array_equal(found.cluster, (LABELS // 2).astype(str))
    np.testing.assert_array_equal(found.group, NAMES)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, weight=weight)
    np.testing.assert_array_equal(read(tmp_path / "a.npz").weight, weight)
    for wrong in (-1.0, np.inf, np.nan):
        weight[3] = wrong
        np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, weight=weight)
        assert f"weight in row 3 is {wrong}: give numbers above 0" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=LABELS, weight=weight[:-1])
    assert "weight is float64 of shape (59,)" in refused(tmp_path / "a.npz")


def test_rows_of_ignored_labels_are_left_out(tmp_path):
    out = np.isin(np.arange(N), [0, 8, 9])
    labels = np.where(out, np.where(np.arange(N) == 9, 255, -100), LABELS)
    columns = {"labels": labels, "weight": np.arange(N), "group": NAMES, **named("logits_")}
    csv(tmp_path / "a.csv", **columns)
    np.savez(tmp_path / "a.npz", **{**columns, "logits": LOGITS})
    for name in ("a.csv", "a.npz"):
        found = read(tmp_path / name, ignored=("-100", "255"))
        np.testing.assert_array_equal(found.labels, LABELS[~out])
        np.testing.assert_array_equal(found.logits, LOGITS[~out].astype(np.float32))
        np.testing.assert_array_equal(found.weight, np.flatnonzero(~out))
        assert found.left_out == 3
        assert "255" in refused(tmp_path / name, ignored=("-100",))
    assert "it has 0 examples" in refused(tmp_path / "a.csv", ignored=("-100", "255", "0", "1", "2"))
    labels[20] = 5
    assert "the first is in line 22" in refused(csv(tmp_path / "a.csv", **columns | {"labels": labels}),
                                                ignored=("-100", "255"))  # fmt: skip


def test_a_test_file_may_have_no_labels(tmp_path):
    np.savez(tmp_path / "a.npz", logits=LOGITS)
    found = read(tmp_path / "a.npz", where="test")
    assert found.labels is None
    np.testing.assert_array_equal(found.logits, LOGITS.astype(np.float32))
    assert "val has no array 'labels'" in refused(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", logits=LOGITS[:0])
    assert "test: it has 0 examples" in refused(tmp_path / "b.npz", where="test")
    assert read(csv(tmp_path / "a.csv", y_prob=1 / (1 + np.exp(-SCORE))), where="test").logits.shape == (N, 2)


MASKS = st.lists(st.integers(1, 3), min_size=N, max_size=N)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(MASKS)
def test_choices_that_cannot_be_are_minus_infinity(tmp_path_factory, sizes):
    folder = tmp_path_factory.mktemp("a")
    labels = LABELS % sizes
    if len({*labels.tolist()}) == 1:
        sizes, labels = [3] * N, LABELS
    possible = np.arange(3) < np.array(sizes)[:, None]
    expected = np.where(possible, LOGITS, -np.inf)
    np.savez(folder / "a.npz", logits=expected, labels=labels)
    rows = [row[:size].tolist() for row, size in zip(LOGITS, sizes, strict=True)]
    jagged = [{"logits": row, "labels": int(label)} for row, label in zip(rows, labels, strict=True)]
    paths = [
        folder / "a.npz",
        csv(
            folder / "a.csv",
            label=labels,
            **{f"logits_{k}": np.where(possible, LOGITS, np.nan)[:, k] for k in range(3)},
        ),
        csv(folder / "b.csv", label=labels, **{f"logits_{k}": expected[:, k] for k in range(3)}),
        jsonl(folder / "a.jsonl", jagged),
    ]
    for path in paths:
        found = read(path)
        columns = found.logits.shape[1]  # of lists the longest
        np.testing.assert_array_equal(found.logits, expected.astype(np.float32)[:, :columns])
        np.testing.assert_array_equal(found.labels, labels)
    probs = np.where(possible, softmax(expected, axis=1), np.nan)
    found = read(csv(folder / "p.csv", label=labels, **{f"z_{k}": probs[:, k] for k in range(3)}), scores="z_")
    np.testing.assert_array_equal(np.isneginf(found.logits), ~possible)
    np.testing.assert_allclose(softmax(found.logits, axis=1), softmax(expected, axis=1), atol=1e-5)


def test_a_label_of_a_choice_that_cannot_be_names_its_line(tmp_path):
    values = LOGITS.copy()
    values[5, LABELS[5]] = -np.inf
    empty = np.where(np.isinf(values), np.nan, values)
    np.savez(tmp_path / "a.npz", logits=values, labels=LABELS)
    assert refused(tmp_path / "a.npz").startswith("val: in row 5 no class, or not that of the label, has")
    assert refused(csv(tmp_path / "a.csv", label=LABELS, **named("logits_", empty))).startswith(
        "val: in line 7 no class"
    )
    values[5] = np.nan
    np.savez(tmp_path / "a.npz", logits=values, labels=LABELS)
    assert "NaN, infinite or beyond 1e+30, the first in row 5" in refused(tmp_path / "a.npz")


def samples(*, texts=True, name="arc", document=lambda k: k, **more):
    """Lines as lm-evaluation-harness writes them, today as text, before as numbers; and its own Brier score."""
    rows, squares = [], []
    for k in range(N):
        count = 2 + k % 4
        values, target = RNG.normal(-20, 3, count), int(RNG.integers(count))
        probs = np.exp(values - values.max()) / np.exp(values - values.max()).sum()
        squares.append(((probs - np.eye(count)[target]) ** 2).sum())
        pairs = [[str(v), "False"] if texts else [v, False] for v in values.tolist()]
        arguments = {f"gen_args_{j}": {"arg_0": "Q?", "arg_1": f" choice {j}"} for j in range(count)}
        row = {"doc_id": document(k), "doc": {"q": "?"}, "target": str(target) if texts else target,
               "arguments": arguments, "resps": [[pair] for pair in pairs], "filtered_resps": pairs, "filter": "none",
               "acc": float(values.argmax() == target)}  # fmt: skip
        rows.append(row | more)
    return rows, np.mean(squares)


def brier(found):
    onehot = np.eye(found.logits.shape[1])[found.labels]
    return ((softmax(found.logits.astype(float), axis=1) - onehot) ** 2).sum(1).mean()


@pytest.mark.parametrize("texts", [True, False])
def test_samples_of_lm_evaluation_harness_give_its_brier_score(tmp_path, texts):
    rows, expected = samples(texts=texts)
    found = read(jsonl(tmp_path / "samples_arc_easy_2026-01-02T03-04-05.678.jsonl", rows))
    np.testing.assert_allclose(brier(found), expected, rtol=1e-6)
    np.testing.assert_array_equal(found.logits.argmax(1) == found.labels, [row["acc"] for row in rows])
    assert ({*found.group}, len({*found.cluster}), found.unread) == ({"arc_easy"}, N, ())
    bare = [{key: row[key] for key in ("doc_id", "target", "resps")} for row in rows]
    np.testing.assert_array_equal(read(jsonl(tmp_path / "samples.jsonl", bare)).logits, found.logits)


def test_documents_that_are_repeated_are_clusters_of_their_task(tmp_path):
    rows = [*samples(document=lambda k: k // 2, task="arc")[0], *samples(document=lambda k: k, task="boolq")[0]]
    found = read(jsonl(tmp_path / "samples.jsonl", rows))
    assert found.group.tolist() == ["arc"] * N + ["boolq"] * N
    assert len({*found.cluster}) == N // 2 + N


def test_a_pattern_reads_the_samples_of_several_tasks(tmp_path):
    for task in ("arc", "boolq"):
        jsonl(tmp_path / f"samples_{task}_2026-01-02T03-04-05.678.jsonl", samples()[0])
    found = read(tmp_path / "samples_*.jsonl")
    assert found.group.tolist() == ["arc"] * N + ["boolq"] * N
    assert len({*found.cluster}) == 2 * N
    assert len(set(found.checksum.split())) == 2
    alone = read(tmp_path / "samples_boolq_2026-01-02T03-04-05.678.jsonl")
    np.testing.assert_array_equal(found.logits[N:, : alone.logits.shape[1]], alone.logits)
    assert "there is no file" in refused(tmp_path / "none_*.jsonl")


def test_scores_without_the_question_are_left_out_and_what_is_no_choice_names_its_line(tmp_path):
    rows, expected = samples()
    for row in rows:
        row["filtered_resps"] += [["-1.0", "False"]] * len(row["filtered_resps"])
        row["acc_mutual_info"] = 0.0
    path = jsonl(tmp_path / "samples_a_b.jsonl", rows)
    np.testing.assert_allclose(brier(read(path)), expected, rtol=1e-6)
    for wrong in ({"target": "[0, 1]"}, {"target": "a text"}, {"filtered_resps": ["an answer"]}):
        said = refused(jsonl(path, [*rows[:4], rows[4] | wrong, *rows[5:]]))
        assert "line 5, cannot be read" in said
        assert "give samples of a multiple-choice task" in said
    assert "the first is in line 5" in refused(jsonl(path, [*rows[:4], rows[4] | {"target": "8"}, *rows[5:]]))


def test_columns_that_merely_begin_as_a_role_does_are_not_read_for_it(tmp_path):
    others = {"group_size": LABELS, "weight_kg": LABELS, "cluster_id": LABELS, "label_text": NAMES}
    found = read(csv(tmp_path / "a.csv", label=LABELS, **others, **named("logits_")))
    assert (found.group, found.weight, found.cluster, found.unread) == (None, None, None, tuple(others))
    assert "val has no array 'logits'" in refused(csv(tmp_path / "b.csv", label=LABELS, logits_scale=SCORE))
    assert "has logits and probs: say which" in refused(
        csv(tmp_path / "c.csv", label=LABELS, y_prob=SCORE, **named("logits_"))
    )


def test_the_positive_class_is_class_one_whichever_column_is_first(tmp_path):
    probs = np.linspace(0.01, 0.99, N)
    lines = [f"{'spam' if k % 3 else 'ham'},{p},{1 - p}" for k, p in enumerate(probs)]
    (tmp_path / "a.csv").write_text("\n".join(["label,prob_spam,prob_ham", *lines, ""]))
    found = read(tmp_path / "a.csv", positive="spam")
    np.testing.assert_allclose(np.exp(found.logits[:, 1]), probs, rtol=1e-5)
    np.testing.assert_array_equal(found.labels, np.arange(N) % 3 > 0)


def test_a_column_with_a_number_at_its_end_is_named_by_a_key(tmp_path):
    probs = np.linspace(0.01, 0.99, N)
    lines = [f"{str(k % 3 > 0).lower()},{p},s{k % 2}" for k, p in enumerate(probs)]
    (tmp_path / "a.csv").write_text("\n".join(["label,prob_1,site_2", *lines, ""]))
    found = read(tmp_path / "a.csv", probs="prob_1", group="site_2")
    np.testing.assert_allclose(np.exp(found.logits[:, 1]), probs, rtol=1e-5)
    assert {*found.group} == {"s0", "s1"}
    (tmp_path / "a.csv").write_text("\n".join(["label,prob_1,prob_2", *[f"0,{p},{1 - p}" for p in probs], ""]))
    assert "number them from 0 to 1" in refused(tmp_path / "a.csv")
