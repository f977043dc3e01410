"""Exports: ONNX by onnxruntime, PyTorch and NumPy alone against what the fitted method gives."""

import copy
import pickle
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from outputs import outputs

from focalgeo import calibrate
from focalgeo.calibration import METHODS, fit
from focalgeo.calibration.methods import Fitted
from focalgeo.formulas import SNIPPETS
from focalgeo.types import InputError

PAGE = Path(__file__).parents[2] / "docs" / "decisions.md"
NEAR = 1e-6  # in probability
STEPS = ("isotonic", "binary_isotonic")  # steep ones, which rounding moves
MANY = 100_000
METHODS_OF_NUMBERS = [name for name in METHODS if name != "temperature_scaling_by_group"]
by_method = pytest.mark.parametrize("name", METHODS_OF_NUMBERS)


def saturated(classes, rows=MANY):
    """Logits whose gaps go from nothing to beyond 100, some of them -inf, ties among them."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((rows, classes)) * rng.choice([0.1, 1, 3, 10, 30, 100], (rows, 1))
    logits[: rows // 10, 0] += rng.uniform(0, 200, rows // 10)
    logits[rows // 10 : rows // 8] = logits[rows // 10 : rows // 8].round()
    never = (rng.random(logits.shape) < 0.3) & (np.arange(rows)[:, None] > 0.95 * rows)
    never[:, 0] &= ~never[:, 1:].all(axis=1)
    return np.where(never, -np.inf, logits).astype(np.float32)


@pytest.fixture(scope="module")
def fitted():
    """The method of a name, fitted; of two classes those that are for two alone."""
    found = {}

    def of(name, classes=None):
        classes = classes or METHODS[name].most_classes or 5
        classes = 5 if classes > 100 else classes
        if (name, classes) not in found:
            options = {"trained_gamma": 2.0} if "trained_gamma" in METHODS[name].options else {}
            found[name, classes] = fit(name, *outputs(2000, classes), **options)
        return found[name, classes]

    return of


def assert_near(probs, method, logits, near=NEAR):
    """The probabilities, the sum of each row and the classes that cannot be."""
    log_probs = method.predict_log_proba(logits)
    off = np.abs(probs - np.exp(log_probs.astype(np.float64))).max(axis=1)
    if method.method.name in STEPS:
        assert (off > near).mean() < 0.005
        near = 1e-3
    assert off.max() <= near
    np.testing.assert_array_equal(probs[np.isneginf(logits)], 0)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)


def run(model, **inputs):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@by_method
def test_onnx_gives_the_probabilities_of_the_method(fitted, name):
    pytest.importorskip("onnx")
    method = fitted(name)
    logits = saturated(method.num_classes)
    given = run(method.to_onnx(), logits=logits)
    assert_near(given["probabilities"], method, logits)
    ours = method.predict_log_proba(logits)
    np.testing.assert_array_equal(given["log_probs"].argmax(axis=1), ours.argmax(axis=1))
    np.testing.assert_array_equal(np.isneginf(given["log_probs"]), np.isneginf(ours))
    if name not in STEPS:
        possible = ours > -np.inf
        np.testing.assert_allclose(given["log_probs"][possible], ours[possible], rtol=2e-5, atol=2e-5)


@by_method
def test_pytorch_gives_the_probabilities_of_the_method(fitted, name):
    torch = pytest.importorskip("torch")
    method = fitted(name)
    logits = saturated(method.num_classes)
    module = pickle.loads(pickle.dumps(method.to_torch()))
    assert_near(module(torch.from_numpy(logits)).exp().numpy(), method, logits)
    assert len(module.state_dict()) == len([*module.buffers()]) > 0


@pytest.mark.parametrize("name", [name for name in METHODS_OF_NUMBERS if name in SNIPPETS])
def test_the_file_of_numpy_gives_the_probabilities_of_the_method(fitted, name):
    method = fitted(name)
    logits, names = saturated(method.num_classes), {}
    exec(method.to_numpy(), names)
    with np.errstate(under="ignore"):
        near = 1e-5 if name == "quadratic_scaling" else NEAR  # s^2 in float32 or float64
        assert_near(names["predict_proba"](logits), method, logits, near)


def test_a_stack_of_two_classes_has_the_members_for_them(fitted):
    pytest.importorskip("onnx")
    method, logits = fitted("stacking", 2), saturated(2)
    given = run(method.to_onnx(), logits=logits)["probabilities"]
    off = np.abs(given - method.predict_proba(logits)).max(axis=1)
    assert (off > NEAR).mean() < 0.005
    assert off.max() < 1e-3  # binary isotonic regression is one


def test_the_file_of_numpy_of_groups():
    logits, labels = outputs(400, 3)
    group = np.where(labels == 0, 'it\'s "a"', "b\\")
    method, names = fit("temperature_scaling_by_group", logits, labels, group=group), {}
    exec(method.to_numpy(), names)
    np.testing.assert_allclose(names["predict_proba"](logits, group), method.predict_proba(logits, group), atol=NEAR)
    for wrong in (None, "other", np.where(labels == 0, "other", group)):
        with pytest.raises(ValueError, match=r"give group: for each example one of b\\, it's"):
            names["predict_proba"](logits, wrong)
    numbered = fit("temperature_scaling_by_group", logits, labels, group=labels % 2 + 9)  # 10 is before 9
    exec(numbered.to_numpy(), names)
    for group in (labels % 2 + 9, 10):
        np.testing.assert_allclose(
            names["predict_proba"](logits, group), numbered.predict_proba(logits, group), atol=NEAR
        )
    with pytest.raises(ValueError, match=r"logits have shape \(400, 2\): give \[examples, 3\]"):
        names["predict_proba"](logits[:, :2], group)
    pytest.importorskip("onnx")
    with pytest.raises(InputError, match="each group has a temperature"):
        method.to_onnx()


def classifier(onnx, *, classes=5, opset=18, outputs=("scores",), kind=1):
    """X [n, 3] -> x @ weights, as the first of the outputs."""
    helper = onnx.helper
    weights = np.random.default_rng(0).standard_normal((3, classes)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "weights"], [output]) for output in outputs]
    values = [helper.make_tensor_value_info(output, kind, ("batch", classes)) for output in outputs]
    x = helper.make_tensor_value_info("x", 1, ("batch", 3))
    graph = helper.make_graph(nodes, "classifier", [x], values, [onnx.numpy_helper.from_array(weights, "weights")])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)]), weights


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("name", ["focal_vector_scaling", "isotonic", "stacking"])
def test_a_classifier_goes_on_to_calibrated_probabilities(fitted, tmp_path, name, opset):
    onnx = pytest.importorskip("onnx")
    model, weights = classifier(onnx, outputs=("logits", "other"), opset=opset)
    before = copy.deepcopy(model)
    onnx.save(model, tmp_path / "classifier.onnx")
    x = np.random.default_rng(1).standard_normal((70, 3)).astype(np.float32)
    for source in (model, tmp_path / "classifier.onnx"):
        given = run(fitted(name).to_onnx(source), x=x)
        assert [*given] == ["logits", "other", "log_probs", "probabilities"]
        np.testing.assert_allclose(given["logits"], x @ weights, atol=1e-5)
        np.testing.assert_allclose(given["probabilities"], fitted(name).predict_proba(given["logits"]), atol=1e-5)
    assert model == before


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda onnx, path: path.write_text("logits"), "Error parsing message"),
        (lambda onnx, path: path.write_bytes(b""), "the number of the classifier's outputs is 0"),
        (lambda onnx, path: None, "No such file"),
        (lambda onnx, path: path.mkdir(), "Is a directory"),
        (lambda onnx, path: onnx.save(classifier(onnx, opset=13)[0], path), "of opset 18 or later .onnx.version_conv"),
        (lambda onnx, path: onnx.save(classifier(onnx, kind=11)[0], path), "give FLOAT, .n, 5"),
        (lambda onnx, path: onnx.save(classifier(onnx, outputs=("x1", "probabilities"))[0], path), "'probabilities'"),
    ],
)
def test_what_is_no_classifier_is_refused_in_one_line_that_names_the_cause(fitted, tmp_path, make, says):
    make(pytest.importorskip("onnx"), tmp_path / "model.onnx")
    with pytest.raises(InputError, match=says) as caught:
        fitted("temperature_scaling").to_onnx(tmp_path / "model.onnx")
    assert "\n" not in str(caught.value)


def test_a_classifier_that_ends_in_probabilities_is_refused(fitted):
    onnx = pytest.importorskip("onnx")
    model, _ = classifier(onnx)
    model.graph.node[0].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Softmax", ["before"], ["scores"]))
    with pytest.raises(InputError, match="made by Softmax: give one whose output is logits"):
        fitted("temperature_scaling").to_onnx(model)


@pytest.mark.parametrize("attached", ["classifier.onnx", ""])
def test_a_classifier_that_does_not_fit_is_refused_before_anything_is_fitted(tmp_path, capsys, monkeypatch, attached):
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    logits, labels = outputs(200, 5)
    np.savez("val.npz", logits=logits, labels=labels)
    onnx.save(classifier(onnx, classes=4)[0], "classifier.onnx")
    assert calibrate.main(["--val=val.npz", f"--attach={attached}", "--out=out"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("focalgeo: ")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_classifier_with_what_it_chose(tmp_path):
    onnx = pytest.importorskip("onnx")
    model, weights = classifier(onnx)
    x = np.random.default_rng(2).standard_normal((300, 3)).astype(np.float32)
    scores = 2 * x @ weights
    labels = (x @ weights + np.random.default_rng(3).gumbel(size=scores.shape)).argmax(axis=1)
    np.savez(tmp_path / "val.npz", logits=x @ weights, labels=labels)
    onnx.save(model, tmp_path / "classifier.onnx")
    out = tmp_path / "out"
    flags = ["--methods=vector_scaling", "--prefer=plain", "--num-resamples=100", f"--out={out}"]
    assert calibrate.main([f"--val={tmp_path / 'val.npz'}", f"--attach={tmp_path / 'classifier.onnx'}", *flags]) == 0
    given = run(onnx.load(out / "calibrated.onnx"), x=x)
    np.testing.assert_allclose(given["probabilities"], np.load(out / "probabilities/val.npz")["probs"], atol=1e-5)


def test_the_page_s_lines_run(fitted, tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    (text,) = re.findall(r"```python\n(from pathlib import Path\nimport onnx\n.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    Path("runs/mine/calibrator.json").write_text(fitted("vector_scaling").to_json())
    onnx.save(classifier(onnx)[0], "model.onnx")
    exec(text, {})
    logits = saturated(5, rows=100)
    given = run(onnx.load("calibrator.onnx"), logits=logits)["probabilities"]
    names = runpy.run_path("calibrator.py")
    np.testing.assert_allclose(names["predict_proba"](logits), given, atol=NEAR)


def test_rows_that_hold_nan_or_infinity_become_nan(fitted):
    pytest.importorskip("onnx")
    logits = np.zeros((4, 5), np.float32)
    logits[0, 1], logits[1, 2], logits[2] = np.nan, np.inf, -np.inf
    given = run(fitted("focal_temperature_scaling").to_onnx(), logits=logits)["log_probs"]
    np.testing.assert_array_equal(np.isnan(given).all(axis=1), [True, True, True, False])


def test_gradients_pass_and_narrow_logits_are_computed_in_float32(fitted):
    torch = pytest.importorskip("torch")
    module, logits = fitted("focal_vector_scaling").to_torch(), torch.from_numpy(outputs(50, 5)[0])
    logits = logits.bfloat16().float().requires_grad_()
    module(logits)[:, 0].sum().backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().max() > 0
    torch.testing.assert_close(module(logits.bfloat16()), module(logits), rtol=0, atol=0)


@pytest.mark.parametrize(("library", "export"), [("onnx", Fitted.to_onnx), ("torch", Fitted.to_torch)])
def test_what_is_missing_is_named(fitted, monkeypatch, library, export):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"^{library} is not installed: pip install 'focalgeo\[{library}\]'$"):
        export(fitted("temperature_scaling"))


@pytest.mark.parametrize("export", [Fitted.to_onnx, Fitted.to_torch])
def test_the_number_of_classes_is_asked_for(fitted, export):
    pytest.importorskip(export.__name__.removeprefix("to_"))
    with pytest.raises(InputError, match="num_classes is None"):
        export(fitted("temperature_scaling")._replace(num_classes=None))
