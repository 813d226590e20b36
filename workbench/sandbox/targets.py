"""An overlay as a mount: its options, where the sandbox sees it, and the home directory beside it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from workbench.errors import OptionsError
from workbench.sandbox.backend import OverlayMount, SandboxSpec

FALLBACK = "/workspace"
"""The mount point where the real path can't be one."""

EGRESS_TARGET = "/run/workbench"
"""Where a sandbox has the directory of egress sockets, where it has one."""

DEFAULT_HOME = "/home/workbench"
"""The home directory inside where the environment names none: a tmpfs, gone with the sandbox."""

_OPTION_LIMIT = 4096
"""mount(2) copies one page of options and cuts the rest off without a word."""

_OWN_IMAGES = "workbench/"

# Directories that images have (Filesystem Hierarchy Standard 3.0, and what Debian, Alpine and Fedora add): mounted at
# one of them the workspace would hide what is needed to run anything.
_DIRECTORIES = {
    "/": {"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "opt", "proc", "root",
          "run", "sbin", "srv", "sys", "tmp", "usr", "var"},
    "/usr/local": {"bin", "etc", "games", "include", "lib", "lib64", "libexec", "man", "sbin", "share", "src"},
    "/usr": {"bin", "games", "include", "lib", "lib32", "lib64", "libexec", "libx32", "local", "sbin", "share", "src",
             "tmp"},
    "/var": {"backups", "cache", "db", "empty", "lib", "local", "lock", "log", "mail", "opt", "run", "spool", "tmp"},
}  # fmt: skip

# Whatever stands below these is the image's, the kernel's or the engine's.
_OCCUPIED = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys")
_OCCUPIED_DEEP = ("/usr/bin", "/usr/games", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec",
                  "/usr/libx32", "/usr/sbin", "/usr/share", "/var/lock", "/var/run")  # fmt: skip
_OCCUPIED_CHILDREN = ("/var/cache", "/var/lib", "/var/log", "/var/spool")


def target_for(workspace: bytes, image: str) -> str:
    """Choose the path at which the sandbox sees a directory: its real one wherever that works.

    It doesn't where a mount can't name it (a `:`, or bytes that aren't UTF-8), or would hide what the image has. That
    is judged by the directories that images are known to have, not by looking into this one: everything directly below
    `/` in an image that isn't ours counts as such, and everything below `/etc`, `/run`, `/usr/lib` and the like.

    Args:
        workspace: the absolute real path, without symlinks.
        image: the image's name; empty where there is none.

    Returns an absolute path.
    """
    try:
        text = workspace.decode("utf-8")
    except UnicodeDecodeError:
        return FALLBACK
    path = PurePosixPath(text)
    parts = path.parts[1:]
    if ":" in text or not parts or parts[0] in _OCCUPIED or any(path.is_relative_to(place) for place in _OCCUPIED_DEEP):
        return FALLBACK
    parent = str(path.parent)
    if path.name in _DIRECTORIES.get(parent, ()) or parent in _OCCUPIED_CHILDREN:
        return FALLBACK
    if parent == "/" and not image.startswith(_OWN_IMAGES):
        return FALLBACK
    return text


def bind_target(mount: OverlayMount) -> str:
    """Where an engine's bind puts a mount. Raises OptionsError for a path that a bind can't name."""
    # A surrogate stands for a byte that isn't UTF-8.
    if ":" in mount.target or any("\ud800" <= character <= "\udfff" for character in mount.target):
        raise OptionsError(
            f"The engine can't mount anything at {mount.target!r}.",
            hint="Move it to a path without ':' and with a UTF-8 name, or use --backend namespace.",
        )
    return mount.target


def mount_options(mount: OverlayMount) -> dict[str, str]:
    """The options of the engine's `local` volume driver that make it mount one overlay.

    Raises OptionsError where a path can't stand in a mount option, or they are too long for one.
    """
    for path in (mount.lower, mount.upper, mount.work):
        if not path.isascii() or re.search(r"[,:\\\x00-\x1f]", path):
            raise OptionsError(
                f"The path {path!r} can't stand in a mount option.", hint="Choose a state directory with a plain name."
            )
    flags = "userxattr,nosuid,nodev,index=off,xino=off"
    options = f"lowerdir={mount.lower},upperdir={mount.upper},workdir={mount.work},{flags}"
    if len(options) >= _OPTION_LIMIT:
        raise OptionsError(
            f"The state directory's path is too long: its mount options take {len(options)} bytes of {_OPTION_LIMIT}.",
            hint="Choose a shorter one with WORKBENCH_STATE.",
        )
    return {"type": "overlay", "device": "overlay", "o": options}


def home_of(spec: SandboxSpec) -> PurePosixPath:
    """The home directory inside: what the environment names, else `DEFAULT_HOME`."""
    return PurePosixPath(spec.environment.get("HOME") or DEFAULT_HOME)
