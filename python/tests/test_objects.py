"""Object stores: buffers of the pool's memory, views, replicas, errors."""

import array
import asyncio
import gc
import threading
import time

import pytest

import rackpool
from cluster import LARGE, PAGE, Cluster, is_back, settled, wait_until
from test_pool import contents


@pytest.mark.parametrize("size", [0, 1, 100, PAGE - 1, PAGE, LARGE])
def test_objects_are_read_back_in_both_racks(store, far_store, size):
    wanted = contents(size)
    store.put(b"put", wanted, metadata=b"about it", layout_tag=7)
    with store.create("created", size, b"about it", 7) as unsealed:
        assert len(unsealed) == size
        with memoryview(unsealed) as buffer:
            assert not buffer.readonly and buffer.nbytes == size and buffer.format == "B"
            buffer[:] = wanted
    for reader in (store, far_store):
        for name in (b"put", "created"):
            view = reader.get(name)
            assert bytes(view) == wanted and len(view) == size
            assert (view.metadata, view.layout_tag) == (b"about it", 7)
            view.verify()
    put, created = store.get(b"put"), far_store.get(b"created")
    assert put.checksum == created.checksum == store.stat(b"put").info.checksum
    assert abs(put.created_ms / 1000 - time.time()) < 600


def test_a_view_is_read_only(store):
    store.put(b"id", b"bytes")
    view = store.get(b"id")
    buffer = memoryview(view)
    assert buffer.readonly
    with pytest.raises(TypeError):
        buffer[0] = 1
    with open("/dev/zero", "rb", buffering=0) as zeros:
        with pytest.raises(TypeError, match="read-write bytes-like object"):
            zeros.readinto(view)
    assert bytes(view) == b"bytes"


def test_nothing_is_copied(pool, store):
    """What one buffer changes the other ones show, and views of an object are the same memory."""
    numpy = pytest.importorskip("numpy")
    unsealed = store.create(b"id", LARGE)
    first, second = memoryview(unsealed), numpy.frombuffer(unsealed, dtype=numpy.uint8)
    second[LARGE - 1] = 5
    assert first[LARGE - 1] == 5
    first[0] = 6
    assert second[0] == 6
    first.release()
    del second
    unsealed.seal()
    arrays = [numpy.frombuffer(store.get(b"id"), dtype=numpy.uint8) for _ in range(2)]
    assert arrays[0].ctypes.data == arrays[1].ctypes.data
    assert not arrays[0].flags.writeable and not arrays[0].flags.owndata
    before = resident()
    views = [memoryview(store.get(b"id")) for _ in range(1000)]
    assert resident() - before < 500 * LARGE
    assert all(view[LARGE - 1] == 5 for view in views)


def resident():
    """The private memory of this process in bytes: pages of the pool are shared."""
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("RssAnon:")]
    return int(line.split()[1]) << 10


def test_arrays_of_numpy_are_stored_and_seen(store, far_store):
    numpy = pytest.importorskip("numpy")
    wanted = numpy.arange(50_000, dtype=numpy.float64).reshape(500, 100)
    store.put("array", wanted)
    with store.create("in place", wanted.nbytes) as unsealed:
        into = numpy.frombuffer(unsealed, dtype=wanted.dtype).reshape(wanted.shape)
        numpy.multiply(wanted, 2, out=into)
        del into
    for reader in (store, far_store):
        found = numpy.frombuffer(reader.get("array"), dtype=wanted.dtype).reshape(wanted.shape)
        assert (found == wanted).all()
        with pytest.raises(ValueError, match="read-only"):
            found[0, 0] = 1
        assert numpy.frombuffer(reader.get("in place"), wanted.dtype).sum() == 2 * wanted.sum()
    with pytest.raises(TypeError, match="not C-contiguous"):
        store.put("strided", wanted[:, ::2])
    assert "strided" not in store


def test_any_contiguous_buffer_is_put(store):
    numbers = array.array("d", [1.5, -2.5, 3.5])
    table = memoryview(bytearray(range(24))).cast("I", [3, 2])
    empty = [b"", bytearray(), memoryview(b""), array.array("d")]
    for buffer in [bytearray(b"bytearray"), memoryview(b"memoryview")[2:5], numbers, table, *empty]:
        store.put(b"id", buffer)
        assert bytes(store.get(b"id")) == memoryview(buffer).tobytes()
        assert store.delete(b"id")
    for wrong in ("text", 7, None, [1], memoryview(bytes(8))[::2]):
        with pytest.raises(TypeError):
            store.put(b"id", wrong)
    assert store.list() == []


def test_a_buffer_forbids_seal_and_abort(store):
    unsealed = store.create(b"id", 100)
    buffer = memoryview(unsealed)
    other = memoryview(buffer)[3:]
    for use in (unsealed.seal, unsealed.abort):
        with pytest.raises(BufferError, match="release each memoryview"):
            use()
    buffer.release()
    with pytest.raises(BufferError):
        unsealed.seal()
    other[:] = contents(97)
    other.release()
    assert b"id" not in store
    unsealed.seal()
    assert bytes(store.get(b"id"))[3:] == contents(97)


def test_an_object_is_sealed_or_aborted_once(store):
    sealed, aborted = store.create(b"id", 8), store.create(b"other", 8)
    assert "not sealed" in repr(sealed)
    sealed.seal()
    aborted.abort()
    for over in (sealed, aborted):
        for use in (over.seal, over.abort, over.__enter__):
            with pytest.raises(ValueError, match="sealed or aborted already"):
                use()
        with pytest.raises(ValueError, match="sealed or aborted already"):
            memoryview(over)
        assert len(over) == 8 and "sealed or aborted" in repr(over)
    assert b"id" in store and b"other" not in store


def test_the_first_to_seal_an_id_wins(store, far_store):
    first, second = store.create(b"id", 1), far_store.create(b"id", 1)
    second.seal()
    with pytest.raises(rackpool.Exists, match="objects do not change"):
        first.seal()
    with pytest.raises(ValueError):
        first.seal()
    for use in (lambda: store.create(b"id", 1), lambda: store.put(b"id", b"1")):
        with pytest.raises(rackpool.Exists):
            use()
    assert store.delete(b"id") is True and store.delete(b"id") is False
    store.put(b"id", b"again")
    assert bytes(far_store.get(b"id")) == b"again"


def test_a_context_seals_and_an_exception_aborts(cluster, store):
    before = settled(cluster)
    with store.create(b"sealed", LARGE):
        pass
    with store.create(b"by hand", 1) as unsealed:
        unsealed.seal()
    assert b"sealed" in store and b"by hand" in store
    kept = []
    with pytest.raises(KeyError):
        with store.create(b"failed", LARGE) as unsealed:
            kept.append(memoryview(unsealed))
            raise KeyError
    # The buffer is valid to its end, and the object is not sealed any more.
    kept[0][:] = bytes(LARGE)
    with pytest.raises(ValueError):
        memoryview(unsealed)
    with pytest.raises(BufferError):
        unsealed.seal()
    kept[0].release()
    with pytest.raises(ValueError):
        unsealed.seal()
    assert b"failed" not in store
    with pytest.raises(BufferError):
        with store.create(b"held", LARGE) as unsealed:
            kept.append(memoryview(unsealed))
    kept[1].release()
    unsealed.seal()
    for name in ("sealed", "by hand", "held"):
        assert store.delete(name)
    wait_until("the memory is back", lambda: is_back(cluster, before))


def test_an_object_that_is_dropped_is_freed(cluster, store):
    store.put(b"tables are made", b"")
    before = settled(cluster)
    objects = [store.create(b"%d" % number, LARGE) for number in range(10)]
    buffers = [memoryview(unsealed) for unsealed in objects]
    assert cluster.allocated()[0] > before[0] + 10 * LARGE
    del objects
    buffers[0][0] = 1
    del buffers
    gc.collect()
    wait_until("the memory is back", lambda: is_back(cluster, before))
    assert len(store.list()) == 1


def test_a_buffer_outlives_view_object_store_and_pool(cluster, store):
    wanted = contents(LARGE)
    store.put(b"id", wanted)
    pool = cluster.open(1)
    own = rackpool.ObjectStore(pool, store.name)
    buffers = [memoryview(own.get(b"id")), memoryview(own.get(b"id"))[5:10]]
    view = own.get(b"id")
    assert store.delete(b"id") is True
    assert own.get(b"id") is None
    pool.close()
    assert bytes(view) == wanted
    del own, pool, view
    gc.collect()
    # Memory that was free would be used for these.
    for number in range(20):
        store.put(b"%d" % number, bytes(LARGE))
    assert buffers[0] == wanted and buffers[1] == wanted[5:10]
    assert bytes(memoryview(buffers[0].obj)) == wanted
    buffers[0].obj.verify()


def test_the_memory_of_a_deleted_object_comes_back_with_its_last_buffer(cluster, store):
    store.put(b"tables are made", b"")
    before = settled(cluster)
    store.put(b"id", bytes(LARGE))
    buffer = memoryview(store.get(b"id"))
    store.delete(b"id")
    assert settled(cluster)[0] > before[0] + LARGE
    buffer.release()
    wait_until("the memory is back", lambda: is_back(cluster, before))


def test_a_store_ends_with_its_pool(cluster):
    pool = cluster.open(0)
    store = rackpool.ObjectStore(pool, "python-objects-end")
    other = rackpool.ObjectStore(pool, "python-objects-end")
    del other
    unsealed = store.create(b"id", 8)
    pool.close()
    for use in (
        lambda: store.get(b"id"),
        lambda: store.create(b"other", 8),
        lambda: store.put(b"other", b""),
        lambda: store.list(),
        lambda: unsealed.seal(),
        lambda: rackpool.ObjectStore(pool, "python-objects-end"),
    ):
        with pytest.raises(rackpool.Closed, match="open it again"):
            use()
    unsealed.abort()


def test_objects_are_listed(store, far_store):
    store.put("b-2", b"12345", metadata=b"m", layout_tag=9)
    far_store.put("a", b"")
    store.put("b-1", b"1")
    with store.create("b-0", 1):
        assert [info.id for info in store.list()] == [b"a", b"b-1", b"b-2"]
    assert [info.id for info in store.list(prefix="b-")] == [b"b-0", b"b-1", b"b-2"]
    assert [info.id for info in far_store.list(b"b-2")] == [b"b-2"]
    assert store.list(b"c") == [] == store.list(bytes(100))
    (info,) = store.list(b"b-2")
    found = (info.id, info.size, info.metadata_size, info.layout_tag, info.rack)
    assert found == (b"b-2", 5, 1, 9, 0)
    assert repr(info) == '<rackpool.ObjectInfo of "b-2": 5 B from rack 0>'
    assert store.list(b"a")[0].rack == 1


def test_stat_says_where_an_object_is(pool, store, far_store):
    assert store.stat(b"id") is None
    store.put(b"id", bytes(LARGE))
    stat = store.stat(b"id")
    assert stat.info == store.list()[0] and stat.info.size == LARGE
    assert pool.is_local(stat.addr) and stat.pieces >= 1 and stat.replicas == []
    assert abs(stat.last_use_ms - stat.info.created_ms) < 60_000
    far_store.get(b"id")
    assert far_store.stat(b"id").replicas == [1] == store.stat(b"id").replicas
    assert repr(store.stat(b"id")).endswith("1 replicas>")
    assert store.stat(b"id") == store.stat(b"id") != stat


@pytest.mark.parametrize("wrong", [b"", b"x" * 65, "", "ü" * 33])
def test_ids_have_1_to_64_bytes(store, wrong):
    for use in (
        lambda: store.create(wrong, 1),
        lambda: store.put(wrong, b""),
        lambda: store.put(wrong, bytearray()),
        lambda: store.get(wrong),
        lambda: store.delete(wrong),
        lambda: store.stat(wrong),
        lambda: wrong in store,
    ):
        with pytest.raises(rackpool.IdLength, match="1 to 64 bytes"):
            use()
    store.put("ü" * 32, b"")
    assert ("ü" * 32).encode() in store and store.list()[0].id == ("ü" * 32).encode()


@pytest.mark.parametrize("wrong", [7, None, 1.5, [b"id"]])
def test_ids_are_bytes_or_text(store, wrong):
    for use in (
        lambda: store.create(wrong, 1),
        lambda: store.put(wrong, b""),
        lambda: store.get(wrong),
        lambda: store.delete(wrong),
        lambda: store.stat(wrong),
        lambda: wrong in store,
    ):
        with pytest.raises(TypeError, match="bytes-like object is required"):
            use()
    with pytest.raises(UnicodeEncodeError):
        store.get("\ud800")
    for options in ({"size": -1}, {"size": 1, "layout_tag": -1}, {"size": 2**64}):
        with pytest.raises(ValueError, match="it must be"):
            store.create(b"id", **options)


def test_errors_of_stores(pool, store):
    with pytest.raises(rackpool.NotAStore, match="no object store `python-none`: create it"):
        rackpool.ObjectStore(pool, "python-none", create=False)
    rackpool.Table(pool, "python-a-table")
    with pytest.raises(rackpool.NotAStore, match="choose another name"):
        rackpool.ObjectStore(pool, "python-a-table")
    with pytest.raises(rackpool.RootError):
        rackpool.ObjectStore(pool, "")
    with pytest.raises(TypeError):
        rackpool.ObjectStore("pool", "name")
    with pytest.raises(TypeError):
        rackpool.UnsealedObject()
    with pytest.raises(rackpool.TooLarge):
        store.create(b"id", 1 << 40)
    store.put(b"id", b"bytes", layout_tag=3)
    assert bytes(store.get(b"id", layout_tag=3)) == b"bytes"
    with pytest.raises(rackpool.LayoutTag, match="0x3, not 0x4"):
        store.get(b"id", layout_tag=4)
    assert store.get(b"absent", layout_tag=4) is None
    assert store.name in repr(store) and repr(store.get(b"id")) == "<rackpool.View of 5 B>"


def test_a_store_of_another_version_and_damaged_bytes(pool, store, far_store):
    rackpool.ObjectStore(pool, "python-objects-version")
    header = pool.root("python-objects-version")
    pool.write(header + 8, (99).to_bytes(4, "little"))
    with pytest.raises(rackpool.Version, match="format 99"):
        rackpool.ObjectStore(pool, "python-objects-version")
    store.put(b"id", b"bytes of an object")
    view, addr = store.get(b"id"), store.stat(b"id").addr
    start = pool.read(addr, 1024).index(b"bytes of an object")
    pool.write(addr + start, b"B")
    with pytest.raises(rackpool.Damaged, match="some program wrote to its memory"):
        view.verify()
    with pytest.raises(rackpool.Damaged):
        far_store.get(b"id")


def test_a_full_rack_says_so():
    """A delete takes 128 B of the pool for a moment, which the other rack has."""
    with Cluster(memory=32 * PAGE) as cluster, cluster.open(0) as pool:
        store, stored = rackpool.ObjectStore(pool, "full"), 0
        with pytest.raises(rackpool.RackFull, match="free objects there"):
            while True:
                store.put(b"%d" % stored, bytes(3 * PAGE))
                stored += 1
        assert stored >= 5 and store.delete(b"0")
        wait_until("there is room", lambda: is_stored(store))


def is_stored(store):
    try:
        store.put(b"again", bytes(2 * PAGE))
    except rackpool.RackFull:
        return False
    return True


def test_waits_for_objects(store, far_store):
    ids = [b"one", "two", b"three"]
    assert store.wait(ids, timeout=0) == [False] * 3
    assert store.wait([]) == [] and store.wait(ids, count=0) == [False] * 3
    begin = time.monotonic()
    assert far_store.wait(ids, 1, 0.12) == [False] * 3
    assert 0.12 <= time.monotonic() - begin < 60
    store.put("two", b"2")
    assert far_store.wait(ids, count=1) == [False, True, False]
    worker = threading.Thread(target=lambda: [time.sleep(0.2), far_store.put(b"one", b"1")])
    worker.start()
    assert store.wait(ids, 2) == [True, True, False]
    worker.join()
    store.put(b"three", b"3")

    async def wait(*arguments):
        return await far_store.wait_async(*arguments)

    assert asyncio.run(wait(ids)) == [True] * 3
    assert asyncio.run(wait(["none"], 1, 0.1)) == [False]
    views = far_store.get_many(ids + ["none"])
    assert [view and bytes(view) for view in views] == [b"1", b"2", b"3", None]
    assert store.fetch(["one", "none"]) == [True, False]
    with pytest.raises(ValueError, match="0 s or more"):
        store.wait(ids, timeout=-1)
    with pytest.raises(rackpool.IdLength):
        store.wait([b""], timeout=0)


def test_a_store_with_a_capacity_is_a_cache(store):
    assert (store.capacity, store.policy, store.time_to_live) == (None, "keep", None)
    store.set_options(capacity=4 * LARGE)
    store.put("first", bytes(LARGE))
    viewed = store.get("first")
    with pytest.raises(rackpool.StoreFull, match="raise the capacity"):
        store.put("huge", bytes(4 * LARGE))
    store.set_options(4 * LARGE, "lru", 3600)
    assert (store.capacity, store.policy, store.time_to_live) == (4 * LARGE, "lru", 3600.0)
    for number in range(10):
        store.put(f"more {number}", bytes(LARGE))
    left = [info.id for info in store.list()]
    assert b"first" in left and b"more 9" in left and len(left) <= 4
    assert bytes(viewed) == bytes(LARGE)
    assert store.evict(1) > 0 and len(store.list()) == len(left) - 1
    for wrong in ({"capacity": 0}, {"policy": "fifo"}, {"time_to_live": 0.0}, {"capacity": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong)).replace("_", "[ _]")):
            store.set_options(**wrong)


def test_objects_move_to_files_and_come_back(store, far_store):
    store.set_options(policy="spill")
    assert store.policy == "spill"
    store.put("id", contents(LARGE), metadata=b"more")
    assert store.evict(LARGE) > 0
    (info,) = store.list()
    assert info.is_spilled and "id" in store and store.stat("id").pieces == 0
    # No agent runs in its rack.
    with pytest.raises(rackpool.NotRestored, match="rackpool agent"):
        far_store.get("id")
    view = store.get("id")
    assert bytes(view) == contents(LARGE) and bytes(view.metadata) == b"more"
    assert not store.list()[0].is_spilled
    assert bytes(far_store.get("id")) == contents(LARGE)
    assert store.repair() == 0


def test_a_store_is_removed_and_counts_what_it_did(pool, far):
    own = rackpool.ObjectStore(pool, "python-removed")
    reader = rackpool.ObjectStore(far, "python-removed")
    own.put(b"id", contents(LARGE))
    view = reader.get(b"id")
    assert reader.get(b"id") is not None and reader.get(b"none") is None
    counted = reader.stats()
    assert (counted["transfers"], counted["transferred_bytes"]) == (1, LARGE)
    assert (counted["far_gets"], counted["local_gets"], counted["absent_gets"]) == (2, 0, 1)
    assert (own.stats()["seals"], own.stats()["sealed_bytes"]) == (1, LARGE)
    assert rackpool.ObjectStore.remove(pool, "python-removed")
    assert not rackpool.ObjectStore.remove(pool, "python-removed")
    for store in (own, reader):
        with pytest.raises(rackpool.Removed, match="create it anew"):
            store.get(b"id")
    assert bytes(view) == contents(LARGE)
