"""The two watches that update the state: pods that have not ended, and templates."""

from claims.cluster import TEMPLATES, ClaimsApi
from claims.state import ClaimedPod, KnownTemplate, TemplateState, read_template
from common.apiserver.client import Json
from common.apiserver.follower import Collection, Follower, Followers

_PAGE = 100
"""Objects per page: a whole page is in memory, and a hostile pod has a megabyte."""


def follow(state: TemplateState, api: ClaimsApi) -> Followers:
    """Return both watches; no request is sent before they are started."""

    def drop(obj: Json) -> None:
        state.drop(obj["metadata"]["uid"])

    pods = Collection(
        client=api,
        path="/api/v1/pods",
        kind="pod",
        read=state.read_pod,
        replace=lambda listed: state.replace(ClaimedPod, [*listed]),
        put=state.put,
        drop=drop,
        query={"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"},
        limit=_PAGE,
    )
    templates = Collection(
        client=api,
        path=TEMPLATES,
        kind="template",
        read=read_template,
        replace=lambda listed: state.replace(KnownTemplate, [*listed]),
        put=state.put,
        drop=drop,
        limit=_PAGE,
    )
    return Followers(
        pods=Follower(pods, trouble="no pods from the API server"),
        templates=Follower(templates, trouble="no templates from the API server"),
    )
