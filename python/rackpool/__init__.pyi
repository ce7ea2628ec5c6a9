from collections.abc import Awaitable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Optional, TypeVar, Union, final, overload

__version__: str

# An object with the buffer protocol. `typing` has no such type before Python 3.12.
_Buffer = Any
_Id = Union[bytes, bytearray, memoryview, str]
_Default = TypeVar("_Default")
_Path = Union[str, PathLike[str]]

@final
class Address:
    """An address in the pool: 64 bits that name the same bytes in every rack."""

    def __new__(cls, raw: int) -> Address: ...
    def __int__(self) -> int: ...
    def __add__(self, bytes: int, /) -> Address: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __lt__(self, other: Address, /) -> bool: ...
    def __le__(self, other: Address, /) -> bool: ...
    def __gt__(self, other: Address, /) -> bool: ...
    def __ge__(self, other: Address, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Pool:
    """A pool of memory that spans racks, used from one rack. Any thread may call any method."""

    def __new__(
        cls,
        path: _Path,
        rack: int,
        *,
        threads: Optional[int] = None,
        request_timeout: float = 30.0,
        reconnect_timeout: float = 10.0,
        checked: bool = False,
    ) -> Pool: ...
    @classmethod
    def with_socket(
        cls,
        socket: _Path,
        *,
        threads: Optional[int] = None,
        request_timeout: float = 30.0,
        reconnect_timeout: float = 10.0,
        checked: bool = False,
    ) -> Pool:
        """Opens the pool through the daemon that listens on this Unix socket."""
    @property
    def rack(self) -> int:
        """The number of the rack from which the pool is used."""
    @property
    def page_bytes(self) -> int:
        """The size of a page in bytes."""
    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
    def alloc(self, size: int) -> Address:
        """Allocates at least `size` bytes of unspecified contents."""
    def free(self, addr: Address) -> None:
        """Frees an object that `alloc` returned to any program in any rack."""
    def read(self, addr: Address, size: int) -> bytes:
        """Reads `size` bytes at `addr`."""
    def readinto(self, addr: Address, buffer: _Buffer) -> int:
        """Fills a writable C-contiguous buffer with the bytes at `addr`; returns how many it has."""
    def write(self, addr: Address, data: _Buffer) -> None:
        """Writes the bytes of a C-contiguous buffer to `addr`."""
    def load(self, addr: Address) -> int:
        """Reads the 8 bytes (little endian) at `addr` as a number."""
    def store(self, addr: Address, value: int) -> None:
        """Writes a number to the 8 bytes (little endian) at `addr`."""
    def fetch_add(self, addr: Address, delta: int) -> int:
        """Adds `delta` to the word at `addr`, modulo 2**64; returns its value from before."""
    def compare_exchange(self, addr: Address, expected: int, new: int) -> int:
        """Replaces the word at `addr` with `new` if it is `expected`; returns its value from before."""
    def is_local(self, addr: Address) -> bool:
        """Whether `addr` lies in the rack from which the pool is used."""
    def root(self, name: str) -> Optional[Address]:
        """The address under the root `name`; `None` if there is no such root."""
    def set_root(
        self, name: str, expected: Optional[Address], new: Optional[Address]
    ) -> tuple[Optional[Address], bool]:
        """Replaces the address under the root `name` with `new` if it is `expected`.

        Returns the address that is there afterwards, and whether this call changed it.
        """
    def ping(self) -> None:
        """Sends the rack daemon a request that it answers at once, and waits for the answer."""
    def close(self) -> None:
        """Closes the pool, its tables and its object stores. The objects stay."""
    def __enter__(self) -> Pool: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None: ...

@final
class Table:
    """A hash table in the pool: keys and values are `bytes`.

    Any thread of any process in any rack may call any method.
    """

    def __new__(
        cls,
        pool: Pool,
        name: str,
        *,
        create: bool = True,
        max_depth: Optional[int] = None,
        segment_bytes: Optional[int] = None,
    ) -> Table: ...
    @property
    def name(self) -> str:
        """The name of the root under which the table is found."""
    @overload
    def get(self, key: _Buffer) -> Optional[bytes]: ...
    @overload
    def get(self, key: _Buffer, default: _Default) -> Union[bytes, _Default]:
        """The value of `key`; `default` if the key is absent."""
    def put(self, key: _Buffer, value: _Buffer, *, ttl: Optional[float] = None) -> bool:
        """Stores `value` under `key`, for `ttl` seconds if that is given.

        Returns whether it replaced a value.
        """
    def compare_and_put(self, key: _Buffer, expected: Optional[_Buffer], new: _Buffer) -> bool:
        """Stores `new` under `key` if its value is `expected`; `None` means that the key is absent.

        Returns whether it stored the value, which does not expire.
        """
    def delete(self, key: _Buffer) -> bool:
        """Deletes `key`. Returns whether it was present."""
    def ttl(self, key: _Buffer) -> Optional[float]:
        """Seconds until the entry of `key` expires; `None` if it does not."""
    def count(self) -> int:
        """Counts the entries by reading every slot.

        Expired entries that are still in their slots count; entries that others store or delete
        meanwhile may or may not.
        """
    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """An iterator over keys and values, in no order."""
    def keys(self) -> Iterator[bytes]:
        """An iterator over the keys, in no order."""
    def __iter__(self) -> Iterator[bytes]: ...
    def __contains__(self, key: _Buffer, /) -> bool: ...
    def __getitem__(self, key: _Buffer, /) -> bytes: ...
    def __setitem__(self, key: _Buffer, value: _Buffer, /) -> None: ...
    def __delitem__(self, key: _Buffer, /) -> None: ...

@final
class ObjectStore:
    """A named set of objects in the pool: bytes of any size that are written once, sealed, and then
    read in place.

    An id is 1 to 64 bytes, or a `str`, which stands for its UTF-8. Any thread of any process in any
    rack may call any method.
    """

    def __new__(cls, pool: Pool, name: str, *, create: bool = True) -> ObjectStore: ...
    @staticmethod
    def remove(pool: Pool, name: str) -> bool:
        """Removes the store of this name with all its objects. Returns whether there was one.

        Takes three seconds and more. Other programs that have it open get `Removed`; views stay
        valid. After an error or a kill call it again.
        """
    def stats(self) -> dict[str, int]:
        """What this program has done with the store through this object: counters by their names.

        `local_gets`, `far_gets` (of objects of other racks), `absent_gets`, `transfers`,
        `transferred_bytes`, `chained_bytes` (those that came from replicas in other racks), `seals`,
        `sealed_bytes`, `deletes`, `evictions`, `evicted_bytes`, `waits`, `waited_us`. Gets from afar
        without a transfer found a replica.
        """
    @property
    def name(self) -> str:
        """The name of the root under which the store is found."""
    def create(
        self, id: _Id, size: int, metadata: _Buffer = b"", layout_tag: int = 0
    ) -> UnsealedObject:
        """Begins an object of `size` bytes in the own rack, whose contents are unspecified at first."""
    def put(
        self, id: _Id, buffer: _Buffer, metadata: _Buffer = b"", layout_tag: int = 0
    ) -> None:
        """Stores a copy of the bytes of a C-contiguous buffer as an object."""
    def get(self, id: _Id, layout_tag: Optional[int] = None) -> Optional[View]:
        """The object of this id as a view; `None` if there is no sealed object of this id.

        An object of another rack is brought into this one. Raises `LayoutTag` if the object has
        another tag than `layout_tag`.
        """
    def delete(self, id: _Id) -> bool:
        """Removes the object of this id from all racks. Returns whether there was one.

        The memory of each rack comes back with its last view.
        """
    def list(self, prefix: _Id = b"") -> list[ObjectInfo]:
        """The sealed objects whose ids begin with `prefix`, in the order of their ids."""
    def stat(self, id: _Id) -> Optional[ObjectStat]:
        """What is known of an object; `None` if there is no sealed object of this id."""
    def get_many(self, ids: Sequence[_Id]) -> list[Optional[View]]:
        """For each id what `get` returns."""
    def fetch(self, ids: Sequence[_Id]) -> list[bool]:
        """Brings objects of other racks into this one. Returns for each id whether there is one."""
    def wait(
        self, ids: Sequence[_Id], count: Optional[int] = None, timeout: Optional[float] = None
    ) -> list[bool]:
        """Waits until there are sealed objects of `count` of the ids (default: all).

        Returns after `timeout` seconds at the latest (default: waits as long as it takes), for each
        id whether there was an object during the call.
        """
    def wait_async(
        self, ids: Sequence[_Id], count: Optional[int] = None, timeout: Optional[float] = None
    ) -> Awaitable[list[bool]]:
        """The same in asyncio: returns a future. Each wait has a thread, which ends with it."""
    def subscribe(self, prefix: _Id = b"") -> Subscription:
        """Subscribes to the objects whose ids begin with `prefix`."""
    def cast(
        self,
        id: _Id,
        racks: Sequence[int],
        visible: Literal["each", "together"] = "each",
        schedule: Literal[
            "interleaved", "pipeline", "chain", "tree", "sequential"
        ] = "interleaved",
        block_size: Optional[int] = None,
    ) -> Optional[dict[int, Optional[str]]]:
        """Copies an object into other racks, in each of which `rackpool agent` must run.

        Racks pass on the blocks that they have. Programs may use a copy as soon as its rack has the
        whole object (`"each"`), or not before all racks have it (`"together"`). `block_size` is a
        multiple of 65536. Returns for each rack `None`, or why it did not get the object; `None` if
        there is no object of this id.
        """
    def cast_racks(self) -> list[int]:
        """The racks that agents serve."""
    def evict(self, size: int) -> int:
        """Evicts the objects of this rack that were unused for longest and are not viewed.

        Returns how many bytes were evicted: `size` or a little more, or less if there is nothing
        else.
        """
    def repair(self) -> int:
        """Removes what is left of objects whose memory is lost with that of its rack.

        Returns the number of lost entries. Their ids are free afterwards.
        """
    def set_options(
        self,
        capacity: Optional[int] = None,
        policy: Literal["keep", "lru", "spill"] = "keep",
        time_to_live: Optional[float] = None,
    ) -> None:
        """Sets all options of the store.

        `capacity` is the most memory in bytes that the store takes in each rack. `policy` says what
        happens when there is no room: `"keep"` refuses new objects, `"lru"` deletes old ones,
        `"spill"` moves them to racks with an agent and free memory, then to files of the rack
        (`rackpool-daemon --spill-dir`). `time_to_live` is the time in seconds after which an object ends. `None`: no limit.
        """
    @property
    def capacity(self) -> Optional[int]:
        """The most memory in bytes that the store takes in each rack."""
    @property
    def policy(self) -> Literal["keep", "lru", "spill"]:
        """What happens when there is no room for a new object."""
    @property
    def time_to_live(self) -> Optional[float]:
        """The time in seconds after which an object ends."""
    def __contains__(self, id: _Id, /) -> bool: ...

@final
class UnsealedObject:
    """An object that its creator writes in place, as a writable buffer, until it is sealed.

    If it is dropped before, or its process is killed, its memory is freed. While a buffer of it
    exists (a `memoryview`, an array), `seal` and `abort` raise `BufferError`.
    """

    def seal(self) -> None:
        """Makes the object visible to all programs. Nobody changes it afterwards."""
    def abort(self) -> None:
        """Frees the object's memory."""
    def __len__(self) -> int: ...
    def __enter__(self) -> UnsealedObject: ...
    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        """Seals the object, or aborts it after an exception."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class View:
    """A sealed object as a read-only buffer.

    The bytes stay, and do not change, as long as the view or a buffer of it exists, whoever deletes
    the object.
    """

    @property
    def metadata(self) -> bytes:
        """The metadata of the object."""
    @property
    def layout_tag(self) -> int:
        """The number that names the layout of the bytes."""
    @property
    def checksum(self) -> int:
        """The checksum of bytes and metadata, computed when the object was sealed."""
    @property
    def created_ms(self) -> int:
        """When the object was sealed, in milliseconds since 1970 by the creator's clock."""
    def verify(self) -> None:
        """Computes the checksum of the bytes; raises `Damaged` if it is not that of the seal."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ObjectInfo:
    """An object of a store."""

    @property
    def id(self) -> bytes:
        """The id."""
    @property
    def size(self) -> int:
        """The length of the bytes."""
    @property
    def metadata_size(self) -> int:
        """The length of the metadata in bytes."""
    @property
    def layout_tag(self) -> int:
        """The number that names the layout of the bytes."""
    @property
    def checksum(self) -> int:
        """The checksum of bytes and metadata."""
    @property
    def created_ms(self) -> int:
        """When the object was sealed, in milliseconds since 1970 by the creator's clock."""
    @property
    def rack(self) -> int:
        """The number of the rack in which the object was created."""
    @property
    def is_spilled(self) -> bool:
        """Whether its bytes are in a file of the rack."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class ObjectStat:
    """An object and where it is."""

    @property
    def info(self) -> ObjectInfo:
        """What the store says of the object."""
    @property
    def addr(self) -> Address:
        """The address of its head."""
    @property
    def pieces(self) -> int:
        """The number of pieces in which its bytes lie."""
    @property
    def last_use_ms(self) -> int:
        """About when a program of its rack last got the object, in milliseconds since 1970."""
    @property
    def replicas(self) -> list[int]:
        """The numbers of the other racks that have replicas."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class Subscription(Iterator[StoreEvent]):
    """Tells which objects a store has under a prefix: first those that are there, then each change.

    An iteration does not end. An object that is sealed and deleted between two looks is not told
    of. One thread at a time uses a subscription; another one gets a `RuntimeError`.
    """

    def next(self, timeout: Optional[float] = None) -> Optional[StoreEvent]:
        """The next change; `None` if there was none for `timeout` seconds.

        Without a timeout it waits as long as it takes. In asyncio: `async for event in
        subscription`, or `await anext(subscription)`. A wait that is cancelled loses no change.
        """
    def __iter__(self) -> Subscription: ...
    def __next__(self) -> StoreEvent: ...
    def __aiter__(self) -> Subscription: ...
    def __anext__(self) -> Awaitable[StoreEvent]: ...

@final
class StoreEvent:
    """A change of a store."""

    @property
    def kind(self) -> Literal["sealed", "deleted"]:
        """`"deleted"`: the object was deleted or evicted, or has expired."""
    @property
    def id(self) -> bytes:
        """The id of the object."""
    @property
    def info(self) -> Optional[ObjectInfo]:
        """What the store says of a sealed object; `None` for one that is gone."""
    def __eq__(self, other: object, /) -> bool: ...

class RackpoolError(Exception):
    """An operation on the pool failed. The message says what to do next."""

class OpenError(RackpoolError):
    """The pool could not be opened."""

class InvalidAddress(RackpoolError):
    """The address belongs to no page of the pool."""

class NotAllocated(RackpoolError):
    """Nothing is allocated at the address."""

class NotAnObject(RackpoolError):
    """The address is not the first byte of an object."""

class BeyondObject(RackpoolError):
    """The access goes past the end of the allocation."""

class Empty(RackpoolError):
    """The access has no byte."""

class ZeroSize(RackpoolError):
    """The allocation has no byte."""

class TooLarge(RackpoolError):
    """The object is larger than any rack, or the entry than a page."""

class Misaligned(RackpoolError):
    """The address of a word is not a multiple of 8."""

class OutOfMemory(RackpoolError):
    """No reachable rack has room."""

class RackFull(RackpoolError):
    """The own rack has no room for an object, whose bytes lie in no other."""

class NoCell(RackpoolError):
    """The program has too many views or unsealed objects."""

class TooManyThreads(RackpoolError):
    """No thread slot became free in time."""

class PageLost(RackpoolError):
    """The contents of the page were lost with its rack's memory."""

class RackUnavailable(RackpoolError):
    """The home rack of the address does not answer."""

class PageBusy(RackpoolError):
    """The page moved for longer than the request timeout."""

class Indeterminate(RackpoolError):
    """A daemon died during the operation: it may or may not have happened."""

class Unavailable(RackpoolError):
    """The own rack's daemon does not answer."""

class Forgotten(RackpoolError):
    """The own rack's daemon no longer knows this client."""

class MetadataUnreachable(RackpoolError):
    """The metadata server does not answer."""

class Inherited(RackpoolError):
    """The pool was opened before a fork: open it again in the child."""

class Closed(RackpoolError):
    """The pool is closed."""

class Protocol(RackpoolError):
    """The own rack's daemon is of another release."""

class RootError(RackpoolError):
    """The root's name is wrong, or the metadata server refused the change."""

    is_unchanged: bool
    """Whether the change was certainly not made."""

class OutcomeUnknown(RackpoolError):
    """A daemon went away in the deciding step of a change of a table."""

class KeyLength(RackpoolError):
    """The key is longer than 65535 bytes."""

class OtherKind(RackpoolError):
    """The value is not a string of bytes."""

class TableFull(RackpoolError):
    """The table is full at its maximum depth."""

class NotATable(RackpoolError):
    """There is no table, or one of another format."""

class Corrupt(RackpoolError):
    """Bytes of the table are damaged."""

class IdLength(RackpoolError):
    """The id is empty or longer than 64 bytes."""

class Exists(RackpoolError):
    """There is a sealed object of this id."""

class Fragmented(RackpoolError):
    """The rack has room for the object, but in too many pieces."""

class StoreFull(RackpoolError):
    """The capacity of the object store is reached, and nothing else may be evicted."""

class NoSpillFolder(RackpoolError):
    """The rack has no folder for objects that are moved out of memory."""

class SpillFile(RackpoolError):
    """A file of a spilled object could not be written or read."""

class NotRestored(RackpoolError):
    """The object is in a file of another rack, and no program there brings it back."""

class LayoutTag(RackpoolError):
    """The object has another layout tag than the reader expects."""

class NotAStore(RackpoolError):
    """There is no object store of this name."""

class Removed(RackpoolError):
    """The object store was removed, or its removal has begun."""

class RemovalUnderWay(RackpoolError):
    """Another program removes the object store."""

class Version(RackpoolError):
    """The object store was written by another version of the library."""

class Damaged(RackpoolError):
    """The bytes of the object are not those that were sealed."""
