"""One fit of a calibration method here and in another library, on the same outputs, in turn."""

import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from scipy.special import log_softmax

from experiments import peers, timing
from experiments.benchmarks import outputs
from experiments.numbers import markdown, plain
from focalgeo import calibration

PLAIN_PEERS = tuple(name for name, peer in peers.PEERS.items() if peer.counterpart == peers.PLAIN and "mix" not in name)
EVERY = peers.PEERS | peers.TWO_CLASSES
CASES = {  # examples, classes -> peers
    (5_000, 2): (*PLAIN_PEERS, *peers.TWO_CLASSES),
    (5_000, 10): (*PLAIN_PEERS, "probmetrics svs", "probmetrics sms"),
    (25_000, 1_000): (*PLAIN_PEERS, "probmetrics svs"),
}
SECONDS = 120.0  # of the rounds of a pair: no further round begins after it
CLIP = float(np.finfo(np.float32).eps)  # a probability of 0 counts as this


def cases() -> Iterator[dict[str, Any]]:
    """What each row is of, where the peer is installed."""
    for (examples, classes), names in CASES.items():
        for name in names:
            peer = EVERY[name]
            if timing.version(peer.package):
                of = {"method": peer.counterpart, "peer": name}
                yield {"examples": examples, "classes": classes, **of}


def missing() -> list[str]:
    """The packages of peers that are not installed."""
    return sorted({peer.package for peer in EVERY.values() if not timing.version(peer.package)})


def measured(of: Mapping[str, Any], rounds: int) -> list[dict[str, Any]]:
    """The row of a pair: seconds of both fits and of our first, NLL on test of both and of the outputs as given."""
    peer = EVERY[of["peer"]]
    (val, labels), (test, truth) = (
        (log_softmax(logits, axis=1), of_rows)
        for logits, of_rows in outputs.made(of["examples"], of["classes"], seeds=(0, 1))
    )
    inputs, found = peer.inputs(val), {}

    def ours():
        found["ours"] = calibration.fit(of["method"], val, labels)
        return found["ours"].params

    def theirs():
        found["theirs"] = peer.fit(inputs, labels)

    row = {
        **of,
        "package": peer.package,
        "title": peer.title,
        "version": timing.version(peer.package),
        "machine": timing.machine(),
    }
    try:
        peers.quietly(theirs)  # imports and compiles
    except Exception as error:  # whatever a library raises is its answer
        return [row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}]
    first = timed_anew(ours)
    calls = {"ours": ours, "theirs": partial(peers.quietly, theirs)}
    seconds = timing.alternated(calls, rounds=rounds, most=SECONDS)
    row |= {"first": first, "rounds": len(seconds["ours"])}
    row |= {name: statistics.median(each) for name, each in seconds.items()}
    nll = {
        "given": _nll(test, truth),
        "ours": _nll(found["ours"].predict_log_proba(test), truth),
        "theirs": _nll(peers.as_logs(peer, found["theirs"])(test), truth),
    }
    return [row | {"nll": nll}]


def timed_anew(call: Callable[[], Any]) -> float:
    """Wall seconds of a call that compiles all of its programs: none is in memory, and none is read from a folder."""
    folder = jax.config.jax_compilation_cache_dir
    jax.clear_caches()
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        return timing.timed(call)
    finally:
        jax.config.update("jax_compilation_cache_dir", folder)
        compilation_cache.reset_cache()


def _nll(log_probs, labels):
    of_label = np.asarray(log_probs, np.float64)[np.arange(len(labels)), labels]
    return float(-np.maximum(of_label, np.log(CLIP)).mean())


def fits_table(fits) -> str:
    """Seconds of one fit: medians of rounds in turn after a call of each, and our first, which compiles.

    Theirs over ours is above 1 where ours is faster. NLL is on as many other examples; a probability of 0 counts as
    1.2e-7. The inputs are made as each library takes them before the clock starts. "One versus rest" is not the same
    method as ours, and our histogram has bins of equal mass of the top class. A library that was not installed has no
    rows: `pip install -e '.[peers]'`. Rows of netcal's other methods and of probmetrics' of two classes are a record.
    """
    lines = []
    for row in sorted(fits, key=_place):
        size = f"{row['examples']:,} x {row['classes']:,}"
        named = [_title(row["method"]), f"{row['package']}: {row['title']}"]
        if "error" in row:
            lines.append([*named, size, "", "", row["error"], "", "", ""])
            continue
        seconds = [plain(row[name]) for name in ("ours", "first", "theirs")]
        nll = [f"{row['nll'][name]:.4f}" for name in ("ours", "theirs")]
        lines.append([*named, size, *seconds, plain(row["theirs"] / row["ours"]), *nll])
    heads = ("method", "peer", "input", "seconds ours", "first", "theirs", "theirs / ours", "NLL ours", "theirs")
    versions = {f"{row['package']} {row['version']}": None for row in fits}
    return f"{outputs.machines(fits)}; {', '.join(versions)}\n\n{markdown(heads, lines)}"


def beside_table(fits) -> str:
    """Seconds of one fit here, and how many times as long each library takes, below 1 where it is faster.

    netcal's temperature scaling is that of float64.
    """
    rows, packages = {}, list(dict.fromkeys(peer.package for peer in EVERY.values()))
    for row in sorted(fits, key=_place):
        if "error" not in row:
            of = rows.setdefault((row["examples"], row["classes"], row["method"]), {})
            of |= {"ours": row["ours"], row["package"]: plain(row["theirs"] / row["ours"], 2)}
    lines = [
        [f"{examples:,} x {classes:,}", _title(method), plain(of["ours"], 2), *(of.get(name, "") for name in packages)]
        for (examples, classes, method), of in rows.items()
    ]
    return markdown(("input", "method", "seconds", *packages), lines)


def _title(method):
    return calibration.METHODS[method].title.lower()


def _place(row):
    return row["examples"] * row["classes"], list(calibration.METHODS).index(row["method"])
