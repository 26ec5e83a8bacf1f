"""What is sent with a kubeconfig, field by field, and that kubectl sends the same.

The server is the simulated API server over TLS; it demands a client certificate where a row needs
one. Each row also runs with kubectl itself, where there is one.
"""

import base64
import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from common.apiserver.access import Impersonation, proxy_of_environment
from common.apiserver.errors import CredentialsError
from common.apiserver.exec_plugin import ExecPlugin, ExecSettings
from common.apiserver.kubeconfig import context_names, load_context
from common.apiserver.rest import Rest
from common.errors import Unavailable
from simulator.api.server import ApiServer, Settings
from tests.deploy.kustomize import kubectl

Json = dict[str, Any]
Headers = dict[str, list[str]]

CA = trustme.CA()
_USER = CA.issue_cert("u@example.org", common_name="u")
_OTHER = trustme.CA()
NAME = "api.example"
"""A name in the server's certificate that is not its address."""

NOBODY = Impersonation()
EXEC = "client.authentication.k8s.io/v1"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def printing(status: object, version: str = EXEC, **more: object) -> Json:
    """A plugin that prints an ExecCredential."""
    text = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    plugin = {"apiVersion": EXEC, "command": "echo", "args": [text], "interactiveMode": "Never"}
    return {"exec": plugin | more}


def bearer(token: str) -> Headers:
    return {"authorization": [f"Bearer {token}"]}


@dataclass
class Row:
    """A user and a cluster of a kubeconfig, flags, and what comes of them.

    Attributes:
        sent: headers of credentials and impersonation; ``None`` if nothing is sent.
        error: our error, of which nothing but the name of the file is left out.
        alike: whether kubectl sends the same, or nothing.
    """

    user: Json
    sent: Headers | None = None
    error: str = ""
    cluster: Json = field(default_factory=dict)
    flags: Impersonation = NOBODY
    alike: bool = True


CERT = {
    "client-certificate-data": encoded(_USER.cert_chain_pems[0].bytes()),
    "client-key-data": encoded(_USER.private_key_pem.bytes()),
}
CERT_FILES = {"client-certificate": "u.crt", "client-key": "u.key"}
AS = {"token": "t", "as": "alice", "as-groups": ["g1", "g2"], "as-uid": "7"}
AS_SENT = bearer("t") | {"impersonate-user": ["alice"], "impersonate-uid": ["7"]}
CA_DATA = encoded(CA.cert_pem.bytes())
CA_TWICE = "certificate-authority must not be given together with certificate-authority-data"
GROUP_ALONE = "a group, UID or extra field is to be impersonated, but no user: --as is missing"

ROWS = {
    # Tokens and passwords.
    "token": Row({"token": "t"}, bearer("t")),
    "token in a file": Row({"tokenFile": "token"}, bearer("tok1")),
    "token and a file": Row({"token": "t", "tokenFile": "token"}, bearer("tok1")),
    "token and no such file": Row({"token": "t", "tokenFile": "absent"}, bearer("t")),
    "no such file": Row(
        {"tokenFile": "absent"},
        error="the token file FOLDER/absent cannot be read: No such file or directory",
    ),
    "empty file": Row({"tokenFile": "empty"}, error="the token file FOLDER/empty is empty"),
    "line break in a token": Row(
        {"token": "t\n"}, error='user "u": token has a line break or another control character'
    ),
    "token beyond ASCII": Row({"token": "ü日"}, bearer("ü日".encode().decode("latin-1"))),
    "token of another type": Row({"token": 123}, error='user "u": token must be a string'),
    "password": Row({"username": "u", "password": "p"}, {"authorization": ["Basic dTpw"]}),
    "password and token": Row(
        {"username": "u", "password": "p", "token": "t"},
        error='user "u": token must not be given together with username and password',
    ),
    "no credentials": Row({}, error='user "u" has no credentials'),
    "unknown field": Row({"token": "t", "tokn": "x"}, bearer("t")),
    # Client certificates.
    "certificate": Row(CERT, {}),
    "certificate in files": Row(CERT_FILES, {}),
    "certificate and token": Row(CERT | {"token": "t"}, bearer("t")),
    "certificate without key": Row(
        {"client-certificate": "u.crt"},
        error='user "u": client-certificate needs client-key or client-key-data',
    ),
    "certificate twice": Row(
        CERT | CERT_FILES,
        error=(
            'user "u": client-certificate must not be given together with client-certificate-data'
        ),
    ),
    "certificate that is not there": Row(
        {"client-certificate": "no.crt", "client-key": "u.key"},
        error=(
            'user "u": client-certificate cannot be read: FOLDER/no.crt: No such file or directory'
        ),
    ),
    "key that is none": Row(
        {"client-certificate": "u.crt", "client-key": "token"},
        error=(
            "API server: getting credentials: client-certificate and client-key are no PEM "
            "certificate with its key without a password"
        ),
    ),
    "certificate that is no base64": Row(
        {"client-certificate-data": "?", "client-key": "u.key"},
        error='user "u": client-certificate-data must be base64',
    ),
    # Impersonation.
    "as": Row(AS, AS_SENT | {"impersonate-group": ["g1", "g2"]}),
    "as-user-extra": Row(
        {"token": "t", "as": "alice", "as-user-extra": {"Scope": ["a", "b"], "k": ["c"]}},
        bearer("t")
        | {
            "impersonate-user": ["alice"],
            "impersonate-extra-k": ["c"],
            "impersonate-extra-scope": ["a", "b"],
        },
    ),
    "--as instead": Row(
        AS,
        AS_SENT | {"impersonate-user": ["bob"], "impersonate-group": ["g1", "g2"]},
        flags=Impersonation("bob"),
    ),
    "--as-group instead": Row(
        AS, AS_SENT | {"impersonate-group": ["z"]}, flags=Impersonation("", ["z"])
    ),
    "--as beyond ASCII": Row(
        {"token": "t"},
        bearer("t") | {"impersonate-user": ["jürgen".encode().decode("latin-1")]},
        flags=Impersonation("jürgen"),
    ),
    "as-groups alone": Row({"token": "t", "as-groups": ["g"]}, error=GROUP_ALONE),
    "as-uid alone": Row({"token": "t", "as-uid": "7"}, error=GROUP_ALONE),
    "--as-group alone": Row({"token": "t"}, error=GROUP_ALONE, flags=Impersonation("", ["g"])),
    "--as with a line break": Row(
        {"token": "t"},
        error=(
            "the header Impersonate-User cannot be sent: its value has a line break or another "
            "control character"
        ),
        flags=Impersonation("a\nb"),
    ),
    # The server and its certificate.
    "CA in the file": Row(
        {"token": "t"},
        bearer("t"),
        cluster={"certificate-authority": "", "certificate-authority-data": CA_DATA},
    ),
    "CA twice": Row(
        {"token": "t"},
        error=f'cluster "k": {CA_TWICE}',
        cluster={"certificate-authority-data": CA_DATA},
    ),
    "CA that is not there": Row(
        {"token": "t"},
        error=(
            'cluster "k": certificate-authority cannot be read: FOLDER/no.pem: No such file or '
            "directory"
        ),
        cluster={"certificate-authority": "no.pem"},
    ),
    "CA that is none": Row(
        {"token": "t"},
        error="the CA certificates are no PEM certificates",
        cluster={"certificate-authority": "token"},
    ),
    "another CA": Row(
        {"token": "t"},
        error="API server: the certificate of SERVER is not trusted: *",
        cluster={"certificate-authority": "other.pem"},
    ),
    "CA of the system": Row(
        {"token": "t"},
        error="API server: the certificate of SERVER is not trusted: *",
        cluster={"certificate-authority": ""},
    ),
    "insecure": Row(
        {"token": "t"},
        bearer("t"),
        cluster={"certificate-authority": "", "insecure-skip-tls-verify": True},
    ),
    "insecure with CA": Row(
        {"token": "t"},
        error=(
            'cluster "k": insecure-skip-tls-verify must not be given together with '
            "certificate-authority"
        ),
        cluster={"insecure-skip-tls-verify": True},
    ),
    "tls-server-name": Row({"token": "t"}, bearer("t"), cluster={"tls-server-name": NAME}),
    "another tls-server-name": Row(
        {"token": "t"},
        error="API server: the certificate of SERVER is not trusted: Hostname mismatch*",
        cluster={"tls-server-name": "other.example"},
    ),
    "disable-compression": Row({"token": "t"}, bearer("t"), cluster={"disable-compression": True}),
    "proxy that refuses": Row(
        {"token": "t"},
        error="API server: the proxy does not connect to SERVER: Connection refused",
        cluster={"proxy-url": "http://127.0.0.1:1"},
    ),
    "proxy of another kind": Row(
        {"token": "t"},
        error='cluster "k": proxy-url must begin with http://, https:// or socks5://',
        cluster={"proxy-url": "ftp://127.0.0.1:1"},
    ),
    "no server": Row(
        {"token": "t"}, error='cluster "k": server is required', cluster={"server": ""}
    ),
    "http to another machine": Row(
        {"token": "t"},
        error=('cluster "k": server must begin with https://: credentials are not sent over http'),
        cluster={"server": "http://192.0.2.1:8080"},
        alike=False,  # it sends the request without them
    ),
    # auth-provider.
    "gcp": Row(
        {"auth-provider": {"name": "gcp", "config": {"access-token": "t"}}},
        error='user "u".auth-provider: name must be oidc: use exec instead of other providers',
    ),
    "oidc without a token": Row(
        {"auth-provider": {"name": "oidc", "config": {"id-token": "x"}}},
        error='user "u".auth-provider: id-token is no token with a time of expiry',
    ),
    # exec.
    "exec": Row(printing({"token": "t"}), bearer("t")),
    "exec with a certificate": Row(
        printing(
            {
                "clientCertificateData": _USER.cert_chain_pems[0].bytes().decode(),
                "clientKeyData": _USER.private_key_pem.bytes().decode(),
            }
        ),
        {},
    ),
    "exec beside a token": Row(printing({"token": "x"}) | {"token": "t"}, bearer("t")),
    "exec beside an auth-provider": Row(
        printing({"token": "x"}) | {"auth-provider": {"name": "oidc"}},
        error='user "u": exec must not be given together with auth-provider',
    ),
    "exec: env": Row(
        {
            "exec": {
                "apiVersion": EXEC,
                "command": "sh",
                "args": ["-c", 'printf "$TEXT" x"$A"'],
                "env": [
                    {"name": "A", "value": "1"},
                    {
                        "name": "TEXT",
                        "value": json.dumps(
                            {
                                "apiVersion": EXEC,
                                "kind": "ExecCredential",
                                "status": {"token": "%s"},
                            }
                        ),
                    },
                ],
                "interactiveMode": "IfAvailable",
            }
        },
        bearer("x1"),
    ),
    "exec: relative path": Row(printing({}, command="./plugin", args=[]), bearer("relative")),
    "exec: default of interactiveMode": Row(
        printing(
            {"token": "t"},
            f"{EXEC}beta1",
            apiVersion=f"{EXEC}beta1",
            interactiveMode="",
        ),
        bearer("t"),
    ),
    "exec: no interactiveMode": Row(
        printing({"token": "t"}, interactiveMode=""),
        error='user "u".exec: interactiveMode must be Never, IfAvailable or Always',
    ),
    "exec: no terminal": Row(
        printing({"token": "t"}, interactiveMode="Always"),
        error=(
            "API server: getting credentials: the credential plugin echo needs a terminal, and "
            "standard input is none"
        ),
    ),
    "exec: no command": Row(
        printing({"token": "t"}, command=""), error='user "u".exec: command is required'
    ),
    "exec: apiVersion": Row(
        printing({"token": "t"}, apiVersion=f"{EXEC}alpha1"),
        error=f'user "u".exec: apiVersion must be {EXEC} or {EXEC}beta1',
    ),
    "exec: variable without a name": Row(
        printing({"token": "t"}, env=[{"value": "x"}]),
        error='user "u".exec: env has a variable without a name',
    ),
    "exec: not installed": Row(
        printing({}, command="no-such-plugin", installHint="brew install it"),
        error=(
            "API server: getting credentials: the credential plugin no-such-plugin is not "
            "installed: brew install it"
        ),
    ),
    "exec: failure": Row(
        printing({}, command="false"),
        error=(
            "API server: getting credentials: the credential plugin false failed with exit code 1"
        ),
    ),
    "exec: nothing in it": Row(
        printing({}),
        error=(
            "API server: getting credentials: the credential plugin echo returned neither a token "
            "nor a certificate"
        ),
    ),
    "exec: certificate without key": Row(
        printing({"token": "t", "clientCertificateData": "x"}),
        error=(
            "API server: getting credentials: the credential plugin echo returned only one of "
            "certificate and key"
        ),
    ),
    "exec: another version": Row(
        printing({"token": "t"}, f"{EXEC}beta1"),
        error=(
            "API server: getting credentials: the credential plugin echo did not return an "
            f"ExecCredential of {EXEC}"
        ),
    ),
    "exec: no JSON": Row(
        printing({}, args=["secret"]),
        error=(
            "API server: getting credentials: the credential plugin echo printed no ExecCredential"
        ),
    ),
    "exec: line break in a token": Row(
        printing({"token": "a\nb"}),
        error=(
            "API server: getting credentials: the header Authorization cannot be sent: its value "
            "has a line break or another control character"
        ),
    ),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[bool, ApiServer]]:
    """A server that demands a client certificate, and one that does not."""

    def tls(*, demanded: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        CA.issue_cert("127.0.0.1", NAME).configure_cert(context)
        if demanded:
            context.verify_mode = ssl.CERT_REQUIRED
            CA.configure_trust(context)
        return context

    with (
        ApiServer(Settings(tls=tls(demanded=True))) as strict,
        ApiServer(Settings(tls=tls(demanded=False))) as lax,
    ):
        yield {True: strict, False: lax}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that rows name."""
    (tmp_path / "token").write_text("tok1\n")
    (tmp_path / "empty").write_text("\n")
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    _OTHER.cert_pem.write_to_path(tmp_path / "other.pem")
    _USER.cert_chain_pems[0].write_to_path(tmp_path / "u.crt")
    _USER.private_key_pem.write_to_path(tmp_path / "u.key")
    status = {"apiVersion": EXEC, "kind": "ExecCredential", "status": {"token": "relative"}}
    (tmp_path / "plugin").write_text(f"#!/bin/sh\necho '{json.dumps(status)}'\n")
    (tmp_path / "plugin").chmod(0o755)
    return tmp_path


def write(path: Path, user: object, cluster: Json, *, name: str = "c", ca: str = "ca.pem") -> Path:
    """Write a kubeconfig with one context."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": "k", "cluster": {"certificate-authority": ca} | cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": name, "context": {"cluster": "k", "user": "u", "namespace": name}}],
    }
    path.write_text(json.dumps(document))
    return path


def server_for(row: Row, servers: Mapping[bool, ApiServer]) -> ApiServer:
    demanded = row.user.keys() >= CERT.keys() or row.user.keys() >= CERT_FILES.keys()
    return servers[demanded or "clientKeyData" in json.dumps(row.user)]


def last_sent(server: ApiServer, since: int) -> Headers | None:
    """What the last request had of credentials and impersonation; ``None`` without one."""
    requests = server.requests[since:]
    if not requests:
        return None
    found: Headers = {}
    for name, value in requests[-1].headers.items():
        key = name.lower()
        if key == "authorization" or key.startswith("impersonate-"):
            # The server decodes UTF-8; on the wire each byte is one character.
            text = value.encode("utf-8", "surrogateescape").decode("latin-1")
            found.setdefault(key, []).append(text)
    return found


def send(path: Path, flags: Impersonation = NOBODY) -> str:
    """Send a request as our programs do; return the error, empty without one."""
    try:
        access, _ = load_context([path], impersonation=flags, environment={})
        response = Rest(access, user_agent="test").request("GET", "/api/v1/pods", timeout=10)
    except (CredentialsError, Unavailable) as error:
        return str(error)
    response.drain_conn()
    return "" if response.status == 200 else str(response.status)


@pytest.mark.parametrize("name", ROWS)
def test_what_a_kubeconfig_says_is_sent_or_the_reason_is_one_line(
    folder: Path, servers: Mapping[bool, ApiServer], name: str
) -> None:
    row = ROWS[name]
    server = server_for(row, servers)
    path = write(folder / "config", row.user, {"server": server.url} | row.cluster)
    since = len(server.requests)
    error = send(path, row.flags).removeprefix("kubeconfig: ")
    error = error.removeprefix(f"cannot use {path}: ").replace(str(folder), "FOLDER")
    error = error.replace(server.url.rpartition("/")[2], "SERVER")
    head, star, _ = row.error.partition("*")
    assert error[: len(head)] == head if star else error == row.error
    assert "\n" not in error
    assert last_sent(server, since) == row.sent


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.alike])
def test_kubectl_sends_the_same_or_nothing_too(
    folder: Path, servers: Mapping[bool, ApiServer], name: str
) -> None:
    row = ROWS[name]
    server = server_for(row, servers)
    path = write(folder / "config", row.user, {"server": server.url} | row.cluster)
    flags = [f"--as={row.flags.user}"] if row.flags.user else []
    flags += [f"--as-group={each}" for each in row.flags.groups]
    since = len(server.requests)
    command = [kubectl(), "--kubeconfig", str(path), "get", "--raw", "/api/v1/pods", *flags]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.returncode == 0) == (row.sent is not None), done.stderr
    assert last_sent(server, since) == row.sent


# --- files and contexts -----------------------------------------------------------------


def test_of_several_files_the_first_decides_and_paths_are_relative_to_their_own(
    folder: Path, servers: Mapping[bool, ApiServer]
) -> None:
    server = {"server": servers[False].url}
    (folder / "other").mkdir()
    one = write(folder / "one", {"token": "one"}, server, name="a")
    two = write(folder / "other" / "two", {"token": "two"}, server, name="b", ca="../ca.pem")
    absent, empty = folder / "absent", folder / "empty"
    for paths, namespace, token in (
        ([absent, one, two], "a", "one"),
        ([two, empty, one], "b", "two"),
    ):
        access, found = load_context(paths, environment={})
        assert found == namespace
        assert access.credentials.current().authorization == f"Bearer {token}"
        assert access.authorities == CA.cert_pem.bytes()
        assert context_names(paths) == ["a", "b"]
    access, found = load_context([one, two], "b", environment={})
    assert found == "b"
    assert access.credentials.current().authorization == "Bearer one"  # the first u


def changed(path: Path, change: str, value: object) -> None:
    """Change one field of a kubeconfig; ``a.b`` is a field of the first entry of a list."""
    document = json.loads(path.read_text())
    at = document
    *before, last = change.split(".")
    for each in before:
        at = at[each][0] if isinstance(at[each], list) else at[each]
    at[last] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "value", "text"),
    [
        ("current-context", "", "current-context is not set, and --context is not given"),
        ("current-context", "zz", 'context "zz" does not exist'),
        ("contexts.context.user", "zz", 'context "c": user "zz" does not exist'),
        ("contexts.context.user", "", 'the user of context "c" has no credentials'),
        ("contexts.context.cluster", "zz", 'context "c": cluster "zz" does not exist'),
        (
            "contexts.context.namespace",
            7,
            'context "c": namespace must be a string',
        ),
        ("clusters", [], 'context "c": cluster "k" does not exist'),
        ("users", [{"name": "u"}, {"name": "u"}], 'config: users has "u" twice'),
        ("users", {"u": {}}, "config: users must be a list"),
        ("users", [1], "config.users is not an object"),
        ("users.user", "x", 'user "u" is not an object'),
        (
            "clusters.cluster.server",
            "https://u:secret@a",
            'cluster "k": server must have no password: it belongs to the user',
        ),
        ("clusters.cluster.server", "https://a:b", 'cluster "k": server is not a URL: *'),
        (
            "clusters.cluster.server",
            "ftp://a",
            'cluster "k": server must be a URL that begins with https:// or http://',
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_file_and_field(
    folder: Path, change: str, value: object, text: str
) -> None:
    path = write(folder / "config", {"token": "t"}, {"server": "https://127.0.0.1:1"})
    changed(path, change, value)
    with pytest.raises(CredentialsError) as caught:
        load_context([path], environment={})
    head = f"kubeconfig: cannot use {path}: {text.removesuffix('*')}"
    assert str(caught.value)[: len(head)] == head
    assert text.endswith("*") or str(caught.value) == head


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it has no clusters, users and contexts"),
        (b"a: 1\nsecret: [", "line 2 is not YAML"),
        (b"password: *hunter2", "line 1 is not YAML"),
        (b"a: 2026-99-99", "it is not YAML"),
        (b"\x00", "it is not YAML"),
        (b"\xff\xfe\xff", "it is not YAML"),
    ],
)
def test_a_file_that_is_no_yaml_is_one_line(folder: Path, content: bytes, text: str) -> None:
    path = folder / "config"
    path.write_bytes(content)
    with pytest.raises(CredentialsError, match=f"^kubeconfig: cannot use {path}: {text}$"):
        load_context([path])


# --- tokens that expire -----------------------------------------------------------------


@pytest.mark.parametrize("valid", [True, False])
def test_a_token_of_oidc_is_sent_until_it_expires(folder: Path, *, valid: bool) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1 if valid else -1)
    claims = encoded(json.dumps({"exp": int(expires.timestamp())}).encode()).rstrip("=")
    token = f"e30.{claims.replace('+', '-').replace('/', '_')}.sig"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    path = write(folder / "config", user, {"server": "https://127.0.0.1:1"})
    if valid:
        source = load_context([path], environment={})[0].credentials
        assert source.current().authorization == f"Bearer {token}"
    else:
        with pytest.raises(CredentialsError, match="id-token has expired: any command of kubectl"):
            load_context([path], environment={})


def test_a_plugin_is_run_once_until_its_credentials_expire_or_are_rejected(tmp_path: Path) -> None:
    status = {"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"}
    text = json.dumps({"apiVersion": EXEC, "kind": "ExecCredential", "status": status})
    script = (
        f"echo run >> {tmp_path}/runs; echo '{text}'; echo $KUBERNETES_EXEC_INFO > {tmp_path}/info"
    )
    settings = ExecSettings(
        *("sh", ("-c", script), {}, EXEC, "", "IfAvailable"), cluster={"server": "https://a"}
    )
    now = [datetime(2025, 12, 31, tzinfo=UTC)]
    plugin = ExecPlugin(settings, lambda: now[0])

    def runs() -> int:
        plugin.current()
        return len((tmp_path / "runs").read_text().splitlines())

    assert [runs(), runs()] == [1, 1]
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": EXEC,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://a"}},
    }
    plugin.reject(plugin.current())
    assert [runs(), runs()] == [2, 2]
    now[0] = datetime(2026, 1, 2, tzinfo=UTC)
    assert [runs(), runs()] == [3, 4]


def test_provide_cluster_info_has_the_clusters_fields_and_its_extension(folder: Path) -> None:
    """As the API group ``client.authentication.k8s.io`` names them."""
    script = 'printf "%s" "$KUBERNETES_EXEC_INFO" > info; exit 1'
    user = printing({}, command="sh", args=["-c", script], provideClusterInfo=True)
    user["exec"]["args"][1] = script.replace("> info", f"> {folder}/info")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"server": "https://127.0.0.1:1", "tls-server-name": NAME, "extensions": [extension]}
    path = write(folder / "config", user, cluster)
    assert "failed with exit code 1" in send(path)
    ours = json.loads((folder / "info").read_text())
    assert ours["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://127.0.0.1:1",
            "tls-server-name": NAME,
            "certificate-authority-data": CA_DATA,
            "config": {"audience": "x"},
        },
    }


# --- proxies of the environment ---------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://a.example:6443", {}, ""),
        ("https://a.example:6443", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.example:6443", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://a.example:6443", {"HTTP_PROXY": "http://p:1"}, ""),
        ("http://a.example", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://[::1]:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b, Example"}, ""),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".example"}, ""),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*.example"}, ""),
        ("https://example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".example"}, "http://p:1"),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example:443"}, ""),
        (
            "https://a.example:6443",
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example:443"},
            "http://p:1",
        ),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p:1", "no_proxy": "10.0.0.0/8"}, ""),
        ("https://[fd00::1]", {"HTTPS_PROXY": "http://p:1", "no_proxy": "fd00::/8"}, ""),
        ("https://10.96.0.1", {"HTTPS_PROXY": "http://p:1", "no_proxy": "192.0.2.1"}, "http://p:1"),
    ],
)
def test_the_proxy_of_the_environment_follows_gos_rules(
    server: str, environment: Mapping[str, str], proxy: str
) -> None:
    assert proxy_of_environment(server, environment) == proxy
