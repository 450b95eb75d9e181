"""The listening socket: loopback only, and answers that are sent at once."""

from __future__ import annotations

import asyncio
import socket

from tinkerlab.rehearsal.service.serve import LOOPBACK, bind


def test_accepted_connections_send_without_delay() -> None:
    """Nagle's algorithm is off on the connections that asyncio makes from the socket."""

    async def accepted_option() -> int:
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            option = writer.get_extra_info("socket").getsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY
            )
            seen.set_result(option)
            writer.close()

        sock = bind(0)
        server = await asyncio.start_server(accept, sock=sock)
        async with server:
            _, writer = await asyncio.open_connection(*sock.getsockname())
            option = await asyncio.wait_for(seen, 10)
            writer.close()
        return option

    assert asyncio.run(accepted_option()) != 0


def test_the_socket_is_bound_to_loopback() -> None:
    with bind(0) as sock:
        assert sock.getsockname()[0] == LOOPBACK == "127.0.0.1"
