"""The results.json of an experiment that trains: read, and written with the README's tables."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.claims import Claim, claims_table
from experiments.writing import filled
from focalgeo.types import InputError


def name_of(scale: str) -> str:
    """results.json of small scale, results_paper.json of the papers'."""
    return "results.json" if scale == "small" else f"results_{scale}.json"


def read(folder: Path, scale: str = "small") -> dict[str, Any]:
    """What is stored; nothing where there is no file.

    Raises:
        InputError: the file is none of this command.
    """
    path = folder / name_of(scale)
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise InputError(f"{path} is no results.json ({error}): move it away") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no results.json of an experiment: move it away")
    return found


def write_all(folder: Path, results: Mapping[str, Any], texts: Mapping[str, str], scale: str = "small") -> None:
    """Write results.json, a line for each item of its first two levels, and fill the README beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f" {json.dumps(name)}: {_laid_out(part)}" for name, part in results.items()]
    path = folder / name_of(scale)
    new = path.with_suffix(".new")
    new.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    new.replace(path)
    readme = folder / "README.md"
    if readme.exists() and scale == "small":
        readme.write_text(filled(readme.read_text(encoding="utf-8"), texts), encoding="utf-8")


def write_answers(
    folder: Path,
    head: Mapping[str, Any],
    claims: Sequence[Claim],
    parts: Mapping[str, Any],
    texts: Mapping[str, str],
    scale: str = "small",
) -> None:
    """`write_all` of the head, the claims, which are a table of the README too, and the parts and tables beside."""
    results = {"about": head, "claims": [claim._asdict() for claim in claims]} | dict(parts)
    write_all(folder, results, {"claims": claims_table(claims)} | dict(texts), scale)


def _laid_out(part: Any) -> str:
    """JSON with a line for each item of a list or of a mapping."""
    if isinstance(part, list) and part:
        return "[\n" + ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in part) + "\n ]"
    if isinstance(part, Mapping) and part:
        items = (f"  {json.dumps(name)}: {json.dumps(each, ensure_ascii=False)}" for name, each in part.items())
        return "{\n" + ",\n".join(items) + "\n }"
    return json.dumps(part, ensure_ascii=False)
