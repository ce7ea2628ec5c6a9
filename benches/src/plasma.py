"""Times puts and gets of objects by pyarrow, at two stores in turn.

Arguments: the sockets of both stores, then sizes in bytes. Prints a line for each size: medians in
microseconds of put and get at the first store, then at the second, then of both ratios.
"""

import sys
from statistics import median
from time import perf_counter

import numpy
import pyarrow.plasma as plasma

# Rounds of a comparison, after one that is not counted. A round takes the median of its operations.
ROUNDS = 15


def round_of(client, data, operations):
    """The median times of a put and of a get, in microseconds."""
    puts, gets = [], []
    for _ in range(operations):
        name = plasma.ObjectID.from_random()
        began = perf_counter()
        numpy.frombuffer(client.create(name, len(data)), dtype="uint8")[:] = data
        client.seal(name)
        sealed = perf_counter()
        [buffer] = client.get_buffers([name])
        got = perf_counter()
        if len(buffer) != len(data) or buffer[-1:].to_pybytes()[0] != data[-1]:
            raise SystemExit("other bytes came back")
        del buffer
        client.delete([name])
        puts.append(sealed - began)
        gets.append(got - sealed)
    return median(puts) * 1e6, median(gets) * 1e6


def main(sockets, sizes):
    clients = [plasma.connect(socket) for socket in sockets]
    for size in sizes:
        data = numpy.full(size, 7, dtype="uint8")
        operations = 300 if size < 1 << 16 else 50 if size < 1 << 24 else 3
        rounds = []
        for number in range(ROUNDS + 1):
            times = [time for client in clients for time in round_of(client, data, operations)]
            if number > 0:
                rounds.append(times + [times[0] / times[2], times[1] / times[3]])
        print(*(f"{median(column):.4f}" for column in zip(*rounds)), flush=True)


main(sys.argv[1:3], [int(size) for size in sys.argv[3:]])
