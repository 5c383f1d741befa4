"""``python -m tests.interop.golden``: have ten Redissons write tests/golden/extra.jsonl.

The values are those of tests/codecs/extra.py. A row says which versions wrote these very bytes, and what each of
them read back from them.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

from tests.codecs.extra import FILE, VALUES
from tests.interop.peers import QUICK_START, VERSIONS, Peer, PeerError
from tests.interop.values import describe, normal
from tests.servers import Server

#: A longer payload is compressed.
SHORT = 1024
PART = 1_000_000
_JAVA_LANG = ("String", "Boolean", "Integer", "Long", "Double")


def main() -> None:
    server = Server("valkey").start()
    rows: dict[str, list[str]] = {}
    for version in VERSIONS:
        # Beside the megabytes, what Kryo keeps of each of them.
        options = [*QUICK_START, "-Xmx1g"]
        peer = Peer(version, server.url, options=options).wait_ready()
        for row in written_by(peer):
            rows.setdefault(json.dumps(row, ensure_ascii=False), []).append(version)
        peer.kill()
        print(f"{version}: {sum(version in each for each in rows.values())} rows")
    server.stop()
    places = {label: place for place, label in enumerate(VALUES)}
    found = [{"versions": each} | json.loads(row) for row, each in rows.items()]
    found.sort(key=lambda row: (places[row["label"]], row["codec"]))
    lines = [json.dumps(row, ensure_ascii=False) for row in found]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def written_by(peer: Peer) -> Iterator[dict[str, Any]]:
    """Yield the rows of one version, of the codecs that it has."""
    for label, extra in VALUES.items():
        description = describe(extra.value)
        for codec in extra.codecs:
            row = {
                "codec": codec,
                "label": label,
                "type": _type(description),
                "value": extra.told,
            }
            try:
                payload = peer.call("encode", codec=codec, value=description)
            except PeerError as error:
                if "ClassNotFoundException" not in str(error):
                    yield row | {"error": str(error)}
                continue
            yield row | _packed(payload) | _read_back(peer, codec, payload, description)


def _packed(payload: str) -> dict[str, str]:
    raw = bytes.fromhex(payload)
    if len(raw) <= SHORT:
        return {"payload": payload}
    return {"payload_zlib": base64.b64encode(zlib.compress(raw, 9)).decode()}


def _read_back(
    peer: Peer, codec: str, payload: str, description: list[Any]
) -> dict[str, Any]:
    try:
        found = peer.call("decode", codec=codec, payload=in_parts(payload))
    except PeerError as error:
        return {"decode_error": str(error)}
    return {
        "decoded_type": _type(found),
        "equal": normal(found) == normal(description),
    }


def in_parts(text: str) -> list[str]:
    """Cut a text for a request; 3.21.1 comes with a Jackson 2.15.0 that reads none beyond 5 MB."""
    return [text[i : i + PART] for i in range(0, len(text), PART)]


def _type(description: list[Any]) -> str:
    kind: str = description[0]
    return f"java.lang.{kind}" if kind in _JAVA_LANG else kind


if __name__ == "__main__":
    main()
