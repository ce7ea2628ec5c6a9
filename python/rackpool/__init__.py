"""A memory pool that spans racks: allocate, read and write its memory, and use its hash table."""

from ._rackpool import *  # noqa: F403
from ._rackpool import __all__, __version__  # noqa: F401
