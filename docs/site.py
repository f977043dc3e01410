"""The site: pages from where they stand in the repository, those made at the build, and the links between them.

A hook of MkDocs (mkdocs.yml), and an extension of griffe for docstrings as the house writes them.
"""

import importlib
import inspect
import io
import posixpath
import re
import sys
import tempfile
from pathlib import Path

import griffe
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

from docs import names, notebooks
from experiments.question import QUESTIONS

ROOT = Path(__file__).parent.parent
KEPT = (
    "*.md",
    "CITATION.cff",
    "docs/*.md",
    "docs/*.png",
    "docs/*.css",
    "experiments/**/*.md",
    "experiments/*/figures/*.png",
)
FACE = f"""# The public names

`from focalgeo import calibration, curvature, losses, models, report, rows, theory`. What the examples take as given:

```python
{names.SETUP.strip()}
```
"""
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"), key=lambda path: (path.stem != "quickstart", path.stem))


def on_config(config):
    """The sections of the navigation that are lists of files."""
    config.nav += [
        {"Notebooks": _entries("colabs/{}.md", (path.stem for path in NOTEBOOKS))},
        {"Experiments": ["experiments/README.md", *_entries("experiments/{}/README.md", QUESTIONS)]},
        {"API": ["api/README.md", *_entries("api/{}.md", names.PAGES)]},
    ]


def _entries(path, names):
    return [{name.replace("_", " ").capitalize(): path.format(name)} for name in names]


def on_files(files, config):
    """The files of the theme, those of the repository that are shown, and those that are made."""
    theirs = [file for file in files if not (file.src_dir or "").startswith(str(ROOT / "docs"))]
    paths = sorted({path for pattern in KEPT for path in ROOT.glob(pattern)})
    own = [File(str(path.relative_to(ROOT)), str(ROOT), config.site_dir, config.use_directory_urls) for path in paths]
    made = {"examples/README.md": examples(), "api/README.md": FACE, **dict(map(reference, names.PAGES))}
    made |= drawn("docs/gallery.md")
    with tempfile.TemporaryDirectory() as folder:
        for path in NOTEBOOKS:
            text, figures = notebooks.markdown(notebooks.latest(path, Path(folder) / path.stem), path.stem)
            made |= {f"colabs/{path.stem}.md": text} | {f"colabs/{name}": figure for name, figure in figures.items()}
    own = [file for file in own if file.src_uri not in made]
    return Files([*theirs, *own, *(File.generated(config, name, content=text) for name, text in made.items())])


def on_page_markdown(markdown, page, **_):
    """Links to folders, notebooks and examples lead to their pages."""
    page.meta["hide"] = ["navigation"] if page.is_homepage else []
    folder = posixpath.dirname(page.file.src_uri)

    def link(match):
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if (ROOT / path).is_dir():
            return f"]({match[1].rstrip('/')}/README.md)"
        if path.startswith("examples/") and (ROOT / path).is_file():
            anchor = slugify(path.removeprefix("examples/"), "-")
            return f"]({posixpath.relpath('examples/README.md', folder or '.')}#{anchor})"
        return f"]({match[1].replace('.ipynb', '.md')})"

    return re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", link, markdown)


def examples() -> str:
    """A page of all examples with their code."""
    parts = ["# Examples to copy"]
    for path in sorted(path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".sh", ".diff")):
        code, language = path.read_text(encoding="utf-8"), {".sh": "bash"}.get(path.suffix, path.suffix[1:])
        parts.append(f"## {path.relative_to(ROOT / 'examples')}\n\n```{language}\n{code}```")
    return "\n\n".join(parts)


def reference(page: str) -> tuple[str, str]:
    """A page of the API: its public names by the modules that define them."""
    parts, module = [f"# {page}"], None
    for name, member in names.members(page).items():
        if member.__module__ != module:
            module = member.__module__
            about = inspect.getdoc(importlib.import_module(module)).partition("\n")[0]
            parts.append(f"## {module.rpartition('.')[2]}\n\n{about}")
        parts.append(f"::: {f'{module}.{member.__name__}' if name in sys.modules else name}")
    return f"api/{page}.md", "\n\n".join(parts)


def drawn(page: str) -> dict[str, str]:
    """The page with what its code draws below it, and the figures."""
    known, made = {}, {}

    def figure(match):
        exec(match[1], known)
        drawing, name = io.StringIO(), f"{posixpath.splitext(page)[0]}-{len(made)}.svg"
        known["ax"].figure.savefig(drawing, format="svg")
        made[name] = drawing.getvalue()
        return f"{match[0]}\n\n![drawn by the code above]({posixpath.basename(name)})"

    text = re.sub(r"```python\n(.*?)```", figure, (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return made | {page: text}


class Docstrings(griffe.Extension):
    """Examples as a section of their own, and the estimators, which are made when their module is imported."""

    def on_object(self, *, obj, **_):
        """Google's word for the section."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_module_members(self, *, mod, **_):
        """Classes in place of the assignments."""
        for member in names.members("estimators").values() if mod.path.endswith(".estimators") else ():
            if mod[member.__name__].is_attribute:
                made = griffe.Class(member.__name__, bases=[griffe.ExprName("_Calibrator", parent=mod)])
                made.docstring = griffe.Docstring(inspect.getdoc(member).replace("Example:", "Examples:"), parent=made)
                given = [
                    griffe.Parameter(option.name, kind=griffe.ParameterKind.keyword_only, default=repr(option.default))
                    for option in inspect.signature(member).parameters.values()
                ]
                made["__init__"] = griffe.Function("__init__", parameters=griffe.Parameters(*given))
                mod.set_member(member.__name__, made)
