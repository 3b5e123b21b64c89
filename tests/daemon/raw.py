# SPDX-License-Identifier: Apache-2.0
"""A client that speaks the wire protocol by hand, right or wrong.

It shares no code with libcaid, so that a mistake there is not made here, too.
"""

import os
import socket
import struct


def pack(value):
    """MessagePack, as far as the protocol uses it."""
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xcf" + struct.pack(">Q", value) if value >= 0 else b"\xd3" + struct.pack(">q", value)
    if isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        return b"\xda" + struct.pack(">H", len(data)) + data
    if isinstance(value, (list, tuple)):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        items = b"".join(pack(k) + pack(v) for k, v in value.items())
        return b"\xde" + struct.pack(">H", len(value)) + items
    raise TypeError(type(value))


class Unpacker:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        if self.at > len(self.data):
            raise ValueError("cut")
        return self.data[self.at - n : self.at]

    def number(self, fmt):
        return struct.unpack(">" + fmt, self.take(struct.calcsize(">" + fmt)))[0]

    def list(self, n):
        return [self.value() for _ in range(n)]

    def map(self, n):
        return {self.value(): self.value() for _ in range(n)}

    def value(self):
        tag = self.number("B")
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self.map(tag & 0x0F)
        if tag < 0xA0:
            return self.list(tag & 0x0F)
        if tag < 0xC0:
            return self.take(tag & 0x1F).decode()
        if tag >= 0xE0:
            return tag - 0x100
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if 0xCC <= tag <= 0xD3:
            return self.number("BHIQbhiq"[tag - 0xCC])
        if 0xD9 <= tag <= 0xDB:
            return self.take(self.number("BHI"[tag - 0xD9])).decode()
        if tag in (0xDC, 0xDD):
            return self.list(self.number("HI"[tag - 0xDC]))
        if tag in (0xDE, 0xDF):
            return self.map(self.number("HI"[tag - 0xDE]))
        raise ValueError(f"tag {tag:#x}")


def unpack(data):
    unpacker = Unpacker(data)
    value = unpacker.value()
    if unpacker.at != len(data):
        raise ValueError("more than one object")
    return value


class Refused(Exception):
    """The error of a response."""

    def __init__(self, error):
        super().__init__(error["text"])
        self.code, self.cuda = error["code"], error.get("cuda", 0)


class Closed(Exception):
    """The daemon has ended the connection."""


class Client:
    """One connection; it has said hello unless told not to."""

    def __init__(self, path, hello=True, timeout=60):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.next_id = 0
        self.fds = []  # of the last packet
        try:
            self.sock.connect(str(path))  # waits for room in the backlog, as it would not with a timeout
            self.sock.settimeout(timeout)
            self.hello = self.call("hello", version_min=1, version_max=1) if hello else None
        except BaseException:
            self.sock.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.drop_fds()
        self.sock.close()

    def drop_fds(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def send(self, data, fds=()):
        if fds:
            socket.send_fds(self.sock, [data], list(fds))
        else:
            self.sock.send(data)

    def request(self, method, **params):
        """Sends a request and does not wait for its answer."""
        self.next_id += 1
        self.send(pack([0, self.next_id, method, params]))
        return self.next_id

    def notify(self, method, **params):
        self.send(pack([2, method, params]))

    def receive(self):
        """The next packet as it came, its fds in self.fds."""
        self.drop_fds()
        try:
            data, self.fds, flags, _ = socket.recv_fds(self.sock, 65536, 253)
        except (ConnectionResetError, BrokenPipeError) as e:
            raise Closed from e
        if not data:
            raise Closed
        assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        return data

    def any_response(self):
        """The number of the request that it answers, and the result."""
        kind, number, error, result = unpack(self.receive())
        assert kind == 1
        if error is not None:
            raise Refused(error)
        return number, result

    def response(self, number=None):
        number_got, result = self.any_response()
        assert number is None or number_got == number
        return result

    def call(self, method, **params):
        return self.response(self.request(method, **params))

    def is_closed(self):
        """Waits until the daemon ends the connection, or the timeout."""
        try:
            while True:
                self.receive()
        except Closed:
            return True
        except TimeoutError:
            return False
