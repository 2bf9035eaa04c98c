"""Code in a bucket that speaks S3: for folders that are too large for ConfigMaps.

The folder is packed and stored once under the digest of its bytes. An init container in each pod
fetches it, compares the digest and unpacks it: a replaced pod has the same files. It needs Python
alone, so it signs its request itself (Signature Version 4,
https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.run.pack import PackedFolder, PackLimits, pack
from drumline_cli.run.requirements import with_init_container, with_volume
from drumline_cli.run.source_files import source_files
from drumline_contract import CODE_FOLDER, plain

# it is there for type checkers only
if TYPE_CHECKING:
    from obstore.store import S3Config

Json = dict[str, Any]

FORM: Final = "s3://BUCKET[/PREFIX]"
LIMITS: Final = PackLimits(
    packed_bytes=512 * 1024 * 1024,
    unpacked_bytes=2 * 1024 * 1024 * 1024,
    files=100_000,
    compression=6,
    instead="exclude files with .drumlineignore, and read data from a claim (--claim NAME=/data)",
)
"""Every pod of a gang fetches it and unpacks it into scratch space of its node."""
# The names that AWS tools read, so users need no other variables.
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_SESSION: Final = "AWS_SESSION_TOKEN"
_VOLUME: Final = "code"
_PACKED: Final = f"{CODE_FOLDER}/folder"
# Names of buckets follow the rules of S3. Dots and hyphens cannot be at the ends.
_PLACE: Final = re.compile(r"s3://([a-z0-9][-a-z0-9.]{1,61}[a-z0-9])(?:/([\w!.*'()/-]*))?")
_ENDPOINT: Final = re.compile(r"https?://[^/@\s]+/?")
FETCH: Final = '''\
import datetime, hashlib, hmac, http.client, os, pathlib, shutil, sys, tarfile, time
import urllib.error, urllib.parse, urllib.request

folder, endpoint, bucket, key, region, digest, most = sys.argv[1:]
NOTHING = hashlib.sha256(b"").hexdigest()
WRONG, LATER = 64, 1


def end(code, sentence):
    sys.stderr.write("code in s3://%s/%s: %s\\n" % (bucket, key, sentence))
    sys.exit(code)


def signed(url):
    """Return the headers of a request. Empty (an anonymous request) if the pod has no key."""
    user, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not user or not secret:
        return {}
    parts = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    headers = {"host": parts.netloc, "x-amz-content-sha256": NOTHING, "x-amz-date": stamp}
    if os.environ.get("AWS_SESSION_TOKEN"):
        headers["x-amz-security-token"] = os.environ["AWS_SESSION_TOKEN"]
    names = ";".join(sorted(headers))
    lines = "".join("%s:%s\\n" % (name, headers[name]) for name in sorted(headers))
    request = "\\n".join(("GET", parts.path, "", lines, names, NOTHING))
    scope = "%s/%s/s3/aws4_request" % (day, region)
    whole = hashlib.sha256(request.encode()).hexdigest()
    text = "\\n".join(("AWS4-HMAC-SHA256", stamp, scope, whole))
    signer = ("AWS4" + secret).encode()
    for word in (day, region, "s3", "aws4_request"):
        signer = hmac.new(signer, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(signer, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s"
        % (user, scope, names, signature)
    )
    del headers["host"]
    return headers


def fetch(url, file):
    """Write the object; returns its digest."""
    seen, count = hashlib.sha256(), 0
    request = urllib.request.Request(url, headers=signed(url))
    with urllib.request.urlopen(request, timeout=30) as answer, open(file, "wb") as packed:
        for block in iter(lambda: answer.read(1 << 20), b""):
            count += len(block)
            if count > int(most):
                end(WRONG, "it is over %s bytes, and no folder that drumline run packs is" % most)
            seen.update(block)
            packed.write(block)
    return "sha256:" + seen.hexdigest()


target = pathlib.Path(folder)
shutil.rmtree(target, ignore_errors=True)
packed = target.parent / ".packed"
base = endpoint.rstrip("/") or "https://s3.%s.amazonaws.com" % region
url = "%s/%s/%s" % (base, bucket, urllib.parse.quote(key, safe="/-_.~"))
why = ""
for delay in (0, 1, 2, 4, 8):
    time.sleep(delay)
    try:
        actual = fetch(url, packed)
        break
    except urllib.error.HTTPError as error:
        why = "%s answers %s" % (base, error.code)
        if error.code == 403:
            end(WRONG, why + "; has the pod a key that may read it? (--code-secret)")
        if error.code < 500 and error.code not in (408, 429):
            end(WRONG, why + "; submit the job again with drumline run")
    except (OSError, http.client.HTTPException) as error:
        why = "%s does not answer: %s" % (base, error)
else:
    end(LATER, why)
if actual != digest:
    end(WRONG, "its digest is %s, the job names %s" % (actual, digest))
with tarfile.open(str(packed), "r:gz") as archive:
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(str(target), **safe)
packed.unlink()
'''
"""Its arguments: folder, endpoint (empty: Amazon's), bucket, key, region, digest, most bytes. Runs
in the job's image, so Python 3.9 and its standard library are enough. It exits with 64 where no
other try can help (`ExitCode.CONFIG`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeInBucket:
    """A packed folder, and where pods find it."""

    bucket: str
    prefix: str
    packed: PackedFolder = field(repr=False)
    endpoint: str = ""
    """Endpoint of a store other than Amazon's."""
    region: str
    secret: str = ""
    """Secret of the job's namespace with the keys of `_KEYS`; empty: the job's variables, if any.
    """

    @property
    def key(self) -> str:
        """Named by its content: equal folders are stored once."""
        name = f"{self.packed.digest.replace(':', '-')}.tar.gz"
        return f"{self.prefix}/{name}" if self.prefix else name

    def within(self, template: Json) -> Json:
        """Return the template with an init container that fetches the folder."""
        mount = {"name": _VOLUME, "mountPath": CODE_FOLDER}
        # Variables of the job win over keys of the Secret with the same name.
        own = template.get("env", [])
        named = {each["name"] for each in own}
        keys = [
            {"name": name, "valueFrom": {"secretKeyRef": _key_of(self.secret, name)}}
            for name in (*_KEYS, _SESSION)
            if self.secret and name not in named
        ]
        # Positional arguments keep the script free of quoting problems.
        place = (_PACKED, self.endpoint, self.bucket, self.key, self.region, self.packed.digest)
        fetch: Json = {
            "name": "code",
            "command": ["python3", "-c", FETCH, *place, str(LIMITS.packed_bytes)],
            "env": [*keys, *own],
            "volumeMounts": [mount],
        }
        # Scratch space of the node. It disappears with the Pod.
        scratch: Json = {"name": _VOLUME, "emptyDir": {}}
        begun = with_init_container({**template, "workingDir": _PACKED}, fetch)
        return with_volume(begun, scratch, mount=mount)

    def store(self, environment: Mapping[str, str]) -> bool:
        """Store the folder if it is not stored yet. Return whether it was stored now.

        Args:
            environment: variables of this process, with the keys in AWS_ACCESS_KEY_ID and
                AWS_SECRET_ACCESS_KEY.

        Raises:
            NotAnswered: it cannot be stored.
        """
        import obstore  # noqa: PLC0415 - 40 ms that no other option needs
        from obstore.exceptions import BaseError  # noqa: PLC0415 - same
        from obstore.store import S3Store  # noqa: PLC0415 - same

        try:
            store = S3Store(
                self.bucket,
                config=self._config(environment),
                client_options={"allow_http": self.endpoint.startswith("http://")},
            )
            try:
                # The key contains the digest, so an existing object has the same content.
                obstore.head(store, self.key)
            except FileNotFoundError:
                obstore.put(store, self.key, self.packed.content)
                return True
        except (BaseError, OSError, ValueError) as error:
            # The first line names the cause. Further lines repeat the request with its headers.
            reason = str(error).partition("\n")[0][:300]
            raise NotAnswered(
                f"cannot store the code in s3://{self.bucket}/{self.key}: {plain(reason)}"
            ) from None
        return False

    def _config(self, environment: Mapping[str, str]) -> S3Config:
        # Path-style requests also work with stores that have no wildcard DNS.
        config: S3Config = {"region": self.region, "virtual_hosted_style_request": False}
        if self.endpoint:
            config["endpoint"] = self.endpoint
        # Missing keys are not an error: obstore also finds credentials of the machine.
        if key := environment.get(_KEYS[0]):
            config["access_key_id"] = key
        if secret := environment.get(_KEYS[1]):
            config["secret_access_key"] = secret
        if token := environment.get(_SESSION):
            config["session_token"] = token
        return config


def code_in_bucket(
    text: str, *, folder: Path, secret: str, environment: Mapping[str, str]
) -> CodeInBucket:
    """Return the packed folder and its place.

    Args:
        text: `s3://BUCKET/PREFIX`.
        folder: folder with the code.
        secret: name of the Secret from which pods have their key; empty: none.
        environment: environment variables of this process: AWS_ENDPOINT_URL, AWS_REGION.

    Raises:
        BadInput: it is no such place, or the folder cannot be packed.
    """
    place = _PLACE.fullmatch(text)
    prefix = ((place and place[2]) or "").strip("/")
    # Two dots would allow a path outside of the prefix.
    if place is None or ".." in prefix.split("/"):
        raise BadInput(f"invalid --code-from {plain(text)}: want {FORM}")
    # The specific variable wins, as in the tools of AWS.
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL", "")
    if endpoint and not _ENDPOINT.fullmatch(endpoint):
        raise BadInput(
            f"invalid AWS_ENDPOINT_URL {plain(endpoint)!r}: want https://HOST, without a path"
        )
    # us-east-1 is the default region of S3 clients.
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    return CodeInBucket(
        bucket=place[1],
        prefix=prefix,
        packed=pack(folder, source_files(folder, environment), limits=LIMITS),
        endpoint=endpoint,
        region=region,
        secret=secret,
    )


def _key_of(secret: str, name: str) -> Json:
    # Long-lived keys have no session token.
    needed: Json = {"name": secret, "key": name}
    return {**needed, "optional": True} if name == _SESSION else needed
