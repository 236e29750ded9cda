"""Reads the whole body of an answer, or no more of it than is allowed.

Knows that one read of a stream gives what has come so far: a packet of it, where a network lies between.
Refuses to know what a body says.
"""

import aiohttp


async def read_body(content: aiohttp.StreamReader, max_bytes: int) -> bytes | None:
    """Read up to the end; None where that is further than so many bytes."""
    body = bytearray()
    while len(body) <= max_bytes and (part := await content.readany()):
        body += part
    return bytes(body) if len(body) <= max_bytes else None
