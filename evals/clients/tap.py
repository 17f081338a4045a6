"""A tap on a TCP connection: forwards bytes both ways unchanged, and records what the client sends."""

import asyncio
import itertools
import threading


class Tap:
    """Listens on a free local port and forwards connections to `host:port`."""

    def __init__(self, host, port):
        self.target = (host, port)
        self.sent = []
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self._run, args=(started,), daemon=True).start()
        started.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    async def _connected(self, reader, writer):
        record = bytearray()
        self.sent.append(record)
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        await asyncio.gather(_pass(reader, there_writer, record), _pass(there_reader, writer, None))

    def bodies(self):
        """Returns path and body of all requests that have a body."""
        return list(itertools.chain.from_iterable(_requests(bytes(record)) for record in self.sent))

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)


async def _pass(reader, writer, record):
    try:
        while data := await reader.read(65536):
            if record is not None:
                record += data
            writer.write(data)
            await writer.drain()
    except (ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


def _requests(data):
    while b"\r\n\r\n" in data:
        head, data = data.split(b"\r\n\r\n", 1)
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        if "chunked" in headers.get("transfer-encoding", ""):
            body = b""
            while True:
                size, data = data.split(b"\r\n", 1)
                size = int(size.split(b";")[0], 16)
                body, data = body + data[:size], data[size + 2 :]
                if size == 0:
                    break
        else:
            length = int(headers.get("content-length", 0))
            body, data = data[:length], data[length:]
        if body:
            yield path.split("?")[0], body
