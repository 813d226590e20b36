"""The proxy, from inside a sandbox: who gets through, who doesn't, and whom it holds up."""

from __future__ import annotations

import socket
import struct
import threading

import anyio
import pytest
import trustme

from tests.needed import need_program
from tests.sandbox.egress.conftest import Open, events
from tests.sandbox.egress.servers import HOST, Server, raw_server
from tests.waiting import until
from workbench.errors import CommandError, OptionsError, SandboxError
from workbench.protocol.commands import Command

pytestmark = pytest.mark.anyio
FAST = pytest.mark.parametrize("kind", ["namespace-socket", "namespace-stream"])
ONE = pytest.mark.parametrize("kind", ["namespace-socket"])

GET = """
import sys, urllib.request, urllib.error
try:
    with urllib.request.urlopen(sys.argv[1]) as answer: print(answer.status, len(answer.read()))
except urllib.error.HTTPError as error: print(error.code)
except OSError as error: print("unreachable")
"""


async def test_an_allowed_host_is_reached_and_no_other(sandbox: Open, server: Server, other: Server) -> None:
    async with sandbox(server.place) as inside:
        assert await inside.python(GET, f"http://{server.place}/") == b"200 4\n"
        assert await inside.python(GET, f"http://{other.place}/") == b"403\n"
        # The environment is all that leads out: without it there is no network at all.
        result = await inside.run("python3", "-c", GET, f"http://{server.place}/", environment={"http_proxy": ""})
        assert result.stdout == b"unreachable\n"
    assert [event.verdict for event in inside.allowed.events] == ["allowed", "refused"]
    assert events(inside) == [(HOST, "allowed"), ("127.0.0.3", "refused")]
    assert [request[:2] for request in server.requests] == [("GET", "/")]
    assert other.requests == []


async def test_a_tunnel_passes_bytes_both_ways_and_each_end_by_itself(sandbox: Open) -> None:
    def talk(connection: socket.socket) -> None:
        received = b""
        while piece := connection.recv(65536):
            received += piece
        connection.sendall(b"heard %d bytes" % len(received))

    with raw_server(talk) as place:
        async with sandbox(place) as inside:
            request = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode() + b"x" * 40000
            answer = await inside.raw(request, ends=True)
            head, _, rest = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert rest == b"heard 40000 bytes"
    [event] = inside.allowed.events
    assert (event.method, event.verdict, event.sent, event.received) == ("CONNECT", "allowed", 40000, len(rest))


async def test_many_bytes_go_through_unharmed_while_many_others_do(sandbox: Open, server: Server) -> None:
    script = """
import hashlib, sys, threading, urllib.request
wrong = []
def fetch(size):
    with urllib.request.urlopen(f"{sys.argv[1]}/big/{size}") as answer: data = answer.read()
    if data != b"x" * size: wrong.append((size, len(data)))
sizes = [3_000_000] * 4 + [10_000] * 96
threads = [threading.Thread(target=fetch, args=(size,)) for size in sizes]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""
    async with sandbox(server.place) as inside:
        assert await inside.python(script, f"http://{server.place}") == b"[]\n"
    assert len(inside.allowed.events) == 100


@FAST
async def test_a_large_upload_arrives_whole_with_and_without_a_length(sandbox: Open, server: Server) -> None:
    script = """
import http.client, os, sys
proxy = http.client.HTTPConnection("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
pieces = (b"y" * 100_000 for _ in range(50))
body = b"".join(pieces) if sys.argv[2] == "whole" else pieces
proxy.request("POST", sys.argv[1], body=body, encode_chunked=sys.argv[2] != "whole")
print(proxy.getresponse().read())
"""
    async with sandbox(server.place) as inside:
        for how in ("whole", "chunked"):
            assert await inside.python(script, f"http://{server.place}/length", how) == b"b'5000000'\n"


@FAST
async def test_a_redirect_is_judged_like_any_other_request(sandbox: Open, server: Server, other: Server) -> None:
    async with sandbox(server.place) as inside:
        found = await inside.python(GET, f"http://{server.place}/redirect?http://{other.place}/")
        assert found == b"403\n"
        assert await inside.python(GET, f"http://{server.place}/redirect?http://{server.place}/") == b"200 4\n"
    assert other.requests == []


ATTACKS = {
    "a name after a NUL": b"GET http://{place}\0.evil.example/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a control byte in the target": b"GET http://{place}/\x01 HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a NUL in a header": b"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nX: a\0b\r\n\r\n",
    "a NUL in CONNECT": b"CONNECT {place}\0:443 HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "two lengths": b"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody!",
    "a length and chunks": b"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nContent-Length: 4\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Length: 4\r\n\r\n0\r\n\r\n",
    "an unknown coding": b"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: xchunked\r\n\r\n",
    "a folded header": b"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding :chunked\r\n\r\n",
    "another Host": b"GET http://{place}/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "another Host's port": b"GET http://{place}/ HTTP/1.1\r\nHost: {host}:1\r\n\r\n",
    "two Hosts": b"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a user's name": b"GET http://{place}@evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "a user's name before": b"GET http://evil.example@{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a backslash": b"GET http://evil.example\\@{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "an encoded host": b"GET http://{host}%2e:{port}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "an encoded at": b"GET http://evil.example%40{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a number": b"GET http://2130706434:{port}/ HTTP/1.1\r\nHost: 2130706434:{port}\r\n\r\n",
    "a short address": b"GET http://127.2:{port}/ HTTP/1.1\r\nHost: 127.2:{port}\r\n\r\n",
    "a hexadecimal address": b"GET http://0x7f.0.0.2:{port}/ HTTP/1.1\r\nHost: 0x7f.0.0.2:{port}\r\n\r\n",
    "an address with a dot": b"GET http://{host}.:{port}/ HTTP/1.1\r\nHost: {host}.:{port}\r\n\r\n",
    "another scheme": b"GET ftp://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "https without a tunnel": b"GET https://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "CONNECT without a port": b"CONNECT {host} HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "CONNECT to a URL": b"CONNECT http://{place}/ HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "CONNECT to port 0": b"CONNECT {host}:0 HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "CONNECT to a large port": b"CONNECT {host}:65536 HTTP/1.1\r\nHost: {place}\r\n\r\n",
    "a websocket": b"GET http://{place}/ HTTP/1.1\r\nHost: {place}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a head without end": b"GET http://{place}/ HTTP/1.1\r\nX: " + b"x" * 40_000,
    "not HTTP": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\r\n\r\n",
    "SOCKS": b"\x05\x01\x00\r\n\r\n",
}


@ONE
async def test_what_two_readers_could_take_differently_is_refused(sandbox: Open, server: Server) -> None:
    host, port = server.place.split(":")
    async with sandbox(server.place, f"{host}:80", "evil.example") as inside:
        for name, attack in ATTACKS.items():
            request = attack.replace(b"{place}", server.place.encode())
            request = request.replace(b"{host}", host.encode()).replace(b"{port}", port.encode())
            answer = await inside.raw(request)
            assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 501 ")), (name, answer)
        assert await inside.python(GET, f"http://{server.place}/") == b"200 4\n"
    assert len(server.requests) == 1
    assert {event.verdict for event in inside.allowed.events[:-1]} == {"refused"}


@ONE
async def test_a_second_request_behind_an_allowed_one_goes_nowhere(
    sandbox: Open, server: Server, other: Server
) -> None:
    first = f"GET http://{server.place}/ HTTP/1.1\r\nHost: {server.place}\r\n\r\n"
    second = f"GET http://{other.place}/ HTTP/1.1\r\nHost: {other.place}\r\n\r\n"
    async with sandbox(server.place) as inside:
        answer = await inside.raw((first + second).encode())
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()
    assert len(server.requests) == 1
    assert other.requests == []


@ONE
async def test_headers_for_the_proxy_alone_go_no_further(sandbox: Open, server: Server) -> None:
    request = (
        f"GET http://{server.place}/ HTTP/1.1\r\nHost: {server.place}\r\nConnection: x-hop, host, content-length\r\n"
        "X-Hop: 1\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\nX-End: 2\r\n\r\n"
    )
    async with sandbox(server.place) as inside:
        assert (await inside.raw(request.encode())).startswith(b"HTTP/1.1 200")
    [(_, _, headers, _)] = server.requests
    assert sorted(name.lower() for name, _ in headers) == ["connection", "host", "x-end"]


@ONE
async def test_an_allowed_name_whose_address_is_private_is_refused(sandbox: Open) -> None:
    with raw_server(lambda connection: None) as place:
        port = place.split(":")[1]
        async with sandbox(f"localhost:{port}") as inside:
            request = f"GET http://localhost:{port}/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
            assert b"has no public address" in await inside.raw(request.encode())
            request = f"CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"
            assert (await inside.raw(request.encode())).startswith(b"HTTP/1.1 403 ")
    assert [event.verdict for event in inside.allowed.events] == ["refused", "refused"]


@ONE
async def test_an_allowed_address_is_allowed_in_its_other_form(sandbox: Open, server: Server) -> None:
    port = server.place.split(":")[1]
    async with sandbox(server.place) as inside:
        assert await inside.python(GET, f"http://[::ffff:{HOST}]:{port}/") == b"200 4\n"


@ONE
async def test_a_name_that_doesnt_exist_is_a_failure_of_the_host(sandbox: Open) -> None:
    async with sandbox("nothing.invalid") as inside:
        assert b"502 nothing.invalid can't be resolved" in await inside.raw(
            b"CONNECT nothing.invalid:443 HTTP/1.1\r\nHost: nothing.invalid:443\r\n\r\n"
        )
    assert [event.verdict for event in inside.allowed.events] == ["failed"]


async def test_a_reader_who_doesnt_read_holds_up_nobody_else(sandbox: Open, server: Server) -> None:
    script = """
import os, socket, sys, urllib.request
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
place = sys.argv[1]
slow = []
for _ in range(20):
    connection = socket.create_connection(proxy)
    connection.sendall(f"GET http://{place}/big/20000000 HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n".encode())
    slow.append(connection)
for connection in slow: connection.recv(1)
for _ in range(5):
    with urllib.request.urlopen(f"http://{place}/big/1000000") as answer: assert len(answer.read()) == 1000000
print("ok")
"""
    async with sandbox(server.place) as inside:
        assert await inside.python(script, server.place) == b"ok\n"
        # Nor does it hold up commands and files, which share the stream.
        assert (await inside.run("echo", "here")).stdout == b"here\n"


async def test_a_flood_of_connections_leaves_room_for_those_that_end(sandbox: Open, server: Server) -> None:
    script = """
import os, resource, socket, sys, urllib.request
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000))
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
held = []
for _ in range(600):
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex(proxy)
    held.append(connection)
for connection in held: connection.close()
with urllib.request.urlopen(f"http://{sys.argv[1]}/") as answer: print(answer.status)
"""
    async with sandbox(server.place) as inside:
        assert await inside.python(script, server.place) == b"200\n"
        assert (await inside.run("echo", "here")).stdout == b"here\n"


@FAST
async def test_a_host_that_dies_or_resets_is_an_end_and_never_a_whole_answer(sandbox: Open, server: Server) -> None:
    script = """
import sys, urllib.request, http.client
try:
    with urllib.request.urlopen(sys.argv[1]) as answer: print("whole", answer.read())
except (http.client.HTTPException, OSError) as error: print(type(error).__name__)
"""

    def reset(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with raw_server(reset) as place:
        async with sandbox(server.place, place, f"{HOST}:1") as inside:
            assert await inside.python(script, f"http://{server.place}/dies") == b"IncompleteRead\n"
            assert await inside.python(script, f"http://{place}/") == b"HTTPError\n"
            # Nobody listens there.
            assert await inside.python(GET, f"http://{HOST}:1/") == b"502\n"
    assert [event.verdict for event in inside.allowed.events] == ["failed", "failed", "failed"]


@FAST
async def test_half_a_request_is_never_taken_for_a_whole_one(sandbox: Open) -> None:
    whole = threading.Event()

    def talk(connection: socket.socket) -> None:
        received = b""
        while piece := connection.recv(65536):
            received += piece
        if received.endswith(b"0\r\n\r\n"):
            whole.set()

    with raw_server(talk) as place:
        head = f"POST http://{place}/ HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with sandbox(place) as inside:
            answer = await inside.raw(head.encode() + b"4\r\nhalf\r\n", ends=True)
            assert answer.startswith(b"HTTP/1.1 400 ")
            answer = await inside.raw(head.encode() + b"4\r\nhalf\r\nzz\r\n")
            assert answer.startswith(b"HTTP/1.1 400 ")
    assert not whole.is_set()


@FAST
async def test_a_host_takes_and_gives_no_more_than_its_limit(sandbox: Open, server: Server) -> None:
    async with sandbox(server.place, max_host_bytes=100_000) as inside:
        result = await inside.run("python3", "-c", GET, f"http://{server.place}/big/90000")
        assert result.stdout == b"200 90000\n"
        result = await inside.run("python3", "-c", GET, f"http://{server.place}/big/90000")
        assert result.stdout in (b"", b"502\n")
        script = """
import os, sys, urllib.request, urllib.error
try: urllib.request.urlopen(sys.argv[1], data=b"x" * 500_000)
except urllib.error.HTTPError as error: print(error.code, error.reason)
"""
        assert b"has had all the bytes" in await inside.python(script, f"http://{server.place}/length")
    assert [event.verdict for event in inside.allowed.events] == ["allowed", "limited", "limited"]
    assert all(len(body) < 100_000 for *_, body in server.requests)


@ONE
async def test_what_was_allowed_to_one_command_is_closed_to_the_next(sandbox: Open, server: Server) -> None:
    async with sandbox(server.place) as first:
        assert await first.python(GET, f"http://{server.place}/") == b"200 4\n"
        environment = first.allowed.environment
    async with sandbox() as second:
        assert second.allowed.environment == {}
        result = await second.run("python3", "-c", GET, f"http://{server.place}/", environment=environment)
        assert result.stdout == b"unreachable\n"


@ONE
async def test_two_commands_at_once_have_each_their_own(sandbox: Open, server: Server, other: Server) -> None:
    async with sandbox(server.place) as first, sandbox(other.place) as second:
        for inside, mine, not_mine in ((first, server, other), (second, other, server)):
            assert await inside.python(GET, f"http://{mine.place}/") == b"200 4\n"
            assert await inside.python(GET, f"http://{not_mine.place}/") == b"403\n"


@ONE
async def test_an_end_cuts_what_is_still_open(sandbox: Open) -> None:
    closed = threading.Event()
    opened = threading.Event()

    def talk(connection: socket.socket) -> None:
        while connection.recv(65536):
            opened.set()
        closed.set()

    with raw_server(talk) as place:
        async with sandbox(place) as inside:
            script = f"""
import os, socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1])))
connection.sendall(b"CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n")
connection.recv(1)
connection.sendall(b"x")
time.sleep(600)
"""
            command = Command(("python3", "-c", script), environment=inside.allowed.environment)
            job = await inside.client.spawn(command)
            await until(opened.is_set)
        assert [event.verdict for event in inside.allowed.events] == ["allowed"]
        await until(closed.is_set)
        assert job is not None


@ONE
async def test_a_killed_client_takes_its_permission_along(sandbox: Open, server: Server) -> None:
    async with sandbox() as watching:
        environment: dict[str, str] = {}

        async def be_killed() -> None:
            async with sandbox(server.place) as inside:
                environment.update(inside.allowed.environment)
                # Its connection ends without a word, as that of a killed process does.
                await inside.client._stream.aclose()

        with pytest.raises(SandboxError):
            await be_killed()
        with anyio.fail_after(120):
            while True:
                result = await watching.run("python3", "-c", GET, f"http://{server.place}/", environment=environment)
                if result.stdout == b"unreachable\n":
                    break


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@ONE
async def test_an_error_in_the_block_is_raised_as_it_is(sandbox: Open, server: Server) -> None:
    with pytest.raises(CommandError):
        async with sandbox(server.place) as inside:
            await inside.run("no-such-command")
    with pytest.raises(OptionsError):
        async with sandbox("https://example.com"):
            pass


@ONE
async def test_somebody_is_asked_once_about_each_host_and_the_request_waits(
    sandbox: Open, server: Server, other: Server
) -> None:
    asked: list[str] = []
    waiting = anyio.Event()
    answered = anyio.Event()

    async def ask(place: str) -> str:
        asked.append(place)
        if place == server.place:
            waiting.set()
            await answered.wait()
            return "yes"
        return "no"

    async with sandbox(ask=ask) as inside, anyio.create_task_group() as group:
        found: list[bytes] = []

        async def fetch() -> None:
            found.append(await inside.python(GET, f"http://{server.place}/"))

        group.start_soon(fetch)
        group.start_soon(fetch)
        with anyio.fail_after(120):
            await waiting.wait()
        assert (await inside.run("echo", "here")).stdout == b"here\n"
        assert found == []
        answered.set()
        await until(lambda: len(found) == 2)
        assert found == [b"200 4\n", b"200 4\n"]
        assert await inside.python(GET, f"http://{other.place}/") == b"403\n"
        assert await inside.python(GET, f"http://{other.place}/") == b"403\n"
    assert sorted(asked) == sorted([server.place, other.place])


@ONE
async def test_an_answer_for_always_is_remembered_in_the_session(sandbox: Open, server: Server) -> None:
    asked: list[str] = []

    async def ask(place: str) -> str:
        asked.append(place)
        return "always"

    for _ in range(2):
        async with sandbox(ask=ask) as inside:
            assert await inside.python(GET, f"http://{server.place}/") == b"200 4\n"
    assert asked == [server.place]
    # Only where somebody is to be asked, and so knows of it.
    async with sandbox(f"{HOST}:1") as inside:
        assert await inside.python(GET, f"http://{server.place}/") == b"403\n"


@ONE
async def test_questions_come_to_an_end(sandbox: Open) -> None:
    asked: list[str] = []

    async def ask(place: str) -> str:
        asked.append(place)
        return "no"

    script = """
import os, socket
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1]))
for number in range(200):
    with socket.create_connection(proxy) as connection:
        connection.sendall(b"CONNECT host%d.example:443 HTTP/1.1\\r\\nHost: host%d.example\\r\\n\\r\\n" % (number, number))
        assert connection.recv(65536).startswith(b"HTTP/1.1 403 ")
"""
    async with sandbox(ask=ask) as inside:
        await inside.python(script)
    assert 0 < len(asked) <= 32


async def test_a_frozen_sandbox_goes_on_where_it_was(sandbox: Open, server: Server) -> None:
    async with sandbox(server.place) as inside, anyio.create_task_group() as group:
        found: list[bytes] = []

        async def fetch() -> None:
            found.append(await inside.python(GET, f"http://{server.place}/big/20000000"))

        group.start_soon(fetch)
        for _ in range(5):
            async with inside.client.freeze():
                pass
        await until(lambda: found)
    assert found == [b"200 20000000\n"]


@FAST
async def test_curl_goes_through_the_proxy_by_http_and_https_and_nowhere_past_it(
    sandbox: Open, server: Server, secure: Server, authority: trustme.CA
) -> None:
    need_program("curl")
    async with sandbox(server.place, secure.place) as inside:
        await inside.client.write_file("authority.pem", authority.cert_pem.bytes())
        curl = ("curl", "-sS", "--cacert", "authority.pem")
        assert (await inside.run(*curl, f"http://{server.place}/")).stdout == b"here"
        assert (await inside.run(*curl, f"https://{secure.place}/")).stdout == b"here"
        upload = await inside.run(
            "sh", "-c", f"head -c 3000000 /dev/zero | {' '.join(curl)} -T - https://{secure.place}/length"
        )
        assert upload.stdout == b"3000000"
        # It can't connect.
        assert (await inside.run(*curl, "--noproxy", "*", f"http://{server.place}/")).exit_code == 7
        refused = await inside.run(*curl, "https://192.0.2.1/")
        assert refused.exit_code == 56
        assert b"403" in refused.stderr
    assert [event.verdict for event in inside.allowed.events] == ["allowed", "allowed", "allowed", "refused"]
