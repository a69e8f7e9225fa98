"""What passes loopback while the deployment works."""

import socket
from threading import Event, Thread
from typing import Final

ETHERNET_EVERYTHING: Final = 3  # ETH_P_ALL


class Capture:
    """Everything that passes loopback, searched for texts as it passes."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.found: set[str] = set()
        self.packets = 0
        self._ended = Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERNET_EVERYTHING))
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.2)
        self._thread = Thread(target=self._read)
        self._thread.start()

    def search(self, texts: set[str]) -> None:
        """Search for these, too, from now on."""
        self.texts = self.texts | texts

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                packet = self._socket.recv(1 << 17)
            except TimeoutError:
                continue
            self.packets += 1
            self.found |= {text for text in self.texts if text.encode() in packet}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()
