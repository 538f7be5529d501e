"""Where SQS is and who asks, found by botocore as it would for its own clients.

That is the region, the endpoint (the settings', AWS_ENDPOINT_URL_SQS, AWS_ENDPOINT_URL, those of
configuration files, FIPS, dual stack), the bundle of certificates, proxies, and the chain of
credentials. It is asked once, when a client is made, and imported only then.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from botocore.session import Session

    from lanes.sqs.clients import Endpoint


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client's requests go."""

    url: str
    region: str
    proxy: str | None
    """The proxy for this URL, with its credentials, if the environment names one."""
    tls: ssl.SSLContext | None
    session: Session

    @property
    def host(self) -> str:
        """What the header `Host` says: no port where it is the scheme's own."""
        parts = urlsplit(self.url)
        port = {"http": 80, "https": 443}.get(parts.scheme)
        host = parts.netloc.rpartition("@")[2]
        return host.removesuffix(f":{port}")

    @property
    def path(self) -> str:
        """The path that requests are sent to."""
        return urlsplit(self.url).path or "/"


def resolve(endpoint: Endpoint) -> Place:
    """Find out where SQS is; blocks, and calls no broker.

    Raises:
        Exception: Whatever botocore raises: no region, a URL that is none, a broken file.
    """
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.httpsession import get_cert_path
    from botocore.utils import get_environ_proxies

    session = botocore.session.get_session()
    client = session.create_client(
        "sqs",
        region_name=endpoint.region,
        endpoint_url=endpoint.url,
        config=Config(signature_version=UNSIGNED),
    )
    url, region = client.meta.endpoint_url, client.meta.region_name
    client.close()
    scheme = urlsplit(url).scheme
    proxy = get_environ_proxies(url).get(scheme)
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    tls = None
    if scheme == "https" or (proxy or "").startswith("https:"):
        bundle = session.get_config_variable("ca_bundle") or get_cert_path(True)
        tls = ssl.create_default_context(cafile=bundle)
    return Place(url, region, proxy or None, tls, session)
