"""What a bridge such as `socat` does: stdin and stdout of a client on one side, a TCP connection on the other."""

import os
import socket
import sys
import threading

conn = socket.create_connection((sys.argv[1], int(sys.argv[2])))


def say():
    while data := os.read(0, 65536):
        conn.sendall(data)
    conn.shutdown(socket.SHUT_WR)


threading.Thread(target=say, daemon=True).start()
while data := conn.recv(65536):
    while data:
        data = data[os.write(1, data) :]
