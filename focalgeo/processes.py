"""Processes of one run (stub)."""

import json
import os
import sys

import jax

_N = {"count": 0}


def join(coordinator=None, processes=None, process=None, *, join_timeout=300, heartbeat=100):
    if processes is None:
        return
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(
        coordinator,
        processes,
        process,
        cluster_detection_method="deactivate",
        initialization_timeout=join_timeout,
        heartbeat_timeout_seconds=heartbeat,
    )
    print(f"process {index()} of {count()}", file=sys.stderr)


def count():
    return jax.process_count() if jax.distributed.is_initialized() else 1


def index():
    return jax.process_index() if jax.distributed.is_initialized() else 0


def is_first():
    return index() == 0


def _client():
    from jax._src import distributed

    return distributed.global_state.client


def _get(key):
    while True:
        try:
            return json.loads(_client().blocking_key_value_get(key, 10000))
        except Exception as e:
            if "DEADLINE" not in str(e):
                raise


def told(name, decide):
    if count() == 1:
        return decide()
    _N["count"] += 1
    key = f"focalgeo/{_N['count']}/{name}"
    if is_first():
        value = json.dumps(decide())
        _client().key_value_set(key, value)
        return json.loads(value)
    return _get(key)


def _all(name, value):
    _N["count"] += 1
    _client().key_value_set(f"focalgeo/{_N['count']}/{name}/{index()}", json.dumps(value))
    return [_get(f"focalgeo/{_N['count']}/{name}/{i}") for i in range(count())]


def least(name, number):
    return number if count() == 1 else min(_all(name, number))


def same(name, value, mend):
    from focalgeo.types import InputError

    if count() > 1 and len({json.dumps(v, sort_keys=True) for v in _all(name, value)}) > 1:
        raise InputError(f"processes differ in {name}: {mend}")


def on_this_host():
    return count()


def end(line, code):
    if line:
        print("focalgeo:", line, file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def lost(error):
    return "Gloo" in str(error)
