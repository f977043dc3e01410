"""Calls of curvature, networks and optimisers with arguments that they do not mean."""

import jax
import jax.numpy as jnp
import numpy as np
from hostile.cases import Call

from focalgeo import calibration, evaluation, losses, models, trees
from focalgeo import curvature as c
from focalgeo.training import optimiser
from focalgeo.types import Batch, RunError

KEY = jax.random.key(0)
LIKE = jnp.zeros(4)
TREE = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2)}
MATRIX = np.diag([3.0, 1.0, 0.5, -2.0]).astype(np.float32)


def product(vector):
    """A symmetric matvec."""
    return jnp.asarray(MATRIX) @ vector


def same(vector):
    """The identity."""
    return vector


def square(params):
    """A loss of LIKE."""
    return jnp.sum(params**2)


ITERATIVE = {
    "lambda_max": lambda matvec=product, like=LIKE, key=KEY, **options: c.lambda_max(matvec, like, key, **options),
    "extreme_eigenvalues": lambda matvec=product, like=LIKE, key=KEY, **options: c.extreme_eigenvalues(
        matvec, like, key, **options
    ),
    "trace": lambda matvec=product, like=LIKE, key=KEY, num_probes=4, **options: c.trace(
        matvec, like, key, num_probes, **options
    ),
    "hutch++": lambda matvec=product, like=LIKE, key=KEY, num_probes=6: c.trace(
        matvec, like, key, num_probes, method="hutch++"
    ),
    "xtrace": lambda matvec=product, like=LIKE, key=KEY, num_probes=6: c.trace(
        matvec, like, key, num_probes, method="xtrace"
    ),
    "spectral_density": lambda matvec=product, like=LIKE, key=KEY, **options: c.spectral_density(
        matvec, like, key, **options
    ),
    "diagonal": lambda matvec=product, like=LIKE, key=KEY, num_probes=4: c.diagonal(matvec, like, key, num_probes),
    "leaf_traces": lambda matvec=product, like=LIKE, key=KEY, num_probes=4: c.leaf_traces(
        matvec, like, key, num_probes
    ),
    "trace_to": lambda matvec=product, like=LIKE, key=KEY, **options: c.trace_to(matvec, like, key, **options),
    "dominant_basis": lambda matvec=product, like=LIKE, key=KEY, num_products=2: c.dominant_basis(
        [matvec], like, key, num_products
    ),
}
HAS_PROBES = ("trace", "hutch++", "xtrace", "spectral_density", "diagonal", "leaf_traces")


def of_each(kind, what, says, names=tuple(ITERATIVE), error=None, **arguments):
    """One Call for each iterative method, with these arguments."""
    options = {} if error is None else {"error": error}
    return [
        Call(kind, f"{name}: {what}", lambda name=name: ITERATIVE[name](**arguments), says, **options) for name in names
    ]


def scaled(factor):
    """A matvec at another scale."""
    return lambda vector: jnp.float32(factor) * product(vector)


def overflowing(vector):
    """Finite products with unit vectors of a matrix whose eigenvalue is beyond float32: all entries are 1.2e38."""
    return jnp.full_like(vector, 1.2e38) * jnp.sum(vector)


def traced(function):
    """The floating-point results under jit, `converged` turned into NaN where it is False."""

    def call():
        found = jax.jit(function)()
        if isinstance(found, c.Eigenpairs):
            return found.value, found.residual, np.where(found.converged, 1.0, np.nan)
        return found

    return call


def image(name="cnn", shape=(2, 8, 8, 3), dtype=np.float32, **options):
    """A network's initialisation on such an input."""
    return jax.eval_shape(models.build(name, 3, **options).init, KEY, np.zeros(shape, dtype))


def words(name="gp_cnn", shape=(2, 5), dtype=np.int32):
    """The same of a network on words."""
    return models.build(name, 3, vocabulary_size=9, embedding_size=4).init(KEY, np.zeros(shape, dtype))


def applied(shape):
    """The small network applied to images that its variables do not fit."""
    model = models.build("cnn", 3, widths=(4,))
    variables = jax.eval_shape(model.init, KEY, np.zeros((2, 8, 8, 3), np.float32))
    return jax.eval_shape(model.apply, variables, np.zeros(shape, np.float32))


def optimiser_with(**changes):
    """An optimiser with these settings."""
    settings = dict(momentum=0.9, nesterov=False, weight_decay=0.0, clip_norm=0.0) | changes
    return optimiser.make_optimiser("sgd", optimiser.step_schedule([2], 0.1), **settings)


def problem(batches):
    """A linear network's problem on these batches."""
    apply = lambda variables, x: x @ variables["params"]  # noqa: E731
    return evaluation.Problem(apply, {"cross_entropy": losses.cross_entropy}, jnp.ones((2, 3)), {}, batches)


def measured(batches):
    """Its curvature."""
    options = {"max_products": 4, "tolerance": 1e-2, "num_probes": 4, "trace_method": "hutchinson"}
    return evaluation.measure_curvature(problem(batches), KEY, split="val", **options)


EMPTY_BATCH = Batch(np.zeros((2, 2), np.float32), np.zeros(2, np.int32), np.zeros(2, bool))
DENSITY = c.SpectralDensity(jnp.array([[0.0, 1.0]] * 2), jnp.full((2, 2), 0.5), np.int32(4), np.int32(2))
SAMPLE = calibration.Sample("val", np.zeros(0, np.int32), (), KEY, 15, 10)

CASES = [
    # an eigenvalue is never said to be found where it is not
    Call(
        "wrong result",
        "lambda_max beyond float32",
        lambda: c.lambda_max(overflowing, LIKE, KEY),
        "the eigenvalue is not finite",
        error=RunError,
    ),
    Call(
        "wrong result",
        "lambda_max beyond float32, traced",
        traced(lambda: c.lambda_max(overflowing, LIKE, KEY)),
        None,
    ),
    Call(
        "wrong result",
        "lambda_max of NaN, traced",
        traced(lambda: c.lambda_max(lambda v: v * jnp.nan, LIKE, KEY)),
        None,
    ),
    Call(
        "wrong result",
        "an asymmetric matvec",
        lambda: c.lambda_max(lambda v: jnp.roll(v, 1), LIKE, KEY),
        "matvec is not symmetric",
    ),
    Call(
        "wrong result",
        "an asymmetric matvec's density",
        lambda: c.spectral_density(lambda v: jnp.roll(v, 1), LIKE, KEY),
        "matvec is not symmetric",
    ),
    Call(
        "wrong result",
        "an asymmetric matvec, traced",
        traced(lambda: c.lambda_max(lambda v: jnp.roll(v, 1), LIKE, KEY)),
        None,
    ),
    *of_each("wrong result", "inf from the matvec", "product is not finite", error=RunError, matvec=lambda v: v / 0.0),
    *[
        Call(
            "wrong result",
            f"{name} of NaN, traced",
            traced(lambda name=name: ITERATIVE[name](matvec=lambda v: v * jnp.nan)[:2]),
            None,
        )
        for name in ("trace", "hutch++", "xtrace", "spectral_density", "diagonal", "leaf_traces")
    ],
    Call(
        "wrong result",
        "dominant_basis of NaN, traced",
        traced(lambda: c.dominant_basis([lambda v: v * jnp.nan], LIKE, KEY, 2)),
        None,
    ),
    Call(
        "wrong result",
        "noise of a gradient of 1e-30",
        lambda: c.check_deterministic(noisy(1e-30), LIKE),
        "the gradient changes",
    ),
    Call(
        "wrong result",
        "noise of a gradient of 1e30",
        lambda: c.check_deterministic(noisy(1e30), LIKE),
        "the gradient changes",
    ),
    Call(
        "wrong result",
        "a share below NaN",
        lambda: c.cumulative_distribution(DENSITY, [0.0, np.nan]),
        r"points\[1\] is nan",
    ),
    Call(
        "wrong result",
        "a share below NaN, traced",
        lambda: jax.jit(lambda p: c.cumulative_distribution(DENSITY, p)[:2])(np.array([np.nan])),
        None,
    ),
    Call(
        "wrong result",
        "falling edges, traced",
        lambda: jax.jit(lambda e: c.share_in_bins(DENSITY, e)[:2])(np.array([1.0, 0.0])),
        None,
    ),
    Call(
        "wrong result",
        "width -1 and an infinite one, traced",
        lambda: jax.jit(jax.vmap(lambda w: c.smoothed_density(DENSITY, [0.0], width=w)[:2]))(np.array([-1, np.inf])),
        None,
    ),
    Call(
        "wrong result", "tolerance inf", lambda: c.lambda_max(product, LIKE, KEY, tolerance=np.inf), "tolerance is inf"
    ),
    Call("wrong result", "steps that are not whole", lambda: optimiser.cosine_schedule(10.5, 2), "steps is 10.5"),
    Call(
        "wrong result",
        "densenet121 on 4 x 4 images",
        lambda: image("densenet121", (2, 4, 4, 3), blocks=(1, 1, 1, 1), growth=2),
        "images are too small",
    ),
    Call(
        "wrong result",
        "a network of one class",
        lambda: models.build("mlp", 1),
        "num_classes is 1: it must be a whole number from 2",
    ),
    Call(
        "wrong result", "images in whole numbers", lambda: image(dtype=np.uint8), "x is uint8: cnn reads floating-point"
    ),
    Call("wrong result", "no images", lambda: image(shape=(0, 8, 8, 3)), r"x has shape \[0, 8, 8, 3\]"),
    Call("wrong result", "images of no pixels", lambda: image(shape=(2, 0, 8, 3)), r"x has shape \[2, 0, 8, 3\]"),
    Call("wrong result", "trees of two columns", lambda: words("tree_lstm", (2, 5, 2)), r"x has shape \[2, 5, 2\]"),
    Call(
        "wrong result",
        "weight decay nan",
        lambda: optimiser_with(weight_decay=np.nan),
        "config.optimizer.weight_decay is nan",
    ),
    Call(
        "wrong result", "clip norm nan", lambda: optimiser_with(clip_norm=np.nan), "config.optimizer.clip_norm is nan"
    ),
    Call("wrong result", "clip norm -1", lambda: optimiser_with(clip_norm=-1.0), "config.optimizer.clip_norm is -1"),
    Call("wrong result", "momentum 1.5", lambda: optimiser_with(momentum=1.5), "config.optimizer.momentum is 1.5"),
    Call("wrong result", "nesterov as text", lambda: optimiser_with(nesterov="no"), "config.optimizer.nesterov is no"),
    Call("wrong result", "a factor of nan", lambda: optimiser.step_schedule([2], np.nan), "factor is nan"),
    Call("wrong result", "a boundary of nan", lambda: optimiser.step_schedule([np.nan], 0.1), "boundaries is nan"),
    Call("wrong result", "curvature of no examples", lambda: measured([EMPTY_BATCH]), "batches hold no example"),
    Call(
        "wrong result",
        "an eigenvalue of one class",
        lambda: c.fisher_vp(lambda p: p[:, None], LIKE, LIKE),
        "2 or more classes",
    ),
    # no end, or more than memory holds
    Call("no end", "a million million probes", lambda: c.trace(product, LIKE, KEY, 10**12), "num_probes is 10"),
    Call(
        "no end",
        "a density of a thousand million probes",
        lambda: c.spectral_density(product, LIKE, KEY, num_probes=10**9),
        "num_probes is 10",
    ),
    Call(
        "no end",
        "a density of more vectors than memory",
        lambda: c.spectral_density(same, jax.ShapeDtypeStruct((10**8,), np.float32), KEY, steps=10**6),
        "GB of memory; lower",
    ),
    Call(
        "no end",
        "eigenvalues of more vectors than memory",
        lambda: c.lambda_max(same, jax.ShapeDtypeStruct((10**8,), np.float32), KEY, max_products=10**6),
        "max_products and k take .* GB",
    ),
    Call(
        "no end",
        "a basis of more vectors than memory",
        lambda: c.dominant_basis([same], jax.ShapeDtypeStruct((10**8,), np.float32), KEY, 10**5),
        "num_products take .* GB",
    ),
    Call(
        "no end",
        "hutch++ of more vectors than memory",
        lambda: c.trace(same, jax.ShapeDtypeStruct((10**8,), np.float32), KEY, 10**5, method="hutch++"),
        "num_probes take .* GB",
    ),
    Call(
        "no end",
        "xtrace of many samples",
        lambda: c.trace(same, jnp.zeros(10**4), KEY, 10**4, method="xtrace"),
        "num_probes is 10000; xtrace takes at most",
    ),
    Call("no end", "samples without end", lambda: c.trace_samples(jnp.sum, LIKE, KEY, 10**9), "num_samples is 10"),
    Call(
        "no end",
        "probes of a penalty without end",
        lambda: c.value_and_trace(square, LIKE, KEY, num_probes=10**6),
        "num_probes is 1000000",
    ),
    Call(
        "no end",
        "blocks without end",
        lambda: models.build("resnet20", blocks=(10**9, 1, 1)),
        "config.model.options.blocks is",
    ),
    Call("no end", "depth without end", lambda: models.build("vit", depth=10**9), "config.model.options.depth is"),
    Call(
        "no end", "a layer without end", lambda: models.build("mlp", hidden=(10**11,)), "config.model.options.hidden is"
    ),
    Call(
        "no end",
        "layers without end",
        lambda: models.build("mlp", hidden=(1,) * 10**5),
        "config.model.options.hidden is",
    ),
    Call("no end", "classes without end", lambda: models.build("mlp", 10**12), "num_classes is 10"),
    # numbers that are none
    *[
        Call(
            "traceback",
            f"{name}: num_probes {value!r}",
            lambda name=name, value=value: ITERATIVE[name](num_probes=value),
            "^num_probes is",
        )
        for name in HAS_PROBES
        for value in (0, -3, 2.5, True, "10", None)
    ],
    *of_each("traceback", "a key that is a number", "key is 0, not a PRNG key", key=0),
    *of_each("traceback", "several keys", "key holds several keys", key=jax.random.split(KEY, 3)),
    *of_each("traceback", "a key of four numbers", "key is uint32.4., not a PRNG key", key=np.uint32([1, 2, 3, 4])),
    *of_each("traceback", "a key of floats", "key is float32.* not a PRNG key", key=jnp.zeros(2)),
    *of_each("traceback", "like is of whole numbers", "like is int32", like=jnp.arange(4)),
    *of_each("traceback", "like is a list of numbers", r"like\[0\] is float", like=[1.0, 2.0]),
    *of_each("traceback", "like holds no number", "like holds no number", like={"a": jnp.zeros((0, 3))}),
    *of_each("traceback", "like is nothing", "like is an empty tree", like={}),
    *of_each(
        "unhelpful line",
        "a product of another shape",
        r"the product of matvec is float32\[3\], its vector float32\[4\]",
        matvec=lambda v: v[:3],
    ),
    *of_each(
        "unhelpful line",
        "a product of another structure",
        "the product of matvec has structure",
        matvec=lambda v: {"a": v},
    ),
    *of_each(
        "unhelpful line",
        "a product of another dtype",
        "the product of matvec is int32",
        matvec=lambda v: v.astype(jnp.int32),
    ),
    *of_each("unhelpful line", "a product that is None", "the product of matvec has structure", matvec=lambda v: None),
    *of_each("unhelpful line", "a matrix for a matvec", "matvec is ndarray, not a function", matvec=MATRIX),
    *[
        Call(
            "traceback",
            f"lambda_max: {name} {value!r}",
            lambda name=name, value=value: c.lambda_max(product, LIKE, KEY, **{name: value}),
            f"^{name} is",
        )
        for name, values in {
            "max_products": (0, -1, 2.5, True, "40"),
            "tolerance": (0, -1e-3, np.nan, "small", None, True),
        }.items()
        for value in values
    ],
    *[
        Call(
            "traceback",
            f"extreme_eigenvalues: k {value!r}",
            lambda value=value: c.extreme_eigenvalues(product, LIKE, KEY, k=value),
            "^k is",
        )
        for value in (0, -1, 1.0, True, 5, "1")
    ],
    *[
        Call(
            "traceback",
            f"spectral_density: steps {value!r}",
            lambda value=value: c.spectral_density(product, LIKE, KEY, steps=value),
            "^steps is",
        )
        for value in (0, -1, 1.5, True, np.nan)
    ],
    *[
        Call(
            "traceback",
            f"trace_to: {name} {value!r}",
            lambda name=name, value=value: c.trace_to(product, LIKE, KEY, **{name: value}),
            f"^{name} is",
        )
        for name, values in {
            "relative_error": (0, np.inf, "2%"),
            "max_products": (35, 40.5, True),
            "max_rows": (7, 9.5, 10**6),
        }.items()
        for value in values
    ],
    Call(
        "traceback",
        "which is a list",
        lambda: c.extreme_eigenvalues(product, LIKE, KEY, which=["largest"]),
        "^which is",
    ),
    Call("traceback", "method is a list", lambda: c.trace(product, LIKE, KEY, 4, method=["xtrace"]), "^method is"),
    Call("traceback", "form is a number", lambda: c.value_and_trace(square, LIKE, KEY, form=3), "^form is 3"),
    Call(
        "traceback",
        "no network's pair",
        lambda: c.outputs_and_trace(lambda p: p, jnp.sum, LIKE, KEY),
        "network returns no pair",
    ),
    Call("traceback", "samples are a list", lambda: c.sample_mean([1.0, 2.0]), "samples are list"),
    Call("traceback", "one number is no sample", lambda: c.sample_mean(np.float32(1)), "sample has no standard error"),
    Call("traceback", "no samples", lambda: c.sample_mean(np.zeros(0, np.float32)), "0 sample has no standard error"),
    Call("traceback", "a density that is none", lambda: c.share_in_bins(LIKE, [0.0, 1.0]), "density is float32"),
    Call(
        "traceback", "points as text", lambda: c.cumulative_distribution(DENSITY, ["a"]), "points are <U1: give numbers"
    ),
    Call("traceback", "a width as text", lambda: c.smoothed_density(DENSITY, [0.0], width="1"), "width is '1'"),
    Call("traceback", "no matvecs", lambda: c.dominant_basis([], LIKE, KEY, 2), "matvecs is list"),
    Call(
        "traceback",
        "a basis of another length",
        lambda: c.trace_samples(jnp.sum, LIKE, KEY, 2, basis=jnp.ones((1, 3))),
        "basis is float32",
    ),
    Call("traceback", "no losses", lambda: c.quadratic_parts(same, {}, LIKE, LIKE), "losses is no dict"),
    Call(
        "unhelpful line", "a form of vectors", lambda: c.trace_samples(same, LIKE, KEY, 2), r"form returns float32\[4\]"
    ),
    Call(
        "wrong result",
        "a form of NaN",
        lambda: c.trace_samples(lambda v: jnp.sum(v) * jnp.nan, LIKE, KEY, 2),
        "a value of form is not finite",
        error=RunError,
    ),
    Call(
        "unhelpful line",
        "a linearised product's vector",
        lambda: c.linearized_hvp(square, LIKE)(jnp.ones(3)),
        r"vector is float32\[3\]",
    ),
    Call("unhelpful line", "a loss per example", lambda: c.hvp(lambda p: p**2, LIKE, LIKE), "the loss returns float32"),
    Call("unhelpful line", "a loss that is a number", lambda: c.hvp(2.0, LIKE, LIKE), "loss is float, not a function"),
    Call(
        "unhelpful line",
        "outputs in whole numbers",
        lambda: c.ggn_vp(lambda p: jnp.arange(3), jnp.sum, LIKE, LIKE),
        "what outputs returns is int32",
    ),
    Call(
        "unhelpful line",
        "logits that are a dict",
        lambda: c.fisher_vp(lambda p: {"a": p}, LIKE, LIKE),
        "the function of the logits returns dict",
    ),
    Call(
        "unhelpful line", "a pattern that is a number", lambda: c.restrict(lambda p: 0.0, TREE, 3), "a pattern is int"
    ),
    *[
        Call("traceback", f"num_classes {value!r}", lambda value=value: models.build("mlp", value), "^num_classes is")
        for value in (0, -1, 2.5, "10", None, True)
    ],
    Call("traceback", "the name of a network is a number", lambda: models.build(3), "config.model.name is '3'"),
    Call(
        "traceback",
        "hidden units are a bool",
        lambda: models.build("mlp", hidden=True),
        "config.model.options.hidden is True",
    ),
    Call("traceback", "a dtype that is none", lambda: models.build("mlp", dtype="float99"), "dtype is float99"),
    Call("traceback", "a dtype of whole numbers", lambda: models.build("mlp", dtype=jnp.int32), "dtype is .*int32"),
    Call("traceback", "an axis name that is a number", lambda: models.build("cnn", axis_name=3), "axis_name is 3"),
    Call(
        "traceback", "half a vocabulary", lambda: models.build("gp_cnn", vocabulary_size=2.5), "vocabulary_size is 2.5"
    ),
    Call(
        "traceback",
        "more stages than mobilenet_v2 has",
        lambda: image("mobilenet_v2", blocks=(1,) * 8),
        "config.model.options.blocks has 8 entries",
    ),
    Call(
        "traceback",
        "stages of vgg19 without a width",
        lambda: image("vgg19", blocks=(1, 1)),
        "config.model.options.blocks is",
    ),
    Call(
        "unhelpful line",
        "flat examples for a convolution",
        lambda: image(shape=(2, 192)),
        "x has 2 axes: cnn reads images",
    ),
    Call(
        "unhelpful line",
        "one image without its batch",
        lambda: image("vit", shape=(8, 8, 3)),
        "x has 3 axes: vit reads images",
    ),
    Call(
        "unhelpful line",
        "other channels than the variables'",
        lambda: applied((2, 8, 8, 1)),
        "cnn does not fit its variables",
    ),
    Call(
        "unhelpful line",
        "a document of floats",
        lambda: words(dtype=np.float32),
        "x is float32: gp_cnn reads whole numbers",
    ),
    Call(
        "unhelpful line",
        "a key for a network that is a number",
        lambda: models.build("mlp", 3).init(0.5, np.zeros((2, 3), np.float32)),
        "mlp does not fit",
    ),
    Call("traceback", "no steps", lambda: optimiser.cosine_schedule(0, 0), "steps is 0"),
    Call("traceback", "a warm-up of all steps", lambda: optimiser.cosine_schedule(5, 5), "warmup_steps is 5"),
    Call("traceback", "a warm-up below 0", lambda: optimiser.cosine_schedule(5, -1), "warmup_steps is -1"),
    Call("traceback", "a boundary as text", lambda: optimiser.step_schedule(["2"], 0.1), "boundaries is 2: .*finite"),
    Call(
        "traceback",
        "boundaries that are one number",
        lambda: optimiser.step_schedule(2, 0.1),
        "2: it must hold numbers",
    ),
    Call(
        "traceback",
        "the optimiser is a number",
        lambda: optimiser.make_optimiser(
            3, optimiser.step_schedule([2], 0.1), momentum=0.9, nesterov=False, weight_decay=0.0, clip_norm=0.0
        ),
        "name is 3",
    ),
    Call("traceback", "predictions of no batches", lambda: evaluation.predict(None, {}, []), "batches hold no example"),
    Call("traceback", "curvature of no batches", lambda: measured([]), "batches hold no example"),
    Call(
        "traceback",
        "attribution of no batches",
        lambda: evaluation.attribution_rows(problem([]), None, KEY, split="val", num_probes=4),
        "batches hold no example",
    ),
    Call(
        "traceback",
        "a density of nothing measured",
        lambda: evaluation.density_rows(
            problem([EMPTY_BATCH]), evaluation.Curvature([], {}, {}), KEY, split="val", num_probes=2, steps=2
        ),
        "measured holds no loss",
    ),
    Call(
        "traceback",
        "metrics of no methods",
        lambda: list(calibration.measure_members([SAMPLE])),
        "calibrated holds no method",
    ),
    Call(
        "wrong result",
        "an inner product of different trees",
        lambda: trees.dot({"a": LIKE}, {"b": LIKE}),
        "left and right are trees of different",
    ),
    Call(
        "wrong result",
        "a sum that would broadcast",
        lambda: trees.add({"a": LIKE}, {"a": jnp.float32(1)}),
        r"left holds a leaf of shape \[4\], right \[\]",
    ),
    Call(
        "wrong result",
        "edges that are complex",
        lambda: c.share_in_bins(DENSITY, np.array([1j, 2])),
        "^edges is complex128: give real numbers",
    ),
    Call(
        "traceback",
        "probes of five thousand digits",
        lambda: c.trace(product, LIKE, KEY, 10**5000),
        "^num_probes is a value of type int",
    ),
    Call(
        "traceback",
        "a tolerance of five thousand digits",
        lambda: c.lambda_max(product, LIKE, KEY, tolerance=10**5000),
        "^tolerance is",
    ),
    Call(
        "traceback",
        "a momentum of five thousand digits",
        lambda: optimiser_with(momentum=10**5000),
        "momentum is a value",
    ),
]
CASES = [case._replace(seconds=60.0) for case in CASES]  # most compile a program, for seconds on a busy machine


def noisy(size):
    """A loss of value 0 at 0 whose gradient has this size and changes by a hundredth from call to call."""
    calls = []

    def loss(params):
        calls.append(1)
        return jnp.float32(size) * (1 + 0.01 * (len(calls) % 2)) * jnp.sum(params)

    return loss
