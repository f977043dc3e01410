"""Whether two versions of the code give the same numbers: jobs run in both trees, rows and calibrators compared.

    python tests/golden/compare.py run OTHER_TREE OUT       # the jobs, in a tree, of this Python's packages
    python tests/golden/compare.py compare OUT_A OUT_B      # prints what differs by more than 1e-6; exit code 1 if any

FOCALGEO_DATA names the folder of others' outputs (logits/densenet-cifar100.npz) and of CIFAR-10 as JPEG.
"""

import difflib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

JOBS = {
    "digits": (),
    "digits_gamma": ("sweep.at_once=4",),  # how many members advance together is measured, and shows in the sixth digit
    "digits_trace": ("loss.trace_form=jvp_of_grad",),  # once the default was another, of the same values but rounding
    "cifar10": (),
}
NETWORKS = ("densenet", "wide-resnet-16-4")
TOLERANCE = 1e-6
TIMED = ("examples_per_second",)
NUMBERS = ("value", "low", "high", "stderr", "confidence", "residual", "p_value", "lower", "upper", "share")


def run(tree: Path, out: Path) -> None:
    """All jobs in a tree, each into a folder of `out`; what is there already is kept."""
    data, env = Path(os.environ["FOCALGEO_DATA"]), os.environ | {"PYTHONPATH": str(tree)}

    def command(module: str, folder: str, *flags: str) -> None:
        if not (out / folder / "report.html").exists():
            place = "--workdir" if module == "run" else "--out"
            subprocess.run(
                [sys.executable, "-m", f"focalgeo.{module}", *flags, f"{place}={out / folder}"],
                cwd=tree,
                env=env,
                check=True,
            )

    def calibrate(folder: str, files: str, *flags: str) -> None:
        splits = (f"--{split}={out}/{files.format(split)}" for split in ("val", "test"))
        command("calibrate", f"calibrate_{folder}", *splits, *flags)

    for job, fields in JOBS.items():
        flags = (f"--config.{field}" for field in fields)
        if job == "cifar10":
            flags = (f"--config.data.name=folder:{data}/cifar10-jpeg.tar.xz",)
        command("run", job, f"--config=configs/{job}.py:quick", *flags)
    for network in NETWORKS:
        outputs = np.load(data / "logits" / f"{network}-cifar100.npz")
        for split, rows in (("val", slice(0, 3000)), ("test", slice(3000, 6000))):
            np.savez(out / f"{network}-{split}.npz", **{name: outputs[name][rows] for name in ("probs", "labels")})
        calibrate(network, network + "-{}.npz")
    calibrate("digits", "digits/predictions/{}.npz")
    calibrate("decided", "digits/predictions/{}.npz", "--coverage=0.9", "--error-at-most=0.1", "--criteria=ece")
    for split in ("val", "test"):
        write_two_classes(out, split)
    calibrate("two_classes", "two-classes-{}.csv")
    calibrate("weighted", "weighted-{}.csv")


def write_two_classes(out: Path, split: str) -> None:
    """Tables of whether a digit is odd, and P(odd): as they are, and with weights, groups and clusters of examples."""
    outputs = np.load(out / "digits" / "predictions" / f"{split}.npz")
    logits, labels = np.float64(outputs["logits"]), outputs["labels"]
    probs = np.exp(logits - logits.max(1, keepdims=True))
    score = probs[:, 1::2].sum(1) / probs.sum(1)
    rows = [f"{label % 2},{p:.9g}" for label, p in zip(labels, score, strict=True)]
    (out / f"two-classes-{split}.csv").write_text("\n".join(["y_true,y_prob", *rows, ""]))
    rows = [f"{row},{1 + i % 3},{'ab'[i % 2]},{i // 4}" for i, row in enumerate(rows)]
    (out / f"weighted-{split}.csv").write_text("\n".join(["y_true,y_prob,weight,group,cluster", *rows, ""]))


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
    """The words and numbers of a page, line by line, without its figures, hashes, paths and times."""
    text = re.sub(r"<(style|script|svg)\b.*?</\1>|<[^>]+>", "\n", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"\b[0-9a-f]{8,64}\b|\S*/\S+|[\d.]+ (ms|s|seconds|minutes)\b|\d{4}-\d\d-\d\d\S*", "...", text)
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
        words = [*difflib.unified_diff(one, other, lineterm="", n=0)][2:]
        print(f"{folder}: {len(lines)} differences of numbers, {len(words)} lines of the page")
        print("".join(f"    {line}\n" for line in [*sorted(lines)[:10], *words[:10]]), end="")
        count += len(lines)
    return count


if __name__ == "__main__":
    action, first, second = sys.argv[1], *map(Path.resolve, map(Path, sys.argv[2:4]))
    second.mkdir(parents=True, exist_ok=True)
    sys.exit(run(first, second) if action == "run" else bool(compare(first, second)))
