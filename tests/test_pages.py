"""The Python of README.md and of docs/*.md runs, page by page, as whoever copies it runs it."""

import importlib
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from focalgeo import calibration

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
BLOCKS = {
    path.relative_to(ROOT).as_posix(): BLOCK.findall(path.read_text(encoding="utf-8"))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}


def write_outputs(path, seed):
    rng = np.random.default_rng(seed)
    logits = np.float32(1.5 * rng.normal(size=(400, 3)))
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, logits=logits, labels=labels)
    return logits, labels


def write_classifier(path):
    import onnx

    x, y = (onnx.helper.make_tensor_value_info(name, 1, ("n", 3)) for name in ("x", "logits"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["logits"])], "classifier", [x], [y])
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]), path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages name."""
    for seed, split in enumerate(("val", "test", "clean", "blur")):
        write_outputs(tmp_path / f"{split}.npz", seed)
        logits, labels = write_outputs(tmp_path / f"runs/digits/predictions/{split}.npz", seed)
    np.savetxt(tmp_path / "new.csv", jax.nn.softmax(logits), delimiter=",", header="probs_0,probs_1,probs_2")
    fitted = calibration.fit("temperature_scaling", logits, labels)
    (tmp_path / "runs/mine").mkdir()
    (tmp_path / "runs/mine/calibrator.json").write_text(fitted.to_json())
    if not _missing("import onnx"):
        write_classifier(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)


def _missing(code):
    """A library that the code imports and that is not installed."""
    for name in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        try:
            importlib.import_module(name)
        except ImportError:
            return name


@pytest.mark.filterwarnings("default")  # of other libraries
@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks])
def test_the_code_of_a_page_runs_from_its_first_block_to_its_last(page, folder):
    known, skipped = {}, []
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for indent, code in BLOCKS[page]:
            if library := _missing(code):
                skipped.append(library)
                continue
            exec(re.sub(f"^{indent}", "", code, flags=re.MULTILINE), known)
    assert {*skipped} <= {"onnx", "torch", "torchmetrics", "netcal", "pyhessian"}
