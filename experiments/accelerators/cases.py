"""The programs by name: what each is made from, and for which chips it is compiled."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax

from configs import cifar, cifar10, cifar10_gamma, digits, linear, newsgroups, sst, tiny_imagenet
from experiments import programs
from experiments.accelerators.programs import bootstrap, grid_search, hessian_product, lanczos_step, whole_measurement
from experiments.programs import Program

HOST, POD, NEWER = "v5e:2x2", "v5e:4x4", "v6e:2x2"
ONE = "one v5e"  # a single device of HOST
DTYPES = ("float32", "bfloat16")

# name -> config, its words and other fields; in the order of the seconds that they take to compile
NETWORKS: dict[str, tuple[Any, str, Mapping[str, Any]]] = {
    "linear": (linear, "", {"sweep.gamma": ()}),
    "mlp": (digits, "", {}),
    "cnn": (cifar10, "quick", {}),
    "gp_cnn": (newsgroups, "", {}),
    "vit": (cifar, "vit", {}),
    "transformer": (newsgroups, "", {"model.name": "transformer"}),
    "vgg19": (cifar, "vgg19", {}),
    "resnet18": (cifar, "resnet18", {}),
    "tree_lstm": (sst, "", {}),
    "resnet20": (cifar, "", {"model.name": "resnet20"}),
}
SLOW = {
    **{name: (cifar, name, {}) for name in ("resnet18_2w", "mobilenet_v2", "wide_resnet26_10", "resnet50")},
    **{name: (cifar, name, {}) for name in ("densenet121", "resnet110", "resnet110_bottleneck")},
    "resnet50, 64x64": (tiny_imagenet, "", {"data.name": "tiny_imagenet"}),
}
TRACES = {
    "hessian, taylor": {},
    "hessian, forward over forward": {"loss.trace_form": "forward_over_forward"},
    "hessian, jvp of grad": {"loss.trace_form": "jvp_of_grad"},
    "gauss_newton": {"loss.trace_of": "gauss_newton"},
    "gauss_newton, a quarter of the batch": {"loss.trace_of": "gauss_newton", "loss.trace_examples": 32},
}
AT_ONCE, IN_TURN = programs.LAYOUTS
MEMBERS = {1: {"sweep.gamma": (), "sweep.seed": ()}, 8: {"sweep.seed": (0,)}, 40: {}}  # fields of the fast recipe
SWEEPS = (
    *((1, AT_ONCE, ONE), (8, AT_ONCE, ONE), (8, IN_TURN, ONE), (1, AT_ONCE, HOST), (8, AT_ONCE, HOST)),
    *((40, AT_ONCE, HOST), (40, IN_TURN, HOST), (8, AT_ONCE, POD), (40, AT_ONCE, NEWER)),
)


class Case(NamedTuple):
    """A program to compile for the devices of a topology.

    members: how many train in one call. effort: the compiler's; 0 is the usual, -1 the least.
    """

    name: str
    kind: str
    dtype: str
    topology: str
    make: Callable[[Sequence[jax.Device]], Program]
    members: int = 1
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
        *(_step(name, "bfloat16", topology) for name in {**NETWORKS, **SLOW} for topology in (POD, NEWER)),
    ]


def config_of(module: Any, words: str, fields: Mapping[str, Any]) -> Any:
    """The config with these words, with other values of some fields."""
    return programs.changed(module.get_config(words), fields)


def _training(module: Any, words: str, fields: Mapping[str, Any], layout: str = AT_ONCE) -> Callable:
    def make(devices):
        made = programs.make_training(config_of(module, words, fields), layout=layout)
        return programs.training_step(made, devices)

    return make


def _step(name: str, dtype: str, topology: str) -> Case:
    module, words, fields = {**NETWORKS, **SLOW}[name]
    return Case(name, "training step", dtype, topology, _training(module, words, {**fields, "model.dtype": dtype}))


def _sweep(members: int, layout: str, topology: str) -> Case:
    name = f"{members} members, {layout}" if members > 1 else "1 member"
    make = _training(cifar10_gamma, "", MEMBERS[members], layout)
    return Case(name, "sweep step", "bfloat16", topology, make, members)


def _trace(name: str) -> Case:
    make = _training(cifar, "trace", {"model.name": "resnet20", **TRACES[name]})
    return Case(name, "trace penalty", "float32", HOST, make)


def _measurements() -> list[Case]:
    small, large = (config_of(cifar10, words, {}) for words in ("quick", ""))
    on_one = {
        "search, 5,000 x 10": partial(grid_search, 5_000, 10),
        "search, 5,000 x 100": partial(grid_search, 5_000, 100),
        "bootstrap of 1,000, 10,000 x 10": partial(bootstrap, 10_000, 10),
    }
    on_host = {
        "hvp, cnn": partial(hessian_product, small),
        "Lanczos step, cnn": partial(lanczos_step, small),
        "lambda_max as one program, cnn": partial(whole_measurement, small, what="lambda_max"),
        "density as one program, cnn": partial(whole_measurement, small, what="density"),
        "prediction, resnet18": partial(programs.prediction, large),
        "hvp, resnet18": partial(hessian_product, large),
        "Lanczos step, resnet18": partial(lanczos_step, large),
    }
    made = [(ONE, on_one), (HOST, on_host)]
    return [Case(name, "measurement", "float32", on, make) for on, named in made for name, make in named.items()]
