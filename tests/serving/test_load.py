"""The service under load and in trouble, in short; `relograph bench serve` asks the same for longer."""

import asyncio
import socket

from relograph.serving.config import ServeConfig
from relograph.serving.running import listen


def test_no_answer_waits_for_its_first_lines_to_be_confirmed():
    async def option_of_a_connection() -> int:
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with listen(ServeConfig(maps=("kitchen.map",), port=0)) as listening:
            async with await asyncio.start_server(connected, sock=listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                no_delay = await made
                writer.close()
        return no_delay

    assert asyncio.run(option_of_a_connection())
