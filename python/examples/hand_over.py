"""Two processes in two racks hand a large array over: one fills it in place, the other reads it.

    rackpool up --racks 2 --dir /dev/shm/rackpool      # in another terminal
    python3 hand_over.py /dev/shm/rackpool

The producer writes into memory of its rack. The consumer's first `get` brings the object into its
own rack, over the fabric; a second one there copies nothing.
"""

import argparse
import multiprocessing
import time

import numpy

import rackpool

#: Names the layout of the bytes: 64-bit floats. A reader that expects another one is told so.
FLOAT64 = 1


def produce(pool_dir, name, count):
    """In rack 0: creates an array of `count` numbers and seals it."""
    with rackpool.Pool(pool_dir, rack=0) as pool:
        store = rackpool.ObjectStore(pool, name)
        with store.create("squares", count * 8, metadata=b"n * n", layout_tag=FLOAT64) as unsealed:
            array = numpy.frombuffer(unsealed, dtype=numpy.float64)
            array[:] = numpy.arange(count)
            array *= array
            # The bytes may not change any more, so the array that writes them has to go.
            del array


def consume(pool_dir, name, count):
    """In rack 1: reads the array twice, from the other rack and from its own."""
    with rackpool.Pool(pool_dir, rack=1) as pool:
        store = rackpool.ObjectStore(pool, name)
        for source in ("the other rack", "this rack"):
            start = time.perf_counter()
            view = store.get("squares", layout_tag=FLOAT64)
            elapsed_ms = (time.perf_counter() - start) * 1000
            array = numpy.frombuffer(view, dtype=numpy.float64)
            assert len(array) == count and array[-1] == (count - 1) ** 2
            print(f"{view.metadata.decode()}: {len(view)} B from {source} in {elapsed_ms:.2f} ms")


def run(function, *arguments):
    process = multiprocessing.Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise SystemExit(f"{function.__name__} failed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pool", help="the folder of the pool")
    parser.add_argument("--store", default="hand-over", help="the name of the object store")
    parser.add_argument("--numbers", type=int, default=4 << 20, help="how many numbers (8 B each)")
    options = parser.parse_args()
    run(produce, options.pool, options.store, options.numbers)
    run(consume, options.pool, options.store, options.numbers)
    with rackpool.Pool(options.pool, rack=0) as pool:
        rackpool.ObjectStore(pool, options.store).delete("squares")


if __name__ == "__main__":
    main()
