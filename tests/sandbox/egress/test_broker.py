"""A secret's broker, from inside a sandbox: the secret gets out, and never in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trustme

from tests.sandbox.egress.conftest import Open, tls
from tests.sandbox.egress.servers import HOST, Server, serving
from tests.waiting import until
from workbench.errors import OptionsError
from workbench.protocol.commands import Command
from workbench.sandbox.egress.attempt import LOG
from workbench.sandbox.egress.mask import Mask
from workbench.sandbox.egress.options import Egress, Secret

pytestmark = pytest.mark.anyio
FAST = pytest.mark.parametrize("kind", ["namespace-socket", "namespace-stream"])
ONE = pytest.mark.parametrize("kind", ["namespace-socket"])

VALUE = "sk-verySecret/0123456789+="
FETCH = """
import os, sys, urllib.request, urllib.error
class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments): return None
headers = dict(one.split(": ", 1) for one in sys.argv[2:])
request = urllib.request.Request(os.environ["WORKBENCH_API_URL"] + sys.argv[1], headers=headers)
try: answer = urllib.request.build_opener(NoRedirect).open(request)
except urllib.error.HTTPError as error: answer = error
print(answer.status, answer.reason)
print(answer.headers, flush=True)
sys.stdout.buffer.write(answer.read())
"""


def secret(place: str, **fields: str) -> Secret:
    return Secret(**{"name": "api", "value": VALUE, "host": place, **fields})


async def test_a_request_leaves_with_the_secret_over_tls(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        assert (await inside.python(FETCH, "/v1/x?y=1", "Authorization: Bearer dummy")).startswith(b"200 ")
    [(method, path, headers, _)] = secure.requests
    assert (method, path) == ("GET", "/v1/x?y=1")
    assert [value for name, value in headers if name.lower() == "authorization"] == [f"Bearer {VALUE}"]
    assert [value for name, value in headers if name.lower() == "host"] == [secure.place]
    [event] = inside.allowed.events
    assert (event.kind, event.secret, event.host, event.verdict, event.status) == (
        "secret",
        "api",
        HOST,
        "allowed",
        200,
    )


@FAST
async def test_the_header_is_the_one_that_was_chosen_and_one_from_inside_is_dropped(
    sandbox: Open, secure: Server
) -> None:
    async with sandbox(secrets=(secret(secure.place, header="x-api-key: {}"),)) as inside:
        await inside.python(FETCH, "/", "X-Api-Key: mine", "Authorization: Bearer mine", "Connection: x-api-key")
    [(_, _, headers, _)] = secure.requests
    found = {name.lower(): value for name, value in headers}
    assert found["x-api-key"] == VALUE
    assert found["authorization"] == "Bearer mine"
    assert [name.lower() for name, _ in headers].count("x-api-key") == 1


@FAST
async def test_what_a_host_says_back_of_the_secret_is_masked(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        shown = await inside.python(FETCH, "/echo")
        assert VALUE.encode() not in shown
        # In the body, and in a header.
        assert shown.count(b"Bearer " + b"*" * len(VALUE)) == 2
        # One that compresses all the same can't be looked through.
        assert (await inside.python(FETCH, "/gzip")).startswith(b"502 ")
        trace = await inside.raw(b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", variable="WORKBENCH_API_URL")
        assert trace.startswith(b"HTTP/1.1 405 ")


@FAST
async def test_a_redirect_is_passed_back_and_not_followed(sandbox: Open, secure: Server, other: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        shown = await inside.python(FETCH, f"/redirect?http://{other.place}/")
        assert shown.startswith(b"302 ")
        assert f"Location: http://{other.place}/".encode() in shown
    assert other.requests == []
    assert len(secure.requests) == 1


async def test_events_of_a_stream_arrive_one_by_one(sandbox: Open, secure: Server) -> None:
    script = """
import os, urllib.request
url = os.environ["WORKBENCH_API_URL"]
with urllib.request.urlopen(url + "/events") as stream:
    for number in range(3):
        line = stream.readline() + stream.readline()
        assert line == b"data: %d\\n\\n" % number, line
        # The server sends the next one only after this.
        urllib.request.urlopen(url + "/next").read()
    print(stream.read())
"""
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        assert await inside.python(script) == b"b''\n"


@FAST
async def test_a_large_body_goes_both_ways(sandbox: Open, secure: Server) -> None:
    script = """
import os, urllib.request
url = os.environ["WORKBENCH_API_URL"]
print(urllib.request.urlopen(url + "/length", data=b"y" * 5_000_000).read())
print(len(urllib.request.urlopen(url + "/big/5000000").read()))
"""
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        assert await inside.python(script) == b"b'5000000'\n5000000\n"


@ONE
async def test_an_upgrade_and_a_tunnel_are_refused(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        for request, status in (
            (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"501"),
            (b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n", b"405"),
            (b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"400"),
            (b"GET //evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"200"),
            (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        ):
            answer = await inside.raw(request, variable="WORKBENCH_API_URL")
            assert answer.startswith(b"HTTP/1.1 " + status), (request, answer)
    # Whatever the path looks like, it went to the secret's host.
    [(_, _, headers, _)] = secure.requests
    assert dict(headers)["Host"] == secure.place


@ONE
async def test_a_certificate_of_another_name_or_authority_gets_no_secret(
    sandbox: Open, authority: trustme.CA, tmp_path: Path
) -> None:
    for context in (tls(authority, "127.0.0.9"), tls(trustme.CA(), HOST)):
        with serving(Server(trust=context)) as server:
            async with sandbox(secrets=(secret(server.place),)) as inside:
                shown = await inside.python(FETCH, "/")
                assert shown.startswith(b"502 ")
                assert b"can't be talked to securely" in shown
            assert server.requests == []
            assert [event.verdict for event in inside.allowed.events] == ["failed"]


@ONE
async def test_a_secrets_host_has_to_be_public_unless_its_address_is_named(
    sandbox: Open, authority: trustme.CA
) -> None:
    with serving(Server("127.0.0.1", tls(authority, "localhost"))) as server:
        port = server.place.split(":")[1]
        async with sandbox(secrets=(secret(f"localhost:{port}"),)) as inside:
            assert (await inside.python(FETCH, "/")).startswith(b"403 ")
    assert server.requests == []


@ONE
async def test_a_secrets_host_isnt_allowed_otherwise(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        assert "http_proxy" not in inside.allowed.environment
        script = f"import urllib.request; urllib.request.urlopen('https://{secure.place}/')"
        assert (await inside.run("python3", "-c", script)).exit_code == 1


@ONE
async def test_several_secrets_have_each_their_own_url(sandbox: Open, secure: Server, authority: trustme.CA) -> None:
    with serving(Server("127.0.0.4", tls(authority, "127.0.0.4"))) as second:
        both = (secret(secure.place), secret(second.place, name="OTHER", value="second", header="X-Key: k={}"))
        async with sandbox(secrets=both) as inside:
            assert sorted(inside.allowed.environment) == ["WORKBENCH_API_URL", "WORKBENCH_OTHER_URL"]
            await inside.python(FETCH, "/")
            await inside.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", variable="WORKBENCH_OTHER_URL")
        assert "second" not in str(secure.requests)
        assert VALUE not in str(second.requests)
        assert dict(second.requests[0][2])["X-Key"] == "k=second"


# Everything of a sandbox that a command of its own user can read, searched for the secret.
_SEARCH = """
import os, sys
wanted = bytes.fromhex(sys.argv[1])
found = []
for top in ("/proc", "/workspace", "/tmp", "/home", "/run"):
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path) or path.endswith(("/kmsg", "/pagemap", "/mem")) or "/cmdline" in path and "self" in path:
                continue
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                if wanted in os.read(fd, 1 << 20): found.append(path)
                os.close(fd)
            except OSError: pass
print([path for path in found if not path.startswith(("/proc/self/", "/proc/%d/" % os.getpid(), "/proc/thread-self/"))])
"""


async def test_the_secret_is_nowhere_inside(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        await inside.python(FETCH, "/echo")
        assert VALUE not in str(inside.allowed.environment)
        assert await inside.python(_SEARCH, VALUE.encode().hex()) == b"[]\n"


@FAST
async def test_the_secret_is_nowhere_outside_but_in_the_keepers_memory(
    sandbox: Open, secure: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        await inside.python(FETCH, "/echo")
        await inside.python(FETCH, "/gzip")
        pid = (await inside.client.info()).pid
        for name in ("environ", "cmdline"):
            assert VALUE.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        assert VALUE not in subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert VALUE not in repr(inside.allowed.events)
    found = files_with(Path(inside.overlay.path), VALUE.encode())
    assert found == []
    assert (Path(inside.overlay.path) / LOG).exists()


def files_with(directory: Path, wanted: bytes) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and wanted in path.read_bytes()]


@ONE
async def test_a_request_that_makes_no_sense_shows_no_secret(sandbox: Open, secure: Server) -> None:
    async with sandbox() as inside:
        for content in (
            {
                **Egress(secrets=(secret(secure.place),)).to_content(),
                "secrets": [["api", VALUE, "*.example.com", "x: {}"]],
            },
            {
                **Egress(secrets=(secret(secure.place),)).to_content(),
                "secrets": [["api", VALUE + "\n", "a.example", "x: {}"]],
            },
        ):
            exchange = await inside.client._ask_json(b"a", content)
            with pytest.raises(OptionsError) as raised:
                await inside.client._finish(exchange)
            assert VALUE not in str(raised.value) + str(raised.value.hint)
    assert files_with(Path(inside.overlay.path), VALUE.encode()) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"header": "Authorization: Bearer"},
        {"header": "Authorization Bearer {}"},
        {"header": "Host: {}"},
        {"header": "Content-Length: {}"},
        {"header": "Transfer-Encoding: {}"},
        {"header": "X: {} {}"},
        {"header": "X: {}\r\nY: z"},
        {"header": "X y: {}"},
        {"value": ""},
        {"value": "two\r\nX: lines"},
        {"value": "a line end\n"},
        {"value": "nul\0"},
        {"value": " space"},
        {"value": "umläut"},
        {"name": ""},
        {"name": "a-b"},
        {"name": "1a"},
        {"host": "*.example.com"},
        {"host": "https://example.com"},
        {"host": ""},
    ],
)
def test_a_secret_that_cant_be_used_is_an_error_that_doesnt_show_it(fields: dict[str, str]) -> None:
    wrong = secret("example.com", **fields)
    with pytest.raises(OptionsError) as raised:
        Egress(secrets=(wrong,)).check()
    if wrong.value:
        assert wrong.value not in str(raised.value)
    assert VALUE not in repr(wrong)


def test_a_mask_hides_a_secret_however_it_is_cut_and_keeps_everything_else() -> None:
    text = b"a secret, a sec" + b"secretsecret" + b" s" + b"ecr" + b"sesecret" + b"secre"
    for size in range(1, len(text) + 1):
        mask = Mask(b"secret")
        shown = b"".join(mask.feed(text[at : at + size]) for at in range(0, len(text), size)) + mask.end()
        assert shown == text.replace(b"secret", b"******"), size


def test_a_mask_holds_nothing_back_that_cant_be_the_secrets_beginning() -> None:
    mask = Mask(b"secret")
    assert mask.feed(b"data: 1\n\n") == b"data: 1\n\n"
    assert mask.feed(b"data: s") == b"data: "
    assert mask.feed(b"o\n") == b"so\n"


@ONE
async def test_a_command_can_be_cancelled_while_its_request_runs(sandbox: Open, secure: Server) -> None:
    async with sandbox(secrets=(secret(secure.place),)) as inside:
        command = Command(("python3", "-c", FETCH, "/events"), environment=inside.allowed.environment)
        job = await inside.client.spawn(command)
        await until(lambda: secure.requests)
        await job.kill("cancel")
        assert (await job.wait()).ended_by == "cancel"
        secure.acknowledged.release(10)
        assert (await inside.python(FETCH, "/")).startswith(b"200 ")


@FAST
async def test_a_program_that_takes_its_loopback_through_the_proxy_finds_the_broker(
    sandbox: Open, secure: Server, server: Server
) -> None:
    async with sandbox(server.place, secrets=(secret(secure.place),)) as inside:
        port = inside.allowed.environment["WORKBENCH_API_URL"].rsplit(":", 1)[1]
        for host, status in (("127.0.0.1", b"200"), ("localhost", b"200"), ("127.0.0.5", b"403")):
            request = f"GET http://{host}:{port}/v1 HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"
            assert (await inside.raw(request.encode())).startswith(b"HTTP/1.1 " + status), host
    assert [(method, path) for method, path, *_ in secure.requests] == [("GET", "/v1")] * 2
    assert all(dict(headers)["Authorization"] == f"Bearer {VALUE}" for _, _, headers, _ in secure.requests)
