"""The example of the wheel's README runs as it stands there."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs(cluster, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert '"/dev/shm/rackpool"' in example
    exec(example.replace("/dev/shm/rackpool", str(cluster.dir)), {})
    assert "b'rack' b'8'" in capsys.readouterr().out
