"""What of the network a command may reach, and the secrets that are used for it without its seeing them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workbench.errors import OptionsError
from workbench.sandbox import frames
from workbench.sandbox.frames import Json

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_PLACE = "{}"
# What frames a message, and what would send it elsewhere: never a secret's.
_RESERVED = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
DEFAULT_HEADER = "Authorization: Bearer {}"


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that the broker puts into a header of requests to one host; what runs inside never sees it.

    Inside, the environment variable `WORKBENCH_<NAME>_URL` holds the URL by which to reach the host.
    """

    name: str
    value: str = field(repr=False)
    host: str
    header: str = DEFAULT_HEADER

    @property
    def variable(self) -> str:
        """The environment variable with the URL inside."""
        return f"WORKBENCH_{self.name.upper()}_URL"

    def header_parts(self) -> tuple[bytes, bytes]:
        """The header's name and its whole value. Raises OptionsError, which never shows the value."""
        found = _HEADER.fullmatch(self.header)
        if found is None or found[2].count(_PLACE) != 1 or found[1].lower() in _RESERVED:
            raise OptionsError(
                f"{self.header!r} isn't a header that could carry the secret {self.name}.",
                hint=f"Write its name and where the secret goes: '{DEFAULT_HEADER}'.",
            )
        return found[1].encode("ascii"), found[2].replace(_PLACE, self.value).encode("ascii")

    def check(self) -> None:
        """Raises OptionsError, which never shows the value, where it can't be used."""
        if not _NAME.fullmatch(self.name):
            raise OptionsError(
                f"{self.name!r} can't name a secret.", hint="Use letters, digits and underscores, no digit first."
            )
        if not _VALUE.fullmatch(self.value):
            raise OptionsError(
                f"The secret {self.name} is empty or has characters that a header can't hold.",
                hint="It may be a line end at its end.",
            )
        self.header_parts()


@dataclass(frozen=True, slots=True)
class Egress:
    """What a command may reach: nothing, unless it's said.

    `allow_hosts` are rules as `HostRule.parse` takes them. With `ask` somebody is asked about any other host. A host may
    take and give `max_host_bytes` bytes altogether, 0 is no limit.
    """

    allow_hosts: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    ask: bool = False
    max_host_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.allow_hosts or self.secrets or self.ask)

    def check(self) -> None:
        """Raises OptionsError for what makes no sense; no secret is shown in it."""
        from workbench.sandbox.egress.hosts import HostRule

        for text in self.allow_hosts:
            HostRule.parse(text)
        for secret in self.secrets:
            secret.check()
            if HostRule.parse(secret.host).below:
                raise OptionsError(f"The secret {secret.name} has to be for one host, not for {secret.host}.")
        names = [secret.variable for secret in self.secrets]
        if len(set(names)) != len(names):
            raise OptionsError("Two secrets have the same name.")
        if self.max_host_bytes < 0:
            raise OptionsError("A host can't be limited to less than no byte.")

    def to_content(self) -> Json:
        """As it crosses to the keeper, over its socket alone."""
        secrets = [[secret.name, secret.value, secret.host, secret.header] for secret in self.secrets]
        return {
            "allow_hosts": list(self.allow_hosts),
            "secrets": secrets,
            "ask": self.ask,
            "max_host_bytes": self.max_host_bytes,
        }

    @classmethod
    def of(cls, content: Json) -> Egress:
        """The other way round. Raises OptionsError, ValueError, KeyError, TypeError; none of them shows a secret."""
        egress = cls(
            tuple(map(str, content["allow_hosts"])),
            tuple(Secret(*map(str, fields)) for fields in content["secrets"]),
            frames.flag(content, "ask"),
            frames.number(content, "max_host_bytes"),
        )
        egress.check()
        return egress
