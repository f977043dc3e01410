"""Whether two versions of the code give the same numbers: jobs run in both trees, rows and calibrators compared.

    python tests/golden/compare.py run OTHER_TREE OUT       # the jobs, in a tree, of this Python's packages
    python tests/golden/compare.py compare OUT_A OUT_B      # prints what differs by more than 1e-6; exit code 1 if any

FOCALGEO_DATA names the folder of others' outputs (logits/densenet-cifar100.npz) and of CIFAR-10 as JPEG.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

JOBS = ("digits", "digits_gamma", "digits_trace", "cifar10")
NETWORKS = ("densenet", "wide-resnet-16-4")
TOLERANCE = 1e-6
TIMED = ("examples_per_second",)
NUMBERS = ("value", "low", "high", "stderr", "confidence", "residual", "p_value", "lower", "upper", "share")


def run(tree: Path, out: Path) -> None:
    """All jobs in a tree, each into a folder of `out`; what is there already is kept."""
    data, env = Path(os.environ["FOCALGEO_DATA"]), os.environ | {"PYTHONPATH": str(tree)}

    def command(module: str, *flags: str) -> None:
        subprocess.run([sys.executable, "-m", f"focalgeo.{module}", *flags], cwd=tree, env=env, check=True)

    for job in JOBS:
        # how many members advance together is measured, and shows in the sixth digit
        flags = {"cifar10": f"data.name=folder:{data}/cifar10-jpeg.tar.xz", "digits_gamma": "sweep.at_once=4"}
        flag = [f"--config.{flags[job]}"] if job in flags else []
        command("run", f"--config=configs/{job}.py:quick", f"--workdir={out / job}", *flag)
    for network in NETWORKS:
        outputs = np.load(data / "logits" / f"{network}-cifar100.npz")
        for split, rows in (("val", slice(0, 3000)), ("test", slice(3000, 6000))):
            np.savez(out / f"{network}-{split}.npz", **{name: outputs[name][rows] for name in ("probs", "labels")})
        files = (f"--{split}={out / f'{network}-{split}.npz'}" for split in ("val", "test"))
        command("calibrate", *files, f"--out={out / f'calibrate_{network}'}")
    files = (f"--{split}={out}/digits/predictions/{split}.npz" for split in ("val", "test"))
    command("calibrate", *files, f"--out={out}/calibrate_digits")


def rows_of(folder: Path) -> dict[str, list[dict]]:
    """The rows of a workdir but those of time, by all that they hold but numbers."""
    by_key = defaultdict(list)
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] != "seconds" and row["name"] not in TIMED:
            key = {name: value for name, value in row.items() if name not in NUMBERS}
            by_key[json.dumps(key, sort_keys=True)].append(row)
    return by_key


def differences(a: dict[str, list[dict]], b: dict[str, list[dict]]) -> list[str]:
    """Rows that one side lacks, and numbers that differ."""
    lines = [f"in one alone: {key}" for key in a.keys() ^ b.keys()]
    for key in a.keys() & b.keys():
        if len(a[key]) != len(b[key]):
            lines.append(f"{len(a[key])} and {len(b[key])} times: {key}")
        for one, other in zip(a[key], b[key], strict=False):
            for name in one.keys() | other.keys():
                if name in NUMBERS and not close(one.get(name), other.get(name)):
                    lines.append(f"{name} {one.get(name)} and {other.get(name)}: {key}")
    return lines


def close(a: float | str | None, b: float | str | None) -> bool:
    both = isinstance(a, int | float) and isinstance(b, int | float)
    return a == b or (both and abs(a - b) <= TOLERANCE * max(1, abs(a)))


def numbers_in(value, path: str = "") -> dict[str, float]:
    """Every number of a JSON value, by where it stands."""
    if isinstance(value, dict):
        value = value.items()
    elif isinstance(value, list):
        value = enumerate(value)
    else:
        return {path: value}
    return {name: number for key, part in value for name, number in numbers_in(part, f"{path}.{key}").items()}


def visible_text(page: Path) -> list[str]:
    """The words and numbers of a page, line by line, without its figures."""
    text = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", "\n", page.read_text(), flags=re.DOTALL)
    return [line.strip() for line in text.splitlines() if line.strip()]


def compare(a: Path, b: Path) -> int:
    """Print what differs between two folders of jobs; how many places."""
    count = 0
    for folder in sorted(path.name for path in a.iterdir() if (path / "metrics.jsonl").exists()):
        if not (b / folder).exists():
            print(f"{folder}: only in {a}")
            count += 1
            continue
        lines = differences(rows_of(a / folder), rows_of(b / folder))
        if (a / folder / "calibrator.json").exists():
            one, other = (numbers_in(json.loads((side / folder / "calibrator.json").read_text())) for side in (a, b))
            different = (name for name in one.keys() | other.keys() if not close(one.get(name), other.get(name)))
            lines += [f"calibrator.json: {name}" for name in different]
        one, other = (visible_text(side / folder / "report.html") for side in (a, b))
        print(f"{folder}: {len(lines)} differences of numbers, {len(set(one) ^ set(other))} lines of the page")
        print("".join(f"    {line}\n" for line in sorted(lines)[:10]), end="")
        count += len(lines)
    return count


if __name__ == "__main__":
    action, first, second = sys.argv[1], *map(Path.resolve, map(Path, sys.argv[2:4]))
    second.mkdir(parents=True, exist_ok=True)
    sys.exit(run(first, second) if action == "run" else bool(compare(first, second)))
