"""Each exception that can be provoked, and wrong arguments."""

import array
import inspect
import threading
import time

import pytest

import rackpool
from cluster import PAGE, Cluster, wait_until


def test_all_exceptions_have_one_base():
    found = [
        value
        for name in rackpool.__all__
        if inspect.isclass(value := getattr(rackpool, name)) and issubclass(value, Exception)
    ]
    assert len(found) == 44
    assert all(issubclass(value, rackpool.RackpoolError) for value in found)
    assert all(value.__doc__ and value.__module__ == "rackpool" for value in found)


def test_wrong_addresses_and_lengths_are_refused(pool):
    addr = pool.alloc(64)
    wrong = {
        rackpool.InvalidAddress: lambda: pool.read(rackpool.Address(1), 8),
        rackpool.NotAllocated: lambda: pool.read(rackpool.Address(200 * PAGE), 8),
        rackpool.NotAnObject: lambda: pool.free(addr + 16),
        rackpool.BeyondObject: lambda: pool.read(addr, PAGE + 1),
        rackpool.Empty: lambda: pool.read(addr, 0),
        rackpool.ZeroSize: lambda: pool.alloc(0),
        rackpool.TooLarge: lambda: pool.alloc(1 << 50),
    }
    for kind, use in wrong.items():
        with pytest.raises(kind) as raised:
            use()
        assert type(raised.value) is kind and len(str(raised.value)) > 20
    for use in (pool.write, pool.readinto):
        with pytest.raises(rackpool.Empty):
            use(addr, bytearray())
    for use in (
        lambda: pool.load(addr + 4),
        lambda: pool.store(addr + 4, 1),
        lambda: pool.fetch_add(addr + 4, 1),
        lambda: pool.compare_exchange(addr + 4, 0, 1),
    ):
        with pytest.raises(rackpool.Misaligned, match="multiple of 8"):
            use()
    pool.free(addr)
    with pytest.raises(rackpool.NotAllocated, match="only once"):
        pool.free(addr)


def test_an_access_of_more_than_there_is_takes_no_memory(pool):
    addr = pool.alloc(2 * PAGE)
    for size in (2 * PAGE + 1, 1 << 40, 2**63 - 1):
        with pytest.raises(rackpool.BeyondObject, match="access at most"):
            pool.read(addr, size)
    pool.free(addr)


def test_a_checked_pool_finds_accesses_to_freed_objects(cluster):
    with cluster.open(0, checked=True) as pool:
        addr, other = pool.alloc(64), pool.alloc(64)
        with pytest.raises(rackpool.BeyondObject):
            pool.read(addr, 65)
        pool.free(addr)
        with pytest.raises(rackpool.NotAllocated):
            pool.read(addr, 8)
        pool.free(other)


def test_a_full_pool_is_out_of_memory():
    with Cluster(racks=1, memory=16 * PAGE) as cluster, cluster.open(0) as pool:
        objects = []
        with pytest.raises(rackpool.OutOfMemory, match="free objects, or add a rack"):
            while True:
                objects.append(pool.alloc(PAGE))
        assert objects
        pool.free(objects.pop())
        objects.append(pool.alloc(PAGE))


def test_roots_with_wrong_names_are_refused(pool):
    for use in (lambda: pool.root(""), lambda: pool.set_root("x" * 256, None, None)):
        with pytest.raises(rackpool.RootError, match="1 to 255 B") as raised:
            use()
        assert raised.value.is_unchanged is True


def test_a_pool_that_can_not_be_opened(cluster, tmp_path):
    with pytest.raises(rackpool.OpenError, match="rackpool up"):
        rackpool.Pool(tmp_path, 0)
    with pytest.raises(rackpool.OpenError, match="rackpool up"):
        cluster.open(7)
    for threads in (0, 513):
        with pytest.raises(rackpool.OpenError):
            cluster.open(0, threads=threads)


@pytest.mark.parametrize(
    "options",
    [
        {"threads": -1},
        {"threads": 1 << 20},
        {"request_timeout": -1},
        {"reconnect_timeout": float("nan")},
    ],
)
def test_options_out_of_range_are_value_errors(cluster, options):
    (name,) = options
    with pytest.raises(ValueError, match=name):
        cluster.open(0, **options)


def test_numbers_out_of_range_are_value_errors(pool):
    addr = pool.alloc(8)
    for use in (
        lambda: pool.alloc(-1),
        lambda: pool.alloc(2**64),
        lambda: pool.read(addr, -1),
        lambda: pool.store(addr, 2**64),
        lambda: pool.fetch_add(addr, -(2**63) - 1),
        lambda: pool.compare_exchange(addr, 2**64, 0),
        lambda: rackpool.Address(-1),
        lambda: addr + -1,
    ):
        with pytest.raises(ValueError, match="it must be"):
            use()
    pool.free(addr)


def test_arguments_of_wrong_types_are_type_errors(pool):
    addr = pool.alloc(16)
    frozen = memoryview(b"16 bytes of text")
    strided = memoryview(bytearray(16))[::2]
    for use in (
        lambda: pool.alloc("16"),
        lambda: pool.alloc(16.0),
        lambda: pool.free(int(addr)),
        lambda: pool.read(int(addr), 8),
        lambda: pool.read(addr, None),
        lambda: pool.write(addr, "text"),
        lambda: pool.write(addr, 7),
        lambda: pool.write(addr, strided),
        lambda: pool.readinto(addr, strided),
        lambda: pool.readinto(addr, b"bytes"),
        lambda: pool.readinto(addr, frozen),
        lambda: pool.readinto(addr, [0]),
        lambda: pool.store(addr, b"1"),
        lambda: pool.root(b"name"),
        lambda: pool.set_root("name", 0, addr),
        lambda: rackpool.Pool(),
        lambda: rackpool.Pool(None, 0),
        lambda: rackpool.Table("pool", "name"),
        lambda: rackpool.Table(pool, b"name"),
    ):
        with pytest.raises(TypeError):
            use()
    for use in (pool.write, pool.readinto):
        with pytest.raises(TypeError, match="not C-contiguous"):
            use(addr, strided)
    with pytest.raises(TypeError, match="read-only"):
        pool.readinto(addr, frozen)
    with pytest.raises(TypeError, match="bytes-like object is required, not 'str'"):
        pool.write(addr, "text")
    pool.write(addr, array.array("H", [1] * 8))
    pool.free(addr)


def test_a_closed_pool_says_so(cluster):
    pool = cluster.open(0)
    addr = pool.alloc(8)
    pool.free(addr)
    pool.close()
    for use in (
        lambda: pool.alloc(8),
        lambda: pool.free(addr),
        lambda: pool.read(addr, 8),
        lambda: pool.readinto(addr, bytearray(8)),
        lambda: pool.write(addr, b"8 bytes."),
        lambda: pool.load(addr),
        lambda: pool.fetch_add(addr, 1),
        lambda: pool.is_local(addr),
        lambda: pool.root("name"),
        lambda: pool.ping(),
        lambda: pool.__enter__(),
        lambda: rackpool.Table(pool, "name"),
    ):
        with pytest.raises(rackpool.Closed, match="open it again"):
            use()


def test_processes_that_are_away():
    with Cluster(lease_ms=500) as cluster:
        pool = cluster.open(0, reconnect_timeout=0.2, request_timeout=5)
        far = cluster.open(1)
        near, remote = pool.alloc(64), far.alloc(64)
        pool.write(remote, b"before")
        cluster.kill("metadata")
        with pytest.raises(rackpool.MetadataUnreachable, match="start it again"):
            pool.root("name")
        cluster.start_metadata()
        wait_until("the metadata server is found", lambda: answers(lambda: pool.root("name")))
        cluster.kill("rack-1")
        with pytest.raises(rackpool.RackUnavailable, match="rack 1 does not answer"):
            while True:
                pool.read(remote, 6)
        pool.write(near, b"in the own rack all goes on")
        cluster.kill("rack-0")
        with pytest.raises(rackpool.Unavailable, match="start it again"):
            pool.ping()
        cluster.start_daemon(0)
        cluster.start_daemon(1)
        wait_until("all is back", lambda: answers(lambda: pool.read(remote, 6)))
        assert pool.read(remote, 6) == b"before"
        assert pool.read(near, 6) == b"in the"


def answers(use):
    try:
        use()
    except (rackpool.RackUnavailable, rackpool.Unavailable, rackpool.MetadataUnreachable):
        return False
    return True


def test_memory_that_ends_with_its_daemon():
    with Cluster(kind="memfd", lease_ms=500) as cluster:
        pool, far = cluster.open(0), cluster.open(1)
        remote = far.alloc(64)
        pool.write(remote, b"before")
        cluster.kill("rack-1")
        cluster.start_daemon(1)
        with pytest.raises(rackpool.Forgotten, match="open the pool again"):
            while answers(far.ping):
                pass

        def lost():
            try:
                pool.read(remote, 6)
            except rackpool.PageLost as error:
                return "allocate anew" in str(error)
            except rackpool.RackUnavailable:
                return False

        wait_until("the page is lost", lost)


def test_an_atomic_whose_home_dies_is_indeterminate():
    with Cluster(lease_ms=500) as cluster:
        pool, far = cluster.open(0), cluster.open(1)
        word, raised = far.alloc(8), []
        pool.store(word, 5)
        cluster.pause("rack-1")

        def add():
            with pytest.raises(rackpool.RackpoolError) as error:
                pool.fetch_add(word, 1)
            raised.append(error)

        thread = threading.Thread(target=add)
        thread.start()
        # The request is on its way to a daemon that does not take it.
        time.sleep(0.1)
        cluster.kill("rack-1")
        thread.join()
        assert type(raised[0].value) is rackpool.Indeterminate
        assert "read the value to know" in str(raised[0].value)


def test_threads_that_hold_all_slots_leave_none(cluster):
    """With its daemon stopped, calls that are given up keep their slots: one own and four more."""
    with cluster.open(0, threads=1, request_timeout=0.3, reconnect_timeout=0.3) as pool:
        cluster.pause("rack-0")
        kinds = []

        def ping():
            with pytest.raises(rackpool.RackpoolError) as error:
                pool.ping()
            kinds.append(type(error.value))

        try:
            for _ in range(6):
                thread = threading.Thread(target=ping)
                thread.start()
                thread.join()
        finally:
            cluster.resume("rack-0")
        assert kinds == [rackpool.Unavailable] * 5 + [rackpool.TooManyThreads]
        wait_until("the slots are free again", lambda: pings(pool))


def pings(pool):
    try:
        pool.ping()
    except rackpool.TooManyThreads:
        return False
    return True
