"""Names that git, and what reads git, can take: a reversible escaping of path components.

A byte is escaped as `%` and two upper-case hex digits. Escaped are `%` itself, backslashes, control and invisible
formatting characters, bytes that aren't UTF-8, and the first character of a component that git (`fsck.c`, `utf8.c` and
`path.c`: any case, characters that HFS ignores, NTFS short names, trailing dots and spaces, and stream names) would take for
`.git`, `.gitmodules`, `.gitattributes` or their like. Any other name stands as it is::

    src/a.py                 src/a.py
    .git/config              %2Egit/config
    GIT~1                    %47IT~1
    100%                     100%25
    b"caf\\xe9"               caf%E9
    "two\\nlines"             two%0Alines
"""

from __future__ import annotations

import re

_PLAIN = re.compile(rb"[A-Za-z0-9_+,=@#()\[\]{} -][A-Za-z0-9_+,=@#()\[\]{}. -]*\Z")
_SHORT_NAME = re.compile(r"(?:gi|ma).{0,6}~[0-9]")
_ESCAPED = re.compile(rb"%([0-9A-F]{2})?")

# utf8.c, next_hfs_char: what HFS+ ignores in a name.
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# Beside the control characters (C0, DEL, C1), what breaks lines or reorders text where a name is shown.
_UNSAFE = re.compile("[\\x00-\\x1f%\\\\\\x7f-\\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\udc80-\udcff]")

_REFERENCE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")

_RESERVED = frozenset({".git", ".gitmodules", ".gitattributes"})
_RESERVED_SYMLINKS = frozenset({".gitignore", ".mailmap"})


def escape(component: bytes, *, symlink: bool = False) -> bytes:
    """A path component as it stands in a checkpoint's tree.

    `component` is one name: not empty, not `.` or `..`, without `/` and NUL. `symlink` says that it names a symlink, of
    which git forbids a few more. The result is UTF-8, up to three times as long, and the same for the same arguments;
    `unescape` gives the component back. Raises ValueError for what can't be a name.
    """
    if not component or component in (b".", b"..") or b"/" in component or b"\0" in component:
        raise ValueError(f"{component!r} is no name of a directory entry")
    # No name of letters, digits and inner dots alone is refused, but for the short names that hold a `~`.
    if _PLAIN.match(component):
        return component
    text = component.decode("utf-8", "surrogateescape")
    escaped = _UNSAFE.sub(_escape_character, text)
    if not escaped.startswith("%") and _is_reserved(text, symlink):
        escaped = _escape_bytes(escaped[0].encode("utf-8")) + escaped[1:]
    return escaped.encode("utf-8")


def unescape(component: bytes) -> bytes:
    """Undo `escape`. Raises ValueError where a `%` isn't followed by two upper-case hex digits."""
    return _ESCAPED.sub(_unescape_byte, component)


def escape_path(path: bytes, *, symlink: bool = False) -> bytes:
    """A relative path, component by component; the root (`b""`) is itself. Raises ValueError as `escape`."""
    if not path:
        return b""
    *above, last = path.split(b"/")
    return b"/".join([*(escape(component) for component in above), escape(last, symlink=symlink)])


def escape_reference(name: bytes) -> str:
    """Any bytes as one component of a git reference: letters, digits, `-` and `_` stand, the rest is escaped.

    That leaves nothing git-check-ref-format(1) refuses, nor a name that differs from another only by what a filesystem
    may fold, but for case.
    """
    return "".join(chr(byte) if byte in _REFERENCE else f"%{byte:02X}" for byte in name)


def _escape_character(match: re.Match[str]) -> str:
    return _escape_bytes(match.group().encode("utf-8", "surrogateescape"))


def _escape_bytes(encoded: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in encoded)


def _unescape_byte(match: re.Match[bytes]) -> bytes:
    if match.group(1) is None:
        raise ValueError("a '%' that isn't followed by two upper-case hex digits")
    return bytes.fromhex(match.group(1).decode("ascii"))


def _is_reserved(text: str, symlink: bool) -> bool:
    seen = _HFS_IGNORED.sub("", text)
    # NTFS: a stream's name follows a colon, trailing dots and spaces don't count.
    seen = re.split(r"[:\\]", seen, maxsplit=1)[0].rstrip(". ").lower()
    if seen in _RESERVED or _SHORT_NAME.match(seen):
        return True
    return symlink and seen in _RESERVED_SYMLINKS
