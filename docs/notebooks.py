"""Pages that are run: notebooks from a fresh kernel at quick size, and the gallery, with what they print and draw."""

import contextlib
import io
import os
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RUN = ROOT / "build" / "notebooks"  # copies with their output, of the tests or of the site


def run(path: Path, workdir: Path, **environment: str):
    """The notebook with its output, of which a copy is kept."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    values = os.environ | {"FOCALGEO_VARIANT": "quick", "FOCALGEO_WORKDIR": str(workdir)} | environment
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}})
    client.execute(env=values)
    RUN.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, RUN / path.name)
    return notebook


def latest(path: Path, workdir: Path):
    """The copy, if neither the notebook nor focalgeo is newer, else what it gives now."""
    import nbformat

    copy, sources = (
        RUN / path.name,
        [
            path,
            *(ROOT / "focalgeo").rglob("*.py"),
            *(ROOT / "focalgeo").rglob("*.html"),
            *(ROOT / "configs").glob("*.py"),
        ],
    )
    if copy.exists() and copy.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return nbformat.read(copy, as_version=4)
    return run(path, workdir)


def pages(notebook, name: str) -> dict[str, str]:
    """The page without what is said of progress, and its figures, by the names of their files."""
    made, parts = {}, []
    for cell in notebook.cells:
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            if output.get("name") == "stdout":
                text = re.sub(r"/\S+(?=/report\.html)", "runs", output.text)  # in the folder of this run
                parts.append(f"```text\n{text.rstrip()}\n```")
            elif drawing := output.get("data", {}).get("image/svg+xml"):
                parts.append(_figure(made, name, drawing))
    title, *rest = parts
    return made | {f"{name}.md": "\n\n".join([title, f"*`{name}.ipynb`, as it runs at quick size.*", *rest])}


def _figure(made, name, drawing):
    file = f"{name}-{len(made)}.svg"
    made[file] = drawing
    return f"![drawn by the code above]({Path(file).name})"


def drawn(path: Path, name: str) -> dict[str, str]:
    """The page with what each block of its code prints and draws into `ax` below it, and these figures."""
    known, made = {}, {}

    def below(match):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(match[1], known)
        parts = [match[0], *([f"```text\n{text.rstrip()}\n```"] if (text := printed.getvalue()) else [])]
        if ax := known.pop("ax", None):
            drawing = io.StringIO()
            ax.figure.savefig(drawing, format="svg")
            parts.append(_figure(made, name, drawing.getvalue()))
        return "\n\n".join(parts)

    text = re.sub(r"```python\n(.*?)```", below, path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return made | {f"{name}.md": text}
