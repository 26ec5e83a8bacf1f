"""What is sent with a kubeconfig over TLS, field by field, and that kubectl sends the same."""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from common.apiserver.access import NOBODY, Credentials, Impersonation, proxy_of_environment
from common.apiserver.errors import CredentialsError
from common.apiserver.exec_plugin import ExecPlugin, ExecSettings
from common.apiserver.kubeconfig import context_names, load_context
from common.apiserver.rest import Rest
from common.errors import Unavailable
from simulator.api.server import ApiServer, Settings
from tests.common.apiserver.kubeconfig_rows import (
    CA,
    CA_DATA,
    CERT,
    CERT_FILES,
    EXEC,
    NAME,
    OTHER,
    ROWS,
    USER,
    Headers,
    Json,
    Row,
    credential,
    encoded,
    printing,
)
from tests.deploy.kustomize import kubectl


@pytest.fixture(scope="module")
def servers() -> Iterator[Mapping[bool | None, ApiServer]]:
    """By whether a client certificate is demanded; ``None`` is the one without TLS."""

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
        ApiServer() as plain,
    ):
        yield {True: strict, False: lax, None: plain}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("tok1\n")
    (tmp_path / "empty").write_text("\n")
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    OTHER.cert_pem.write_to_path(tmp_path / "other.pem")
    USER.cert_chain_pems[0].write_to_path(tmp_path / "u.crt")
    USER.private_key_pem.write_to_path(tmp_path / "u.key")
    (tmp_path / "plugin").write_text(f"#!/bin/sh\necho '{credential({'token': 'relative'})}'\n")
    (tmp_path / "plugin").chmod(0o755)
    return tmp_path


def write(path: Path, user: object, cluster: Json, *, name: str = "c", ca: str = "ca.pem") -> Path:
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


def prepare(
    row: Row, files: Path, servers: Mapping[bool | None, ApiServer]
) -> tuple[ApiServer, Path]:
    demanded = row.user.keys() >= CERT.keys() or row.user.keys() >= CERT_FILES.keys()
    demanded = demanded or "clientKeyData" in json.dumps(row.user)
    server = servers[None if row.plain else demanded]
    cluster = json.dumps({"server": server.url} | row.cluster)
    cluster = cluster.replace("HOST", server.url.rpartition("/")[2])
    return server, write(files / "config", row.user, json.loads(cluster))


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
    try:
        access, _ = load_context([path], impersonation=flags, environment={})
        response = Rest(access, user_agent="test").request("GET", "/api/v1/pods", timeout=60)
    except (CredentialsError, Unavailable) as error:
        return str(error)
    response.drain_conn()
    return "" if response.status == 200 else str(response.status)


@pytest.mark.parametrize("name", ROWS)
def test_credentials_of_a_kubeconfig_are_sent_or_the_reason_is_one_line(
    files: Path, servers: Mapping[bool | None, ApiServer], name: str
) -> None:
    row = ROWS[name]
    server, path = prepare(row, files, servers)
    since = len(server.requests)
    error = send(path, row.flags).removeprefix("kubeconfig: ")
    error = error.removeprefix(f"cannot use {path}: ").replace(str(files), "FOLDER")
    error = error.replace(server.url.rpartition("/")[2], "SERVER")
    head, star, _ = row.error.partition("*")
    assert error[: len(head)] == head if star else error == row.error
    assert "\n" not in error
    assert last_sent(server, since) == row.sent


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.alike])
def test_kubectl_sends_the_same_or_nothing_too(
    files: Path, servers: Mapping[bool | None, ApiServer], name: str
) -> None:
    row = ROWS[name]
    server, path = prepare(row, files, servers)
    flags = [f"--as={row.flags.user}"] if row.flags.user else []
    flags += [f"--as-group={each}" for each in row.flags.groups]
    since = len(server.requests)
    command = [kubectl(), "--kubeconfig", str(path), "get", "--raw", "/api/v1/pods", *flags]
    environment = {"PATH": os.environ["PATH"], "HOME": str(files)}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.returncode == 0) == (row.sent is not None), done.stderr
    assert last_sent(server, since) == row.sent


def test_the_first_of_several_files_decides_and_paths_are_relative_to_their_own(
    files: Path, servers: Mapping[bool | None, ApiServer]
) -> None:
    server = {"server": servers[False].url}
    (files / "other").mkdir()
    one = write(files / "one", {"token": "one"}, server, name="a")
    two = write(files / "other" / "two", {"token": "two"}, server, name="b", ca="../ca.pem")
    absent, empty = files / "absent", files / "empty"
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
        ("contexts.context.cluster", "", 'context "c": cluster is required'),
        ("kind", "Pod", "config: kind must be Config"),
        ("apiVersion", "v2", "config: apiVersion must be v1"),
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
        *(
            ("clusters.cluster.server", server, f'cluster "k": server {text}')
            for text, servers in {
                "must have a number up to 65535 as port": (
                    *("https://a:b", "https://a:65536", "https://::1:6443", "https:a:1"),
                ),
                "must be a URL that begins with https:// or http://": (
                    *("ftp://a", "tcp://a:1", "https://", "//a", "/a"),
                ),
                "must begin with https:// or http:// if it has a path": ("a:1/b", "https:/a"),
                "is not a URL: it has a blank or a control character": (
                    *(" ", " https://a", "https://a ", "https://a\n", "https://a b/c"),
                ),
                "is not a URL": ("https://[::1", "https://a\u2100.example"),
            }.items()
            for server in servers
        ),
    ],
)
def test_a_field_that_cannot_be_used_is_one_line_that_names_it_and_its_file(
    files: Path, change: str, value: object, text: str
) -> None:
    path = write(files / "config", {"token": "t"}, {"server": "https://127.0.0.1:1"})
    changed(path, change, value)
    with pytest.raises(CredentialsError) as caught:
        load_context([path], environment={})
    head = f"kubeconfig: cannot use {path}: {text.removesuffix('*')}"
    assert str(caught.value)[: len(head)] == head
    assert text.endswith("*") or str(caught.value) == head


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("https://a", "https://a"),
        ("HTTPS://A:6443", "https://A:6443"),
        ("https://a:6443/", "https://a:6443"),
        ("https://a/k8s/clusters/c//", "https://a/k8s/clusters/c"),
        ("https://a/b?x=1#f", "https://a/b"),
        ("https://[fd00::1]:6443/b", "https://[fd00::1]:6443/b"),
        ("[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("a:6443", "https://a:6443"),
        ("a/", "https://a"),
    ],
)
def test_the_servers_url_has_neither_query_nor_slash_at_the_end(
    files: Path, server: str, url: str
) -> None:
    path = write(files / "config", {"token": "t"}, {"server": server})
    assert load_context([path], environment={})[0].server == url


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
def test_a_file_that_is_no_yaml_is_one_line(files: Path, content: bytes, text: str) -> None:
    path = files / "config"
    path.write_bytes(content)
    with pytest.raises(CredentialsError, match=f"^kubeconfig: cannot use {path}: {text}$"):
        load_context([path])


@pytest.mark.parametrize("valid", [True, False])
def test_an_oidc_token_is_sent_until_it_expires(files: Path, *, valid: bool) -> None:
    expires = datetime.now(UTC) + timedelta(hours=1 if valid else -1)
    claims = encoded(json.dumps({"exp": int(expires.timestamp())}).encode()).rstrip("=")
    token = f"e30.{claims.replace('+', '-').replace('/', '_')}.sig"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    path = write(files / "config", user, {"server": "https://127.0.0.1:1"})
    if valid:
        source = load_context([path], environment={})[0].credentials
        assert source.current().authorization == f"Bearer {token}"
    else:
        with pytest.raises(CredentialsError, match="id-token has expired: any command of kubectl"):
            load_context([path], environment={})


@pytest.mark.parametrize("fails", [False, True])
def test_a_plugin_is_run_once_until_its_credentials_expire_or_a_minute_after_it_failed(
    tmp_path: Path, *, fails: bool
) -> None:
    """Each run may ask the user; a program that runs for long tries again."""
    text = credential({"token": "t", "expirationTimestamp": "2026-01-01T00:00:00Z"})
    script = f"echo run >> {tmp_path}/runs; echo '{text}'; exit {int(fails)}"
    settings = ExecSettings(*("sh", ("-c", script), {}, EXEC, "", "IfAvailable"), cluster=None)
    now = datetime(2025, 12, 31, tzinfo=UTC)
    plugin = ExecPlugin(settings, lambda: now)
    counted = [0]
    for passed, reject, count in (
        (timedelta(), False, 1),
        (timedelta(), True, 1),  # other credentials would not be printed at once
        (timedelta(seconds=59), False, 1),
        (timedelta(seconds=1), False, 2),
        (timedelta(hours=1), False, 3 if fails else 2),
        (timedelta(), True, 3),
        (timedelta(days=1), False, 4),  # from now on it prints expired credentials
        (timedelta(seconds=59), True, 4),
        (timedelta(seconds=1), False, 5),
        (timedelta(hours=-1), False, 6),  # the system's clock was set
    ):
        now += passed
        if reject:
            plugin.reject(Credentials("Bearer t"))
        for _ in range(2):
            with suppress(CredentialsError):
                plugin.current()
        counted.append(len((tmp_path / "runs").read_text().splitlines()))
        assert counted[-1] == count, (counted, now)


def test_provide_cluster_info_has_the_clusters_fields_and_its_extension(files: Path) -> None:
    """As the API group ``client.authentication.k8s.io`` names them."""
    script = f'printf "%s" "$KUBERNETES_EXEC_INFO" > {files}/info; exit 1'
    user = printing({}, command="sh", args=["-c", script], provideClusterInfo=True)
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"server": "https://127.0.0.1:1", "tls-server-name": NAME, "extensions": [extension]}
    path = write(files / "config", user, cluster)
    assert "failed with exit code 1" in send(path)
    assert json.loads((files / "info").read_text()) == {
        "apiVersion": EXEC,
        "kind": "ExecCredential",
        "spec": {
            "interactive": False,
            "cluster": {
                "server": "https://127.0.0.1:1",
                "tls-server-name": NAME,
                "certificate-authority-data": CA_DATA,
                "config": {"audience": "x"},
            },
        },
    }


PROXY = {"HTTPS_PROXY": "http://p:1"}


@pytest.mark.parametrize(
    ("server", "environment", "proxied"),
    [
        ("https://a.example:6443", {}, False),
        ("https://a.example:6443", PROXY, True),
        ("https://a.example:6443", {"https_proxy": "p:1"}, True),
        ("https://a.example:6443", {"HTTP_PROXY": "http://p:1"}, False),
        ("http://a.example", {"HTTP_PROXY": "http://p:1"}, True),
        ("https://127.0.0.1:6443", PROXY, False),
        ("https://[::1]:6443", PROXY, False),
        ("https://localhost:6443", PROXY, False),
        ("https://a.example", PROXY | {"NO_PROXY": "*"}, False),
        ("https://a.example", PROXY | {"NO_PROXY": "b, Example"}, False),
        ("https://a.example", PROXY | {"NO_PROXY": ".example"}, False),
        ("https://a.example", PROXY | {"NO_PROXY": "*.example"}, False),
        ("https://example", PROXY | {"NO_PROXY": ".example"}, True),
        ("https://a.example", PROXY | {"NO_PROXY": "a.example:443"}, False),
        ("https://a.example:6443", PROXY | {"NO_PROXY": "a.example:443"}, True),
        ("https://10.96.0.1", PROXY | {"no_proxy": "10.0.0.0/8"}, False),
        ("https://[fd00::1]", PROXY | {"no_proxy": "fd00::/8"}, False),
        ("https://10.96.0.1", PROXY | {"no_proxy": "192.0.2.1"}, True),
    ],
)
def test_the_proxy_of_the_environment_follows_gos_rules(
    server: str, environment: Mapping[str, str], proxied: bool
) -> None:
    assert proxy_of_environment(server, environment) == ("http://p:1" if proxied else "")
