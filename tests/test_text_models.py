"""Networks on words and the two-parameter model: oracles, padding that counts for nothing, dropout."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import tree_lstm as oracle

from focalgeo import models, trees
from focalgeo.data.texts import pack_trees, parse_tree

pytestmark = pytest.mark.long

KEY = jax.random.PRNGKey(0)
draw_vectors = jax.nn.initializers.normal(0.7)


# --- documents

LENGTHS = (23, 0, 1, 4, 6, 12)


def documents(length):
    """Documents of LENGTHS words, the same at every padded length."""
    words = np.random.default_rng(1).integers(1, 30, (len(LENGTHS), max(LENGTHS)))
    x = np.zeros((len(LENGTHS), length), np.int32)
    for row, (size, own) in enumerate(zip(LENGTHS, words, strict=True)):
        x[row, :size] = own[:size]
    return jnp.asarray(x)


@pytest.fixture(scope="module")
def gp_cnn():
    options = dict(embedding_size=6, widths=(8, 7), hidden=(5,), embedding_init=draw_vectors)
    model = models.build("gp_cnn", 3, vocabulary_size=30, **options)
    variables = model.init(KEY, documents(23))
    spread = partial(jax.tree.map, lambda leaf: leaf + 0.3 * jax.random.normal(KEY, leaf.shape))
    return model, spread(variables)


def convolved(x, params):
    """ReLU of a convolution of x [length, channels] in which zeros stand past both ends, by its definition."""
    kernel, bias = (np.asarray(params[name], np.float64) for name in ("kernel", "bias"))
    padded = np.pad(x, ((2, 2), (0, 0)))
    return np.array([np.maximum(np.einsum("kc,kcw->w", padded[t : t + 5], kernel) + bias, 0) for t in range(len(x))])


def test_gp_cnn_is_its_definition_on_each_document_alone(gp_cnn):
    model, variables = gp_cnn
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    logits = model.apply(variables, documents(23))
    for row, size in enumerate(LENGTHS):
        if size == 0:
            continue
        x = p["Embed_0"]["embedding"][np.asarray(documents(23)[row, :size])]
        x = convolved(x, p["Conv_0"])
        x = convolved(np.array([x[start : start + 5].max(0) for start in range(0, size, 5)]), p["Conv_1"])
        hidden = np.maximum(x.max(0) @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"], 0)
        np.testing.assert_allclose(logits[row], hidden @ p["Dense_1"]["kernel"] + p["Dense_1"]["bias"], atol=2e-5)


# --- trees


def encode(lines, leaves):
    """The trees in 2 * leaves - 1 slots, and the number of each word."""
    parsed = [parse_tree(line) for line in lines]
    number = {word: at for at, word in enumerate(sorted({word for tree in parsed for word in tree.words}), 1)}
    ids = [np.int32([number[word] for word in tree.words]) for tree in parsed]
    return jnp.asarray(pack_trees(parsed, ids, num_leaves=leaves, roots_only=False).x), number


def generated(size, random):
    """A line with a random tree of `size` leaves."""
    if size == 1:
        return f"(2 w{random.integers(9)})"
    left = int(random.integers(1, size))
    return f"(2 {generated(left, random)} {generated(size - left, random)})"


def drawn(variables):
    """The variables with biases that are not zero."""
    bias = variables["params"]["bias"]
    return {"params": variables["params"] | {"bias": 0.5 * jax.random.normal(KEY, bias.shape)}}


def assert_each_node_is_the_oracles(model, variables, lines, x, number):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    hidden, leaves = p["child_kernel"].shape[0] // 2, (x.shape[1] + 1) // 2
    word = dict(zip(("Wi", "Wo", "Wu"), np.split(p["word_kernel"].T, 3), strict=True))
    i, o, u, *f = ((block[:, :hidden], block[:, hidden:]) for block in np.split(p["child_kernel"].T, 5))
    bias = dict(zip(("bi", "bo", "bu", "bf"), np.split(p["bias"], 4), strict=True))
    last = {"V": p["Dense_0"]["kernel"].T, "bv": p["Dense_0"]["bias"]}
    weights = {**word, **bias, **last, "Ui": i, "Uo": o, "Uu": u, "Uf": f}
    vectors = {name: p["Embed_0"]["embedding"][at] for name, at in number.items()}
    logits = np.asarray(jax.jit(model.apply)(variables, x))
    assert np.all(np.isfinite(logits))
    for line, found in zip(lines, logits, strict=True):
        at_leaves, inner = oracle.node_logits(oracle.parse(line), weights, vectors)
        np.testing.assert_allclose(found[: len(at_leaves)], at_leaves, rtol=0, atol=1e-5)
        if inner:
            np.testing.assert_allclose(found[leaves : leaves + len(inner)], inner, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def tree_lstm():
    random = np.random.default_rng(3)
    lines = [generated(size, random) for size in (1, 2, 5, 9, 9)]
    x, number = encode(lines, 9)
    options = dict(embedding_size=6, width=5, embedding_init=draw_vectors)
    model = models.build("tree_lstm", 3, vocabulary_size=10, **options)
    return model, drawn(model.init(KEY, x)), lines, x, number


def test_tree_lstm_is_a_recursion_over_the_tree(tree_lstm):
    assert_each_node_is_the_oracles(*tree_lstm)


def test_dropout_acts_in_training_and_on_the_classifiers_input_alone(tree_lstm):
    model, variables, _, x, _ = tree_lstm
    run = partial(model.apply, variables, x, train=True, mutable=["intermediates"])
    features = [run(rngs={"dropout": jax.random.PRNGKey(seed)})[1]["intermediates"]["features"][0] for seed in (0, 1)]
    _, plain = model.apply(variables, x, mutable=["intermediates"])
    plain = plain["intermediates"]["features"][0]
    assert not np.array_equal(*features)
    for values in features:
        dropped = np.asarray(values) == 0
        assert 0.3 < dropped.mean() < 0.7
        np.testing.assert_allclose(values, np.where(dropped, 0, 2 * plain), rtol=1e-6)


# --- the two-parameter model


def test_logistic_is_the_sigmoid_of_one_product():
    model = models.build("logistic", 2, dtype=jnp.float32, axis_name="devices")
    x = jnp.array([[1.0, -2.0], [0.5, 3.0]])
    variables = model.init(KEY, x)
    np.testing.assert_array_equal(variables["params"]["kernel"], jnp.zeros((2, 1)))
    probs = jax.nn.softmax(model.apply({"params": {"kernel": jnp.array([[0.3], [0.7]])}}, x))
    np.testing.assert_allclose(probs[:, 1], 1 / (1 + np.exp([1.1, -2.25])), rtol=1e-5)


# --- the transformer, of documents and trees


def transformed(words, p, heads):
    """States [words, width] of a sentence of word numbers alone, in float64, from the equations."""

    def dense(x, at):
        return x @ at["kernel"] + at["bias"]

    def normalised(x, at):
        spread = np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return (x - x.mean(-1, keepdims=True)) / spread * at["scale"] + at["bias"]

    vectors = p["Embed_0"]["embedding"][np.asarray(words)]
    width = p["Dense_0"]["bias"].size
    angles = np.arange(len(words))[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    y = dense(vectors, p["Dense_0"]) + np.concatenate([np.sin(angles), np.cos(angles)], -1)
    depth = sum(name.startswith("MultiHead") for name in p)
    for block in range(depth):
        at, x = p[f"MultiHeadDotProductAttention_{block}"], normalised(y, p[f"LayerNorm_{2 * block}"])
        q, k, v = (
            np.einsum("wd,dhs->hws", x, at[name]["kernel"]) + at[name]["bias"][:, None]
            for name in ("query", "key", "value")
        )
        scores = np.exp(q @ np.swapaxes(k, 1, 2) / np.sqrt(width / heads))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        y = y + np.einsum("hws,hsd->wd", mixed, at["out"]["kernel"]) + at["out"]["bias"]
        hidden = dense(normalised(y, p[f"LayerNorm_{2 * block + 1}"]), p[f"Dense_{2 * block + 1}"])
        gelu = 0.5 * hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        y = y + dense(gelu, p[f"Dense_{2 * block + 2}"])
    return normalised(y, p[f"LayerNorm_{2 * depth}"]), p[f"Dense_{2 * depth + 1}"]


TRANSFORMER = dict(vocabulary_size=30, embedding_size=6, width=8, heads=2, depth=2, embedding_init=draw_vectors)


@pytest.fixture(scope="module", params=["documents", "trees"])
def transformer(request):
    """The model, variables that are no initial ones, and inputs at two padded lengths."""
    model = models.build("transformer", 3, **TRANSFORMER)
    random = np.random.default_rng(3)
    lines = [generated(size, random) for size in (1, 2, 5, 9, 9)]
    x, longer = (
        (documents(23), documents(40)) if request.param == "documents" else (encode(lines, n)[0] for n in (9, 12))
    )
    variables = jax.tree.map(lambda leaf: leaf + 0.2 * jax.random.normal(KEY, leaf.shape), model.init(KEY, x))
    return model, variables, x, longer, lines if request.param == "trees" else None


def test_the_transformer_is_its_definition_on_each_sentence_alone(transformer):
    model, variables, x, _, lines = transformer
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables["params"])
    logits = model.apply(variables, x)
    if lines is None:
        for row, size in enumerate(LENGTHS):
            if size:
                states, last = transformed(np.asarray(x)[row, :size], p, 2)
                np.testing.assert_allclose(logits[row], states.mean(0) @ last["kernel"] + last["bias"], atol=3e-5)
        return
    leaves = (x.shape[1] + 1) // 2
    for line, rows, found in zip(lines, np.asarray(x), logits, strict=True):
        size = np.count_nonzero(rows[:leaves, 0])
        states, last = transformed(rows[:size, 0], p, 2)
        phrases = []

        def visit(node, start):
            if len(node) == 2:
                return start + 1
            end = visit(node[2], visit(node[1], start))
            phrases.append(states[start:end].mean(0))  # noqa: B023
            return end

        assert visit(oracle.parse(line), 0) == size
        wanted = np.concatenate([states, np.reshape(phrases, (-1, 8))]) @ last["kernel"] + last["bias"]
        got = np.concatenate([found[:size], found[leaves : leaves + size - 1]])
        np.testing.assert_allclose(got, wanted, atol=3e-5)


def test_the_transformer_drops_in_training_alone(transformer):
    model, variables, x, *_ = transformer
    plain, dropping = (models.build("transformer", 3, dropout=share, **TRANSFORMER) for share in (0.0, 0.5))
    logits = model.apply(variables, x)
    np.testing.assert_array_equal(plain.apply(variables, x, train=True), logits)
    np.testing.assert_array_equal(dropping.apply(variables, x), logits)
    changed = dropping.apply(variables, x, train=True, rngs={"dropout": KEY})
    assert jnp.nanmax(jnp.abs(changed - logits)) > 1e-3


# --- all of them


@pytest.fixture(scope="module")
def padded(gp_cnn, tree_lstm, transformer):
    """Of each network: model, variables, an input, the same with more padding."""
    return {
        "gp_cnn": (*gp_cnn, documents(23), documents(64)),
        "tree_lstm": (*tree_lstm[:2], tree_lstm[3], encode(tree_lstm[2], 24)[0]),
        "transformer": transformer[:4],
    }


def total(apply, x, params):
    """A function of the logits of documents, or of all slots that hold a node of a tree."""
    logits = apply({"params": params}, x)
    if x.ndim == 2:
        return jnp.sum(jnp.sin(3 * logits))
    holds = jnp.where(jnp.arange(x.shape[1]) < (x.shape[1] + 1) // 2, x[..., 0] != 0, jnp.any(x[..., 1:] != 0, axis=-1))
    return jnp.sum(jnp.where(holds[..., None], jnp.sin(3 * logits), 0.0))


@pytest.mark.parametrize("name", ["gp_cnn", "tree_lstm", "transformer"])
def test_padding_counts_for_nothing_and_gradients_are_finite_differences(padded, name):
    model, variables, x, longer = padded[name]
    params = variables["params"]
    looks = [jax.jit(jax.value_and_grad(partial(total, model.apply, words)))(params) for words in (x, longer)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=5e-5), *looks)
    direction = jax.tree.map(jnp.sign, looks[0][1])
    moved = lambda step: jax.tree.map(lambda at, by: at + step * by, params, direction)  # noqa: E731
    ends = [total(model.apply, x, moved(step)) for step in (1e-4, -1e-4)]
    np.testing.assert_allclose(trees.dot(direction, looks[0][1]), (ends[0] - ends[1]) / 2e-4, rtol=5e-2)


@pytest.mark.parametrize("name", ["gp_cnn", "tree_lstm", "transformer"])
def test_numbers_that_name_nothing_give_nan(padded, name):
    model, variables, x, _ = padded[name]
    wrong = [x.at[4, 3].set(30)] if x.ndim == 2 else [x.at[4, 0, 0].set(30)]
    for words in [*wrong, x.at[4, 9, 1].set(17)] if name == "tree_lstm" else wrong:
        found = np.isnan(model.apply(variables, words)).reshape(len(x), -1).any(axis=1)
        np.testing.assert_array_equal(found, np.arange(len(x)) == 4)
