"""HTTP to a server, with nothing but asyncio: one connection a request, JSON, and server-sent events.

Whatever goes wrong is a `ServerError` with a sentence; an answer that breaks off is never taken for a whole one.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from methods.base import Refusal

STALL_S = 300.0
END = b"[DONE]"
SAID_CHARACTERS = 300


class ServerError(RuntimeError):
    """What a server did wrong, in a sentence."""


@dataclass(frozen=True)
class Http:
    """A server, on loopback unless `host` says otherwise. A request fails where nothing comes for `stall_s` seconds."""

    port: int
    stall_s: float = STALL_S
    host: str = "127.0.0.1"

    @classmethod
    def at(cls, url: str, stall_s: float = STALL_S) -> Http:
        """The server that a user named.

        Raises:
            Refusal: it is no plain `http://HOST:PORT`.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.scheme != "http" or parts.path.strip("/") or parts.query or parts.username:
            raise Refusal(f"engine.url={url} is not accepted: http://HOST:PORT is, of a server that runs.")
        return cls(port or 80, stall_s, host)

    async def text(self, path: str) -> str:
        async with self._asked("GET", path, None) as body:
            return b"".join([piece async for piece in body]).decode(errors="replace")

    async def get(self, path: str) -> Any:
        async with self._asked("GET", path, None) as body:
            return _json(b"".join([piece async for piece in body]))

    async def post(self, path: str, content: dict[str, Any]) -> Any:
        async with self._asked("POST", path, content) as body:
            return _json(b"".join([piece async for piece in body]))

    async def events(self, path: str, content: dict[str, Any]) -> AsyncGenerator[tuple[float, Any], None]:
        """The events of a streamed answer, each with the event loop's time at which it came off the socket. They end
        with `[DONE]`; an answer without it is an error."""
        clock = asyncio.get_running_loop().time
        async with self._asked("POST", path, content) as body:
            rest = b""
            async for piece in body:
                now = clock()
                *events, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n\n")
                for event in events:
                    data = event.removeprefix(b"data:").strip()
                    if data == END:
                        return
                    if data:
                        yield now, _json(data)
        raise ServerError("the server ended the answer before its end")

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, content: dict[str, Any] | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer with status 200, in the pieces it comes in."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        except OSError as error:
            where = f"port {self.port}" if self.host == "127.0.0.1" else f"{self.host}:{self.port}"
            raise ServerError(f"the server at {where} cannot be reached ({error.strerror})") from error
        try:
            await _send(writer, f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}", content)
            status, headers = await self._head(reader)
            pieces = self._pieces(reader, headers)
            async with aclosing(pieces):
                if status != 200:
                    said = b"".join([piece async for piece in pieces]).decode(errors="replace")
                    raise ServerError(f"the server answered {status}: {_short(said)}")
                yield pieces
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ServerError("the server broke the answer off") from error
        except (UnicodeDecodeError, asyncio.LimitOverrunError) as error:
            raise ServerError("the server sent what is no HTTP") from error
        finally:
            writer.close()

    async def _head(self, reader: StreamReader) -> tuple[int, dict[str, str]]:
        head = (await self._timely(reader.readuntil(b"\r\n\r\n"))).decode("ascii")
        first, *lines = head.split("\r\n")
        words = first.split()
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
            raise ServerError(f"the server sent what is no HTTP: {_short(first)}")
        pairs = (line.partition(":") for line in lines if line)
        return int(words[1]), {name.strip().lower(): value.strip().lower() for name, _, value in pairs}

    async def _pieces(self, reader: StreamReader, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
        if headers.get("transfer-encoding") == "chunked":
            while size := _size(await self._timely(reader.readuntil(b"\r\n"))):
                yield (await self._timely(reader.readexactly(size + 2)))[:-2]
        elif "content-length" in headers:
            yield await self._timely(reader.readexactly(int(headers["content-length"])))
        else:
            while piece := await self._timely(reader.read(1 << 16)):
                yield piece

    async def _timely(self, reading: Awaitable[bytes]) -> bytes:
        try:
            async with asyncio.timeout(self.stall_s):
                return await reading
        except TimeoutError:
            raise ServerError(f"nothing came from the server for {self.stall_s:g} s") from None


async def _send(writer: StreamWriter, first: str, content: dict[str, Any] | None) -> None:
    """A request that begins with these lines."""
    body = b"" if content is None else json.dumps(content).encode()
    head = f"{first}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


def _size(line: bytes) -> int:
    try:
        return int(line.split(b";")[0], 16)
    except ValueError:
        raise ServerError(f"the server sent what is no HTTP: {_short(line.decode(errors='replace'))}") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise ServerError(f"the server sent what is no JSON: {_short(data.decode(errors='replace'))}") from None


def _short(text: str) -> str:
    """What a server said, on one line of bearable length."""
    return " ".join(text.split())[:SAID_CHARACTERS] or "nothing"
