"""What killed keepers leave behind: containers, volumes, and directories that only root may remove."""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import ExitStack
from pathlib import Path, PurePath

from workbench.errors import OverlayError, SandboxError, StateError
from workbench.protocol.records import MountRecord
from workbench.sandbox import copies, docker, images, namespace, runtime
from workbench.sandbox.engine import Engine, EngineRefusedError
from workbench.sandbox.removal import remove_below
from workbench.vfs.session import OverlayDirectory

STATE_LABEL = "workbench.state"
"""On every container and volume: the id of the state directory whose sandbox it belongs to."""

OVERLAY_LABEL = "workbench.overlay"
"""On every container and volume: the directory of the overlay that it mounts, whose lock tells whether it is in use."""

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def unmount(overlay: OverlayDirectory, state_id: str) -> None:
    """Remove whatever a killed keeper left mounted over an overlay, and its socket. For the holder of the overlay's lock.

    Raises SandboxError where it can't; StateError, OSError where its record can't be read.
    """
    record = overlay.record()
    left = [mount for mount in record.mounts if mount.live]
    for mount in left:
        if mount.name:
            ensure_unmounted(mount, overlay)
        else:
            ensure_none_mounted(overlay.path, state_id)
    if left:
        mounts = tuple(mount.model_copy(update={"live": False}) for mount in record.mounts)
        overlay.save(record.model_copy(update={"mounts": mounts}))
    runtime.remove_socket(overlay.path)


def ensure_unmounted(mount: MountRecord, overlay: OverlayDirectory, engine: Engine | None = None) -> None:
    """Remove whatever a mount left behind; harmless where it left nothing. For the holder of the overlay's lock.

    What only the engine has of the upper layer is read out before. Raises SandboxError: engine_unavailable where nobody
    can be asked, sandbox_failed where something stays. Then the overlay may still be mounted.
    """
    if mount.backend == "namespace":
        if mount.boot_id == boot_id():
            namespace.remove(mount.name)
        return
    try:
        _remove(engine or Engine(), mount.name, overlay.path)
    except SandboxError as error:
        # Nothing that was mounted outlives the kernel, and no engine starts our containers by itself.
        if error.code != "engine_unavailable" or mount.copied or mount.boot_id == boot_id():
            raise


def ensure_none_mounted(overlay_path: str, state_id: str, engine: Engine | None = None) -> None:
    """Remove every sandbox of an overlay of which it isn't known what was mounted. For the holder of the overlay's lock.

    Without an engine there is none that outlived its keeper. Raises SandboxError (sandbox_failed).
    """
    try:
        engine = engine or Engine()
        for name, path in _sandboxes(engine, state_id).items():
            if path == PurePath(overlay_path):
                _remove(engine, name, overlay_path)
    except SandboxError as error:
        if error.code != "engine_unavailable":
            raise


def sweep(state_directory: str, state_id: str, engine: Engine | None = None) -> tuple[str, ...]:
    """Remove this state directory's containers and volumes whose keeper has gone: those whose overlay's lock is free.

    Args:
        state_directory: where the overlays are.
        state_id: the value of their label `workbench.state`.
        engine: found where it isn't given.

    Returns the names of the sandboxes that were removed. Raises SandboxError (engine_unavailable, sandbox_failed),
    OSError.
    """
    engine = engine or Engine()
    removed = []
    for name, path in _sandboxes(engine, state_id).items():
        # A label is no proof of who made it: what isn't in the state directory is none of ours.
        if not path.is_relative_to(state_directory):
            continue
        with ExitStack() as stack:
            # An overlay that has gone is in nobody's hands, either.
            with contextlib.suppress(FileNotFoundError):
                try:
                    stack.enter_context(OverlayDirectory.open(str(path)).lock())
                except OverlayError:
                    continue
            _remove(engine, name, str(path))
            removed.append(name)
    return tuple(removed)


def abandoned(state_directory: str, state_id: str, engine: Engine | None = None) -> dict[str, str]:
    """What `sweep` would remove: the names of sandboxes, each with its overlay's directory. Raises as `sweep`."""
    return {
        name: str(path)
        for name, path in _sandboxes(engine or Engine(), state_id).items()
        if path.is_relative_to(state_directory) and not OverlayDirectory(str(path)).is_locked()
    }


def remove_tree(path: str, *, image: str = "", engine: Engine | None = None) -> None:
    """Remove a directory of ours in which sandboxes wrote, with everything in it; harmless where it isn't there.

    What this user may not remove (the kernel's work directory is root's where a rootful engine mounted it) a container
    removes, as root and with nothing but that directory.

    Args:
        path: the directory; nothing in it may be in use.
        image: what the container runs where one is needed, the default image where it isn't given.
        engine: found, where one is needed, where it isn't given.

    Raises SandboxError (sandbox_failed, engine_unavailable, image_unavailable), OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        try:
            remove_below(descriptor)
        except PermissionError:
            if os.geteuid() == 0:
                raise
            _remove_as_root(engine or Engine(), path, image)
            remove_below(descriptor)
    finally:
        os.close(descriptor)
    os.rmdir(path)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path(_BOOT_ID).read_text(encoding="ascii").strip()


def _remove(engine: Engine, name: str, overlay_path: str) -> None:
    # Where the overlay is gone, so is whoever wanted what was in it.
    if os.path.isdir(overlay_path):
        label = f"{docker.NAME_LABEL}={name}"
        copies.rescue(engine, name, label, lambda: _image_of(overlay_path, engine), overlay_path)
    docker.remove(engine, name)


def _image_of(overlay_path: str, engine: Engine) -> str:
    with contextlib.suppress(StateError):
        return images.available(OverlayDirectory(overlay_path).record().image, lambda line: None, engine=engine)
    return images.available("", lambda line: None, engine=engine)


def _sandboxes(engine: Engine, state_id: str) -> dict[str, PurePath]:
    label = f"{STATE_LABEL}={state_id}"
    found = [item.get("Labels") or {} for item in (*engine.containers(label), *engine.volumes(label))]
    return {
        str(labels[docker.NAME_LABEL]): PurePath(labels[OVERLAY_LABEL])
        for labels in found
        if docker.NAME_LABEL in labels and OVERLAY_LABEL in labels
    }


def _remove_as_root(engine: Engine, path: str, image: str) -> None:
    source = Path(__file__).with_name("removal.py").read_text(encoding="utf-8")
    body = {
        "Image": images.available(image, lambda line: None, engine=engine),
        "User": "0:0",
        "Entrypoint": ["python3", "-I", "-S", "-c", source, "/target"],
        "Cmd": [],
        "Labels": {docker.LABEL: "1"},
        "WorkingDir": "/",
        "HostConfig": {
            "Mounts": [{"Type": "bind", "Source": os.path.realpath(path), "Target": "/target"}],
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "CapAdd": ["DAC_OVERRIDE", "FOWNER"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "UsernsMode": "host",
            "Init": False,
        },
    }
    container = str(engine.call("POST", "/containers/create", body=body)["Id"])
    try:
        engine.call("POST", f"/containers/{container}/start")
        status = engine.call("POST", f"/containers/{container}/wait", seconds=None)["StatusCode"]
        if status:
            raise SandboxError(
                f"The container that should remove {path} failed with status {status}.",
                hint=f"As root: rm -rf {json.dumps(path)}",
            )
    except EngineRefusedError as refusal:
        raise SandboxError(
            f"The engine can't run what should remove {path}: {refusal.message}",
            hint=f"As root: rm -rf {json.dumps(path)}",
        ) from refusal
    finally:
        engine.remove_container(container)
