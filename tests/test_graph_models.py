"""Graphs of data sets and the network on them: dense products, what labels and features may reach."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from focalgeo import data, job, models
from focalgeo.config import load_config, with_values
from focalgeo.job import preparation
from focalgeo.rows import Eigenvalue, Metric, Trace, select
from focalgeo.training import checkpoint
from focalgeo.types import NEIGHBOURS, InputError

KEY = jax.random.PRNGKey(0)
NODES, FEATURES = 40, 6


def dense(neighbours):
    """The normalised adjacency in float64, entry by entry from its definition."""
    nodes = len(neighbours)
    directed = np.zeros((nodes, nodes))
    for node, row in enumerate(neighbours):
        for other in row:
            directed[node, other] += 1
    whole = np.eye(nodes) + (directed + directed.T) / 2
    root = np.sqrt(whole.sum(1))
    return whole / root[:, None] / root[None, :]


def drawn(seed=0):
    """Graphs x [1, nodes, features + neighbours] with hubs, and the neighbours."""
    random = np.random.default_rng(seed)
    weight = np.arange(1, NODES + 1) ** 2.0
    rows = []
    for node in range(NODES):
        others = np.delete(np.arange(NODES), node)
        rows.append(random.choice(others, NEIGHBOURS, replace=False, p=weight[others] / weight[others].sum()))
    neighbours = np.array(rows)
    features = random.normal(size=(NODES, FEATURES))
    return np.concatenate([features, neighbours], axis=1, dtype=np.float32)[None], neighbours


@pytest.fixture(scope="module")
def gcn():
    x, neighbours = drawn()
    model = models.build("gcn", 3, hidden=(7, 5))
    noise = iter(jax.random.split(KEY, 20))
    variables = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(next(noise), leaf.shape), model.init(KEY, x))
    return model, variables, x, neighbours


def test_logits_are_those_of_dense_matrices_in_float64(gcn):
    model, variables, x, neighbours = gcn
    params, adjacency = jax.tree.map(np.float64, variables["params"]), dense(neighbours)
    h = np.float64(x[0, :, :FEATURES])
    for layer in range(2):
        h = np.maximum(adjacency @ h @ params[f"Dense_{layer}"]["kernel"] + params[f"bias_{layer}"][0], 0)
    logits = adjacency @ h @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]
    np.testing.assert_allclose(model.apply(variables, x)[0], logits, atol=1e-5)


def test_dropout_acts_in_training_alone_and_not_on_the_input(gcn):
    model, variables, x, _ = gcn
    one, two = (model.apply(variables, x, train=True, rngs={"dropout": jax.random.PRNGKey(k)}) for k in (1, 2))
    assert np.abs(one - two).max() > 0.1
    linear = models.build("gcn", 3, hidden=())
    variables = linear.init(KEY, x)
    np.testing.assert_array_equal(
        linear.apply(variables, x, train=True, rngs={"dropout": KEY}), linear.apply(variables, x)
    )


def test_a_neighbour_that_is_none_gives_nan_and_what_is_no_graph_one_line(gcn):
    model, variables, x, _ = gcn
    assert np.isnan(model.apply(variables, jnp.asarray(x).at[0, 3, -1].set(NODES))).any()
    for wrong in (x[0], x[..., :NEIGHBOURS], x[None]):
        with pytest.raises(InputError, match=r"give graphs \[examples, nodes, features \+ 10\]"):
            model.apply(variables, wrong)


@pytest.mark.parametrize(
    ("name", "network"), [("graph:digits", "mlp"), ("graph:digits", "logistic"), ("digits", "gcn")]
)
def test_graphs_and_their_network_go_together(name, network):
    config = load_config("configs/digits.py:quick")
    config.data.name, config.model.name, config.model.options = name, network, {}
    with pytest.raises(
        InputError, match=f"config.model.name is {network}, config.data.name {name}: gcn and graph:NAME"
    ):
        preparation.prepare(job.check_config(config))


# --- data sets as graphs


def test_digits_as_a_graph_are_the_digits_and_those_nearest():
    plain, whole = data.load_dataset("digits"), data.load_dataset("graph:digits")
    parts = [plain.train, plain.val, plain.test]
    images, labels = (np.concatenate(leaves) for leaves in zip(*parts, strict=True))
    assert whole.train.x is whole.val.x is whole.test.x
    assert (whole.name, whole.checksum, whole.class_names) == ("graph:digits", plain.checksum, plain.class_names)
    assert not list(data.gaps(whole))
    x = whole.train.x[0]
    np.testing.assert_array_equal(x[:, :-NEIGHBOURS], images.reshape(-1, 64) / np.float32(16))
    for node in (0, 700, 1796):
        distances = np.square(images[node].astype(int) - images.astype(int)).sum((1, 2, 3))
        distances[node] = 10**9
        nearest = x[node, -NEIGHBOURS:].astype(int)
        np.testing.assert_array_equal(distances[nearest], np.sort(distances)[:NEIGHBOURS])
    stacked = np.concatenate([split.y for split in (whole.train, whole.val, whole.test)])
    assert ((stacked >= 0).sum(0) == 1).all()
    np.testing.assert_array_equal(stacked.max(0), labels)
    assert [int((row >= 0).sum()) for row in stacked] == [len(part.y) for part in parts]


def posts(folder, counts=(9, 4)):
    """Posts of each of two groups, in train and test, one without a word."""
    words = {"cats": "purr fur whiskers purr", "cars": "wheel brake engine"}
    for part, number in zip(("train", "test"), counts, strict=True):
        for group, text in words.items():
            (folder / part / group).mkdir(parents=True)
            for post in range(number):
                (folder / part / group / str(post)).write_text(f"From: x\n\n{text} {'fur ' * post}common\n")
    (folder / "train" / "cats" / "0").write_text("From: x\n\n")
    return folder


def test_posts_are_tf_idf_and_their_nearest_share_words(tmp_path):
    dataset = data.load_dataset(f"graph:newsgroups:{posts(tmp_path)}", val_size=4)
    assert dataset.vocabulary == ()
    x, labels = dataset.train.x[0], np.max([split.y[0] for split in (dataset.train, dataset.val, dataset.test)], axis=0)
    features, nearest = x[:, :-NEIGHBOURS].astype(np.float64), x[:, -NEIGHBOURS:].astype(int)
    norms = np.linalg.norm(features, axis=1)
    assert sorted(np.round(norms, 5)) == [0, *[1] * (len(norms) - 1)]
    has_words = norms > 0
    assert (labels[nearest[has_words, :3]] == labels[has_words][:, None]).mean() > 0.6
    counts = (nearest == np.flatnonzero(~has_words)).sum()
    assert counts < NEIGHBOURS  # the post without words is no hub


@pytest.mark.parametrize("name", ["graph:graph:digits", "graph:", "graph:nothing"])
def test_a_graph_of_no_data_set_is_refused(name):
    with pytest.raises(InputError, match=r"config\.data\.name is"):
        data.load_dataset(name)


def test_few_examples_make_no_graph():
    with pytest.raises(InputError, match="more than 10 examples"):
        data.load_dataset("graph:digits", train_size=6, val_size=2, test_size=2)


# --- the job


def test_a_sweep_measures_each_split_on_its_own_labels(tmp_path):
    fields = {"optimizer.epochs": 20, "sweep.seed": (0,), "curvature.examples": 0, "evaluation.num_resamples": 50}
    rows = job.run(with_values(load_config("configs/digits_graph.py", "quick"), fields), tmp_path)
    for gamma in (0.0, 3.0):
        rates = select(rows, Metric, name="accuracy", method="uncalibrated", gamma=gamma)
        assert {(row.split, row.n) for row in rates} == {("val", 359), ("test", 359)}
        assert min(row.value for row in rates) > 0.3
    saved = np.load(tmp_path / "members" / "gamma=0,seed=0" / "predictions" / "test.npz")
    np.testing.assert_array_equal(saved["labels"], data.load_dataset("digits").test.y)


def test_posts_are_trained_on_as_the_config_says(tmp_path):
    sizes = dict.fromkeys(("data.train_size", "data.val_size", "data.test_size"))
    name = f"graph:newsgroups:{posts(tmp_path / 'posts', (30, 15))}"
    fields = {"data.name": name, "curvature.examples": 0, **sizes, "data.val_size": 30}
    rows = job.run(with_values(load_config("configs/newsgroups_graph.py", "quick"), fields), tmp_path / "run")
    assert {row.n for row in select(rows, Metric, name="ece", split="test", method="uncalibrated")} == {30}


def test_curvature_is_that_of_the_dense_hessian_of_the_labelled_nodes(tmp_path):
    sizes = {"data.train_size": 80, "data.val_size": 40, "data.test_size": 40}
    own = {"data.name": "graph:clusters:0.5", "model.options.hidden": (3,), "sweep.seed": (), "sweep.gamma": ()}
    config = with_values(
        load_config("configs/digits_graph.py"),
        {**own, **sizes, "loss.gamma": 2.0},
    )
    rows, dataset = job.run(config, tmp_path), data.load_dataset("graph:clusters:0.5", **rename(sizes))
    params = jax.tree.map(lambda leaf: leaf[0], checkpoint.read(checkpoint.find(tmp_path / "checkpoints"))["params"])
    x, flat = dataset.train.x[0], jax.flatten_util.ravel_pytree(params)
    adjacency = jnp.asarray(dense(x[:, -NEIGHBOURS:].astype(int)), jnp.float32)

    def log_probs(vector):
        params = flat[1](vector)
        h = jax.nn.relu(adjacency @ (x[:, :-NEIGHBOURS] @ params["Dense_0"]["kernel"]) + params["bias_0"][0])
        return jax.nn.log_softmax(
            adjacency @ h @ params["Dense_1"]["kernel"] + params["Dense_1"]["bias"].reshape(1, -1)
        )

    for split in ("train", "val"):
        y = getattr(dataset, split).y[0]
        nodes = np.flatnonzero(y >= 0)
        for name, gamma in (("cross_entropy", 0.0), ("focal_loss", 2.0)):

            def loss(vector, nodes=nodes, y=y, gamma=gamma):
                of_class = log_probs(vector)[nodes, y[nodes]]
                return -jnp.mean((1 - jnp.exp(of_class)) ** gamma * of_class)

            eigenvalues = np.linalg.eigvalsh(jax.hessian(loss)(flat[0]))
            (top,) = select(rows, Eigenvalue, split=split, loss=name)
            (trace,) = select(rows, Trace, name="trace", split=split, loss=name)
            assert top.n == trace.n == len(nodes)
            assert top.value == pytest.approx(eigenvalues[-1], rel=2e-3)
            assert trace.value == pytest.approx(eigenvalues.sum(), rel=1e-3)  # by Hutch++, exact for so few parameters


def rename(fields):
    """Keywords of load_dataset by the names of fields."""
    return {name.removeprefix("data."): value for name, value in fields.items()}
