"""A few cases of every target of the attack, always the same ones; `make attack` runs as many as wanted."""

from collections.abc import Iterator
from itertools import islice

import pytest

from tests.attack.case import FINDINGS
from tests.attack.child import Child
from tests.attack.targets import TARGETS

_CASES = {"reader": 40, "file": 10, "call": 10, "object": 100, "command": 10, "service": 20}


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_answered_or_refused(child: Child, name: str) -> None:
    count = _CASES[name.split()[0]]
    found = [(number, outcome) for number, outcome, _ in child.outcomes(name, 24, range(count))]
    assert len(found) == count
    assert [each for each in found if each[1].kind in FINDINGS] == []


@pytest.mark.parametrize("name", [name for name in TARGETS if not name.startswith("reader")])
def test_one_change_of_a_right_input_is_answered_or_refused(child: Child, name: str) -> None:
    some = list(islice(TARGETS[name].every(), 7, None, 1999))
    found = [(data, outcome) for data in some if (outcome := child.repeat(name, data)).kind in FINDINGS]
    assert found == []
    assert some or name == "call trees"


def test_a_signal_is_a_finding_and_the_next_case_has_a_process_of_its_own(child: Child) -> None:
    died = child.repeat("call trees", b"__import__('os').kill(__import__('os').getpid(), 11)")
    assert (died.kind, died.detail) == ("signal", "SIGSEGV")
    assert child.repeat("call trees", b"[Tree('a'), Tree('b')]").kind == "answer"
    assert child.repeat("call trees", b"[1 / 0]").detail.startswith("ZeroDivisionError: division by zero (")
    assert child.repeat("call trees", b"[Tree('a', 5)]") == ("refused", "TreeError")
