"""A pool of real processes: a metadata server and rack daemons, which end with this process."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import rackpool

#: The folder of the programs that cargo has built.
BINARIES = Path(os.environ.get("RACKPOOL_BINARIES", Path(__file__).parents[2] / "target" / "debug"))
#: The page size: small, so that pages fill up and empty quickly.
PAGE = 64 << 10
#: The size of a large object, which takes six pages.
LARGE = 5 * PAGE + 123
#: How long anything may take, in seconds: more than a busy machine needs.
TIMEOUT = 60.0


def wait_until(what, is_so):
    """Waits until `is_so()` is true."""
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < end, f"after {TIMEOUT} s still not: {what}"
        time.sleep(0.01)


def listens(path):
    """Whether a process listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class Cluster:
    """Two racks, whose pages stay where they are allocated."""

    def __init__(self, racks=2, memory=16 << 20, kind="tmpfs", lease_ms=20_000):
        parent = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.dir = Path(tempfile.mkdtemp(prefix="rackpool-python-", dir=parent))
        self.racks, self.memory, self.kind, self.lease_ms = racks, memory, kind, lease_ms
        self.processes = {}
        try:
            self.start_metadata("127.0.0.1:0")
            for rack in range(racks):
                self.start_daemon(rack)
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def _start(self, name, program, options):
        log = open(self.dir / f"{name}.log", "ab")
        arguments = [str(BINARIES / program), "--stop-with-stdin"]
        for option, value in options.items():
            arguments += [f"--{option}", str(value)]
        with log:
            process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )
        self.processes[name] = process

    def _wait(self, name, is_ready):
        def is_over():
            assert self.processes[name].poll() is None, (self.dir / f"{name}.log").read_text()
            return is_ready()

        wait_until(f"{name} is ready", is_over)

    def start_metadata(self, listen=None):
        address = self.dir / "metadata.addr"
        listen = listen or address.read_text().strip()
        address.unlink(missing_ok=True)
        options = {
            "listen": listen,
            "store": self.dir / "metadata.redb",
            "lease-ms": self.lease_ms,
            "address-file": address,
        }
        self._start("metadata", "rackpool-metaserver", options)
        self._wait("metadata", address.exists)

    def socket(self, rack):
        return self.dir / f"rack-{rack}" / "daemon.sock"

    def start_daemon(self, rack):
        options = {
            "rack": rack,
            "dir": self.dir,
            "metadata": (self.dir / "metadata.addr").read_text().strip(),
            "memory": self.memory,
            "page-size": PAGE,
            "memory-kind": self.kind,
            "spill-dir": self.dir / "disk",
            "lease-ms": self.lease_ms,
            "swap": "off",
            "nice": 0,
        }
        self._start(f"rack-{rack}", "rackpool-daemon", options)
        self._wait(f"rack-{rack}", lambda: listens(self.socket(rack)))

    def start_service(self, table):
        """Starts `rackpool-kv` over a table of rack 0; returns its socket."""
        path = self.dir / "kv.sock"
        options = {"dir": self.dir, "rack": 0, "unix": path, "table": table, "threads": 1}
        self._start("kv", "rackpool-kv", options)
        self._wait("kv", lambda: listens(path))
        return path

    def kill(self, name):
        """Kills a process with SIGKILL and waits for its end."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()

    def pause(self, name):
        """Stops a process with SIGSTOP and waits until all its threads stand still."""
        process = self.processes[name]
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)

    def resume(self, name):
        self.processes[name].send_signal(signal.SIGCONT)

    def open(self, rack, **options):
        return rackpool.Pool(self.dir, rack, **options)

    def allocated(self):
        """The bytes in use in each rack, as `rackpool status` shows them."""
        status = subprocess.run(
            [BINARIES / "rackpool", "status", "--json", "--dir", self.dir],
            check=True,
            stdout=subprocess.PIPE,
        )
        return [rack["metrics"]["allocated_bytes"] for rack in json.loads(status.stdout)["racks"]]

    def stop(self):
        names = sorted(self.processes, key=lambda name: name == "metadata")
        for name in names:
            process = self.processes.pop(name)
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def has_settled(cluster):
    before = cluster.allocated()
    time.sleep(0.3)
    return cluster.allocated() == before


def settled(cluster):
    """The bytes in use, once nothing is on its way back."""
    wait_until("nothing is freed", lambda: has_settled(cluster))
    return cluster.allocated()


def is_back(cluster, before):
    """Whether no large object is left. Programs that are open keep some small ones for reuse."""
    return all(used < then + 4 * PAGE for used, then in zip(cluster.allocated(), before))
