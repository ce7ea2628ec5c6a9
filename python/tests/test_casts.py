"""Casts: one object comes to many racks."""

import subprocess

import pytest

import rackpool
from cluster import BINARIES, Cluster, wait_until


@pytest.fixture(scope="module")
def racks():
    """A pool of three racks, with agents in racks 1 and 2."""
    with Cluster(racks=3) as cluster:
        agents = [
            subprocess.Popen(
                [BINARIES / "rackpool", "agent", "--rack", str(rack), "--dir", cluster.dir],
                stdout=subprocess.DEVNULL,
            )
            for rack in (1, 2)
        ]
        try:
            pools = [cluster.open(rack) for rack in range(3)]
            yield [rackpool.ObjectStore(pool, "objects") for pool in pools]
        finally:
            for agent in agents:
                agent.terminate()
                agent.wait()


def test_an_object_comes_to_each_rack(racks):
    root, *others = racks
    wait_until("the agents serve", lambda: root.cast_racks() == [1, 2])
    for number, (visible, schedule) in enumerate(
        [
            ("each", "interleaved"),
            ("together", "pipeline"),
            ("together", "chain"),
            ("each", "tree"),
            ("together", "sequential"),
        ]
    ):
        id, data = f"object-{number}", bytes([number]) * 300_000
        root.put(id, data, metadata=b"about")
        found = root.cast(id, [1, 2], visible=visible, schedule=schedule, block_size=65536)
        assert found == {1: None, 2: None}
        for store in others:
            view = store.get(id)
            assert bytes(view) == data and view.metadata == b"about"


def test_what_fails_is_said(racks):
    root = racks[0]
    root.put("object", b"data")
    wait_until("the agents serve", lambda: root.cast_racks() == [1, 2])
    found = root.cast("object", [0, 2, 7])
    assert found[0] is None and found[2] is None and "no agent" in found[7]
    assert root.cast("absent", [1]) is None
    for wrong in [{"visible": "some"}, {"schedule": "hybrid"}, {"block_size": -1}]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            root.cast("object", [1], **wrong)
    with pytest.raises(ValueError, match="64 KiB"):
        root.cast("object", [1], block_size=1000)
