"""Test settings that catch whole families of JAX bugs: two CPU devices, strict promotion, warnings are errors."""

import copy
import os
import signal
from importlib import metadata
from pathlib import Path

# `make test-accelerator` sets it: tests/test_accelerator.py runs on what jax finds, or on the CPU as users have it.
if os.environ.get("FOCALGEO_ACCELERATOR", "cpu") == "cpu":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "FOCALGEO_ACCELERATOR" not in os.environ:
    # Tests compile much and compute little: less optimisation saves half of their time. The user's own flags come last
    # and win, for example XLA_FLAGS=--xla_cpu_max_isa=AVX2.
    flags = [
        "--xla_force_host_platform_device_count=2",
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
    ]
    if metadata.version("jaxlib").startswith("0.10."):
        # It alone has this choice; a program as users compile it is run in tests/test_run.py.
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
# What was compiled once serves every worker and every process that the tests start; keyed by program and version.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
import shapes
from reference import records

# Under nohup, or in a shell's background, these are ignored, and so by all that tests start: as in a terminal instead.
for signum, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, handler)

shapes.install("focalgeo")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def free_memory():
    """Forget what was compiled when a file is done: kept, it fills gigabytes and slows every garbage collection."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def real_archive():
    """The path of a file of real data by its name; the test is skipped where there is none."""

    def find(file):
        archive = Path(os.environ.get("FOCALGEO_DATA") or "unset") / file
        if not archive.exists():
            pytest.skip(f"set FOCALGEO_DATA to the folder that holds {file}")
        return archive.resolve()

    return find


@pytest.fixture(scope="session")
def papers():
    """Records of the papers' numbers by key: inputs and what comes of them. See tests/reference/papers/README.md."""
    return copy.deepcopy(records.stored())
