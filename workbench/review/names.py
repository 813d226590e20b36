"""Names as a careless filesystem or program would take them: what is one name to any of them is one name here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache

# What HFS+ leaves out of names: `next_hfs_char` in git's utf8.c.
_IGNORABLE = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))
_GIT_NAME = re.compile(r"\.git|git~[0-9]+")


@lru_cache(maxsize=1 << 16)
def folded(name: bytes) -> str:
    """One name for all that a case-folding, normalising or Windows filesystem takes for the same.

    Without HFS+'s ignorable code points, in NFC, casefolded, up to a `:` (an NTFS stream), without trailing dots and
    spaces. Bytes that aren't UTF-8 stay themselves.
    """
    text = name.decode("utf-8", "surrogateescape")
    if not text.isascii():
        text = unicodedata.normalize("NFC", unicodedata.normalize("NFC", text.translate(_IGNORABLE)).casefold())
    return text.lower().partition(":")[0].rstrip(". ")


@lru_cache(maxsize=1 << 16)
def is_git(name: bytes) -> bool:
    """Whether a name is `.git` in any disguise: case, ignorable code points, NTFS's short name, stream or backslash.

    The rules are those of `is_hfs_dotgit` and `is_ntfs_dotgit` in git's source.
    """
    return any(_GIT_NAME.fullmatch(folded(part)) for part in name.split(b"\\"))


def is_repository(names: Collection[str]) -> bool:
    """Whether a directory with these folded names could be a repository to git, whatever it's called.

    That is `HEAD` beside `objects` and `refs`, or beside a `commondir` that says where those are (`is_git_directory` in
    git's setup.c). Kinds don't matter: git takes symlinks, and anything executable.
    """
    return "head" in names and ("commondir" in names or ("objects" in names and "refs" in names))


REPOSITORY_NAMES = (b"HEAD", b"objects", b"refs", b"commondir")
"""The names that decide `is_repository`."""
