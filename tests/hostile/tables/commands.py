"""Arguments of the commands that say nothing, something unknown, or the same twice."""

from hostile.cases import Case


def given(*arguments):
    """The case's arguments, which need no files."""
    return lambda folder: arguments


CASES = [
    Case("unhelpful line", "run without arguments", given("run"), "--config is missing: for example --config="),
    Case("unhelpful line", "calibrate without arguments", given("calibrate"), "--val is missing: for example"),
    Case("unhelpful line", "report without arguments", given("report"), "give one workdir"),
]
