"""Uses the server of netstack's README, at 10.0.0.2:7777, as its clients do: they read while they write, or only then, or reset."""

import hashlib
import socket
import struct
import threading
import time

SERVER = ("10.0.0.2", 7777)
BYTES = 8 << 20


def connect() -> socket.socket:
    """The server may not be up yet."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(SERVER, timeout=30)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def exchange(reads_first: bool) -> None:
    data = hashlib.shake_256(b"echo").digest(BYTES)
    peer = connect()
    back = bytearray()

    def read() -> None:
        while part := peer.recv(1 << 16):
            back.extend(part)

    def write() -> None:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write)
    writer.start()
    if not reads_first:
        # Until what is under way fills all buffers: no more bytes leave.
        time.sleep(1)
    read()
    writer.join()
    assert bytes(back) == data, f"{len(back)} of {BYTES} bytes came back, or others"


exchange(reads_first=True)
exchange(reads_first=False)
for _ in range(200):
    peer = connect()
    peer.sendall(b"x")
    # Closed by a reset.
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
exchange(reads_first=True)
# Without the feature rud, no UDP port is taken.
for port in (4791, 5000):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(30)
        datagrams.connect(("10.0.0.2", port))
        datagrams.send(b"nobody")
        try:
            datagrams.recv(1)
            raise SystemExit(f"UDP port {port} answers")
        except ConnectionRefusedError:
            pass
print("the server sends back what clients send that read late, and outlives resets")
