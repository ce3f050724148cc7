"""How much memory the server can take at the most, and how much it takes."""

import os
from dataclasses import dataclass
from pathlib import Path

_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class MemoryCeiling:
    """The most memory that the server can take, by part, in bytes."""

    model_bytes: int
    """Weights."""
    session_bytes: int
    """KV cache of one session at its full capacity."""
    sessions: int
    """Sessions that can be admitted at one moment."""
    prefix_cache_bytes: int
    """KV cache that prefix snapshots can take beyond the sessions'."""
    server_bytes: int
    """The rest: what the process held beside its weights once they were loaded, and the request bodies that
    may arrive at one moment."""

    @property
    def total_bytes(self) -> int:
        """All parts together."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return the bytes of each part."""
        return {
            "model": self.model_bytes,
            "sessions": self.session_bytes * self.sessions,
            "prefix_cache": self.prefix_cache_bytes,
            "server": self.server_bytes,
        }

    def __str__(self) -> str:
        prefix_cache = f"prefix cache {_mib(self.prefix_cache_bytes)}, " if self.prefix_cache_bytes else ""
        return (
            f"{_mib(self.total_bytes)}: model {_mib(self.model_bytes)}, KV cache of {self.sessions} x "
            f"{_mib(self.session_bytes)}, {prefix_cache}server {_mib(self.server_bytes)}"
        )


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"


def resident_bytes() -> int | None:
    """Return the memory that the process has in RAM; None where the system does not say."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
