"""Several processes of one job on this host: they join, agree, end together, and none waits for one that is gone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from clusters import free_port

from focalgeo import calibrate, processes
from focalgeo.processes import cluster, joining, native
from focalgeo.types import InputError, RunError

ROOT = Path(__file__).parent.parent
FLAGS = os.environ["XLA_FLAGS"].replace("--xla_force_host_platform_device_count=2", "")
GO_ON = "what was saved is whole: give the same command on every host again to go on from there"
SLURM = {"SLURM_JOB_ID": "4000", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "localhost"}
LAUNCHERS = ("SLURM_", "OMPI_", "PMI_", "KUBERNETES_", "JAX_COORDINATOR", "JAX_LOCAL", "TPU_")


def slurm(process, count):
    return {
        **SLURM,
        "SLURM_NTASKS": str(count),
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
    }


class Processes:
    """Processes of a command, each with its own environment; none is left running."""

    def __init__(self, folder, commands, environments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        clean["JAX_COMPILATION_CACHE_DIR"] = ""  # nothing is kept
        self.files = [(folder / f"{i}.out", folder / f"{i}.err") for i in range(len(commands))]
        self.all = []
        for command, environment, (out, err) in zip(commands, environments, self.files, strict=True):
            with out.open("w") as stdout, err.open("w") as stderr:
                settings = {"env": {**clean, **environment}, "cwd": ROOT, "stdout": stdout, "stderr": stderr}
                self.all.append(subprocess.Popen([sys.executable, *map(str, command)], **settings))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.all:
            process.kill()
            process.wait()

    def codes(self, limit, but=()):
        """Exit codes of all but some, which must end within the limit in seconds."""
        last = time.monotonic() + limit
        waited = [process for i, process in enumerate(self.all) if i not in but]
        while any(process.poll() is None for process in waited) and time.monotonic() < last:
            time.sleep(0.02)
        return [process.poll() for process in waited]

    def lines(self, but=()):
        """Standard error of all but some: the line of the start and what follows it."""
        texts = [err.read_text().splitlines() for i, (_, err) in enumerate(self.files) if i not in but]
        assert all(lines and lines[0].startswith("process ") for lines in texts), texts
        return [lines[1:] for lines in texts]

    def wait_for(self, number, text, limit=60):
        last = time.monotonic() + limit
        while text not in self.files[number][0].read_text():
            assert time.monotonic() < last, self.files[number][1].read_text()
            time.sleep(0.05)


def start(folder, what, count=2, devices=None, environments=None):
    port, devices = free_port(), devices or [1] * count
    flags = [{"XLA_FLAGS": f"{FLAGS} --xla_force_host_platform_device_count={each}"} for each in devices]
    more = environments or [{}] * count
    commands = [[ROOT / "tests" / "one_of_many.py", what, port, count, i] for i in range(count)]
    both = [{"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **a, **b} for a, b in zip(flags, more, strict=True)]
    return Processes(folder, commands, both)


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_processes_agree(tmp_path, count):
    with start(tmp_path, "agree", count) as found:
        assert found.codes(120) == [0] * count, found.lines()
        assert found.lines() == [[]] * count
        for i, (out, err) in enumerate(found.files):
            assert out.read_text().splitlines() == [f"0 1 {count} {i} 0 {float(count)}", "of another program"]
            host = socket.gethostname()
            assert err.read_text() == f"process {i} of {count} on {host}: 1 cpu device of {count}\n"


@pytest.mark.long
def test_processes_of_two_devices_each(tmp_path):
    with start(tmp_path, "agree", devices=[2, 2]) as found:
        assert found.codes(120) == [0, 0]
        assert "2 cpu devices of 4" in found.files[1][1].read_text()


@pytest.mark.long
def test_slurm_s_variables_are_enough(tmp_path):
    with start(
        tmp_path, "agree", environments=[{**slurm(i, 2), "JAX_COORDINATOR_PORT": ""} for i in range(2)]
    ) as found:
        assert found.codes(120) == [0, 0]
        assert [out.read_text().splitlines()[0] for out, _ in found.files] == ["0 1 2 0 0 2.0", "0 1 2 1 0 2.0"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "line", "code"),
    [
        ("end:0", "its own error", 2),
        ("end:1", "process 1 of 2 (HOST): its own error", 2),
        ("raise:0", "KeyError: 'wrong'", 1),
        ("raise:1", "process 1 of 2 (HOST): KeyError: 'wrong'", 1),
        ("alike", "the same everywhere", 2),
        ("differ:1", "the processes differ in thing: False of process 0, True of process 1: make them equal", 2),
        ("astray:0", "RuntimeError: the processes are out of step: 'one' here is 'other' elsewhere (KEY)", 1),
        ("astray:1", "process 1 of 2 (HOST): RuntimeError: the processes are out of step: 'one' here is 'other'", 1),
    ],
)
def test_an_end_of_one_is_the_end_of_all(tmp_path, what, line, code):
    with start(tmp_path, what) as found:
        assert found.codes(90) == [code, code]
        lines = found.lines()
        expected = f"focalgeo: {line.replace('HOST', socket.gethostname()).partition(' (KEY')[0]}"
        assert lines[0] == lines[1]
        assert len(lines[0]) == 1
        assert lines[0][0].startswith(expected)


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("what", ["kill:0", "kill:1", "freeze:0", "freeze:1"])
def test_a_process_that_is_gone_ends_the_others(tmp_path, what, count):
    gone = int(what[-1])
    with start(tmp_path, what, count) as found:
        victim = found.all[gone]
        last = time.monotonic() + 90
        while Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
            assert time.monotonic() < last
            time.sleep(0.05)
        assert found.codes(20, but=[gone]) == [3] * (count - 1)
        line = f"focalgeo: process {gone} of {count} ({socket.gethostname()}) is gone or does not answer; {GO_ON}"
        assert found.lines(but=[gone]) == [[line]] * (count - 1)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to", [0, 1])
def test_a_signal_to_one_ends_all(tmp_path, to, signum):
    """Process 0 waits in Python, process 1 in compiled code, where Python heeds no signal."""
    with start(tmp_path, "sleep:0") as found:
        found.wait_for(0, "asleep")
        time.sleep(0.5)
        found.all[to].send_signal(signum)
        assert found.codes(15) == [128 + signum] * 2
        assert found.lines() == [["focalgeo: stopped; the same command goes on from what is saved"]] * 2


@pytest.mark.long
def test_a_signal_that_is_held_back_ends_a_process_that_hangs_when_it_comes_twice(tmp_path):
    with start(tmp_path, "hold:0") as found:
        found.wait_for(0, "asleep")
        time.sleep(0.5)
        found.all[1].send_signal(signal.SIGTERM)
        assert found.codes(3) == [None, None]
        found.all[1].send_signal(signal.SIGTERM)
        assert found.codes(10) == [143, 143]
        assert found.lines() == [["focalgeo: stopped; the same command goes on from what is saved"]] * 2


@pytest.mark.long
def test_unequal_numbers_of_devices_are_one_line(tmp_path):
    with start(tmp_path, "agree", devices=[1, 2]) as found:
        assert found.codes(90) == [2, 2]
        line = "focalgeo: the processes differ in devices: 1 cpu of process 0, 2 cpu of process 1: "
        assert found.lines() == [[f"{line}give every process equally many of one kind"]] * 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "given", "first", "second"),
    [("jax_enable_x64", {"JAX_ENABLE_X64": "1"}, "False", "True"), ("XLA_FLAGS", {"XLA_FLAGS": "FAST"}, "", "FAST")],
)
def test_settings_that_differ_are_one_line(tmp_path, name, given, first, second):
    fast = "--xla_cpu_enable_fast_math=true"
    given = {key: value.replace("FAST", fast) for key, value in given.items()}
    with start(tmp_path, "agree", environments=[{"XLA_FLAGS": ""}, {"XLA_FLAGS": "", **given}]) as found:
        assert found.codes(90) == [2, 2]
        lines = found.lines()
        assert lines[0] == lines[1]
        assert lines[0][0].startswith(f"focalgeo: the processes differ in {name}: ")
        assert lines[0][0].endswith(": set it alike on every host")
        assert second.replace("FAST", fast) in lines[0][0]


@pytest.mark.long
def test_a_slow_process_hears_the_end(tmp_path):
    """It holds Python's lock for longer than a process that is gone is waited for."""
    with start(tmp_path, "slow:1") as found:
        assert found.codes(60) == [2, 2]
        assert found.lines() == [["focalgeo: its own error"]] * 2


@pytest.mark.long
def test_processes_that_are_suspended_together_go_on(tmp_path):
    with start(tmp_path, "work") as found:
        found.wait_for(0, "at work")
        found.wait_for(1, "at work")
        for signum, seconds in ((signal.SIGSTOP, 15), (signal.SIGCONT, 12)):
            for process in found.all:
                process.send_signal(signum)
            time.sleep(seconds)
        assert found.codes(0) == [None, None]
        found.all[0].send_signal(signal.SIGTERM)
        assert found.codes(15) == [143, 143]


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_was_suspended_alone_is_named_by_all(tmp_path, number):
    with start(tmp_path, "work") as found:
        found.wait_for(0, "at work")
        found.wait_for(1, "at work")
        found.all[number].send_signal(signal.SIGSTOP)
        time.sleep(20)
        found.all[number].send_signal(signal.SIGCONT)
        assert found.codes(30) == [3, 3]
        line = f"focalgeo: process {number} of 2 ({socket.gethostname()}) is gone or does not answer; {GO_ON}"
        assert found.lines() == [[line]] * 2


@pytest.mark.long
def test_a_second_process_of_a_number_ends_alone(tmp_path):
    port = free_port()
    program = [ROOT / "tests" / "one_of_many.py", "work", port, 2]
    commands = [[*program, 0], [*program, 1], [*program, 1]]
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FLAGS}
    (tmp_path / "late").mkdir()
    with Processes(tmp_path, commands, [environment] * 3) as found:
        found.wait_for(0, "at work")
        last = time.monotonic() + 30
        while sum(process.poll() is not None for process in found.all) < 1:
            assert time.monotonic() < last
            time.sleep(0.1)
        codes = found.codes(0)
        assert codes[0] is None
        refused = codes.index(2)
        line = "focalgeo: process 1 of 2 has already joined: each process needs a --process of its own\n"
        assert found.files[refused][1].read_text() == line
        with Processes(tmp_path / "late", commands[1:2], [environment]) as late:
            assert late.codes(30) == [2]
            assert late.files[0][1].read_text() == line
        time.sleep(12)
        both = [process for i, process in enumerate(found.all) if i != refused]
        assert [process.poll() for process in both] == [None, None]
        both[0].send_signal(signal.SIGTERM)
        assert found.codes(15, but=[refused]) == [143, 143]


@pytest.mark.long
@pytest.mark.parametrize("wrong", [[0], [1], [0, 1]])
def test_a_config_that_one_host_lacks_ends_all(tmp_path, wrong):
    port = free_port()
    configs = [tmp_path / "none.py" if i in wrong else f"{ROOT / 'configs' / 'digits.py'}:quick" for i in range(2)]
    flags = [f"--coordinator=127.0.0.1:{port}", "--processes", "2", "--workdir=w"]
    commands = [["-m", "focalgeo.run", f"--config={configs[i]}", f"--process={i}", *flags] for i in range(2)]
    with Processes(tmp_path, commands, [{"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}] * 2) as found:
        assert found.codes(60) == [2, 2]
        texts = [err.read_text().partition("\n")[2] for _, err in found.files]  # the first line names the process
        who = "" if 0 in wrong else f"process 1 of 2 ({socket.gethostname()}): "
        assert texts[0] == texts[1]
        assert texts[0].startswith(f"focalgeo: {who}no config file: No such file or directory: ")
        assert texts[0].count("\n") == 1


@pytest.fixture
def second_of_two(monkeypatch):
    """This process as process 1 of 2; the test's own client."""
    found = cluster._Cluster(None, 2, 1, 10.0, [["a", "boot"], ["b", "boot"]], {}, [0.0, 0.0], [])
    monkeypatch.setattr(cluster, "_cluster", found)
    return found


def test_processes_of_one_boot_share_a_host_whatever_their_names(second_of_two):
    assert processes.on_this_host() == 2


def test_only_the_runtime_s_errors_are_of_another_s_leaving(second_of_two):
    gloo = ValueError("UNKNOWN: Gloo all-reduce failed: [external/gloo/pair.cc] Connection reset by peer")
    caused = RunError("no step")
    caused.__cause__ = gloo
    assert processes.lost(gloo)
    assert processes.lost(caused)
    for error in (InputError("ABORTED: gloo-x is not a workdir"), OSError("coordination"), KeyError("gloo"), caused):
        error.__cause__ = None
        assert not processes.lost(error)


class Left(Exception):
    pass


@pytest.mark.parametrize(("lost_for", "expected"), [(1.5, "the end"), (60, "process 0 of 2 (a) is gone or does not")])
def test_an_answer_that_is_lost_for_a_second_ends_nothing(second_of_two, monkeypatch, lost_for, expected):
    began = time.monotonic()

    class Client:
        def blocking_key_value_get(self, key, milliseconds):
            if time.monotonic() - began < lost_for:
                raise RuntimeError("UNAVAILABLE: Connection reset by peer")
            return json.dumps(["the end", 2])

    def leave(found, line, code):
        raise Left(line)

    monkeypatch.setattr(cluster, "_leave", leave)
    monkeypatch.setattr(cluster, "_cluster", second_of_two._replace(client=Client()))
    monkeypatch.setattr(cluster, "_last_answer", [time.monotonic()])
    with pytest.raises(Left, match=expected.replace("(", "[(]").replace(")", "[)]")):
        cluster._watch(cluster._cluster)


@pytest.mark.parametrize("of_devices", [[0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]])
@pytest.mark.parametrize("index", [0, 1])
def test_devices_must_count_the_processes_as_the_runtime_does(second_of_two, index, of_devices):
    if index == 1 and of_devices == [0, 0, 1, 1]:
        joining._check_order(index, of_devices)
        return
    with pytest.raises(RunError, match=f"this is process 1 to the launcher and {index} to the devices, which come in"):
        joining._check_order(index, of_devices)


def test_lines_that_cannot_be_written_are_no_error(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        processes.write_line("process 0 of 2")
        processes.say("stopped")
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"},
            "a launcher has started 2 processes, and jax does",
        ),
        ({"PMI_SIZE": "3"}, "a launcher has started 3 processes, and jax does not know it: give each --coordinator="),
        ({**slurm(0, 2), "SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS is x: it must be the launcher's number"),
    ],
)
def test_a_launcher_that_jax_does_not_know_is_one_line(environment, line, monkeypatch):
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=line):
        processes.join()


def run(folder, *flags, environment=None, count=1):
    command = ["-m", "focalgeo.run", f"--config={ROOT / 'configs' / 'digits.py'}:quick", "--workdir=w", *flags]
    environment = {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **(environment or {})}
    with Processes(folder, [command], [environment]) as found:
        (code,) = found.codes(60)
        return code, found.files[0][1].read_text()


@pytest.mark.long
@pytest.mark.parametrize("process", [0, 1])
def test_others_that_do_not_come_are_one_line(tmp_path, process):
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--coordinator={address}", "--processes=2", f"--process={process}", "--join_timeout=2"]
    why = ["not all of them came", "nothing listens there, as process 0 does once it runs"][process]
    code, text = run(tmp_path, *flags)
    assert code == 3
    assert text.startswith(f"focalgeo: process {process} of 2 waited 2 s for the others at {address}: {why}; start")
    assert text.count("\n") == 1


@pytest.mark.long
def test_a_port_in_use_is_one_line(tmp_path):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code, text = run(tmp_path, f"--coordinator=127.0.0.1:{port}", "--processes=2", "--process=0")
    assert code == 3
    assert text == f"focalgeo: port {port} of --coordinator is in use on this host: choose another one, on every host\n"


@pytest.mark.long
def test_a_signal_ends_a_process_that_waits_for_others(tmp_path):
    flags = [f"--coordinator=127.0.0.1:{free_port()}", "--processes=2", "--process=1"]
    command = ["-m", "focalgeo.run", f"--config={ROOT / 'configs' / 'digits.py'}:quick", "--workdir=w", *flags]
    with Processes(tmp_path, [command], [{"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}]) as found:
        time.sleep(8)  # it joins after two
        found.all[0].send_signal(signal.SIGTERM)
        assert found.codes(5) == [143]
        assert "\nfocalgeo: stopped; the same command" in found.files[0][1].read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"processes": "2"}, "--coordinator is missing: three flags go together, for example --coordinator=10.0.0.1:"),
        ({"coordinator": "h:1", "processes": "2"}, "--process is missing"),
        ({"coordinator": "h:1", "process": "2"}, "--processes is missing"),
        ({"coordinator": "h", "processes": "2", "process": "1"}, "--coordinator is h: it must be HOST:PORT"),
        ({"coordinator": "h:0", "processes": "2", "process": "1"}, "--coordinator is h:0: it must be HOST:PORT"),
        ({"coordinator": "h:65536", "processes": "2", "process": "1"}, "--coordinator is h:65536"),
        ({"coordinator": "a b:1", "processes": "2", "process": "1"}, "--coordinator is a b:1"),
        ({"coordinator": "h:1", "processes": "2", "process": "2"}, "--process is 2: of 2 processes the last is 1"),
        ({"coordinator": "h:1", "processes": "0", "process": "0"}, "--processes is 0: it must be a whole number from"),
        ({"coordinator": "h:1", "processes": "1000001", "process": "0"}, "--processes is 1000001: it must be a whole"),
        ({"coordinator": "h:1", "processes": "٢", "process": "0"}, "--processes is ٢: it must be a whole number"),
        ({"join_timeout": "0"}, "--join_timeout is 0: it must be a whole number from 1 to 86400"),
        ({"heartbeat": "86401"}, "--heartbeat is 86401: it must be a whole number from 5 to 86400"),
        ({"heartbeat": "1.5"}, "--heartbeat is 1.5: it must be a whole number from 5 to 86400"),
        ({"heartbeat": "4"}, "--heartbeat is 4: it must be a whole number from 5 to 86400"),
    ],
)
def test_wrong_flags_are_one_line(flags, message, monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    with pytest.raises(InputError) as error:
        processes.asked(flags)
    assert message in str(error.value)


def test_flags_are_what_join_takes(monkeypatch):
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    assert processes.asked({"shard": "0/2"}) == {}
    assert processes.asked({"heartbeat": "10"}) == {"heartbeat": 10}
    given = {"coordinator": "[::1]:1234", "processes": "2", "process": "1", "join_timeout": "5"}
    whole = {"coordinator": "[::1]:1234", "processes": 2, "process": 1, "join_timeout": 5}
    assert processes.asked(given) == whole
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "host-1.lan:99")
    assert processes.asked(given) == whole
    assert processes.asked({**given, "coordinator": "h:1"})["coordinator"] == "h:1"
    del given["coordinator"]
    assert processes.asked(given) == {**whole, "coordinator": "host-1.lan:99"}


def test_one_process_agrees_with_itself():
    assert (processes.count(), processes.index(), processes.is_first(), processes.on_this_host()) == (1, 0, True, 1)
    assert processes.broadcast("x", lambda: (1, 2)) == (1, 2)
    assert processes.all_min("x", 3) == 3
    processes.check_equal("x", object(), "mend")
    assert not processes.lost(ValueError("Gloo all-reduce failed: Connection reset by peer"))


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        (slurm(0, 4), 4),
        (slurm(0, 1), 1),
        ({**slurm(0, 4), "SLURM_STEP_NUM_TASKS": "1"}, 1),  # srun -n1 in an allocation of four
        ({**slurm(0, 4), "SLURM_NTASKS": "many", "SLURM_STEP_NUM_TASKS": "many"}, 1),
        ({**SLURM, "SLURM_NTASKS": "4"}, 1),  # sbatch's script itself
        ({"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://127.0.0.1:34911", "OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"KUBERNETES_SERVICE_HOST": "127.0.0.1"}, 1),
    ],
)
def test_launchers_are_detected_without_a_warning(environment, count, monkeypatch):
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert processes.detected() == count


def test_calibrate_is_one_process(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "val.npz", logits=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 3)
    for name, value in slurm(0, 4).items():
        monkeypatch.setenv(name, value)
    assert calibrate.main([f"--val={tmp_path / 'val.npz'}", f"--out={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err == "focalgeo: 4 processes are started and this command is one: start it alone\n"
    assert not (tmp_path / "out").exists()


def test_calibrate_runs_where_only_the_machine_is_one_of_several(tmp_path, monkeypatch, capsys):
    """On a host of a TPU pod, say."""
    np.savez(tmp_path / "val.npz", logits=np.random.default_rng(0).normal(size=(40, 3)), labels=np.arange(40) % 3)
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(processes, "detected", lambda: 4)
    flags = [f"--val={tmp_path / 'val.npz'}", f"--out={tmp_path / 'out'}", "--num-resamples=100", "--folds=2"]
    assert calibrate.main(flags) == 0, capsys.readouterr().err


def test_reading_flags_and_config_touches_no_backend():
    program = (
        "from focalgeo import run, processes; import jax\n"
        "asked = run.parse(['--config=configs/digits.py:quick', '--workdir=w'])\n"
        "processes.join(**asked.cluster)\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_runtime_s_own_lines_are_known():
    noise = (
        b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1",
        b"W1122 14:28:14.414508    9959 coordination_service.cc:185] [1] Using experimental recoverable task feature.",
        b"E1122 14:28:17.345334    9958 coordination_service_agent.cc:289] Polled an error from coordination service",
        b"RPC: /xla.coordination.CoordinationService/PollForError",
        b"Additional GRPC error information from remote target coordination_service while calling /xla.coordination",
        b"[external/xla++third_party_ext+gloo/gloo/transport/tcp/debug_logger.cc:25] ERROR failed to connect, retry=1",
    )
    other = (
        b"E1122 14:28:17.345334    9958 cuda_dnn.cc:1] Could not create cudnn handle",
        b"terminate called after throwing an instance of 'std::bad_alloc'",
        b"focalgeo: stopped",
        b"",
    )
    mingled = (
        b"[Gloo] Rank [Gloo] Rank 23 is connected to  is connected to 3 peer ranks. Expected number of connected peer"
    )
    assert native._NOISE.match(mingled)
    for rest in (b"3 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3", b"3", b""):
        assert native._GREETING.fullmatch(rest)
    assert not any(native._GREETING.fullmatch(line) for line in other if line)
    assert all(native._NOISE.match(line) for line in noise)
    assert not any(native._NOISE.match(line) for line in other)
