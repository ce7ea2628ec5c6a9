import sys
from pathlib import Path

import pytest

import rackpool

# Processes that tests start by `multiprocessing` import the tests' modules too.
sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster  # noqa: E402


@pytest.fixture(scope="session")
def cluster():
    """A pool of two racks that all tests use which kill none of its processes."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def pool(cluster):
    with cluster.open(0) as pool:
        yield pool


@pytest.fixture
def far(cluster):
    """The same pool, used from the other rack."""
    with cluster.open(1) as pool:
        yield pool


@pytest.fixture
def store(request, pool):
    """A store of its own for each test, whose objects are deleted afterwards."""
    store = rackpool.ObjectStore(pool, f"python-{request.node.name}")
    yield store
    for info in store.list():
        store.delete(info.id)


@pytest.fixture
def far_store(far, store):
    return rackpool.ObjectStore(far, store.name, create=False)
