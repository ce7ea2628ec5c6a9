"""Runs pyarrow's own tests of Plasma, unmodified, against rackpool-plasma.

The tests start the program plasma-store-server of pyarrow's folder. For this run it is a link to
the program that is given as the argument.
"""

import os
import pathlib
import sys

import pyarrow
import pytest

# The outcome with Plasma's own store. The test that is skipped needs a mounted hugetlbfs.
PASSED, SKIPPED = 33, 1


class Outcomes:
    """Counts what became of the tests."""

    def __init__(self):
        self.passed = self.skipped = self.other = 0

    def pytest_runtest_logreport(self, report):
        if report.skipped:
            self.skipped += 1
        elif report.failed:
            self.other += 1
        elif report.when == "call":
            self.passed += 1


def main(program):
    """Returns the exit status."""
    package = pathlib.Path(pyarrow.__file__).parent
    store = package / "plasma-store-server"
    link = package / "plasma-store-server.rackpool"
    link.unlink(missing_ok=True)
    link.symlink_to(pathlib.Path(program).resolve(strict=True))
    link.replace(store)
    if not os.access(store, os.X_OK):
        print(f"{store} can't be executed", file=sys.stderr)
        return 1
    outcomes = Outcomes()
    tests = str(package / "tests" / "test_plasma.py")
    options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-W", "ignore"]
    status = pytest.main([*options, tests], plugins=[outcomes])
    total = outcomes.passed + outcomes.skipped
    if status == 0 and outcomes.passed >= PASSED and total == PASSED + SKIPPED:
        return 0
    print(
        f"{outcomes.passed} passed, {outcomes.skipped} skipped, {outcomes.other} failed: "
        f"Plasma's own store passes {PASSED} and skips {SKIPPED}",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
