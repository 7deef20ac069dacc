import signal
from pathlib import Path

import pytest
import torch
from hypothesis import settings

TESTS = Path(__file__).parent

# The suite runs in several processes: one thread each. Without deadlines, since the machines of CI are shared.
torch.set_num_threads(1)
settings.register_profile("suite", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("suite")

# A shell that starts the suite in the background has it ignore Ctrl-C, which some of the tests are about.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What `make quick` leaves out: tests that start processes, train models or compile kernels, and those of huge trees or data sets.
SLOW = (
    "analysis",
    "attack",
    "benchmarks",
    "cli",
    "estimators",
    "examples",
    "kernels",
    "service",
    "sweeps",
    "training",
    "test_docs.py",
    "test_extending.py",
    "test_old_files.py",
    "test_reproduction.py",
)
FAST = (  # although in a slow folder
    "sweeps/reporting",
    "sweeps/test_grid.py",
    "sweeps/test_results.py",
    "training/test_build.py",
    "training/test_settings.py",
)
HUGE = ("million", "hundred_thousand", "every_original")  # in a test's name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        in_slow_folder = place.startswith(SLOW) and not place.startswith(FAST)
        if in_slow_folder or any(word in item.name for word in HUGE):
            item.add_marker("slow")
