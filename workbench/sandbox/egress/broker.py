"""The broker of one secret: plain HTTP inside becomes HTTPS to one host, with a header that holds the secret.

A response is passed back as it comes, a redirect too: nobody follows it here. What is said back of the secret in a
response's headers or body is masked; to see it, the host is asked not to compress, and one that does all the same is
refused.
"""

from __future__ import annotations

import ssl

import h11
from anyio.streams.tls import TLSStream

from workbench.sandbox.egress import hosts
from workbench.sandbox.egress.attempt import Account, Attempt, MeteredStream
from workbench.sandbox.egress.mask import Mask
from workbench.sandbox.egress.options import Secret
from workbench.sandbox.egress.relay import BROKEN, HttpRefusal, Side, end_to_end, exchange, framing
from workbench.sandbox.egress.upstream import connect

_HTTPS_PORT = 443
# A server repeats to a TRACE what it was sent.
_REFUSED_METHODS = (b"CONNECT", b"TRACE")


class Broker:
    """Takes requests to one host there with one secret."""

    def __init__(self, secret: Secret, trust: ssl.SSLContext) -> None:
        """`trust` judges the host's certificate. Raises OptionsError for a secret that can't be used."""
        rule = hosts.HostRule.parse(secret.host)
        self._name = secret.name
        self._host = rule.host
        self._port = rule.ports[0] if len(rule.ports) == 1 else _HTTPS_PORT
        self._header, self._value = secret.header_parts()
        self._secret = secret.value.encode("ascii")
        self._trust = trust

    async def pass_on(self, client: Side, request: h11.Request, account: Account, attempt: Attempt) -> None:
        """Pass one request on; arguments and what is raised as of `proxy.pass_on`."""
        attempt.method = request.method.decode("ascii")
        attempt.host, attempt.port, attempt.secret = str(self._host), self._port, self._name
        if request.method in _REFUSED_METHODS:
            raise HttpRefusal(405, f"{attempt.method} isn't passed on with a secret")
        if not request.target.startswith(b"/"):
            raise HttpRefusal(400, "a request for a secret's host names the path alone")
        if not account.has_room(attempt.host):
            raise HttpRefusal(403, f"{self._host} has had all the bytes it may take and give")
        async with await connect(self._host, self._port, attempt) as connection:
            try:
                secured = await TLSStream.wrap(
                    connection,
                    hostname=str(self._host),
                    ssl_context=self._trust,
                    standard_compatible=False,
                )
            except (ssl.SSLError, *BROKEN) as error:
                why = (
                    getattr(error, "verify_message", "") or getattr(error, "reason", None) or "it closed the connection"
                )
                raise HttpRefusal(502, f"{self._host} can't be talked to securely: {why}") from error
            async with secured:
                server = Side(MeteredStream(secured, attempt, account), h11.CLIENT)
                attempt.status = await exchange(client, server, self._outgoing(request), Mask(self._secret))

    def _outgoing(self, request: h11.Request) -> h11.Request:
        authority = hosts.written(self._host)
        if self._port != _HTTPS_PORT:
            authority += f":{self._port}"
        ours = {b"host", b"expect", b"accept-encoding", self._header.lower()}
        kept = [(name, value) for name, value in end_to_end(request) if name.lower() not in ours]
        headers = [
            (b"Host", authority.encode("ascii")),
            *kept,
            (b"Accept-Encoding", b"identity"),
            *framing(request),
            (b"Connection", b"close"),
            (self._header, self._value),
        ]
        return h11.Request(method=request.method, target=request.target, headers=headers)
