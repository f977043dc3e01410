"""Training jobs of the experiments: run as a user runs them, read back as rows, with the record of what ran."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from focalgeo import records
from focalgeo.config import load_config, with_values
from focalgeo.rows import Seconds, select
from focalgeo.types import InputError, RunError

ROOT = Path(__file__).parent.parent


def run(config: str, workdir: Path, fields: Mapping[str, Any]) -> None:
    """Run `python -m focalgeo.run` with this config ("configs/cifar.py:small,ce") and fields; a stopped one goes on.

    Raises:
        CalledProcessError: the job failed; it has said why.
    """
    check(config, fields)
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    command = [sys.executable, "-m", "focalgeo.run", f"--config={ROOT / config}", f"--workdir={workdir}", *flags]
    subprocess.run(command, check=True, cwd=ROOT)


def check(config: str, fields: Mapping[str, Any]) -> None:
    """Refuse a config or fields that a job would refuse.

    Raises:
        InputError: with what, where and how to mend it.
    """
    path, _, words = config.partition(":")
    with_values(load_config(ROOT / path, words), dict(fields))


def rows_of(workdir: Path) -> list:
    """The rows of a workdir; none where nothing is finished."""
    return records.read_rows(workdir) if (workdir / "metrics.jsonl").exists() else []


def finished(workdir: Path) -> bool:
    """Whether the job came to its end: its page is made last."""
    return (workdir / "report.html").exists()


def record(workdir: Path, config: str) -> dict[str, Any]:
    """What made a run: commit, config words, versions, date, and the seconds that its training took."""
    manifest = json.loads((workdir / records.MANIFEST).read_text(encoding="utf-8"))
    versions = {name: manifest["versions"][name] for name in ("python", "jax", "flax")}
    seconds = sum(row.value for row in select(rows_of(workdir), Seconds, phase="train"))
    found = {"commit": manifest["git"], "config": config, "date": manifest["created"][:10], "versions": versions}
    return found | {"seconds": round(seconds, 1)}


def absolute(data: str | None) -> str | None:
    """The config.data.name of a flag with its path made absolute, since jobs run in the folder of the clone."""
    if not data:
        return data
    kind, colon, path = data.partition(":")
    if not colon or kind == "tfds":
        return data
    if not Path(path).exists():
        raise InputError(f"{path}: no such file or folder: give the data as in --cifar10=folder:cifar10.tar.xz")
    return f"{kind}:{Path(path).absolute()}"


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """End the command with one line and its exit code where a job, an input or the user stops it."""
    try:
        yield
    except (InputError, RunError) as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    except subprocess.CalledProcessError as failed:  # a job, which has said why
        sys.exit(failed.returncode)
    except KeyboardInterrupt:
        print("stopped; what is trained is kept, and the same command goes on", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}: name another file or folder", file=sys.stderr)
        sys.exit(2)
