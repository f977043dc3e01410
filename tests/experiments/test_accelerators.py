"""The experiment on accelerators: its counts, rows and tables, and some programs lowered and compiled for a TPU."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from configs import cifar, digits, digits_gamma
from experiments import writing
from experiments.accelerators import __main__ as command
from experiments.accelerators import cases, compiling, measurements, running, steps, tables
from experiments.accelerators.counts import product_flops
from focalgeo import models
from focalgeo.job import preparation
from focalgeo.types import InputError

FOLDER = Path(tables.__file__).parent
needs_compiler = pytest.mark.skipif(not compiling.has_compiler(), reason="no TPU compiler: pip install -e '.[tpu]'")


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def small_sweep():
    config = digits_gamma.get_config()
    config.sweep.gamma, config.sweep.seed = (0.0, 2.0, 5.0), (0,)
    config.model.options.hidden = (8,)
    return config


def gauss_newton():
    config = digits.get_config()
    config.loss.trace_penalty, config.loss.trace_of = 0.01, "gauss_newton"
    return config


def a_row(**other):
    row = {"program": "mlp", "kind": "training step", "dtype": "float32", "topology": "v5e:2x2", "devices": 4}
    row |= {"members": 1, "compiles": True, "seconds": 3.2, "cpu_seconds": 2.1, "flops": 3e9, "own_flops": 2e9}
    row |= {
        "arguments": 10**7,
        "outputs": 10**6,
        "temporaries": 3 * 10**6,
        "fits": True,
        "loops": False,
        "cycles": 10**6,
    }
    return row | other


def test_own_count_of_a_dense_network_is_the_one_worked_out_by_hand():
    def loss(kernels, x):
        return jnp.sum((jnp.tanh(x @ kernels[0]) @ kernels[1]) ** 2)

    arguments = (shape(5, 7), shape(7, 3)), shape(4, 5)
    first, second = 2 * 4 * 5 * 7, 2 * 4 * 7 * 3
    assert product_flops(loss, *arguments) == first + second
    assert product_flops(jax.grad(loss), *arguments) == 2 * first + 3 * second  # x needs no gradient


def test_own_count_of_a_strided_convolution_leaves_out_what_the_stride_does():
    def strided(kernel, x):
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    kernel, x = shape(3, 3, 4, 6), shape(2, 8, 8, 4)
    forward = 2 * (2 * 4 * 4 * 6) * (3 * 3 * 4)
    assert product_flops(strided, kernel, x) == forward
    both = jax.grad(lambda *arguments: jnp.sum(strided(*arguments) ** 2), (0, 1))
    assert product_flops(both, kernel, x) == 3 * forward


def test_own_count_of_members_and_loops_is_a_multiple():
    def network(kernel, x):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    kernel, x = (3, 3, 4, 6), (2, 8, 8, 4)
    one = product_flops(network, shape(*kernel), shape(*x))
    for several in (jax.vmap, lambda function: lambda *arguments: jax.lax.map(lambda each: function(*each), arguments)):
        assert product_flops(several(network), shape(5, *kernel), shape(5, *x)) == 5 * one


def test_a_condition_counts_its_costliest_branch():
    def chosen(x, y):
        return jax.lax.cond(x[0, 0] > 0, lambda x, y: x @ y, lambda x, y: x, x, y)

    assert product_flops(chosen, shape(3, 3), shape(3, 3)) == 2 * 27


def test_gradient_of_a_network_counts_less_than_three_of_its_forward_passes():
    config = digits.get_config()
    program = steps.training_step(config)
    model = models.build("mlp")
    x = jnp.zeros((64, 8, 8, 1))
    forward = product_flops(model.apply, jax.eval_shape(model.init, jax.random.PRNGKey(0), x), x)
    assert 2 * forward < program.own < 3 * forward


def test_members_in_a_loop_take_the_steps_that_they_take_at_once():
    at_once, looped = (steps.training_step(small_sweep(), layout=layout).start() for layout in steps.LAYOUTS)
    for _ in range(2):
        expected, found = at_once(), looped()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), expected, found)


def test_a_row_says_what_a_program_costs_on_all_devices():
    devices = jax.devices()
    program = steps.training_step(digits.get_config())
    row = compiling.costs(program.call(devices).lower().compile(), program, len(devices))
    assert 1 < row["flops"] / row["own_flops"] < 3
    assert row["fits"]
    assert not row["loops"]
    assert row["arguments"] > 1437 * 64  # the training examples among them


def test_forecast_cycles_are_summed_inside_and_outside_of_loops():
    kernel = '  fusion(), backend_config={"estimated_cycles":"%d"}\n'
    text = f"HloModule\n\nbody {{\n{kernel % 100}}}\n\nENTRY main {{\n{kernel % 7}{kernel % 5}}}\n"
    assert compiling.cycles_of(text) == {"cycles": 112, "cycles_outside_loops": 12}
    assert compiling.cycles_of("ENTRY main {\n}\n") == {}


def test_a_loop_is_seen():
    program = steps.training_step(small_sweep(), layout="one after another")
    assert compiling.costs(program.call(jax.devices()[:1]).lower().compile(), program, 1)["loops"]


PROGRAMS = {
    "step": lambda: steps.training_step(digits.get_config()),
    "sweep": lambda: steps.training_step(small_sweep()),
    "convolutions": lambda: steps.training_step(cifar.get_config("resnet18,quick")),
    "gauss_newton": lambda: steps.training_step(gauss_newton()),
    "prediction": lambda: steps.prediction(digits.get_config()),
    "hvp": lambda: measurements.hessian_product(digits.get_config()),
    "Lanczos": lambda: measurements.lanczos_step(digits.get_config()),
    "density": lambda: measurements.whole_measurement(digits.get_config(), what="density"),
    "search": lambda: measurements.search(500, 10),
    "bootstrap": lambda: measurements.bootstrap(500, 10),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_lowered_for_accelerators(name):
    call = PROGRAMS[name]().call(jax.devices()[:1])
    lowered = export.export(jax.jit(call.function), platforms=["tpu", "cuda"])(*call.arguments)
    assert lowered.platforms == ("tpu", "cuda")


def test_a_step_for_several_processes_takes_their_wish_to_stop():
    class Device:
        def __init__(self, index):
            self.process_index = index

    seen = {}

    def fake(step, *, num_shared, devices):
        seen.update(num_shared=num_shared)
        return "program"

    original, steps.parallel.pmapped = steps.parallel.pmapped, fake
    try:
        call = steps.training_step(digits.get_config()).call([Device(0), Device(0), Device(1), Device(1)])
    finally:
        steps.parallel.pmapped = original
    assert call.options["stop"].shape == (4,)
    assert call.arguments[1].mask.shape == (4, 1, 16)
    assert seen == {"num_shared": 1}


def test_every_case_has_a_name_of_its_own_and_every_network_a_step_of_either_dtype():
    keys = [case.key(topology) for case in cases.cases() for topology in case.on]
    assert len(set(keys)) == len(keys)
    on_host = {(name, dtype) for name, kind, dtype, on in keys if kind == "training step" and on == cases.HOST}
    named = {cases.NETWORKS[name]().model.name: name for name in cases.NETWORKS}
    trained = {"linear": "logistic"}
    for name in models.MODELS:
        own = named.get(trained.get(name, name))
        assert {(own, dtype) for dtype in cases.DTYPES} <= on_host, name


def test_table_shows_what_a_row_holds():
    table = tables.table([a_row(), a_row(compiles=False, error="out | of memory")])
    lines = table.splitlines()
    assert lines[2] == "| mlp | float32 | v5e:2x2 (4) | yes | 3 | 2 | 3 | 1.50 | 1 | 3 | 14 | yes |"
    assert "no: out / of memory" in lines[3]
    assert "(loop)" in tables.table([a_row(loops=True)])


def test_tables_of_members_and_forms_are_ratios_to_one_and_to_the_plain_step():
    sweep = partial(a_row, kind="sweep step", topology=cases.ONE, dtype="bfloat16")
    rows = [
        sweep(program="1 member"),
        sweep(program="8 members, at once", members=8, flops=48e9, temporaries=6 * 10**6),
        sweep(program="8 members, one after another", members=8, loops=True, cycles_outside_loops=200_000),
        a_row(program="resnet20", flops=1e9, temporaries=10**6),
        a_row(program="gauss_newton", kind="trace penalty", flops=2.5e9, temporaries=2 * 10**6),
    ]
    members = tables.members_table(rows).splitlines()
    assert members[3] == "| 8 members, at once | 48 | 2.00 | 1 | 0.12 | 17 | 1.21 |"
    assert members[4] == "| 8 members, one after another | 24 | 1.00 | 6.6 | 0.82 | 14 | 1.00 |"
    assert tables.forms_table(rows).splitlines()[-1] == "| gauss_newton | 2.5 | 2.50 | 1 | 1.00 | 2 | 2.00 |"


def test_programs_without_a_row_are_named():
    lines = tables.missing([a_row()]).splitlines()
    assert lines[0] == "Not compiled yet:"
    assert "training step mlp (bfloat16)" in lines[2]
    assert "training step mlp (float32)" not in lines[2]
    rows = [
        a_row(program=case.name, kind=case.kind, dtype=case.dtype, topology=topology)
        for case in cases.cases()
        for topology in case.on
    ]
    assert tables.missing(rows) == "Every program has its row.\n"


def test_versions_and_load_are_said():
    results = {"versions": {"jax": "1.2"}, "cores": 2, "processor": "some", "rows": [a_row(load=1.4), a_row(load=7.8)]}
    assert tables.made_with(results) == "With jax 1.2, on 2 CPU cores (some), load while compiling 1 to 8.\n"
    assert set(compiling.machine()["versions"]) >= {"jax", "flax"}


def test_readme_holds_the_tables_of_the_results():
    results = json.loads((FOLDER / "results.json").read_text())
    text = (FOLDER / "README.md").read_text()
    marked = {match["name"] for match in writing.MARK.finditer(text)}
    assert {"training steps", "sweep steps", "trace penalties", "measurements", "members", "forms"} <= marked
    assert writing.filled(text, tables.tables(results)) == text
    changed = {**results, "rows": [row | {"flops": 7.77e12} for row in results["rows"]]}
    assert writing.filled(text, tables.tables(changed)) != text


def test_without_a_compiler_the_command_says_how_to_get_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compiling, "has_compiler", lambda: False)
    assert command.main([f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().err == compiler_missing()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ['{"rows":', "[]", "{}", "null", '{"rows": [{}]}'])
@pytest.mark.parametrize(
    ("flag", "said"),
    [("--only=nosuch", "is in no name"), ("--on=v9", "is none of these"), ("", "holds no results")],
)
def test_what_cannot_be_done_is_one_line(flag, said, text, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compiling, "has_compiler", lambda: True)
    monkeypatch.setattr(compiling, "row_of_child", None)
    monkeypatch.setattr(compiling, "machine", dict)
    if not flag:
        (tmp_path / "results.json").write_text(text)
    assert command.main([*filter(None, [flag]), f"--out={tmp_path}"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert said in found.err


def compiler_missing():
    with pytest.raises(InputError) as caught:
        compiling.devices_of(cases.HOST)
    assert "pip install" in str(caught.value)
    return f"{caught.value}\n"


def test_run_refuses_a_cpu(capsys, tmp_path):
    assert command.main(["--run", f"--out={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--run needs a GPU or TPU" in said


def test_run_times_a_program_and_goes_on_where_it_stopped(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(running, "check_accelerator", lambda: None)
    monkeypatch.setattr(running, "REPEATS", 3)
    asked = ["--run", "--only=training step: mlp, float32", f"--out={tmp_path}"]
    assert command.main(asked) == 0
    results = json.loads((tmp_path / "timings.json").read_text())
    [row] = results["rows"]
    assert 0 < row["least"] <= row["seconds"] <= row["most"] < row["first_seconds"]
    assert "mlp" in tables.timed_table(results)
    assert "ms" in capsys.readouterr().out
    assert command.main(asked) == 0
    assert capsys.readouterr().out == ""


def crash(case, topology):
    os.kill(os.getpid(), signal.SIGSEGV)


def broken(case, topology):
    raise ValueError("not the compiler")


def send_row_of(compile_row, key, sender):
    compiling.compiled_row = compile_row
    compiling._send_row(key, sender)


def test_a_compiler_that_crashes_is_a_row(monkeypatch, capfd):
    [case] = [case for case in cases.cases() if case.key(cases.HOST) == ("mlp", "training step", "float32", cases.HOST)]
    monkeypatch.setattr(compiling, "devices_of", lambda topology: range(4))
    monkeypatch.setattr(compiling, "_send_row", partial(send_row_of, crash))
    row = compiling.row_of_child(case, cases.HOST)
    assert row["error"] == f"crash (signal {int(signal.SIGSEGV)})"
    assert "no: crash" in tables.table([row])
    monkeypatch.setattr(compiling, "_send_row", partial(send_row_of, broken))
    with pytest.raises(ChildProcessError, match=r"training step: mlp, float32, v5e:2x2: exit code 1"):
        compiling.row_of_child(case, cases.HOST)
    assert "not the compiler" in capfd.readouterr().err


@needs_compiler
@pytest.mark.slow
def test_a_step_compiles_for_a_tpu(tmp_path):
    assert command.main(["--only=training step: mlp, float32", "--on=v5e:2x2", f"--out={tmp_path}"]) == 0
    [row] = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["compiles"]
    assert row["fits"]


@needs_compiler
@pytest.mark.slow
def test_a_batch_is_made_on_a_tpu_without_a_copy_of_all_images():
    job = steps.make_job(cifar.get_config("resnet18"))
    pipeline = preparation.make_pipeline(job.config, job.prepared.dataset, [0])
    assert pipeline.resident
    spec = jax.tree.map(lambda leaf: leaf[0], next(iter(pipeline.specs(0, 0))))
    layout = jax.sharding.SingleDeviceSharding(compiling.devices_of(cases.ONE)[0])
    arguments = jax.tree.map(lambda leaf: leaf.update(sharding=layout), steps.shapes((spec, *pipeline.resident)))
    compiled = jax.jit(pipeline.make_batch).lower(*arguments).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 1e7  # 553 MB where images keep their axes
