"""Which filesystems the layers of an overlay can be on, by what statfs(2) says of them.

Only what is known never to work is refused here, with its reason; whether the rest works is found out by doing it.
"""

from __future__ import annotations

import os

from workbench.vfs import syscalls

# linux/magic.h, and OpenZFS's and bcachefs's own headers.
_NAMES = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x794C7630: "overlayfs",
    0x6969: "nfs",
    0x65735546: "fuse",
    0xF15F: "ecryptfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb",
    0x01021997: "9p",
    0x786F4256: "vboxsf",
    0x9FA0: "proc",
    0x62656572: "sysfs",
    0x858458F6: "ramfs",
    0x73717368: "squashfs",
    0x9660: "iso9660",
    0x4D44: "vfat",
    0x2011BAB0: "exfat",
    0x7366746E: "ntfs3",
    0x5346544E: "ntfs",
    0x00C36400: "ceph",
    0x27E0EB: "cgroup",
    0x63677270: "cgroup2",
    0x64626720: "debugfs",
    0x1CD1: "devpts",
}

_REASONS_LOWER = {
    "proc": "it isn't made of files",
    "sysfs": "it isn't made of files",
    "cgroup": "it isn't made of files",
    "cgroup2": "it isn't made of files",
    "debugfs": "it isn't made of files",
    "devpts": "it isn't made of files",
    "9p": "the kernel can't layer over it reliably",
    "vboxsf": "the kernel can't layer over it reliably",
}
_REASONS_UPPER = {
    "overlayfs": "the kernel doesn't take an overlay as the upper layer of another (are we in a container?)",
    "nfs": "it lacks the renames that an upper layer needs",
    "fuse": "it lacks the renames that an upper layer needs",
    "ceph": "it lacks the renames that an upper layer needs",
    "cifs": "it lacks the renames that an upper layer needs",
    "smb": "it lacks the renames that an upper layer needs",
    "ecryptfs": "it lacks the renames that an upper layer needs",
    "ramfs": "it has no extended attributes",
    "vfat": "it has neither modes nor extended attributes",
    "exfat": "it has neither modes nor extended attributes",
    "ntfs": "it lacks the renames that an upper layer needs",
    "squashfs": "it is read-only",
    "iso9660": "it is read-only",
    **_REASONS_LOWER,
}


def filesystem_name(path: str | bytes) -> str:
    """The kind of filesystem that a directory is on, or its number where we don't know it. Raises OSError."""
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        magic = syscalls.filesystem_type(fd)
    finally:
        os.close(fd)
    return _NAMES.get(magic & 0xFFFFFFFF, f"0x{magic & 0xFFFFFFFF:x}")


def lower_problem(path: str | bytes) -> str:
    """Why a directory can't be the lower layer of an overlay; empty where nothing speaks against it. Raises OSError."""
    return _problem(path, _REASONS_LOWER)


def upper_problem(path: str | bytes) -> str:
    """Why a directory can't hold upper layers, and so the state; empty where nothing speaks against it.

    Raises OSError.
    """
    return _problem(path, _REASONS_UPPER)


def _problem(path: str | bytes, reasons: dict[str, str]) -> str:
    name = filesystem_name(path)
    return f"it is on {name}: {reasons[name]}" if name in reasons else ""
