"""The images that sandboxes run: our own, built on first use, and anybody's."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from workbench.errors import OptionsError, SandboxError
from workbench.sandbox.agents import AGENTS
from workbench.sandbox.engine import Engine, EngineRefusedError

if TYPE_CHECKING:
    from docker import APIClient

VERSION = "1"
"""The tag of our own images: raised when an older workbench couldn't run in a newer image."""

RECIPE_LABEL = "workbench.recipe"
"""On our own images: a hash of what they were built from."""

DEFAULT = f"workbench/python:{VERSION}"
"""The image of a sandbox for which none was named."""

_PREFIX = "workbench/"
_PARENTS = {"base": "", "python": "base", "node": "python", **dict.fromkeys(AGENTS, "node")}
"""Every image of our own, and the one that it is built over."""

BASIC = ("base", "python")
"""Those that every workspace may need: they can be made without a registry of images."""

_FROM = "debian:bookworm-slim"
_SEARCH_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED_ON = (
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("PIP_INDEX_URL", "npm_config_registry"),
)
_TRUSTED = ("NODE_EXTRA_CA_CERTS", "PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where a proxy on the way signs anew, one of these names who is trusted here; so must it be in a build."""

_PULL_SECONDS = 1800

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OwnImage:
    """One of our own images: `size` in bytes; `identifier` is empty where it isn't built; `current` by its recipe."""

    name: str
    reference: str
    identifier: str = ""
    size: int = 0
    current: bool = False


def reference(image: str) -> str:
    """The full name of an image: our own ones get their version where no tag is given, nothing is the default one."""
    if not image:
        return DEFAULT
    return f"{image}:{VERSION}" if image in {_PREFIX + name for name in _PARENTS} else image


def list(engine: Engine | None = None) -> tuple[OwnImage, ...]:
    """Our own images, built or not. Raises SandboxError (engine_unavailable)."""
    engine = engine or Engine()
    found = []
    for name in _PARENTS:
        facts = engine.image(_own(name))
        if facts is None:
            found.append(OwnImage(name, _own(name)))
        else:
            current = facts.labels.get(RECIPE_LABEL) == _recipe_hash(name)
            found.append(OwnImage(name, _own(name), facts.identifier, facts.size, current))
    return tuple(found)


def ensure(image: str, report: Report, *, engine: Engine | None = None) -> str:
    """Make sure that the engine has an image: our own is built where missing or of another recipe, others are pulled.

    Args:
        image: its name, as `reference` completes it.
        report: hears how that goes, a line each.
        engine: found where it isn't given.

    Returns the image's id. Raises SandboxError (image_unavailable, engine_unavailable).
    """
    engine = engine or Engine()
    image = reference(image)
    own = next((name for name in _PARENTS if image == _own(name)), None)
    facts = engine.image(image)
    if facts is not None and (own is None or facts.labels.get(RECIPE_LABEL) == _recipe_hash(own)):
        return facts.identifier
    if own is not None:
        try:
            return build(own, report, engine=engine)
        except SandboxError as error:
            if facts is None or error.code != "image_unavailable":
                raise
            report(f"{error.message} The one of an older recipe is used.")
            return facts.identifier
    report(f"Pulling the image {image}")
    refused = _pull(engine, image)
    facts = engine.image(image)
    if facts is None:
        raise SandboxError(
            f"The image {image} isn't here and can't be pulled: {refused or 'the engine has none of that name'}",
            code="image_unavailable",
            hint=f"Look at the name, or use {DEFAULT}, which can be built without a registry.",
        )
    return facts.identifier


def available(image: str, report: Report, *, engine: Engine) -> str:
    """As `ensure`, but an image of our own that was built by an older recipe will do."""
    found = engine.image(reference(image))
    return found.identifier if found else ensure(image, report, engine=engine)


def build(name: str, report: Report, *, engine: Engine | None = None) -> str:
    """Build one of our own images anew, from its Dockerfile, or from Debian packages where no registry can be reached.

    Args:
        name: of `list`, with or without `workbench/` before it.
        report: hears how that goes, a line each.
        engine: found where it isn't given.

    Returns the image's id. Raises OptionsError for another name, SandboxError (image_unavailable, engine_unavailable).
    """
    name = _short(name)
    engine = engine or Engine()
    before = engine.image(_own(name))
    after = _build(engine, name, report)
    if before is not None and before.identifier != after:
        _discard(engine, before.identifier)
    return after


def _build(engine: Engine, name: str, report: Report) -> str:
    if name not in BASIC:
        ensure(_own(_PARENTS[name]), report, engine=engine)
        report(f"Building {_own(name)}: a minute or two")
        return _build_dockerfile(engine, name, report)
    if engine.image(_FROM) is None:
        report(f"Pulling the image {_FROM}")
        refused = _pull(engine, _FROM)
        if refused:
            report(f"It can't be pulled ({refused})")
            report(f"Making {_own(name)} out of Debian packages instead: half a minute")
            return _build_offline(engine, name, report)
    if name != "base":
        ensure(_own("base"), report, engine=engine)
    report(f"Building {_own(name)}: a minute or two")
    return _build_dockerfile(engine, name, report)


def remove(name: str, *, engine: Engine | None = None) -> bool:
    """Remove one of our own images.

    Returns whether it was there. Raises OptionsError for another name, SandboxError (sandbox_failed) where a sandbox
    uses it, and engine_unavailable.
    """
    try:
        (engine or Engine()).call("DELETE", f"/images/{quote(_own(_short(name)), safe='/:')}")
    except EngineRefusedError as refusal:
        if refusal.status == 404:
            return False
        raise SandboxError(
            f"The image {_own(_short(name))} can't be removed: {refusal.message}",
            hint="`workbench stop` ends the sandbox that uses it.",
        ) from refusal
    return True


def recipes() -> Path:
    """The directory with what our own images are built from: in the installed package, else in the source tree."""
    installed = Path(__file__).with_name("_images")
    return installed if installed.is_dir() else Path(__file__).parents[2] / "sandbox_images"


def _own(name: str) -> str:
    return f"{_PREFIX}{name}:{VERSION}"


def _short(name: str) -> str:
    short = name.removeprefix(_PREFIX).removesuffix(f":{VERSION}")
    if short not in _PARENTS:
        raise OptionsError(f"{name} isn't an image that workbench builds.", hint=f"Those are {', '.join(_PARENTS)}.")
    return short


@cache
def _recipe_hash(name: str) -> str:
    files = ["offline"]
    for part in _layers(name):
        files += [f"{part}/{file}" for file in sorted(os.listdir(recipes() / part))]
    digest = hashlib.sha256()
    for file in files:
        content = (recipes() / file).read_bytes()
        digest.update(f"{file} {len(content)}\n".encode() + content)
    if name in AGENTS:
        digest.update(AGENTS[name].package.encode())
    return digest.hexdigest()[:16]


def _layers(name: str) -> tuple[str, ...]:
    """The directories of the recipes that an image is made of."""
    parent = _PARENTS[name]
    return (*(_layers(parent) if parent else ()), "agent" if name in AGENTS else name)


def _labels(name: str) -> dict[str, str]:
    return {RECIPE_LABEL: _recipe_hash(name)}


def _client(engine: Engine) -> APIClient:
    # Here since the SDK takes 85 ms to import, and a warm sandbox needs none of it.
    from docker import APIClient
    from docker.tls import TLSConfig

    if not engine.is_remote:
        return APIClient(base_url=f"unix://{engine.path}", version="auto", timeout=_PULL_SECONDS)
    trust: TLSConfig | bool = False
    if at := engine.certificates:
        own = (os.path.join(at, "cert.pem"), os.path.join(at, "key.pem"))
        trust = TLSConfig(client_cert=own if os.path.exists(own[0]) else None, ca_cert=f"{at}/ca.pem", verify=True)
    over_ssh = engine.path.startswith("ssh://")
    return APIClient(base_url=engine.path, version="auto", timeout=_PULL_SECONDS, tls=trust, use_ssh_client=over_ssh)


def _pull(engine: Engine, image: str) -> str:
    """Why an image can't be pulled; empty where it was."""
    from docker.errors import APIError
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(image)
    client = _client(engine)
    try:
        for event in client.pull(repository, tag or "latest", stream=True, decode=True):
            if "error" in event:
                return str(event["error"]).strip()
    except APIError as error:
        return str(error.explanation or error).strip()
    finally:
        client.close()
    return ""


def _build_dockerfile(engine: Engine, name: str, report: Report) -> str:
    from docker.errors import APIError

    arguments = {variable: os.environ[variable] for variable in _PASSED_ON if variable in os.environ}
    if parent := _PARENTS[name]:
        arguments["BASE"] = _own(parent)
    if name in AGENTS:
        arguments["PACKAGE"] = AGENTS[name].package
    client = _client(engine)
    try:
        events = client.build(
            fileobj=_context(recipes() / _layers(name)[-1]),
            custom_context=True,
            # The newest of an agent is wanted, whatever an earlier build has got.
            nocache=name in AGENTS,
            tag=_own(name),
            labels=_labels(name),
            buildargs=arguments,
            network_mode=_build_network(engine),
            rm=True,
            forcerm=True,
            decode=True,
        )
        failure = _follow(events, report)
    except APIError as error:
        failure = str(error.explanation or error)
    finally:
        client.close()
    if failure:
        raise _not_built(name, failure)
    return _built(engine, name)


def _context(recipe: Path) -> io.BytesIO:
    """What the engine gets to build from: the recipe, and whom to trust on the way to what it fetches."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in sorted(os.listdir(recipe)):
            archive.add(recipe / name, name)
        trusted = next((os.environ[variable] for variable in _TRUSTED if os.environ.get(variable)), "")
        if os.path.isfile(trusted):
            archive.add(os.path.realpath(trusted), "ca.pem")
    packed.seek(0)
    return packed


def _build_network(engine: Engine) -> str | None:
    # An engine that was told to have no bridge has no other way out for a build's steps.
    networks = {str(network.get("Name")) for network in engine.call("GET", "/networks")}
    return "host" if networks <= {"host", "none"} else None


def _follow(events: Iterable[dict[str, Any]], report: Report) -> str:
    for event in events:
        if "error" in event:
            return str(event["error"]).strip()
        text = str(event.get("stream", "")).strip()
        if text.startswith("Step "):
            report(text)
    return ""


def _build_offline(engine: Engine, name: str, report: Report) -> str:
    from docker.errors import APIError

    with tempfile.TemporaryDirectory(prefix="workbench-image-") as directory:
        archive = os.path.join(directory, "root.tar")
        command = ["bash", str(recipes() / "offline"), archive, *_layers(name)]
        said: tuple[str, ...] = ()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                text = line.decode("utf-8", "replace").strip().removeprefix("I: ")
                said = (*said, text)[-5:]
                report(text)
        if process.returncode:
            raise _not_built(name, " / ".join(said) or f"exit status {process.returncode}")
        changes = [f"LABEL {key}={value}" for key, value in _labels(name).items()]
        changes += [f"ENV {_SEARCH_PATH}", "ENV LANG=C.UTF-8", 'CMD ["bash"]']
        client = _client(engine)
        report(f"Importing {_own(name)}")
        try:
            client.import_image_from_file(archive, repository=_PREFIX + name, tag=VERSION, changes=changes)
        except APIError as error:
            raise _not_built(name, str(error.explanation or error)) from error
        finally:
            client.close()
    return _built(engine, name)


def _discard(engine: Engine, identifier: str) -> None:
    # A sandbox that runs in it keeps it, and so does another name that somebody gave it.
    try:
        engine.call("DELETE", f"/images/{quote(identifier, safe=':')}")
    except EngineRefusedError as refusal:
        if refusal.status not in (404, 409):
            raise


def _built(engine: Engine, name: str) -> str:
    facts = engine.image(_own(name))
    if facts is None or facts.labels.get(RECIPE_LABEL) != _recipe_hash(name):
        raise _not_built(name, "the engine said it had built it, and hasn't got it")
    return facts.identifier


def _not_built(name: str, why: str) -> SandboxError:
    return SandboxError(
        f"The image {_own(name)} can't be built: {why}",
        code="image_unavailable",
        hint=f"Make sure a registry or Debian's packages can be reached, or use another image that has python3. "
        f"The recipe is in {recipes()}.",
    )
