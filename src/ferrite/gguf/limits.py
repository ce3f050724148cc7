"""What the reader accepts at most. Every honest file stays far below these numbers."""

MAX_TENSORS = 65_536
"""Unmerged 256-expert mixtures reach about 47,000 tensors; each costs us some 400 bytes of memory."""

MAX_METADATA_PAIRS = 16_384
"""Published files hold under 200 pairs; each costs us some 300 bytes of memory."""

MAX_KEY_BYTES = 65_535
"""The GGUF specification's own limit."""

MAX_TENSOR_NAME_BYTES = 256
"""The specification says 64; some converters of image and audio models write up to about 200."""

MAX_STRING_BYTES = 64 << 20
"""The largest strings in use are whole embedded ``tokenizer.json`` files, about 20 MiB."""

MAX_ARRAY_ITEMS = 1 << 22
"""Sixteen times the largest published vocabulary (262,144 tokens)."""

MAX_WALKED_ITEMS = 1 << 23
"""Strings that all arrays of a file may hold together, ten times the largest vocabulary with its merges:
they are walked one by one."""

NESTED_ARRAY_WALK = 16
"""Walked items that one array inside an array counts as, by the time it takes."""

MAX_ARRAY_DEPTH = 4
"""No published file nests arrays at all; the bound keeps the reader's recursion shallow."""

MAX_RANK = 4
"""ggml tensors have four dimensions."""

MAX_ELEMENTS = (1 << 63) - 1
"""ggml counts elements in a signed 64-bit integer; a larger product would wrap in other readers."""

DEFAULT_ALIGNMENT = 32
"""The specification's value when ``general.alignment`` is absent."""

MIN_ALIGNMENT = 8
"""Scales and 64-bit elements are read in place, so tensor data must start on an 8-byte border."""

MAX_ALIGNMENT = 2 << 20
"""A huge page: nothing is mapped or read in larger units."""

MAX_SHARDS = 1_024
"""The largest published models have under 100 shards; each costs a mapping and a header to read."""
