"""Samples of lm-evaluation-harness, `samples_TASK_DATE.jsonl` by --log_samples, as a table of outputs.

A line of a multiple-choice task holds `filtered_resps`, [log-likelihood, is greedy] of each choice, and `target`, the
number of the right one; the numbers may be written as text.
Source: lm_eval/evaluator.py and lm_eval/loggers/evaluation_tracker.py of EleutherAI/lm-evaluation-harness.
"""

import re
from pathlib import Path
from typing import Any

import pandas

from focalgeo import files

_NAME = re.compile(r"samples_(.+)_[^_]+\.jsonl(?:\.gz)?")
_MEND = "give samples of a multiple-choice task, whose target is the number of a choice"


def outputs(table: Any, path: Path) -> Any:
    """Columns logits (log-likelihoods), labels, group (the task) and cluster (the document).

    A pandas.DataFrame without the columns of samples is given back.
    """
    if not {"doc_id", "target"} <= {*table} or {"resps", "filtered_resps"}.isdisjoint(table):
        return table
    rows = []
    for line, sample in zip(table.index, table.to_dict("records"), strict=True):
        with files.reading(f"{path}, line {line},", _MEND):
            rows.append(_of_sample(sample))
    found = pandas.DataFrame(rows, table.index, ["logits", "labels"])
    found["group"] = table.get("task", _NAME.sub(r"\1", path.name))
    found["cluster"] = found["group"] + "/" + table["doc_id"].astype(str)
    return found


def _of_sample(sample):
    """The log-likelihoods and the number of the target."""
    pairs = sample["filtered_resps"] if "filtered_resps" in sample else [first for first, *_ in sample["resps"]]
    logits = [float(value) for value, _ in pairs]
    if "acc_mutual_info" in sample:  # those without the question follow
        logits = logits[: len(logits) // 2]
    return logits, int(sample["target"])
