"""Reads kubeconfig files as ``kubectl`` does: merges, checks and resolves them.

``kubectl gpu`` reads one that a person wrote, and so does every program that is run by hand with
``--kubeconfig``, such as ``python -m certs status``.

Fields and rules are those of client-go's ``tools/clientcmd`` 1.36: ``loader.go``,
``validation.go``, ``client_config.go``. It differs in some points, so that nothing is done without
the credentials that a file names:

- A user who does not exist, or has no credentials for HTTPS, is an error. kubectl prompts.
- Credentials for HTTP to another machine are an error. kubectl does not send them. To this machine
  they are not sent either.
- A ``server`` without a scheme is reached by HTTPS if a CA, a client certificate or
  ``insecure-skip-tls-verify`` is given, as client-go decides for a complete configuration
  (``DefaultServerUrlFor`` in ``rest/url_utils.go``). kubectl decides before it has read these
  fields, and so takes HTTP without credentials.
- A user name or password in ``server`` is an error. kubectl sends it instead of the user's.
- An expired token of the ``auth-provider`` ``oidc`` is an error. kubectl renews it.
"""

import base64
import binascii
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit, urlunsplit

import yaml

from common.apiserver.access import (
    NOBODY,
    ClientCertificate,
    Credentials,
    CredentialSource,
    Impersonation,
    ServerAccess,
    TokenFile,
    check_header,
    impersonation_headers,
    is_local,
    proxy_of_environment,
    reason_of,
    unusable,
)
from common.apiserver.errors import CredentialsError
from common.apiserver.exec_plugin import API_VERSIONS, INTERACTIVE_MODES, ExecPlugin, ExecSettings
from contract.fields import Fields

_LISTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
_API_VERSION, _KIND = "v1", "Config"
_EXTENSION = "client.authentication.k8s.io/exec"


class KubeconfigFields(Fields):
    """The fields of one object in a kubeconfig file; an error names the field.

    Attributes:
        folder: the folder of its file, from which relative paths start.
    """

    __slots__ = ("folder",)

    TEXT, OBJECT = "must be a string", "must be an object"

    def __init__(self, where: str, values: object, folder: Path) -> None:
        """Keep them.

        Args:
            where: what the object is, for errors.
            values: the object; ``None`` for an empty one.
            folder: the folder of its file.

        Raises:
            CredentialsError: it is not an object.
        """
        if values is not None and not isinstance(values, dict):
            raise CredentialsError(f"{where} is not an object")
        super().__init__(where, values or {}, CredentialsError)
        self.folder = folder

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        found = self.items(name)
        if not all(isinstance(each, str) for each in found):
            raise self.error(name, "must be a list of strings")
        return tuple(found)

    def children(self, name: str) -> list["KubeconfigFields"]:
        """Return a list of objects."""
        return [self.nested(self.at(name), each) for each in self.items(name)]

    def nested(self, where: str, values: object) -> "KubeconfigFields":
        """Return the fields of an object inside this one."""
        return KubeconfigFields(where, values, self.folder)

    def path(self, name: str) -> Path | None:
        """Return a path, which may be relative to the file; ``None`` if it is not there."""
        found = self.text(name)
        return self.folder / found if found else None

    def content(self, name: str) -> bytes:
        """Return what the file *name* or the base64 in ``NAME-data`` has; empty without both.

        Raises:
            CredentialsError: both are given, or it cannot be read.
        """
        path, data = self.path(name), self.text(f"{name}-data")
        if path is not None and data:
            raise self.error(name, f"must not be given together with {name}-data")
        if path is not None:
            try:
                return path.read_bytes()
            except OSError as error:
                raise self.error(name, f"cannot be read: {path}: {reason_of(error)}") from error
        try:
            return base64.b64decode("".join(data.split()), validate=True)
        except (binascii.Error, ValueError) as error:
            raise self.error(f"{name}-data", "must be base64") from error

    def error(self, name: str, rule: str) -> CredentialsError:
        """Return the error for one field, without its value: that may be a token."""
        return CredentialsError(f"{self.where}: {name} {rule}")


@dataclass(frozen=True, slots=True)
class _Kubeconfig:
    """The merged files: by list and name the first one that a file has."""

    current: str
    entries: Mapping[str, Mapping[str, KubeconfigFields]]


class UserCredentials:
    """Token or password, and client certificate, of a user in a kubeconfig."""

    def __init__(self, user: KubeconfigFields) -> None:
        """Read them.

        Raises:
            CredentialsError: they contradict each other, or cannot be read.
        """
        self._user = user
        self._fixed = Credentials(_authorization(user))
        self._file = None
        path = user.path("tokenFile")
        if path is not None:
            try:
                self._file = TokenFile(path)
            except CredentialsError:
                if self._fixed == Credentials():
                    raise
        self.current()

    def current(self) -> Credentials:
        """Return them; files are read again."""
        # As in client-go, the file goes before the token beside it.
        found = self._file.current() if self._file is not None else self._fixed
        certificate = self._user.content("client-certificate")
        if not certificate:
            return found
        key = self._user.content("client-key")
        if not key:
            raise self._user.error("client-certificate", "needs client-key or client-key-data")
        return replace(found, certificate=ClientCertificate(certificate, key))

    def reject(self, credentials: Credentials) -> None:
        """Read a token's file again for the next request; the user can change the rest."""
        if self._file is not None:
            self._file.reject(credentials)


def load_context(
    paths: Sequence[Path],
    context: str | None = None,
    *,
    impersonation: Impersonation = NOBODY,
    environment: Mapping[str, str] = os.environ,
) -> tuple[ServerAccess, str]:
    """Read one context: how its API server is reached, and the namespace to use if none is given.

    Args:
        paths: the files, of which those that do not exist are passed over; the first that has an
            entry or the current context decides.
        context: its name; ``None`` for the current one.
        impersonation: whom to impersonate instead.
        environment: the environment, for proxies.

    Raises:
        CredentialsError: it cannot be used; the message has one line.
    """
    try:
        merged = _load(paths)
        name = merged.current if context is None else context
        if not name:
            raise CredentialsError("current-context is not set, and --context is not given")
        chosen = merged.entries["contexts"].get(name)
        if chosen is None:
            raise CredentialsError(f'context "{name}" does not exist')
        namespace = chosen.text("namespace") or "default"
        cluster = _entry(merged, chosen, "clusters")
        user = (
            _entry(merged, chosen, "users")
            if "user" in chosen
            else KubeconfigFields(f'the user of context "{name}"', {}, Path())
        )
        return _access(cluster, user, impersonation, environment), namespace
    except CredentialsError as error:
        raise unusable(_named(paths), error) from error


def context_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of all contexts.

    Raises:
        CredentialsError: a file cannot be used.
    """
    try:
        return sorted(_load(paths).entries["contexts"])
    except CredentialsError as error:
        raise unusable(_named(paths), error) from error


def _named(paths: Sequence[Path]) -> str:
    return os.pathsep.join(map(str, paths))


def _load(paths: Sequence[Path]) -> _Kubeconfig:
    current, found = "", False
    entries: dict[str, dict[str, KubeconfigFields]] = {each: {} for each in _LISTS}
    for path in paths:
        try:
            loaded = yaml.safe_load(path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError) as error:
            text = reason_of(error) if isinstance(error, OSError) else _yaml_problem(error)
            raise CredentialsError(f"{path.name}: {text}" if len(paths) > 1 else text) from error
        found = True
        if loaded is None:
            continue
        top = KubeconfigFields(path.name, loaded, path.absolute().parent)
        for name, expected in (("apiVersion", _API_VERSION), ("kind", _KIND)):
            if top.text(name) not in ("", expected):
                raise top.error(name, f"must be {expected}")
        current = current or top.text("current-context")
        for name, entry in _LISTS.items():
            own: dict[str, KubeconfigFields] = {}
            for each in top.children(name):
                key = each.text("name")
                if key in own:
                    raise top.error(name, f'has "{key}" twice')
                own[key] = KubeconfigFields(f'{entry} "{key}"', each.raw(entry), top.folder)
            entries[name] = own | entries[name]
    if not found:
        raise CredentialsError("no such file or directory")
    if not any(entries.values()):
        raise CredentialsError("it has no clusters, users and contexts")
    return _Kubeconfig(current, entries)


def _yaml_problem(error: Exception) -> str:
    """Name the line of an error, whose own text quotes the file: that may be a token."""
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1} is not YAML" if mark is not None else "it is not YAML"


def _entry(merged: _Kubeconfig, context: KubeconfigFields, name: str) -> KubeconfigFields:
    field = _LISTS[name]
    wanted = context.text(field)
    if not wanted:
        raise context.error(field, "is required")
    found = merged.entries[name].get(wanted)
    if found is None:
        raise context.error(field, f'"{wanted}" does not exist')
    return found


def _access(
    cluster: KubeconfigFields,
    user: KubeconfigFields,
    impersonation: Impersonation,
    environment: Mapping[str, str],
) -> ServerAccess:
    authorities = cluster.content("certificate-authority")
    insecure = cluster.flag("insecure-skip-tls-verify")
    if authorities and insecure:
        raise cluster.error(
            "insecure-skip-tls-verify", "must not be given together with certificate-authority"
        )
    certificates = (
        "certificate-authority" in cluster,
        "certificate-authority-data" in cluster,
        "client-certificate" in user,
        "client-certificate-data" in user,
    )
    server = _server(cluster, tls=insecure or any(certificates))
    url = urlsplit(server)
    source: CredentialSource = _source(cluster, user, authorities, server)
    has_credentials = isinstance(source, ExecPlugin) or source.current() != Credentials()
    if url.scheme == "https" and not has_credentials:
        raise CredentialsError(f"{user.where} has no credentials")
    if url.scheme == "http" and has_credentials:
        if not is_local(url.hostname or ""):
            raise cluster.error(
                "server", "must begin with https://: credentials are not sent over http"
            )
        source = UserCredentials(user.nested(user.where, None))
    extra = user.child("as-user-extra")
    headers = impersonation_headers(
        impersonation.user or user.text("as"),
        user.text("as-uid"),
        impersonation.groups or user.texts("as-groups"),
        {key: extra.texts(key) for key in extra},
    )
    return ServerAccess(
        server,
        source,
        authorities,
        insecure,
        cluster.text("tls-server-name"),
        _proxy(cluster) or proxy_of_environment(server, environment),
        headers,
    )


def _server(cluster: KubeconfigFields, *, tls: bool) -> str:
    """Return the URL of the API server without query, fragment and a slash at the end.

    Without a scheme it is a host with an optional port: HTTPS if *tls*, else HTTP.

    Raises:
        CredentialsError: it is no such URL or host.
    """
    text = cluster.text("server")
    if not text:
        raise cluster.error("server", "is required")
    has_scheme = "://" in text
    url = _url(cluster, "server", text if has_scheme else f"http{'s' * tls}://{text}")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise cluster.error("server", "must be a URL that begins with https:// or http://")
    if "@" in url.netloc:
        raise cluster.error("server", "must have no password: it belongs to the user")
    if not has_scheme and url.path not in ("", "/"):
        raise cluster.error("server", "must begin with https:// or http:// if it has a path")
    return urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", ""))


def _proxy(cluster: KubeconfigFields) -> str:
    proxy = cluster.text("proxy-url")
    if not proxy:
        return ""
    url = _url(cluster, "proxy-url", proxy)
    if url.scheme not in _PROXY_SCHEMES:
        raise cluster.error("proxy-url", "must begin with http://, https:// or socks5://")
    if not url.hostname:
        raise cluster.error("proxy-url", "must have a host")
    return proxy


def _url(cluster: KubeconfigFields, name: str, text: str) -> SplitResult:
    """Split the URL in a field.

    Raises:
        CredentialsError: it is not a URL.
    """
    # Python's own messages quote a part of the URL: that may be a password.
    try:
        url = urlsplit(text)
    except ValueError as error:
        raise cluster.error(name, "is not a URL") from error
    try:
        url.port  # noqa: B018 -- checks it
    except ValueError as error:
        raise cluster.error(name, "must have a number up to 65535 as port") from error
    # Python removes some of these characters from a URL.
    if not text.isprintable() or text != text.strip() or " " in url.netloc:
        raise cluster.error(name, "is not a URL: it has a blank or a control character")
    return url


def _source(
    cluster: KubeconfigFields, user: KubeconfigFields, authorities: bytes, server: str
) -> UserCredentials | ExecPlugin:
    if "exec" in user and "auth-provider" in user:
        raise user.error("exec", "must not be given together with auth-provider")
    plugin = _exec_settings(cluster, user, authorities, server) if "exec" in user else None
    own = UserCredentials(user)
    return ExecPlugin(plugin) if plugin is not None and own.current() == Credentials() else own


def _authorization(user: KubeconfigFields) -> str:
    """Return the header of a token or password in the file itself; empty without them."""
    token, name, password = (user.text(each) for each in ("token", "username", "password"))
    if name or password:
        if token or "tokenFile" in user:
            raise user.error("token", "must not be given together with username and password")
        return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()
    if not token and "tokenFile" not in user and "auth-provider" in user:
        token = _oidc_token(user.child("auth-provider"))
    try:
        check_header("Authorization", token)
    except CredentialsError as error:
        reason = str(error).rpartition("its value ")[2]
        raise user.error("token", reason) from error
    return f"Bearer {token}" if token else ""


def _oidc_token(provider: KubeconfigFields) -> str:
    if provider.text("name") != "oidc":
        raise provider.error("name", "must be oidc: use exec instead of other providers")
    token = provider.child("config").text("id-token")
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expired = float(claims["exp"]) <= time.time()
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise provider.error("id-token", "is no token with a time of expiry") from error
    if expired:
        raise provider.error("id-token", "has expired: any command of kubectl renews it")
    return token


def _exec_settings(
    cluster: KubeconfigFields, user: KubeconfigFields, authorities: bytes, server: str
) -> ExecSettings:
    plugin = user.child("exec")
    command, version = plugin.text("command"), plugin.text("apiVersion")
    if not command:
        raise plugin.error("command", "is required")
    if version not in API_VERSIONS:
        raise plugin.error("apiVersion", f"must be {' or '.join(API_VERSIONS)}")
    mode = plugin.text("interactiveMode")
    if not mode and version != API_VERSIONS[0]:
        mode = "IfAvailable"
    if mode not in INTERACTIVE_MODES:
        raise plugin.error("interactiveMode", "must be Never, IfAvailable or Always")
    variables = {each.text("name"): each.text("value") for each in plugin.children("env")}
    if "" in variables:
        raise plugin.error("env", "has a variable without a name")
    if os.sep in command:
        command = str(plugin.folder / command)
    described = None
    if plugin.flag("provideClusterInfo"):
        extensions = {
            each.text("name"): each.raw("extension") for each in cluster.children("extensions")
        }
        fields: dict[str, object] = {
            "server": server,
            "tls-server-name": cluster.text("tls-server-name"),
            "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
            "certificate-authority-data": base64.b64encode(authorities).decode(),
            "proxy-url": cluster.text("proxy-url"),
            "disable-compression": cluster.flag("disable-compression"),
            "config": extensions.get(_EXTENSION),
        }
        described = {name: each for name, each in fields.items() if each}
    arguments, hint = plugin.texts("args"), plugin.text("installHint")
    return ExecSettings(command, arguments, variables, version, hint, mode, described)
