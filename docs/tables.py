"""The tables of docs/reference.md, of experiments and of notebooks: python -m docs.tables makes them anew.

`make docs` and a release begin with it, so nobody who adds a name has to.
"""

import ast
import inspect
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from experiments.numbers import markdown
from experiments.question import filled, index
from focalgeo import losses, models
from focalgeo.calibration import METHODS, METRICS
from focalgeo.calibration.methods import estimators
from focalgeo.config import FIELDS
from focalgeo.data import registry

ROOT = Path(__file__).parent.parent


def first_paragraph(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return _cell(" ".join(inspect.getdoc(thing).partition("\n\n")[0].split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def configs() -> str:
    """Each config with its first line and its time."""
    rows = []
    for path in sorted((ROOT / "configs").glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        time = re.search(r"^Time: +(.*(?:\n {9,}.*)*)", text, re.MULTILINE)[1]
        rows.append((f"`configs/{path.name}`", text.partition("\n")[0], " ".join(time.split())))
    return markdown(("config", "what", "time"), rows)


def loss_names() -> str:
    """Each name of config.loss.name with its values, by name or, for a policy, as they are."""
    rows = []
    for name, function in losses.FUNCTIONS.items():
        own = losses.LOSSES.get(name) or losses.PENALTIES.get(name)
        fixed = losses.POLICIES.get(name) or losses.SCHEDULES.get(name)
        values = [f"`{each}`" for each in losses.hyperparameters(function) if each not in ("epoch", "adafocal")]
        if fixed:
            values = [
                f"{field} {', '.join(f'{value:.3g}' for value in fixed[i])}" for i, field in enumerate(fixed._fields)
            ]
        if name in losses.PENALTIES:
            values = ["`penalty_weight`"]
        what = first_paragraph(own) if own else f"`{function}` with these values"
        rows.append((f"`{name}`", "; ".join(values) if fixed else ", ".join(values), what))
    return markdown(("`config.loss.name`", "values", "what"), rows)


def networks() -> str:
    """Each network with its options and their defaults."""
    rows = []
    for name, builder in models.MODELS.items():
        options = ", ".join(f"`{option}={value}`" for option, value in models.options(name).items())
        rows.append((f"`{name}`", first_paragraph(getattr(builder, "func", builder)), options))
    return markdown(("`config.model.name`", "what", "`config.model.options`"), rows)


def data_sets() -> str:
    """Each form of `config.data.name` with its options."""
    rows = [
        (f"`{kind}{reader.argument}`", first_paragraph(reader.read), _fields_of(reader.options))
        for kind, reader in registry.READERS.items()
    ]
    rows.append(
        (f"`{registry.GRAPH}NAME`", "another of these as one graph, each example joined to the 10 nearest", "its own")
    )
    return markdown(("`config.data.name`", "what", "options in `config.data`"), rows)


def _fields_of(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if f"data.{name}" in FIELDS)


def methods() -> str:
    """Each calibration method, simplest first."""
    rows = [
        (
            f"`{name}`",
            method.title,
            ", ".join(method.criteria) or "nothing is fitted",
            "kept" if method.keeps_class else "may change",
            ", ".join(f"`{each}`" for each, kind in vars(estimators).items() if getattr(kind, "_method", None) == name),
        )
        for name, method in METHODS.items()
    ]
    return markdown(("method", "title", "fitted by", "predicted class", "estimator"), rows)


def metrics() -> str:
    """Each metric with its unit, and whether `calibration.streaming` takes it."""
    rows = [
        (
            f"`{name}`",
            _cell(entry.shown.title),
            entry.shown.unit or "1",
            {"high": "higher", "low": "lower", "middle": ""}[entry.shown.best],
            "" if "better" in entry.shown.note else entry.shown.note,
            "yes" if entry.summed else "",
        )
        for name, entry in METRICS.items()
    ]
    return markdown(("metric", "title", "unit", "better", "how", "streamed"), rows)


def notebooks() -> str:
    """Each notebook with what it does, and a badge that opens it on Colab where the project's address is known."""
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository", "")
    rows = []
    for path in sorted((ROOT / "colabs").glob("*.ipynb"), key=lambda path: (path.stem != "quickstart", path.stem)):
        text = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
        title, about, *_ = text.split("\n\n")
        cells = [f"[{title.partition(': ')[2]}](colabs/{path.name})", _first_sentence(" ".join(about.split()))]
        rows.append([*cells, badge(address, path.name)] if address else cells)
    return markdown(("notebook", "what", "")[: len(rows[0])], rows)


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?]) (?=[A-Z])", text)[0]


def badge(address: str, name: str) -> str:
    """The link that opens a notebook of a repository on Colab."""
    where = address.removeprefix("https://github.com/").rstrip("/")
    image = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![open in Colab]({image})](https://colab.research.google.com/github/{where}/blob/main/colabs/{name})"


def pages() -> dict[Path, str]:
    """The pages with their tables as the code has them."""
    names = {
        "configs": configs(),
        "losses": loss_names(),
        "networks": networks(),
        "data": data_sets(),
        "methods": methods(),
        "metrics": metrics(),
    }
    tables = {
        ROOT / "docs" / "reference.md": names,
        ROOT / "experiments" / "README.md": {"experiments": index()},
        ROOT / "README.md": {"notebooks": notebooks()},
    }
    return {path: filled(path.read_text(encoding="utf-8"), own) for path, own in tables.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
