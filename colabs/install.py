"""Installs focalgeo from this clone into the Python that runs it, beside the jax that the runtime has.

A runtime with a TPU or GPU, as Colab's, comes with jax and the plugin of its accelerator, which fit each other alone:
they keep their versions, and numpy, which the runtime is built with, its own. The notebooks' first cell runs this file.
It needs the standard library alone.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def installed_versions() -> dict[str, str]:
    """Version by normalised name of what this Python imports: the first on its path, where there are several."""
    versions = {}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower()
        versions.setdefault(name, distribution.version)
    return versions


def kept_versions(versions: dict[str, str]) -> dict[str, str]:
    """Those of jax, jaxlib, the accelerator's plugin and numpy; none where jax has no accelerator."""
    plugins = {name for name in versions if re.fullmatch(r"libtpu(-nightly)?|jax-\w+-(plugin|pjrt)", name)}
    if "jax" not in versions or not plugins:
        return {}
    return {name: versions[name] for name in sorted(plugins | {"jax", "jaxlib", "numpy"}) if name in versions}


def oldest_jax(dependencies: list[str]) -> str:
    """The oldest jax that focalgeo runs with, such as "0.10"."""
    return next(found[1] for line in dependencies if (found := re.fullmatch(r"jax>=([\d.]+)", line)))


def is_older(version: str, other: str) -> bool:
    """Compares number by number: 0.9 is older than 0.10, 0.10.0.dev1 is not."""
    first, second = (tuple(map(int, re.findall(r"\d+", text))) for text in (version, other))
    return first < second


def with_plugin(kept: dict[str, str]) -> str:
    """What pip calls jax together with the plugin of this accelerator, such as jax[cuda12]."""
    found = next((found for name in kept if (found := re.fullmatch(r"jax-(cuda\d+)-plugin", name))), None)
    return f"jax[{found[1] if found else 'tpu'}]"


def main():
    """Asks the runtime what it has and runs pip; leaves with one line where its jax is too old or pip fails."""
    kept = kept_versions(installed_versions())
    oldest = oldest_jax(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    if kept and is_older(kept["jax"], oldest):
        sys.exit(
            f"this runtime's jax {kept['jax']} is older than the {oldest} that focalgeo needs: run "
            f"%pip install -U '{with_plugin(kept)}>={oldest}' (jax and its plugin together), restart the session, "
            "and run this cell again"
        )
    pins = [f"{name}=={version}" for name, version in kept.items()]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("".join(f"{pin}\n" for pin in pins))
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", constraints]
        failed = subprocess.run([*command, f"{ROOT}[train]"]).returncode
    beside = f" beside this runtime's {', '.join(pins)}" if pins else ""
    if failed:
        sys.exit(f"pip could not install focalgeo{beside}: what it printed says why")
    print(f"focalgeo is installed{beside}")


if __name__ == "__main__":
    main()
