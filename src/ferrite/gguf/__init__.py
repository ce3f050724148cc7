"""The bounded GGUF reader: a mapped model file as typed metadata and zero-copy tensor data."""

from ferrite.gguf.errors import GGUFError
from ferrite.gguf.file import GGUFFile, open_gguf
from ferrite.gguf.metadata import Metadata, MetadataEntry, Value
from ferrite.gguf.packed import PackedBytes
from ferrite.gguf.types import FileType, GGMLType, TensorInfo, ValueType

__all__ = [
    "FileType",
    "GGMLType",
    "GGUFError",
    "GGUFFile",
    "Metadata",
    "MetadataEntry",
    "PackedBytes",
    "TensorInfo",
    "Value",
    "ValueType",
    "open_gguf",
]
