"""The papers' recipes: every config names what exists, trains two steps and evaluates, on small files and real ones."""

import itertools
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from configs.cifar import DATA, LOSSES, NETWORKS
from configs.cifar10_curvature import NETWORKS as NETWORKS_OF_CURVATURE
from experiments import programs
from focalgeo import config as configuration
from focalgeo import job, records
from focalgeo.rows import Diagnostic, Metric, Scalar, select
from focalgeo.types import InputError

ROOT = Path(__file__).parent.parent
FILES = {
    "cifar": ("folder", "cifar10-jpeg.tar.xz"),
    "tiny_imagenet": ("tiny_imagenet", "tiny-imagenet-200.tar.xz"),
    "newsgroups": ("newsgroups", "20news-bydate.tar.xz"),
    "sst": ("sst", "sst-trees.tar.xz"),
}
# Each network and half of the losses are trained on images, the other half on text; what is left of both is traced,
# and the trace penalty through each network. Of CIFAR-100 there are no files.
IMAGES, TEXTS = [*LOSSES][::2], [*LOSSES][1::2]
RECIPES = [
    *(("cifar", f"{network},{loss}") for network, loss in zip(NETWORKS, [*IMAGES, "trace"], strict=True)),
    *zip(itertools.cycle(("newsgroups", "sst")), TEXTS),
    ("tiny_imagenet", "resnet18,fl3"),
    ("cifar", "published,resnet110_bottleneck,mmce"),
    *((name, "published,brier") for name in ("newsgroups", "sst")),
]
TRACED = [
    *(("cifar", f"{network},trace") for network in NETWORKS),
    *(("cifar", f"{network},{loss}") for network, loss in zip(NETWORKS, TEXTS, strict=False)),
    *zip(itertools.cycle(("newsgroups", "sst")), IMAGES),
]
# what each config file's words may be: one of each kind, or none
WORDS = {
    "cifar": (DATA, NETWORKS, LOSSES, ("published",), ("quick", "small")),
    "cifar10_curvature": (NETWORKS_OF_CURVATURE, ("paper",)),
    "tiny_imagenet": (NETWORKS, LOSSES, ("published",), ("quick",)),
    **dict.fromkeys(("newsgroups", "sst"), (LOSSES, ("published",), ("quick", "small"))),
    "linear": (("limit", "quick"),),
}
CONFIGS = sorted(path.stem for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__")


def load_config(name, words=""):
    return configuration.load_config(ROOT / "configs" / f"{name}.py", words)


def two_steps(config):
    """The quick job cut down to two steps, and an evaluation that measures little."""
    config.optimizer.update({"batch_size": 8, "epochs": 1})
    if config.loss.name == "scheduled_focal_loss":  # an epoch for each gamma
        config.optimizer.epochs, config.loss.boundaries = 3, (1, 2)
    config.optimizer.decay_epochs = ()
    config.data.train_size = 16
    config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5, "batch_size": 40})
    config.curvature.update({"examples": 0})
    config.log_every = 1
    return config


def check_run(config, workdir):
    """Train, and look for the rows and files that every run has."""
    rows = job.run(config, workdir)
    steps = {row.step for row in select(records.read_rows(workdir), Scalar, name="examples_seen")}
    assert steps == set(range(1, 2 * config.optimizer.epochs + 1))
    on_test = select(rows, Metric, name="ece", split="test")
    assert {row.method for row in on_test} >= {"uncalibrated", "temperature_scaling", "focal_temperature_scaling"}
    assert (workdir / "report.html").exists()
    return rows


@pytest.mark.parametrize("name", CONFIGS)
def test_every_pair_of_words_is_a_config_in_range(name):
    kinds = [("", *kind) for kind in WORDS.get(name, [("quick",)])]
    pairs = itertools.combinations([*kinds, ("",)], 2)
    for words in {words for pair in pairs for words in itertools.product(*pair)}:
        job.check_config(load_config(name, ",".join(filter(None, words))))


def test_every_word_of_a_recipe_is_run():
    for kind in (("cifar",), ("newsgroups", "sst")):
        run = {word for name, words in RECIPES + TRACED if name in kind for word in words.split(",")}
        every = {word for words in WORDS[kind[0]] if words is not DATA for word in words}
        assert every - run <= {"quick", "small"}
    trained = {word for _, words in RECIPES for word in words.split(",")}
    assert trained >= {*NETWORKS, *LOSSES, "published"}


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), TRACED)
def test_what_is_not_trained_is_traced(name, words):
    made = programs.make_training(load_config(name, f"quick,{words}"))
    function, arguments = programs.training_step(made, jax.devices()[:1])
    state, metrics, _ = jax.eval_shape(function, *arguments)
    assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, arguments[0])
    assert "penalty" in metrics


def test_words_say_what_is_trained():
    config = load_config("cifar", "flsd53, cifar100,resnet110")
    assert (config.data.name, config.model.name, config.loss.name) == ("tfds:cifar100", "resnet110", "flsd_53")
    assert (config.optimizer.reduction, config.optimizer.clip_norm) == ("mean", 0.0)
    config = load_config("cifar", "published,mmce")
    assert (config.optimizer.reduction, config.optimizer.clip_norm, config.loss.name) == ("sum", 2.0, "weighted_mmce")


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    """A few examples of every kind of data, in its own layout."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(0)

    def draw(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8)).save(path)

    for split, label, number in itertools.product(("train", "test"), ("ant", "bee"), range(30)):
        draw(folder / "cifar" / split / label / f"{number}.png", 32)
    words = ["alpha", "beta", "gamma", "delta", "omega"]
    for split, group, number in itertools.product(("train", "test"), ("sci.a", "sci.b"), range(40)):
        path = folder / "newsgroups" / f"20news-bydate-{split}" / group / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Subject: it\n\n" + " ".join(rng.choice(words, 12)) + "\n")
    (folder / "sst" / "trees").mkdir(parents=True)
    trees = ["(3 (2 a) (4 (4 good) (2 film)))", "(1 (1 (0 bad) (2 film)) (2 .))", "(4 fine)", "(0 (2 very) (0 poor))"]
    for split, count in (("train", 8), ("dev", 8), ("test", 8)):
        (folder / "sst" / "trees" / f"{split}.txt").write_text("\n".join(trees * count) + "\n")
    return folder


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar", "vgg19,brier"),
        ("newsgroups", "adafocal"),
        ("sst", "mmce"),
    ],
)
def test_small_files_of_every_kind_train_and_evaluate(name, words, small_files, tmp_path):
    config = two_steps(load_config(name, f"quick,{words}"))
    config.data.name = f"{FILES[name][0]}:{small_files / name}"
    config.data.val_size, config.data.test_size = 30, 30
    config.diagnostics.every = 1
    if name in ("newsgroups", "sst"):
        config.model.options.embedding_size = 6
    if name == "sst":
        config.curvature.update({"examples": 4, "batch_size": 4, "max_products": 2, "num_probes": 4})
    rows = check_run(config, tmp_path / "run")
    assert ("lambda_max" in {row.name for row in rows}) == (name == "sst")
    assert ("selected_epoch" in {row.name for row in rows}) == (name in ("newsgroups", "sst"))
    diagnosed = {row.name for row in records.read_rows(tmp_path / "run")}
    assert {"weight_norm", "gradient_norm", "true_class_probability"} <= diagnosed


@pytest.mark.long
@pytest.mark.parametrize(("name", "words"), RECIPES)
def test_every_recipe_on_real_files(name, words, real_archive, tmp_path):
    check_run(real_config(name, words, real_archive), tmp_path / "run")
    jax.clear_caches()  # the programs of all of them would fill the memory


def real_config(name, words, real_archive):
    """The config that takes two steps on the real files."""
    kind, file = FILES[name]
    path = real_archive(file)
    config = two_steps(load_config(name, f"quick,{words}"))
    config.data.name = f"{kind}:{path}"
    config.data.val_size, config.data.test_size = 40, 40
    if name in ("newsgroups", "sst"):
        config.data.max_words, config.data.max_length = 500, 50 if name == "newsgroups" else None
        config.model.options.update({"embedding_size": 8, "width": 8} if name == "sst" else {"embedding_size": 8})
    return config


@pytest.mark.long
def test_the_smallest_model_reaches_the_known_optimum(tmp_path, papers):
    config = load_config("linear", "limit")
    config.optimizer.epochs = 500
    config.evaluation.update({"num_resamples": 2, "temperature_step": 0.5})
    config.curvature.examples = 0
    job.run(config, tmp_path / "run")
    rows = select(records.read_rows(tmp_path / "run"), Diagnostic, step=500)
    norms = {row.gamma: row.value for row in select(rows, Diagnostic, name="weight_norm")}
    of_wrong = {"name": "true_class_probability", "outcome": "wrong", "split": "train"}
    wrong = {row.gamma: row.value for row in select(rows, Diagnostic, **of_wrong)}
    limit = papers["appendixG_zero_variance_limit"]
    np.testing.assert_allclose([norms[0.0], norms[1.0]], [limit["ce_logit"], limit["focal1_logit"]], rtol=1e-4)
    assert wrong[0.0] < wrong[1.0]  # a misclassified point's true class has more probability under focal loss


def test_word_vectors_of_a_file_are_where_the_network_begins(small_files, tmp_path):
    config = two_steps(load_config("newsgroups", "quick"))
    config.data.name = f"newsgroups:{small_files / 'newsgroups'}"
    config.data.val_size, config.data.test_size = 4, 10
    (tmp_path / "vectors.txt").write_text("alpha 1 2 3\nbeta 4 5 6\nomega 7 8 9\n")
    config.data.embeddings = str(tmp_path / "vectors.txt")
    with pytest.raises(InputError, match="holds vectors of 3 numbers: set"):
        job.run(config, tmp_path / "run")
    config.model.options.embedding_size = 3
    prepared = job.preparation.prepare(config)
    state = job.preparation.initial_state(prepared, job.preparation.make_members(config))
    table = np.asarray(state.params["Embed_0"]["embedding"])[0]
    np.testing.assert_array_equal(table[prepared.dataset.vocabulary.index("beta")], [4, 5, 6])


def test_what_does_not_fit_the_data_is_named(small_files):
    config = load_config("linear")
    config.data.augment = "crop_flip"
    with pytest.raises(InputError, match=r"augment is crop_flip, clusters:0\.5 holds no images: set it to none"):
        job.preparation.prepare(config)
    config.data.augment, config.data.embeddings = "none", "vectors.txt"
    with pytest.raises(InputError, match=r"embeddings is vectors\.txt, clusters:0\.5 holds no words: leave it out"):
        job.preparation.prepare(config)
    config.data.embeddings, config.model.name = None, "cnn"
    prepared = job.preparation.prepare(config)
    with pytest.raises(InputError, match="x for cnn: has shape"):
        job.preparation.initial_state(prepared, job.preparation.make_members(config))
    config = load_config("newsgroups", "quick")
    config.data.name = f"newsgroups:{small_files / 'newsgroups'}"
    config.model.name, config.model.options.embedding_size = "mlp", None
    with pytest.raises(InputError, match=r"mlp does not read words.*; choose gp_cnn"):
        job.preparation.prepare(config)
