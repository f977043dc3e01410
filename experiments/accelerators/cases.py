"""The programs by name: what each is made from, and for which chips it is compiled."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from configs import cifar, cifar10, cifar10_gamma, digits, linear, newsgroups, sst, tiny_imagenet
from experiments.accelerators import measurements, steps
from focalgeo.config import is_field

HOST, POD, NEWER = "v5e:2x2", "v5e:4x4", "v6e:2x2"
ONE = "one v5e"  # a single device of HOST
TOPOLOGIES = (HOST, ONE, POD, NEWER)
DTYPES = ("float32", "bfloat16")

# in the order of their seconds of compilation, so that what is soon there is there soon
NETWORKS: dict[str, Callable[[], Any]] = {
    "linear": lambda: _without_sweep(linear.get_config()),
    "mlp": digits.get_config,
    "cnn": lambda: cifar10.get_config("quick"),
    "gp_cnn": newsgroups.get_config,
    "vit": lambda: cifar.get_config("vit"),
    "transformer": lambda: _changed(newsgroups.get_config(), {"model.name": "transformer"}),
    "vgg19": lambda: cifar.get_config("vgg19"),
    "resnet18": lambda: cifar.get_config("resnet18"),
    "tree_lstm": sst.get_config,
    "resnet20": lambda: _changed(cifar.get_config(), {"model.name": "resnet20"}),
    "resnet18_2w": lambda: cifar.get_config("resnet18_2w"),
    "mobilenet_v2": lambda: cifar.get_config("mobilenet_v2"),
    "wide_resnet26_10": lambda: cifar.get_config("wide_resnet26_10"),
    "resnet50": lambda: cifar.get_config("resnet50"),
    "densenet121": lambda: cifar.get_config("densenet121"),
    "resnet110": lambda: cifar.get_config("resnet110"),
    "resnet110_bottleneck": lambda: cifar.get_config("resnet110_bottleneck"),
    "resnet50, 64x64": lambda: _changed(tiny_imagenet.get_config(), {"data.name": "tiny_imagenet"}),
}
SLOW = tuple(NETWORKS)[list(NETWORKS).index("resnet18_2w") :]
TRACES = {
    "hessian, taylor": {},
    "hessian, forward over forward": {"loss.trace_form": "forward_over_forward"},
    "hessian, jvp of grad": {"loss.trace_form": "jvp_of_grad"},
    "gauss_newton": {"loss.trace_of": "gauss_newton"},
    "gauss_newton, a quarter of the batch": {"loss.trace_of": "gauss_newton", "loss.trace_examples": 32},
}
MEMBERS = {1: ((), ()), 8: (None, (0,)), 40: (None, None)}  # the gammas and seeds of each; None: the recipe's own


class Case(NamedTuple):
    """A program to compile.

    kind: "training step", "sweep step", "trace penalty" or "measurement". on: the topologies it is compiled for.
    members: how many train in one call. make: () -> steps.Program. effort: the compiler's, of
    `jax_exec_time_optimization_effort`; 0 is the usual, -1 the least.
    """

    name: str
    kind: str
    dtype: str
    on: tuple[str, ...]
    make: Callable[[], steps.Program]
    members: int = 1
    effort: float = 0.0

    @property
    def label(self) -> str:
        """The program in words, of which a part chooses it on the command line."""
        return f"{self.kind}: {self.name}, {self.dtype}"

    def key(self, topology: str | None) -> tuple[str, str, str, str | None]:
        """What tells the row of this program on a topology from every other, as `tables.key` reads it from the row."""
        return self.name, self.kind, self.dtype, topology


def cases() -> list[Case]:
    """All of them, those that take longest last."""
    quick = [name for name in NETWORKS if name not in SLOW]
    early = [_step(name, dtype, (HOST,)) for name in quick for dtype in DTYPES]
    late = [_step(name, dtype, (HOST,)) for name in SLOW for dtype in DTYPES]
    again = [_step(name, "bfloat16", (POD, NEWER)) for name in (*quick, *SLOW)]
    return [*early, *_sweeps(), *_traces(), *_measurements(), *_with_little_effort(), *late, *again]


def _step(name: str, dtype: str, on: tuple[str, ...]) -> Case:
    def make() -> steps.Program:
        return steps.training_step(_changed(NETWORKS[name](), {"model.dtype": dtype}))

    return Case(name, "training step", dtype, on, make)


def _sweeps() -> list[Case]:
    """Members on one device by either layout, and all on a host."""
    found = []
    for layout in steps.LAYOUTS:
        for members in (1, 8):
            if members > 1 or layout == "at once":
                found.append(_sweep(members, layout, (ONE,)))
    found += [_sweep(members, "at once", (HOST,)) for members in MEMBERS]
    found.append(_sweep(40, "one after another", (HOST,)))
    return [*found, _sweep(8, "at once", (POD,)), _sweep(40, "at once", (NEWER,))]


def _sweep(members: int, layout: str, on: tuple[str, ...]) -> Case:
    def make() -> steps.Program:
        config = cifar10_gamma.get_config()
        for axis, values in zip(("gamma", "seed"), MEMBERS[members], strict=True):
            if values is not None:
                config.sweep[axis] = values
        return steps.training_step(config, layout=layout)

    name = f"{members} members, {layout}" if members > 1 else "1 member"
    return Case(name, "sweep step", "bfloat16", on, make, members)


def _traces() -> list[Case]:
    def make(fields: Mapping[str, Any]) -> steps.Program:
        config = _changed(cifar.get_config("trace"), {"model.name": "resnet20", **fields})
        return steps.training_step(config)

    known = {name: fields for name, fields in TRACES.items() if all(map(is_field, fields))}
    return [Case(name, "trace penalty", "float32", (HOST,), partial(make, fields)) for name, fields in known.items()]


def _measurements() -> list[Case]:
    small, large = (lambda: cifar10.get_config("quick")), cifar10.get_config
    of_predictions = [
        ("search, 5,000 x 10", lambda: measurements.search(5_000, 10)),
        ("search, 5,000 x 100", lambda: measurements.search(5_000, 100)),
        ("bootstrap of 1,000, 10,000 x 10", lambda: measurements.bootstrap(10_000, 10)),
    ]
    of_networks = [
        ("hvp, cnn", lambda: measurements.hessian_product(small())),
        ("Lanczos step, cnn", lambda: measurements.lanczos_step(small())),
        ("lambda_max as one program, cnn", lambda: measurements.whole_measurement(small(), what="lambda_max")),
        ("density as one program, cnn", lambda: measurements.whole_measurement(small(), what="density")),
        ("prediction, resnet18", lambda: steps.prediction(large())),
        ("hvp, resnet18", lambda: measurements.hessian_product(large())),
        ("Lanczos step, resnet18", lambda: measurements.lanczos_step(large())),
    ]
    on_one = [Case(name, "measurement", "float32", (ONE,), make) for name, make in of_predictions]
    return on_one + [Case(name, "measurement", "float32", (HOST,), make) for name, make in of_networks]


def _with_little_effort() -> list[Case]:
    """A step and the products that take long to compile, compiled sooner and worse."""
    chosen = [_step("resnet20", "float32", (HOST,)), *(case for case in _measurements() if case.name.startswith("hvp"))]
    return [case._replace(name=f"{case.name}, little effort", effort=-1.0) for case in chosen]


def _changed(config, fields: Mapping[str, Any]):
    with config.unlocked():
        for name, value in fields.items():
            section, _, last = name.rpartition(".")
            config[section][last] = value
    return config


def _without_sweep(config):
    config.sweep.gamma = ()
    return config
