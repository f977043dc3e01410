"""The example in every public docstring gives what it says, and every public function and class has one."""

import doctest
import inspect

import pytest

from docs import names

MEMBERS = {
    name: member for page in names.PAGES for name, member in names.members(page).items() if not names.is_result(member)
}


@pytest.mark.parametrize("name", MEMBERS)
def test_the_example_gives_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may write a file
    if name.endswith("to_torch"):
        pytest.importorskip("torch")
    known = {}
    exec(names.SETUP, known)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(MEMBERS[name]), known, name, None, None)
    assert example.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    said = []
    runner.run(example, out=said.append)
    assert not runner.failures, "".join(said)
