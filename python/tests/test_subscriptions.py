"""Subscriptions of object stores: what they tell, how they wait and how they end."""

import asyncio
import signal
import threading
import time
from pathlib import Path

import pytest

import rackpool
from cluster import wait_until
from test_processes import in_a_child, is_inherited


def told(subscription):
    """What a subscription tells at once: `+` and `-` before the ids."""
    signs = {"sealed": b"+", "deleted": b"-"}
    events = iter(lambda: subscription.next(timeout=0), None)
    return [signs[event.kind] + event.id for event in events]


def test_a_subscriber_is_told_of_what_is_there_and_of_each_change(store, far_store):
    store.put("x/0", b"12345", layout_tag=3)
    store.put("y", b"")
    some, everything = far_store.subscribe("x/"), store.subscribe()
    event = some.next()
    assert (event.kind, event.id, event.info) == ("sealed", b"x/0", store.stat("x/0").info)
    assert (event.info.size, event.info.layout_tag) == (5, 3)
    assert repr(event) == '<rackpool.StoreEvent: "x/0" sealed>'
    assert some.next(timeout=0) is None and told(everything) == [b"+x/0", b"+y"]
    far_store.put(b"x/1", b"1")
    store.delete("y")
    assert told(some) == [b"+x/1"] and told(everything) == [b"-y", b"+x/1"]
    store.delete("x/0")
    store.put("x/0", b"anew")
    assert told(some) == [b"-x/0", b"+x/0"] == told(everything)
    far_store.delete(b"x/1")
    gone = some.next(timeout=60)
    assert (gone.kind, gone.id, gone.info) == ("deleted", b"x/1", None)
    assert gone == everything.next(timeout=60) != event
    assert told(store.subscribe(prefix=b"z")) == []


def test_a_subscription_waits_and_lets_other_threads_run(store, far_store):
    events = far_store.subscribe(b"result/")
    begin = time.monotonic()
    assert events.next(0.12) is None and 0.12 <= time.monotonic() - begin < 60
    worker = threading.Thread(
        target=lambda: [(time.sleep(0.1), store.put(f"result/{n}", b"")) for n in range(3)]
    )
    worker.start()
    found = [event.id for _, event in zip(range(3), events)]
    worker.join()
    assert found == [b"result/0", b"result/1", b"result/2"]
    assert iter(events) is events
    store.put("result/3", b"")
    assert asyncio.run(first(events)).id == b"result/3"
    with pytest.raises(ValueError, match="0 s or more"):
        events.next(timeout=-1)
    with pytest.raises(TypeError, match="bytes-like object is required"):
        store.subscribe(7)


async def first(subscription):
    async for event in subscription:
        return event


def test_tasks_wait_while_others_run(store, far_store):
    async def consume(events, count):
        found = []
        async for event in events:
            found.append(event.id)
            if len(found) == count:
                return found

    async def produce():
        for number in range(20):
            await asyncio.sleep(0.005)
            far_store.put(f"n/{number:02}", b"")

    async def main():
        ids = [f"n/{number:02}" for number in range(20)]
        consumers = [consume(store.subscribe("n/"), 20) for _ in range(3)]
        waits = [store.wait_async([id]) for id in ids]
        return await asyncio.gather(*consumers, *waits, produce())

    *found, _ = asyncio.run(main())
    expected = [f"n/{number:02}".encode() for number in range(20)]
    assert found == [expected] * 3 + [[True]] * 20


def test_a_wait_that_is_cancelled_ends_its_thread_and_loses_no_change(store):
    events = store.subscribe()

    async def main():
        for number in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(events), 0.02)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(store.wait_async(["none"]), 0.001)
            # The next wait begins when the thread of the last one has ended.
            await asyncio.sleep(0.1)
            store.put(str(number), b"")
            assert (await anext(events)).id == str(number).encode()

    def threads():
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    asyncio.run(main())
    wait_until("the threads have ended", lambda: threads() <= before)
    with pytest.raises(RuntimeError, match="no running event loop"):
        store.wait_async(["none"])


def test_an_error_ends_a_wait_of_asyncio(cluster, store):
    async def main():
        pool = cluster.open(1)
        other = rackpool.ObjectStore(pool, store.name)
        waits = [other.wait_async(["none"]), anext(other.subscribe())]
        await asyncio.sleep(0.1)
        pool.close()
        for wait in waits:
            with pytest.raises(rackpool.Closed):
                await wait
        with pytest.raises(rackpool.IdLength):
            await store.wait_async([b""])

    asyncio.run(main())


def test_one_thread_at_a_time_uses_a_subscription(store):
    events, found = store.subscribe(), []
    waiter = threading.Thread(target=lambda: found.append(events.next()))
    waiter.start()
    is_refused = threading.Event()

    def look():
        try:
            assert events.next(timeout=0) is None
        except RuntimeError as error:
            assert "subscribe once for each thread" in str(error)
            is_refused.set()
        return is_refused.is_set()

    wait_until("the other thread waits", look)
    store.put("id", b"")
    waiter.join()
    assert [event.id for event in found] == [b"id"] and told(events) == []


def test_a_signal_ends_a_wait_and_the_subscription_stays(store):
    class Alarm(Exception):
        pass

    def ring(number, frame):
        raise Alarm

    events, before = store.subscribe(), signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Alarm):
            events.next()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    store.put("id", b"")
    assert told(events) == [b"+id"]


def test_a_subscription_outlives_its_store_object_and_ends_with_the_pool(cluster, store):
    pool = cluster.open(1)
    events, ends = rackpool.ObjectStore(pool, store.name).subscribe(), []
    store.put("id", b"")
    assert events.next().id == b"id"

    def wait():
        with pytest.raises(rackpool.Closed, match="open it again"):
            events.next()
        ends.append(True)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    pool.close()
    waiter.join(60)
    assert ends == [True]
    with pytest.raises(rackpool.Closed):
        next(events)


def test_a_child_has_no_subscription_of_its_parent(store):
    events = store.subscribe()
    in_a_child(lambda: is_inherited(lambda: events.next(timeout=0)))
    store.put("id", b"")
    assert told(events) == [b"+id"]


def test_a_removed_store_ends_its_subscriptions(pool, far):
    store = rackpool.ObjectStore(pool, "python-subscribed")
    events = rackpool.ObjectStore(far, store.name).subscribe()
    store.put("id", b"")
    assert told(events) == [b"+id"]
    assert rackpool.ObjectStore.remove(pool, store.name)
    with pytest.raises(rackpool.Removed, match="create it anew"):
        events.next(timeout=0)
