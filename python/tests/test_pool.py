"""Round trips, atomics, roots and buffers."""

import array
import pickle

import pytest

import rackpool
from cluster import PAGE


def contents(size, seed=1):
    return bytes((index * 31 + seed) % 251 for index in range(size))


@pytest.mark.parametrize("size", [1, 8, 12, 64, 4096, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_bytes_are_read_back_in_both_racks(pool, far, size):
    addr = pool.alloc(size)
    assert pool.is_local(addr) and not far.is_local(addr)
    for number, writer in enumerate([pool, far]):
        wanted = contents(size, seed=number)
        writer.write(addr, wanted)
        for reader in (pool, far):
            assert reader.read(addr, size) == wanted
            into = bytearray(size)
            assert reader.readinto(addr, into) == size
            assert into == wanted
    far.free(addr)


def test_a_part_of_an_object_is_read_and_written(pool):
    addr = pool.alloc(64)
    pool.write(addr, bytes(64))
    pool.write(addr + 10, b"part")
    assert pool.read(addr, 20) == bytes(10) + b"part" + bytes(6)
    assert pool.read(addr + 10, 4) == b"part"
    pool.free(addr)


@pytest.mark.parametrize("who", ["pool", "far"])
def test_atomics_return_the_value_from_before(request, pool, who):
    addr, user = pool.alloc(8), request.getfixturevalue(who)
    user.store(addr, 5)
    assert user.load(addr) == 5
    assert user.fetch_add(addr, 2) == 5
    assert user.fetch_add(addr, -3) == 7
    assert user.compare_exchange(addr, 4, 2**64 - 1) == 4
    assert user.compare_exchange(addr, 4, 9) == 2**64 - 1
    assert user.fetch_add(addr, 1) == 2**64 - 1
    assert user.load(addr) == 0
    user.store(addr, -1)
    assert user.load(addr) == 2**64 - 1
    assert user.read(addr, 8) == b"\xff" * 8
    pool.free(addr)


def test_a_root_is_found_from_the_other_rack(pool, far):
    addr = pool.alloc(16)
    assert far.root("python-root") is None
    assert pool.set_root("python-root", None, addr) == (addr, True)
    assert far.root("python-root") == addr
    assert far.set_root("python-root", None, addr + 8) == (addr, False)
    assert far.set_root("python-root", addr, None) == (None, True)
    assert pool.root("python-root") is None
    pool.free(addr)


def test_addresses_are_values(pool):
    addr = pool.alloc(64)
    raw = int(addr)
    assert rackpool.Address(raw) == addr and hash(rackpool.Address(raw)) == hash(addr)
    assert addr < addr + 1 and int(addr + 1) == raw + 1 and addr != raw
    assert repr(addr) == f"Address({raw:#x})" and str(addr) == f"{raw:#x}"
    assert pickle.loads(pickle.dumps(addr)) == addr
    with pytest.raises(OverflowError):
        rackpool.Address(2**64 - 1) + 1
    pool.free(addr)


def test_any_contiguous_buffer_is_written_and_filled(pool):
    addr = pool.alloc(64)
    numbers = array.array("d", [1.5, -2.5, 3.5])
    buffers = [bytearray(b"bytearray"), memoryview(b"memoryview"), numbers]
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        pool.write(addr, buffer)
        assert pool.read(addr, size) == bytes(memoryview(buffer))
    into = array.array("d", [0, 0, 0])
    assert pool.readinto(addr, into) == 24
    assert into == numbers
    part = bytearray(30)
    pool.readinto(addr, memoryview(part)[3:27])
    assert part == bytes(3) + numbers.tobytes() + bytes(3)
    table = memoryview(bytearray(24)).cast("d", [3, 1])
    pool.readinto(addr, table)
    assert table.tobytes() == numbers.tobytes()
    pool.free(addr)


def test_a_failed_read_leaves_the_buffer(pool):
    buffer = bytearray(b"as it was")
    with pytest.raises(rackpool.InvalidAddress):
        pool.readinto(rackpool.Address(1), buffer)
    assert buffer == b"as it was"


def test_arrays_of_numpy_are_written_and_filled(pool):
    numpy = pytest.importorskip("numpy")
    wanted = numpy.arange(5000, dtype=numpy.float64).reshape(50, 100)
    addr = pool.alloc(wanted.nbytes)
    pool.write(addr, wanted)
    found = numpy.zeros_like(wanted)
    assert pool.readinto(addr, found) == wanted.nbytes
    assert (found == wanted).all()
    with pytest.raises(TypeError, match="not C-contiguous"):
        pool.write(addr, wanted[:, ::2])
    pool.free(addr)


def test_a_pool_is_a_context_and_says_what_it_is(cluster):
    with rackpool.Pool.with_socket(cluster.socket(1), threads=3) as pool:
        assert (pool.rack, pool.page_bytes, pool.closed) == (1, PAGE, False)
        assert repr(pool) == "<rackpool.Pool from rack 1, open>"
        pool.ping()
    assert pool.closed
    assert repr(pool) == "<rackpool.Pool from rack 1, closed>"
    pool.close()


def test_what_is_allocated_outlives_its_pool(cluster, pool):
    with cluster.open(1) as other:
        addr = other.alloc(100)
        other.write(addr, contents(100))
    assert pool.read(addr, 100) == contents(100)
    pool.free(addr)


def test_the_module_says_what_it_has():
    for name in ("Address", "Pool", "Table", "RackpoolError", "Inherited", "__version__"):
        assert name in rackpool.__all__ and hasattr(rackpool, name)
