"""The programs of `python/examples` run."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_an_array_is_handed_over(cluster, pool):
    pytest.importorskip("numpy")
    program = [sys.executable, EXAMPLES / "hand_over.py", cluster.dir, "--numbers", "100000"]
    result = subprocess.run(program, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    first, second = result.stdout.splitlines()
    assert first.startswith("n * n: 800000 B from the other rack")
    assert second.startswith("n * n: 800000 B from this rack")
