"""A memory pool that spans racks: its memory, its hash table and its object store."""

from ._rackpool import *  # noqa: F403
from ._rackpool import __all__, __version__  # noqa: F401
