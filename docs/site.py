"""The site: pages from where they stand in the repository, those made at the build, and the links between them.

A hook of MkDocs (mkdocs.yml), and an extension of griffe for docstrings as the house writes them.
"""

import importlib
import inspect
import posixpath
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import griffe
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

from docs import names, notebooks
from experiments.question import QUESTIONS

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

    config.nav += [
        {"Notebooks": section("colabs/{}.md", (path.stem for path in NOTEBOOKS))},
        {"Experiments": ["experiments/README.md", *section("experiments/{}/README.md", QUESTIONS)]},
        {"API": ["api/README.md", *section("api/{}.md", names.PAGES)]},
    ]


def on_files(files, config):
    """The theme's files, the repository's that are shown, and those that are made."""
    made = {"examples/README.md": examples(), "api/README.md": index()}
    made |= dict(map(reference, names.PAGES))
    for page in ("docs/concepts", "docs/gallery"):
        made |= notebooks.drawn(ROOT / f"{page}.md", page)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        run = pool.map(lambda path: notebooks.latest(path, Path(folder) / path.stem), NOTEBOOKS)
        for path, notebook in zip(NOTEBOOKS, run, strict=True):
            made |= notebooks.pages(notebook, f"colabs/{path.stem}")
    paths = (path.relative_to(ROOT).as_posix() for pattern in SHOWN for path in sorted(ROOT.glob(pattern)))
    return Files(
        [
            *(file for file in files if file.src_dir != config.docs_dir),
            *(File(path, str(ROOT), config.site_dir, config.use_directory_urls) for path in paths if path not in made),
            *(File.generated(config, path, content=text) for path, text in made.items()),
        ]
    )


def on_page_markdown(markdown, page, **_):
    """Links to folders, notebooks and examples lead to their pages; the front page has no list beside it."""
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
    paths = [path for path in (ROOT / "examples").rglob("*") if path.suffix in LANGUAGES]
    parts = ["# Examples to copy"]
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        parts.append(f"## {path.relative_to(ROOT / 'examples')}")
        parts.append(f"```{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```")
    return "\n\n".join(parts)


def reference(page: str) -> tuple[str, str]:
    """A page of the API: its public names by the modules that define them."""
    parts, module = [f"# {page.capitalize()}"], None
    for name, member in sorted(names.members(page).items(), key=lambda item: item[1].__module__):
        if member.__module__ != module:
            module = member.__module__
            about = inspect.getdoc(importlib.import_module(module)).partition("\n")[0]
            parts.append(f"## focalgeo.{module.partition('.')[2]}\n\n{about}")
        parts.append(f"::: {_path(name)}")
    return f"api/{page}.md", "\n\n".join(parts)


def _path(name):
    """What griffe finds under the name; of a function that is named as its module that would be the module."""
    return f"{name}.{name.rpartition('.')[2]}" if name in sys.modules else name


def index() -> str:
    """A page of all public names, each a link: one that the API lacks is an error of the build."""
    parts = ["# The public names", names.GIVEN]
    for page in names.PAGES:
        links = ", ".join(f"[`{name.rpartition('.')[2]}`][{_path(name)}]" for name in names.members(page))
        parts += [f"## {page.capitalize()}", links]
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
