"""The hash table."""

import socket
import time

import pytest

import rackpool


@pytest.fixture
def table(request, pool):
    return rackpool.Table(pool, f"python-{request.node.name}")


def test_it_works_like_a_mapping(table):
    assert table.get(b"key") is None and table.get(b"key", 7) == 7
    assert b"key" not in table
    table[b"key"] = b"value"
    assert table[b"key"] == b"value" == table.get(b"key", 7)
    assert b"key" in table
    assert table.put(b"key", b"other") is True
    assert table.put(b"", bytearray(b"")) is False
    assert table[b""] == b""
    assert sorted(table.items()) == [(b"", b""), (b"key", b"other")]
    assert sorted(table) == sorted(table.keys()) == [b"", b"key"]
    assert table.count() == 2
    assert table.delete(b"") is True and table.delete(b"") is False
    del table[b"key"]
    assert table.count() == 0 and list(table) == []


def test_absent_keys_are_key_errors(table):
    for use in (table.__getitem__, table.__delitem__, table.ttl):
        with pytest.raises(KeyError) as raised:
            use(b"absent")
        assert raised.value.args == (b"absent",)


def test_compare_and_put_stores_if_the_value_is_as_expected(table):
    assert table.compare_and_put(b"key", None, b"1") is True
    assert table.compare_and_put(b"key", None, b"2") is False
    assert table.compare_and_put(b"key", b"0", b"2") is False
    assert table.compare_and_put(b"key", b"1", b"2") is True
    assert table[b"key"] == b"2"


def test_entries_expire(table):
    table.put(b"short", b"1", ttl=0.2)
    table.put(b"long", b"2", ttl=1000)
    table.put(b"ever", b"3")
    assert 990 < table.ttl(b"long") <= 1000 and table.ttl(b"ever") is None
    time.sleep(0.25)
    assert b"short" not in table and table.get(b"short") is None
    assert sorted(table) == [b"ever", b"long"]
    table[b"long"] = b"4"
    assert table.ttl(b"long") is None


def test_a_table_is_found_from_the_other_rack(far, table):
    other = rackpool.Table(far, table.name, create=False)
    table[b"key"] = b"near"
    assert other[b"key"] == b"near"
    other[b"key"] = b"far"
    assert table[b"key"] == b"far"


def test_an_iterator_passes_through_a_large_table_while_it_changes(table):
    kept = {b"kept-%d" % number: b"%d" % number for number in range(3000)}
    for key, value in kept.items():
        table[key] = value
    seen = {}
    for number, (key, value) in enumerate(table.items()):
        seen[key] = value
        if number < 500:
            table[b"new-%d" % number] = b"x"
    assert {key: value for key, value in seen.items() if key in kept} == kept
    assert table.count() == 3500


def test_a_table_ends_with_its_pool_and_not_before(cluster):
    pool = cluster.open(0)
    table = rackpool.Table(pool, "python-ends")
    table[b"key"] = b"value"
    items = table.items()
    again = rackpool.Table(pool, "python-ends")
    del again
    assert table[b"key"] == b"value"
    pool.close()
    for use in (lambda: table[b"key"], table.count, lambda: next(items)):
        with pytest.raises(rackpool.Closed, match="open it again"):
            use()
    with pytest.raises(rackpool.Closed):
        rackpool.Table(pool, "python-ends")


def test_a_table_keeps_its_pool_open(cluster):
    pool = cluster.open(0)
    table = rackpool.Table(pool, "python-keeps")
    del pool
    table[b"key"] = b"value"
    assert table[b"key"] == b"value"


def test_errors_of_tables(pool, table):
    with pytest.raises(rackpool.NotATable, match="no table `python-none`: create it"):
        rackpool.Table(pool, "python-none", create=False)
    addr = pool.alloc(1024)
    pool.write(addr, bytes(1024))
    pool.set_root("python-no-table", None, addr)
    with pytest.raises(rackpool.NotATable):
        rackpool.Table(pool, "python-no-table")
    with pytest.raises(rackpool.RootError):
        rackpool.Table(pool, "")
    with pytest.raises(rackpool.KeyLength, match="at most 65535 bytes"):
        table[b"k" * 65536] = b""
    with pytest.raises(rackpool.TooLarge, match="larger pages"):
        table[b"key"] = bytes(pool.page_bytes)
    for options in ({"max_depth": 99}, {"max_depth": -1}, {"segment_bytes": 3}):
        with pytest.raises(ValueError):
            rackpool.Table(pool, "python-options", **options)


def test_damaged_bytes_are_corrupt(pool):
    table = rackpool.Table(pool, "python-corrupt")
    table[b"key"] = b"value"
    header = pool.root("python-corrupt")
    # What follows the magic number and the version.
    pool.write(header + 12, b"\xff" * 20)
    with pytest.raises(rackpool.Corrupt, match="table header"):
        rackpool.Table(pool, "python-corrupt")
    pool.write(header, bytes(8))
    with pytest.raises(rackpool.NotATable):
        rackpool.Table(pool, "python-corrupt")


def test_values_of_the_service_are_shared_with_it(cluster, pool):
    """`rackpool-kv` serves the same table: strings are the same, other kinds are told apart."""
    table = rackpool.Table(pool, "python-kv")
    table[b"ours"] = b"1"
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(str(cluster.start_service("python-kv")))
        service.settimeout(60)
        answers = service.makefile("rb")
        service.sendall(b"INCR ours\r\nSET theirs text EX 1000\r\nHSET hash field value\r\n")
        assert [answers.readline() for _ in range(3)] == [b":2\r\n", b"+OK\r\n", b":1\r\n"]
    cluster.kill("kv")
    assert table[b"ours"] == b"2"
    assert table[b"theirs"] == b"text" and 990 < table.ttl(b"theirs") <= 1000
    assert b"hash" in table
    for use in (table.get, table.__getitem__):
        with pytest.raises(rackpool.OtherKind, match="the service that stored it"):
            use(b"hash")
    assert sorted(table) == [b"ours", b"theirs"]


def test_a_table_without_depth_becomes_full(pool):
    table = rackpool.Table(pool, "python-full", max_depth=0, segment_bytes=256)
    with pytest.raises(rackpool.TableFull, match="max_depth"):
        for number in range(1000):
            table[b"%d" % number] = b""


@pytest.mark.parametrize("wrong", ["text", 7, None, [1]])
def test_keys_and_values_are_bytes(table, wrong):
    for use in (table.get, table.__getitem__, table.__contains__, table.delete, table.ttl):
        with pytest.raises(TypeError, match="bytes-like object is required"):
            use(wrong)
    with pytest.raises(TypeError, match="bytes-like object is required"):
        table[b"key"] = wrong
    with pytest.raises(TypeError, match="bytes-like object is required"):
        table.compare_and_put(b"key", None, wrong)
    assert table.count() == 0


@pytest.mark.parametrize("ttl", [0, -1, 0.0001, float("nan"), float("inf")])
def test_a_time_to_live_is_positive(table, ttl):
    with pytest.raises(ValueError, match="ttl is"):
        table.put(b"key", b"value", ttl=ttl)
