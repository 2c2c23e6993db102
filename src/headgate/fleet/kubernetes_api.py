"""Makes the few calls to a Kubernetes API server that the fleet needs: get, list, patch, delete, watch.

No client library: those bring a hundred megabytes and threads of their own for five kinds of request. Each call has its
own connection, since calls are rare; a watch is a call whose answer does not end, with a JSON object on each line.

The service account's token is read again for each call, because the kubelet replaces it every hour.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from httptools import HttpParserError, HttpResponseParser

from headgate.config.cluster import KubernetesConfig
from headgate.fleet.port import FleetError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_S = 10.0
CONNECT_S = 5.0
SILENCE_S = 120.0
"""Seconds of silence after which a watch is taken for dead: bookmarks come about every minute."""
MOST_BYTES = 64 << 20
"""Maximum size of one answer, or of one line of a watch."""
PAGE = 500
"""Objects per page of a list."""

Object = dict[str, Any]
Objects = list[Object]


class ApiError(FleetError):
    """The API server refused, or did not answer. `status` 0: it was not reached."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WatchExpired(ApiError):
    """The server no longer knows what has changed since that version: list again."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """The API server's address, and the credentials for it."""

    url: str
    namespace: str
    token_file: Path | None
    ca_file: Path | None


def find_access(config: KubernetesConfig, env: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ApiAccess:
    if config.api is not None:
        return ApiAccess(config.api.rstrip("/"), config.namespace or "default", config.token_file, config.ca_file)
    host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").is_file():
        raise FleetError(
            "this is no pod with a service account, so there is no API server to ask: "
            "give fleet.kubernetes.api (kubectl proxy prints one)"
        )
    host = f"[{host}]" if ":" in host else host
    namespace = config.namespace or (account / "namespace").read_text().strip()
    token, ca = config.token_file or account / "token", config.ca_file or account / "ca.crt"
    return ApiAccess(f"https://{host}:{port}", namespace, token, ca)


class Api:
    def __init__(self, access: ApiAccess) -> None:
        parts = urlsplit(access.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FleetError(f"fleet.kubernetes.api: expected https://host:port, got {access.url!r}")
        self.namespace = access.namespace
        self._url, self._base, self._netloc = access.url, parts.path.rstrip("/"), parts.netloc
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._token_file = access.token_file
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=access.ca_file)
            except OSError as error:
                raise FleetError(
                    f"{access.ca_file}: {error.strerror or error}: no certificate of the API server"
                ) from error

    async def get(self, path: str) -> Object:
        return await self._call("GET", path)

    async def patch(self, path: str, change: Object) -> Object:
        """A merge patch: fields that are not named stay."""
        return await self._call("PATCH", path, change, "application/merge-patch+json")

    async def delete(self, path: str, options: Object) -> Object:
        return await self._call("DELETE", path, options, "application/json")

    async def list(self, path: str, selector: str) -> tuple[Objects, str]:
        """All objects, page by page, and the version from which a watch continues."""
        found: Objects = []
        query = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            page = await self._call("GET", f"{path}?{urlencode(query)}")
            found += page.get("items") or []
            further = page["metadata"].get("continue")
            if not further:
                return found, page["metadata"]["resourceVersion"]
            query["continue"] = further

    async def watch(self, path: str, selector: str, version: str) -> AsyncGenerator[Object, None]:
        """Yields changes since `version`, until the server ends the watch. Raises WatchExpired if that version is too
        old."""
        query = {
            "labelSelector": selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": "300",
        }
        async with self._exchange("GET", f"{path}?{urlencode(query)}", b"", "", SILENCE_S) as answer:
            if answer.status != 200:
                raise _error(answer.status, await answer.whole())
            async for line in answer.lines():
                event = _decode(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    raise _error(int(status.get("code", 500)), msgspec.json.encode(status))
                yield event

    async def _call(self, method: str, path: str, body: Object | None = None, content_type: str = "") -> Object:
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(CALL_S), self._exchange(method, path, data, content_type, CALL_S) as answer:
                whole = await answer.whole()
        except TimeoutError:
            raise ApiError(0, f"{self._url} did not answer within {CALL_S:g} s") from None
        if answer.status >= 400:
            raise _error(answer.status, whole)
        return _decode(whole)

    @asynccontextmanager
    async def _exchange(
        self, method: str, path: str, body: bytes, content_type: str, silence_s: float
    ) -> AsyncIterator["ApiResponse"]:
        head = [f"{method} {self._base}{path} HTTP/1.1", f"host: {self._netloc}", "accept: application/json"]
        head += ["connection: close", "user-agent: headgate", f"content-length: {len(body)}", *self._authorization()]
        head += [f"content-type: {content_type}"] if content_type else []
        writer = None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + body)
            answer = ApiResponse(reader, silence_s)
            await answer.begin()
            yield answer
        except (OSError, HttpParserError, asyncio.IncompleteReadError) as error:
            why = "it does not answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise ApiError(0, f"{self._url} can't be asked: {why}") from error
        finally:
            if writer is not None:
                writer.transport.abort()

    def _authorization(self) -> tuple[str, ...]:
        if self._token_file is None:
            return ()
        try:
            return (f"authorization: Bearer {self._token_file.read_text().strip()}",)
        except OSError as error:
            raise FleetError(f"{self._token_file}: {error.strerror or error}: no token for the API server") from error


class ApiResponse:
    """One answer as it is read. httptools calls the methods that begin with on_."""

    def __init__(self, reader: asyncio.StreamReader, silence_s: float) -> None:
        self.status = 0
        self._reader = reader
        self._silence_s = silence_s
        self._parser = HttpResponseParser(self)
        self._body = bytearray()
        self._headed = self._ended = False

    def on_headers_complete(self) -> None:
        self._headed, self.status = True, self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._ended = True

    async def begin(self) -> None:
        while not self._headed:
            await self._more()

    async def whole(self) -> bytes:
        while not self._ended:
            await self._more()
        return bytes(self._body)

    async def lines(self) -> AsyncIterator[bytes]:
        while True:
            *lines, rest = bytes(self._body).split(b"\n")
            self._body[:] = rest
            for line in lines:
                if line.strip():
                    yield line
            if self._ended:
                return
            await self._more()

    async def _more(self) -> None:
        async with asyncio.timeout(self._silence_s):
            data = await self._reader.read(1 << 16)
        if not data and not self._ended:
            if not self._headed:
                raise ConnectionError("it closed the connection without an answer")
            self._ended = True  # an answer without a length ends with its connection
            return
        self._parser.feed_data(data)
        if len(self._body) > MOST_BYTES:
            raise ConnectionError(f"an answer of more than {MOST_BYTES} bytes")


def _decode(data: bytes) -> Object:
    try:
        return msgspec.json.decode(data, type=Object)
    except msgspec.MsgspecError:
        raise ApiError(0, f"no JSON object from the API server: {data[:80]!r}") from None


def _error(status: int, body: bytes) -> ApiError:
    try:
        message = str(_decode(body).get("message") or "")
    except ApiError:
        message = body[:200].decode(errors="replace").strip()
    message = " ".join((message or f"the API server answered {status}").split())
    if status == 410:
        return WatchExpired(status, message)
    if status in (401, 403):
        message += "; `headgate export kubernetes` prints the role that the gateway's service account needs"
    return ApiError(status, message)
