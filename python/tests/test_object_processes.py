"""Object stores: threads, forks, other processes, and processes that are killed."""

import multiprocessing
import subprocess
import sys
import threading
import time

import pytest

import rackpool
from cluster import LARGE, is_back, settled, wait_until
from test_pool import contents
from test_processes import in_a_child, is_inherited


def test_a_child_has_no_objects_of_its_parent(cluster, store):
    store.put(b"id", b"bytes")
    view, unsealed, given_up = store.get(b"id"), store.create(b"u", 8), store.create(b"g", 8)
    before = settled(cluster)

    def work():
        for use in (
            lambda: store.get(b"id"),
            lambda: store.create(b"other", 8),
            lambda: store.put(b"other", b"bytes"),
            lambda: store.put(b"other", bytearray(b"bytes")),
            lambda: b"id" in store,
            lambda: store.delete(b"id"),
            lambda: store.list(),
            lambda: store.stat(b"id"),
            lambda: memoryview(view),
            lambda: view.metadata,
            lambda: view.verify(),
            lambda: memoryview(unsealed),
            lambda: unsealed.seal(),
            lambda: unsealed.abort(),
        ):
            is_inherited(use)
        with pytest.raises(KeyError):
            with unsealed:
                raise KeyError
        with cluster.open(0) as own:
            assert bytes(rackpool.ObjectStore(own, store.name).get(b"id")) == b"bytes"

    in_a_child(work)
    wait_until("the memory is back", lambda: is_back(cluster, before))
    with unsealed:
        memoryview(unsealed)[:] = b"8 bytes."
    given_up.abort()
    assert bytes(store.get(b"u")) == b"8 bytes." and bytes(view) == b"bytes"


def test_a_child_that_ends_with_all_finalizers_leaves_the_objects(cluster, store):
    program = """
import os, sys, rackpool
pool = rackpool.Pool(sys.argv[1], 0)
store = rackpool.ObjectStore(pool, sys.argv[2])
store.put(b"id", b"bytes")
view, unsealed = store.get(b"id"), store.create(b"unsealed", 100_000)
if os.fork() == 0:
    del view, unsealed
    sys.exit(0)
assert os.wait()[1] == 0
memoryview(unsealed)[:] = bytes(100_000)
unsealed.seal()
assert bytes(view) == b"bytes" and bytes(store.get(b"unsealed")) == bytes(100_000)
"""
    run = [sys.executable, "-c", program, cluster.dir, store.name]
    subprocess.run(run, check=True, timeout=60)
    assert len(store.list()) == 2


def test_a_fork_while_threads_use_a_store(cluster, store):
    goes_on, errors = True, []
    store.put(b"id", bytes(1000))

    def use(number):
        try:
            while goes_on:
                with store.create(b"%d" % number, 1000) as unsealed:
                    memoryview(unsealed)[:] = store.get(b"id")
                assert store.delete(b"%d" % number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=[number]) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        in_a_child(lambda: is_inherited(lambda: store.get(b"id")))
    goes_on = False
    for thread in threads:
        thread.join()
    assert errors == []


def killed_program(cluster, store, work):
    """Runs `work` in a process of rack 0 until it prints a line, and kills it then."""
    program = f"""
import sys, time, rackpool
pool = rackpool.Pool(sys.argv[1], 0)
store = rackpool.ObjectStore(pool, sys.argv[2])
{work}
print("ready", flush=True)
time.sleep(1000)
"""
    run = [sys.executable, "-c", program, cluster.dir, store.name]
    return subprocess.Popen(run, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_creator_has_not_sealed_comes_back(cluster, store):
    store.put(b"sealed before", bytes(LARGE))
    before = settled(cluster)
    work = f"""
store.put(b"sealed", b"kept")
objects = [store.create(b"%d" % number, {LARGE}) for number in range(20)]
buffers = [memoryview(unsealed) for unsealed in objects]
buffers[3][:] = bytes({LARGE})
"""
    with killed_program(cluster, store, work) as process:
        assert process.stdout.readline() == "ready\n"
        assert cluster.allocated()[0] > before[0] + 20 * LARGE
        process.kill()
    assert sorted(info.id for info in store.list()) == [b"sealed", b"sealed before"]
    assert bytes(store.get(b"sealed")) == b"kept"
    store.delete(b"sealed")
    wait_until("the memory is back", lambda: is_back(cluster, before))


def test_what_a_killed_reader_held_comes_back(cluster, store):
    store.put(b"tables are made", b"")
    before = settled(cluster)
    store.put(b"id", bytes(LARGE))
    work = "buffers = [memoryview(store.get(b'id')) for _ in range(10)]"
    with killed_program(cluster, store, work) as process:
        assert process.stdout.readline() == "ready\n"
        store.delete(b"id")
        assert settled(cluster)[0] > before[0] + LARGE
        process.kill()
    wait_until("the memory is back", lambda: is_back(cluster, before))


def reverse(folder, name, requests, answers):
    """A process in rack 1: reads objects of rack 0, answers with objects of its own."""
    with rackpool.Pool(folder, 1) as pool:
        store = rackpool.ObjectStore(pool, name)
        while (key := requests.get()) is not None:
            view = store.get(key)
            with store.create(key + b"-reversed", len(view)) as answer:
                memoryview(answer)[:] = bytes(view)[::-1]
            answers.put(key + b"-reversed")


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_processes_in_two_racks_hand_objects_over(cluster, store, method):
    context = multiprocessing.get_context(method)
    requests, answers = context.Queue(), context.Queue()
    arguments = [str(cluster.dir), store.name, requests, answers]
    other = context.Process(target=reverse, args=arguments)
    other.start()
    try:
        for size in (1, 100, LARGE):
            store.put(b"%d" % size, contents(size))
            requests.put(b"%d" % size)
            answer = store.get(answers.get(timeout=60))
            assert bytes(answer) == contents(size)[::-1]
    finally:
        requests.put(None)
        other.join(60)
    assert other.exitcode == 0


def test_a_call_that_waits_lets_other_threads_run(cluster, store):
    """A store whose daemon is stopped waits; a thread counts meanwhile."""
    with cluster.open(1, request_timeout=1) as pool:
        own = rackpool.ObjectStore(pool, store.name)
        own.put(b"tables are made", b"")
        cluster.pause("rack-1")
        counted, waits = 0, threading.Event()

        def wait():
            with pytest.raises(rackpool.Unavailable):
                own.create(b"id", LARGE)
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


def test_threads_share_a_store(store, far_store):
    errors = []

    def use(number):
        try:
            for turn in range(20):
                key = b"%d-%d" % (number, turn)
                own, other = (store, far_store) if turn % 2 else (far_store, store)
                own.put(key, bytearray(key * 100))
                assert bytes(other.get(key)) == key * 100
                assert other.delete(key) and key not in own
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and store.list() == []
