"""The site: python -m docs.site writes its pages, the repository's and those that are made, for any builder.

A hook of MkDocs (mkdocs.yml), and an extension of griffe for docstrings as the house writes them.
"""

import importlib
import inspect
import posixpath
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import griffe
from markdown.extensions.toc import slugify

from docs import names, notebooks
from experiments.question import TOPICS

ROOT = Path(__file__).parent.parent
SHOWN = (
    *("*.md", "CITATION.cff", "docs/*.md", "docs/*.png", "docs/*.css"),
    *("experiments/**/*.md", "experiments/*/figures/*.png"),
)
NOTEBOOKS = sorted((ROOT / "colabs").glob("*.ipynb"), key=lambda path: (path.stem != "quickstart", path.stem))
LANGUAGES = {".py": "python", ".sh": "bash", ".diff": "diff"}


def on_config(config):
    """The sections of the navigation that are lists of files."""

    def section(form, stems):
        return [{stem.replace("_", " ").capitalize(): form.format(stem)} for stem in stems]

    form = "experiments/{}/README.md"
    config.nav += [
        {"Notebooks": section("colabs/{}.md", (path.stem for path in NOTEBOOKS))},
        {"Experiments": ["experiments/README.md", *({topic: section(form, of)} for topic, of in TOPICS.items())]},
        {"API": ["api/README.md", *section("api/{}.md", names.PAGES)]},
    ]


def on_post_page(output, **_):
    """What the theme leaves out for those who do not use a mouse: code that scrolls has the focus, search a name."""
    output = re.sub(r"(<pre>(?:<span></span>)?<code)>", r'\1 tabindex="0">', output)
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def write(folder: Path) -> None:
    """Write every page: the repository's with links that lead to pages, those that are made, and their pictures."""
    made = {"examples/README.md": examples(), "api/README.md": index()}
    made |= dict(map(reference, names.PAGES))
    for page in ("docs/concepts", "docs/gallery"):
        made |= notebooks.drawn(ROOT / f"{page}.md", page)
    with tempfile.TemporaryDirectory() as runs, ThreadPoolExecutor(2) as pool:
        run = pool.map(lambda path: notebooks.latest(path, Path(runs) / path.stem), NOTEBOOKS)
        for path, notebook in zip(NOTEBOOKS, run, strict=True):
            made |= notebooks.pages(notebook, f"colabs/{path.stem}")
    paths = (path for pattern in SHOWN for path in ROOT.glob(pattern))
    files = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}
    files |= {path: text.encode() for path, text in made.items()}
    # the front page has no list beside it
    files["README.md"] = b"---\nhide: [navigation]\n---\n" + files["README.md"]
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(linked(content.decode(), path).encode() if path.endswith(".md") else content)


def linked(markdown: str, page: str) -> str:
    """The text of a page, whose links to folders, notebooks and examples lead to their pages."""
    folder = posixpath.dirname(page)

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
    paths = [path for path in (ROOT / "examples").rglob("*") if path.suffix in LANGUAGES]
    parts = ["# Examples to copy"]
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        parts.append(f"## {path.relative_to(ROOT / 'examples')}")
        parts.append(f"```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```")
    return "\n\n".join(parts)


def reference(page: str) -> tuple[str, str]:
    """A page of the API: what its examples begin with, and its public names by the modules that define them."""
    parts = [f"# {page.capitalize()}", names.GIVEN]
    for module, about, members in _modules(page):
        parts += [f"## {module}", about, *(f"::: {_path(name)}" for name in members)]
    return f"api/{page}.md", "\n\n".join(parts)


def _modules(page):
    """Each module of a page: its name, the first line of its docstring, and its public names."""
    of_module = defaultdict(list)
    for name, member in names.members(page).items():
        of_module[member.__module__].append(name)
    for module, members in sorted(of_module.items()):
        about = inspect.getdoc(importlib.import_module(module)).partition("\n")[0]
        yield f"focalgeo.{module.partition('.')[2]}", about, members


def _path(name):
    """What griffe finds under the name; of a function that is named as its module that would be the module."""
    return f"{name}.{name.rpartition('.')[2]}" if name in sys.modules else name


def index() -> str:
    """A page of all public names, each a link: one that the API lacks is an error of the build."""
    parts = ["# The public names"]
    for page in names.PAGES:
        parts.append(f"## [{page.capitalize()}]({page}.md)")
        for _, about, members in _modules(page):
            links = ", ".join(f"[`{name.rpartition('.')[2]}`][{_path(name)}]" for name in members)
            parts.append(f"{about}\n\n{links}")
    return "\n\n".join(parts)


class Docstrings(griffe.Extension):
    """Examples as a section of their own, and the estimators, which are made when their module is imported."""

    def on_object(self, *, obj, **_):
        """One docstring, of an estimator with what its constructor takes."""
        if f"{obj.parent and obj.parent.path}.{obj.name}" in names.members("estimators") and obj.is_attribute:
            member = getattr(names.estimators, obj.name)
            obj.value, obj.docstring = (
                f"{obj.name}{inspect.signature(member)}",
                griffe.Docstring(member.__doc__, parent=obj),
            )
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_function(self, *, func, **_):
        """The arguments that a decorator adds, of which the source does not know."""
        member = getattr(importlib.import_module(func.module.path), func.name, None) if func.decorators else None
        signature = getattr(member, "__signature__", None)
        for name in ("mask", "weights"):
            if signature and name in signature.parameters and name not in func.parameters:
                func.parameters.add(griffe.Parameter(name, kind=griffe.ParameterKind.keyword_only, default="None"))

    def on_package(self, *, pkg, **_):
        """The names that calibration imports on first use."""
        room = pkg["calibration"]
        for name, home in names.calibration.HOMES.items():
            room.set_member(name, griffe.Alias(name, f"{room.path}.{home}.{name}"))

    def on_class_members(self, *, cls, **_):
        """Fields as the source has them, with their comments."""
        fields = [field for field in cls.attributes.values() if field.annotation and "property" not in field.labels]
        if cls.docstring and fields and not cls.name.startswith("_"):
            cls.docstring.value += "\n\n```python\n" + "\n".join(field.source for field in fields) + "\n```"


if __name__ == "__main__":
    write(ROOT / "build" / "pages")
