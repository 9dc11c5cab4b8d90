"""Programs that want to talk to someone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.agent_system.sandbox.arena import Arena, offered
from tests.agent_system.sandbox.outside import run_outside

pytestmark = pytest.mark.promised_by("seccomp")
REPORT = """
try:
    {attack}
except OSError as error:
    print("refused", error.errno in (1, 2, 38, 97, 101, 111, -2, -3), end="")
else:
    print("reached", end="")
"""
ATTACKS = {
    "ipv4": "import socket; socket.create_connection(('127.0.0.1', {ipv4}), 2)",
    "ipv6": "import socket; socket.create_connection(('::1', {ipv6}), 2)",
    "unix_path": "import socket; socket.socket(socket.AF_UNIX).connect('{path}')",
    "unix_abstract": "import socket; socket.socket(socket.AF_UNIX).connect('\\0{abstract}')",
    "udp": "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {ipv4}))",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))",
    "datagram_pair": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '{datagram}')",
    "datagram_pair_abstract": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', '\\0{abstract}-d')",
    "raw_pair": "import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(b'x', '{datagram}')",
    "listen": "import socket; socket.create_server(('127.0.0.1', 0))",
    "dns": "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.settimeout(5); "
    "s.sendto(bytes.fromhex('00010100000100000000000007') + b'sandbox\\4test\\0\\0\\1\\0\\1', ('127.0.0.1', "
    "{dns})); s.recv(9)",
    "libc": "import ctypes; c = ctypes.CDLL(None, use_errno=True)\n    if c.socket(2, 1, 0) < 0: raise OSError(ctypes.get_errno(), '')",
}


def answer(names: socket.socket) -> None:
    """A name server that answers every query with its first bytes."""
    with suppress(OSError):
        while True:
            query, asker = names.recvfrom(512)
            names.sendto(query[:9], asker)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Real servers of every kind."""
    path = tmp_path_factory.mktemp("unix") / "socket"
    abstract = f"sandbox-test-{path.parent.name}-{id(path)}"
    with ExitStack() as stack:
        ipv4 = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        ipv6 = stack.enter_context(socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=64))
        for name in (str(path), f"\0{abstract}"):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(name)
            server.listen(64)
        path.chmod(0o777)
        datagram = path.parent / "datagram"
        for name in (str(datagram), f"\0{abstract}-d"):
            stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(name)
        datagram.chmod(0o777)
        names = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        names.bind(("127.0.0.1", 0))
        threading.Thread(target=answer, args=(names,), daemon=True).start()
        yield {
            "dns": names.getsockname()[1],
            "ipv4": ipv4.getsockname()[1],
            "ipv6": ipv6.getsockname()[1],
            "path": path,
            "datagram": datagram,
            "abstract": abstract,
        }


@pytest.mark.parametrize("name", ATTACKS)
async def test_nobody_is_reached(
    name: str, arena: Arena, addresses: dict[str, object], tmp_path: Path
) -> None:
    program = REPORT.format(attack=ATTACKS[name].format(**addresses))
    if arena.level == offered()[0]:
        assert run_outside(program, tmp_path) == "reached"
    result = await arena.attack(program)
    assert (result.stdout, result.reason) == ("refused True", "ok")


async def test_event_loops_work_although_sockets_do_not(arena: Arena) -> None:
    program = "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    print('done')\nasyncio.run(main())"
    assert (await arena.attack(program)).stdout == "done\n"
