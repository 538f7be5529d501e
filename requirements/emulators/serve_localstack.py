"""Serve LocalStack on loopback alone: it listens on all interfaces whatever GATEWAY_LISTEN names.

Run by the Python of LocalStack's environment, with its settings in the environment.
"""

from twisted.internet import endpoints

_LISTEN = endpoints.TCP4ServerEndpoint.__init__


def _on_loopback(self, reactor, port, backlog=50, interface=""):  # type: ignore[no-untyped-def]
    _LISTEN(self, reactor, port, backlog, interface or "127.0.0.1")


endpoints.TCP4ServerEndpoint.__init__ = _on_loopback

if __name__ == "__main__":
    from localstack.runtime.main import main

    main()
