"""The bearer key. Compared in constant time, before anything of a body is read."""

import hashlib
import hmac

from starlette.datastructures import Headers
from starlette.types import Scope

from ferrite.api.errors import unauthorized

PROTECTED_PREFIXES = ("/v1", "/admin")
"""Every path at or below these needs the key, whether or not it is a route. All others are open."""


def is_protected(path: str) -> bool:
    """Return whether a path needs the API key."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in PROTECTED_PREFIXES)


def check_api_key(scope: Scope, api_key: str | None) -> None:
    """Raise the 401 ``ApiError`` unless the request carries the key; without a key all may pass."""
    if api_key is None:
        return
    credentials = Headers(scope=scope).getlist("authorization")
    if len(credentials) != 1:
        raise unauthorized("This route needs the header 'Authorization: Bearer <api key>'.")
    scheme, _, token = credentials[0].partition(" ")
    # Digests have one length, so the comparison does not tell how long the key is.
    given = hashlib.sha256(token.strip(" ").encode("latin-1")).digest()
    expected = hashlib.sha256(api_key.encode("ascii")).digest()
    if not hmac.compare_digest(given, expected) or scheme.lower() != "bearer":
        raise unauthorized("The API key is not right.")
