"""Threads, forks, other processes, and processes that are killed."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

import rackpool
from cluster import has_settled, wait_until


def in_a_child(work):
    """Runs `work` in a forked child, which ends as Python programs do; checks that it succeeds."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException as error:
            print(f"the child: {error!r}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "a check failed in the child"


def is_inherited(use):
    with pytest.raises(rackpool.Inherited, match="open it again here, after the fork"):
        use()


def test_a_child_is_told_whatever_it_does_and_the_parent_is_not_harmed(cluster, pool):
    addr, table = pool.alloc(64), rackpool.Table(pool, "python-fork")
    pool.store(addr, 7)
    table[b"key"] = b"value"
    items = table.items()
    before = cluster.allocated()

    def work():
        for use in (
            lambda: pool.alloc(8),
            lambda: pool.free(addr),
            lambda: pool.read(addr, 8),
            lambda: pool.readinto(addr, bytearray(8)),
            lambda: pool.write(addr, b"8 bytes."),
            lambda: pool.load(addr),
            lambda: pool.store(addr, 1),
            lambda: pool.fetch_add(addr, 1),
            lambda: pool.compare_exchange(addr, 7, 1),
            lambda: pool.is_local(addr),
            lambda: pool.root("name"),
            lambda: pool.set_root("name", None, addr),
            lambda: pool.ping(),
            lambda: table[b"key"],
            lambda: table.put(b"key", b"child"),
            lambda: table.count(),
            lambda: next(items),
            lambda: rackpool.Table(pool, "python-fork"),
        ):
            is_inherited(use)
        is_inherited_in_thread = threading.Thread(target=lambda: is_inherited(pool.ping))
        is_inherited_in_thread.start()
        is_inherited_in_thread.join()

    in_a_child(work)
    assert cluster.allocated() == before
    assert pool.load(addr) == 7 and table[b"key"] == b"value" and list(items)
    pool.free(addr)


def test_a_child_closes_what_it_inherited_and_opens_the_pool_for_itself(cluster):
    pool = cluster.open(0)
    addr = pool.alloc(64)
    pool.write(addr, b"of the parent")

    def work():
        pool.close()
        with cluster.open(0) as own:
            assert own.read(addr, 13) == b"of the parent"
            own.write(addr, b"of the child.")

    in_a_child(work)
    assert pool.read(addr, 13) == b"of the child."
    pool.free(addr)
    pool.close()


def test_a_child_that_exits_with_all_finalizers_does_not_harm_the_parent(cluster):
    program = """
import os, sys, rackpool
pool = rackpool.Pool(sys.argv[1], 0)
table = rackpool.Table(pool, "python-exit")
addr = pool.alloc(64)
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
pool.ping()
table[b"key"] = b"value"
pool.write(addr, b"unharmed")
assert pool.read(addr, 8) == b"unharmed"
pool.free(addr)
"""
    subprocess.run([sys.executable, "-c", program, cluster.dir], check=True, timeout=60)


def test_a_program_ends_while_its_threads_are_in_calls(cluster):
    program = """
import sys, threading, time, rackpool
pool = rackpool.Pool(sys.argv[1], 0)
table = rackpool.Table(pool, "python-end")
def use():
    while True:
        table[b"key"] = b"value"
        pool.ping()
for _ in range(4):
    threading.Thread(target=use, daemon=True).start()
time.sleep(0.05)
"""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", program, cluster.dir], check=True, timeout=60)


def test_a_fork_while_threads_use_the_pool(cluster, pool, far):
    addr, table = far.alloc(8), rackpool.Table(pool, "python-fork-threads")
    pool.store(addr, 0)
    goes_on, errors = True, []

    def use():
        try:
            while goes_on:
                pool.fetch_add(addr, 1)
                table[b"key"] = b"value"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()

    def work():
        is_inherited(pool.ping)
        is_inherited(lambda: table[b"key"])
        pool.close()
        with cluster.open(0) as own:
            own.ping()

    for _ in range(10):
        in_a_child(work)
    goes_on = False
    for thread in threads:
        thread.join()
    assert errors == []
    far.free(addr)


def test_more_threads_than_slots_share_a_pool(cluster):
    threads, turns = 12, 50
    with cluster.open(0, threads=2) as pool, cluster.open(1) as far:
        words, errors = [pool.alloc(8), far.alloc(8)], []
        table = rackpool.Table(pool, "python-threads")
        for word in words:
            pool.store(word, 0)

        def use(number):
            try:
                for turn in range(turns):
                    for word in words:
                        pool.fetch_add(word, 1)
                    table[b"%d-%d" % (number, turn)] = b"%d" % turn
            except BaseException as error:
                errors.append(error)

        users = [threading.Thread(target=use, args=[number]) for number in range(threads)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        assert errors == []
        assert [far.load(word) for word in words] == [threads * turns] * 2
        assert table.count() == threads * turns
        for word in words:
            pool.free(word)


def test_a_call_that_waits_lets_other_threads_run(cluster):
    """A pool whose daemon is stopped waits; a thread counts meanwhile."""
    with cluster.open(1, request_timeout=1) as pool:
        cluster.pause("rack-1")
        counted, waits = 0, threading.Event()

        def wait():
            with pytest.raises(rackpool.Unavailable):
                pool.ping()
            waits.set()

        try:
            waiter = threading.Thread(target=wait)
            waiter.start()
            while not waits.is_set():
                time.sleep(0.001)
                counted += 1
        finally:
            cluster.resume("rack-1")
        waiter.join()
        assert counted > 50


def test_a_pool_is_closed_while_threads_use_it(cluster):
    pool = cluster.open(0)
    addr, ends = pool.alloc(64), []

    def use():
        try:
            while True:
                pool.write(addr, b"bytes")
        except rackpool.Closed as error:
            ends.append(error)

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    time.sleep(0.05)
    pool.close()
    for user in users:
        user.join(60)
    assert len(ends) == 4
    with cluster.open(0) as pool:
        pool.free(addr)


def double(folder, requests, answers):
    """A process in rack 1: reads objects of rack 0, answers with objects of its own."""
    with rackpool.Pool(folder, 1) as pool:
        while (request := requests.get()) is not None:
            addr, size = request
            answer = pool.alloc(2 * size)
            pool.write(answer, 2 * pool.read(addr, size))
            answers.put(answer)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_in_two_racks_hand_bytes_over(cluster, pool, method):
    context = multiprocessing.get_context(method)
    requests, answers = context.Queue(), context.Queue()
    other = context.Process(target=double, args=[str(cluster.dir), requests, answers])
    other.start()
    try:
        for size in (1, 100, 100_000):
            addr = pool.alloc(size)
            pool.write(addr, bytes([size % 256]) * size)
            requests.put((addr, size))
            answer = answers.get(timeout=60)
            assert pool.read(answer, 2 * size) == bytes([size % 256]) * 2 * size
            pool.free(addr)
            pool.free(answer)
    finally:
        requests.put(None)
        other.join(60)
    assert other.exitcode == 0


def test_the_caches_of_a_killed_process_come_back_and_its_objects_stay(cluster):
    program = """
import sys, time, rackpool
pool = rackpool.Pool(sys.argv[1], 0)
objects = [pool.alloc(1000) for _ in range(500)]
for addr in objects[:20]:
    pool.write(addr, b"of the killed process")
for addr in objects[20:]:
    pool.free(addr)
table = rackpool.Table(pool, "python-killed")
table[b"acknowledged"] = b"kept"
print(*[int(addr) for addr in objects[:20]], flush=True)
while True:
    table[b"other"] = bytes(1000)
"""
    with cluster.open(0) as pool:
        rackpool.Table(pool, "python-killed")
    wait_until("caches are back", lambda: has_settled(cluster))
    before = cluster.allocated()
    process = subprocess.Popen(
        [sys.executable, "-c", program, cluster.dir], stdout=subprocess.PIPE, text=True
    )
    with process:
        objects = [rackpool.Address(int(raw)) for raw in process.stdout.readline().split()]
        time.sleep(0.2)
        process.kill()
    assert len(objects) == 20
    with cluster.open(1) as pool:
        assert all(pool.read(addr, 21) == b"of the killed process" for addr in objects)
        table = rackpool.Table(pool, "python-killed", create=False)
        assert table[b"acknowledged"] == b"kept"
        for addr in objects:
            pool.free(addr)
        del table[b"acknowledged"], table[b"other"]
    wait_until("all is back", lambda: cluster.allocated() == before)
