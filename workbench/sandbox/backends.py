"""From a spec to its backend."""

from __future__ import annotations

from workbench.errors import SandboxError
from workbench.sandbox.backend import Backend, SandboxSpec


def make_backend(spec: SandboxSpec, name: str = "") -> Backend:
    """Make the backend that a spec names; nothing is started.

    Args:
        spec: what is to be started.
        name: of its mount, made by chance where it isn't given.

    Raises SandboxError (backend_unavailable) for a name that isn't one.
    """
    if spec.backend == "docker":
        from workbench.sandbox.docker import DockerBackend

        return DockerBackend(spec, name=name)
    if spec.backend == "namespace":
        from workbench.sandbox.namespace import NamespaceBackend

        return NamespaceBackend(spec, name=name)
    raise SandboxError(
        f"There is no backend called {spec.backend!r}.",
        code="backend_unavailable",
        hint="Choose docker, namespace or none, or auto.",
    )
