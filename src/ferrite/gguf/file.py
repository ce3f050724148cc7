"""Opening a model: mapping its file or its shards, and handing out tensor data without copies."""

import os
import re
import stat
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from ferrite.gguf.errors import GGUFError, display, gguf_error, quoted
from ferrite.gguf.header import Header, read_header
from ferrite.gguf.limits import MAX_SHARDS
from ferrite.gguf.metadata import Metadata
from ferrite.gguf.types import TensorInfo

SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


class GGUFFile:
    """An open model of one or more shards; made by ``open_gguf``. The files must not change while open."""

    def __init__(self, paths: tuple[Path, ...], maps: tuple[mmap, ...], headers: tuple[Header, ...]) -> None:
        self.paths = paths
        """One path per shard, in shard order."""
        self.version = headers[0].version
        self.metadata: Metadata = headers[0].metadata
        """The first shard's pairs; the other shards only repeat the ``split.*`` ones."""
        tensors: dict[str, TensorInfo] = {}
        for header in headers:
            tensors.update(header.tensors)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._maps = maps

    @property
    def file_bytes(self) -> int:
        """Size of all shards together."""
        return sum(len(shard) for shard in self._maps)

    def tensor(self, name: str) -> TensorInfo:
        """Return a tensor's description; a missing one is a ``GGUFError`` that names it."""
        info = self.tensors.get(name)
        if info is None:
            raise gguf_error(self.paths[0], f"tensor {quoted(name)} is missing")
        return info

    def tensor_error(self, name: str, problem: str) -> GGUFError:
        """Build the error for a tensor its user cannot accept; ``problem`` follows the tensor's name."""
        info = self.tensor(name)
        return gguf_error(self.paths[info.shard], f"tensor {quoted(name)} {problem}", info.offset)

    def data(self, name: str) -> memoryview:
        """Return a read-only view of the ``n_bytes`` of a tensor inside the mapping."""
        info = self.tensor(name)
        return memoryview(self._maps[info.shard])[info.offset : info.offset + info.n_bytes]

    def drop_pages(self) -> None:
        """Let go of the memory that holds what was read of the files; what is needed again is read again."""
        for shard in self._maps:
            shard.madvise(MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the shards; one that still has views in use is unmapped when the last of them goes."""
        for shard in self._maps:
            with suppress(BufferError):
                shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: Path) -> GGUFFile:
    """Open a GGUF v2 or v3 model; for a split one, ``path`` is the first shard and the rest lie beside it.

    Raises ``GGUFError``, and nothing else, for a file that is missing, unreadable, damaged, or outside
    the limits of ``ferrite.gguf.limits``.
    """
    with ExitStack() as opened:
        first_map = opened.enter_context(_map(path))
        first = read_header(path, first_map, 0)
        paths = _shard_paths(path, first)
        maps, headers = [first_map], [first]
        for shard, shard_path in enumerate(paths[1:], start=1):
            maps.append(opened.enter_context(_map(shard_path)))
            headers.append(read_header(shard_path, maps[-1], shard))
        _check_shards(paths, headers)
        opened.pop_all()
        return GGUFFile(paths, tuple(maps), tuple(headers))


def _map(path: Path) -> mmap:
    try:
        # Opening a named pipe for reading would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise gguf_error(path, "not a regular file")
        if status.st_size == 0:
            raise gguf_error(path, "the file is empty")
        return mmap(descriptor, status.st_size, access=ACCESS_READ)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)


def _unreadable(path: Path, error: OSError | ValueError) -> GGUFError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return gguf_error(path, f"cannot be read: {reason}")


def _shard_paths(path: Path, first: Header) -> tuple[Path, ...]:
    """Return the paths of all shards that the first one announces."""
    count = first.metadata.integer("split.count", 1, minimum=0, maximum=MAX_SHARDS)
    if count <= 1:
        return (path,)
    name = SHARD_NAME.fullmatch(path.name)
    number = first.metadata.integer("split.no") + 1
    if name is None or int(name["count"]) != count or int(name["number"]) != number:
        raise gguf_error(
            path, f"is shard {number} of {count}, so its name must end in -{number:05}-of-{count:05}.gguf"
        )
    paths = tuple(
        path.with_name(f"{name['stem']}-{shard:05}-of-{count:05}.gguf") for shard in range(1, count + 1)
    )
    if number != 1:
        raise gguf_error(path, f"is shard {number} of {count}; open the first, {display(paths[0].name)}")
    for shard, shard_path in enumerate(paths, start=1):
        if not os.path.exists(shard_path):
            raise gguf_error(path, f"shard {shard} of {count} is missing: {display(shard_path.name)}")
    return paths


def _check_shards(paths: tuple[Path, ...], headers: list[Header]) -> None:
    """Check that the shards belong together and hold every tensor once."""
    if len(paths) == 1:
        return
    owner: dict[str, Path] = {}
    for shard, (path, header) in enumerate(zip(paths, headers, strict=True)):
        found = header.metadata.integer("split.no") + 1, header.metadata.integer("split.count")
        if found != (shard + 1, len(paths)):
            raise gguf_error(path, f"is shard {found[0]} of {found[1]}, expected {shard + 1} of {len(paths)}")
        if header.version != headers[0].version:
            raise gguf_error(path, f"is GGUF version {header.version}, the first shard {headers[0].version}")
        for name in header.tensors:
            if name in owner:
                raise gguf_error(path, f"tensor {quoted(name)} is also in {display(owner[name].name)}")
            owner[name] = path
    announced = headers[0].metadata.integer("split.tensors.count")
    if announced != len(owner):
        raise headers[0].metadata.error(
            "split.tensors.count", f"is {announced}, the shards hold {len(owner)}"
        )
