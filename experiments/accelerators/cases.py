"""The programs by name: what each is made from, and for which chips it is compiled."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments import jobs, programs
from experiments.programs import Program
from focalgeo import calibration, checks, parallel
from focalgeo.calibration.fits import search
from focalgeo.calibration.metrics import resampling
from focalgeo.curvature import lanczos
from focalgeo.evaluation.curvature import add_product, make_batch_loss
from focalgeo.job import measurement, preparation

HOST, POD, NEWER = "v5e:2x2", "v5e:4x4", "v6e:2x2"
ONE = "one v5e"  # a single device of HOST
Devices = Sequence[jax.Device]
DTYPES = ("float32", "bfloat16")

NETWORKS = {  # name -> config, other fields; in the order of the seconds that they take to compile
    "linear": ("configs/linear.py", {"sweep.gamma": ()}),
    "mlp": ("configs/digits.py", {}),
    "cnn": ("configs/cifar10.py:quick", {}),
    "gp_cnn": ("configs/newsgroups.py", {}),
    "vit": ("configs/cifar.py:vit", {}),
    "transformer": ("configs/newsgroups.py", {"model.name": "transformer"}),
    "vgg19": ("configs/cifar.py:vgg19", {}),
    "resnet18": ("configs/cifar.py:resnet18", {}),
    "tree_lstm": ("configs/sst.py", {}),
    "resnet20": ("configs/cifar.py", {"model.name": "resnet20"}),
}
SLOW = {
    **{name: (f"configs/cifar.py:{name}", {}) for name in ("resnet18_2w", "mobilenet_v2", "wide_resnet26_10")},
    **{name: (f"configs/cifar.py:{name}", {}) for name in ("resnet50", "densenet121", "resnet110")},
    "resnet110_bottleneck": ("configs/cifar.py:resnet110_bottleneck", {}),
    "resnet50, 64x64": ("configs/tiny_imagenet.py", {"data.name": "tiny_imagenet"}),
}
TRACES = {
    "hessian, jvp of grad": {},
    "gauss_newton": {"loss.trace_of": "gauss_newton"},
    "gauss_newton, a quarter of the batch": {"loss.trace_of": "gauss_newton", "loss.trace_examples": 32},
}
MEMBERS = {1: {"sweep.gamma": (), "sweep.seed": ()}, 8: {"sweep.seed": (0,)}, 40: {}}  # fields of the fast recipe
SWEEPS = ((1, ONE), (8, ONE), (1, HOST), (8, HOST), (40, HOST), (8, POD), (40, NEWER))


class Case(NamedTuple):
    """A program to compile for the devices of a topology; effort: the compiler's, 0 is the usual, -1 the least."""

    name: str
    kind: str
    dtype: str
    topology: str
    make: Callable[[Devices], Program]
    effort: float = 0.0

    @property
    def of(self) -> dict[str, str]:
        """What tells its row from others."""
        return {"topology": self.topology, "kind": self.kind, "program": self.name, "dtype": self.dtype}

    @property
    def label(self) -> str:
        """The program in words, of which a part chooses it on the command line."""
        return f"{self.kind}: {self.name}, {self.dtype}, {self.topology}"


def every() -> list[Case]:
    """All of them, those that take longest last."""
    measured = _measurements()
    little = [_step("resnet20", "float32", HOST), *(case for case in measured if case.name.startswith("hvp"))]
    return [
        *(_step(name, dtype, HOST) for name in NETWORKS for dtype in DTYPES),
        *(_sweep(*sweep) for sweep in SWEEPS),
        *(_trace(name) for name in TRACES),
        *measured,
        *(case._replace(name=f"{case.name}, little effort", effort=-1.0) for case in little),
        *(_step(name, dtype, HOST) for name in SLOW for dtype in DTYPES),
        *(_step(name, "bfloat16", topology) for name in NETWORKS | SLOW for topology in (POD, NEWER)),
    ]


def training(config: str, fields: Mapping[str, Any], devices: Devices) -> Program:
    """The training step of a config."""
    return programs.training_step(programs.make_training(jobs.load(config, fields)), devices)


def _step(name, dtype, topology):
    config, fields = (NETWORKS | SLOW)[name]
    make = partial(training, config, {**fields, "model.dtype": dtype})
    return Case(name, "training step", dtype, topology, make)


def _sweep(members, topology):
    name = f"{members} members, at once" if members > 1 else "1 member"
    make = partial(training, "configs/cifar10_gamma.py", MEMBERS[members])
    return Case(name, "sweep step", "bfloat16", topology, make)


def _trace(name):
    make = partial(training, "configs/cifar.py:trace", {"model.name": "resnet20", **TRACES[name]})
    return Case(name, "trace penalty", "float32", HOST, make)


def _measurements():
    small, large = (jobs.load(f"configs/cifar10.py:{words}") for words in ("quick", ""))
    on_one = {
        "search, 5,000 x 10": partial(grid_search, 5_000, 10),
        "search, 5,000 x 100": partial(grid_search, 5_000, 100),
        "bootstrap of 1,000, 10,000 x 10": partial(bootstrap, 10_000, 10),
    }
    on_host = {
        "hvp, cnn": partial(hessian_product, small),
        "Lanczos step, cnn": partial(lanczos_step, small),
        "prediction, resnet18": partial(programs.prediction, large),
        "hvp, resnet18": partial(hessian_product, large),
        "Lanczos step, resnet18": partial(lanczos_step, large),
    }
    made = [(ONE, on_one), (HOST, on_host)]
    return [Case(name, "measurement", "float32", on, make) for on, named in made for name, make in named.items()]


# ---- programs of a measurement: Hessian products, Lanczos, the search and the bootstrap


def hessian_product(config: Any, devices: Devices) -> Program:
    """The Hessian product of one batch, as lambda_max, trace and density call it; examples are spread over devices."""
    *whole, batch = _product_arguments(config)
    return Program(add_product, (*_laid_out(tuple(whole), devices), _laid_out(batch, devices, spread=True)))


def lanczos_step(config: Any, devices: Devices) -> Program:
    """One product's way into the basis of config.curvature.max_products vectors: what is beside the product itself."""
    size = sum(leaf.size for leaf in jax.tree.leaves(_product_arguments(config)[0]))
    vector, block = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((size,), (1, size)))
    krylov = jax.eval_shape(lambda block: lanczos.krylov_start(block, steps=config.curvature.max_products), block)
    return Program(jax.jit(lanczos.expanded, donate_argnums=0), _laid_out((krylov, vector), devices))


def grid_search(examples: int, classes: int, devices: Devices) -> Program:
    """The plain search: ECE and NLL at 10 gammas times 500 temperatures, on one device."""
    grid = np.float32(search.GAMMAS), np.float32(search.TEMPERATURES)

    def surfaces(logits, labels):
        return search.plain_surfaces(checks.predicted_logits(logits, labels), *grid)

    return Program(jax.jit(surfaces), _examples(examples, classes, devices))


def bootstrap(examples: int, classes: int, devices: Devices) -> Program:
    """The bootstrap of the ECE by 1,000 resamples, whose counts the host draws, on one device."""

    def resampled(logits, labels, counts):
        once, log_probs = jnp.ones(examples), jax.nn.log_softmax(logits)
        return resampling.on_resamples(calibration.ece, calibration.ece, log_probs, labels, once, counts)

    counts = _laid_out(np.zeros((1000, examples), np.uint8), devices[:1])
    return Program(jax.jit(resampled), (*_examples(examples, classes, devices), counts))


def _examples(count, classes, devices):
    """Logits and labels on the first device."""
    return _laid_out((np.zeros((count, classes), np.float32), np.zeros(count, np.int32)), devices[:1])


def _product_arguments(config):
    """Those of the first Hessian product of cross-entropy, at parameters that are 0.01."""
    made = programs.make_training(config)
    shapes = preparation.state_shapes(made.prepared, made.members[0])
    state = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, np.float32).astype(leaf.dtype), shapes)
    problem = measurement.make_problem(made.members[0], made.prepared, state, "val")
    loss = make_batch_loss(problem.apply, problem.losses["cross_entropy"], made.config.curvature.examples)
    return problem.params, problem.params, loss, problem.params, problem.model_state, problem.batches[0]


def _laid_out(tree, devices, *, spread=False):
    """Shapes with the layout of `parallel.spread`, examples filled up to a multiple of the devices, or `everywhere`."""
    layout = NamedSharding(Mesh(np.asarray(devices), (parallel.AXIS,)), PartitionSpec(*[parallel.AXIS] * spread))

    def of_leaf(leaf):
        rows = (-(-leaf.shape[0] // len(devices)) * len(devices), *leaf.shape[1:]) if spread else leaf.shape
        return leaf.update(shape=rows, sharding=layout)

    return jax.tree.map(of_leaf, programs.shapes(tree))
