"""A page that answers each request at once, as a process of its own, which prints its address."""

import asyncio
from typing import Final

ANSWER: Final = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n{"waiting":3,"run":4} '


async def serve() -> None:
    """Serve until killed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/queue", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
