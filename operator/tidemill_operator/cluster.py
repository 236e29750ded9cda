"""All that the operator reads from and writes to the cluster for one InferenceService.

Knows which objects to read, server-side apply, and that an object already written and unchanged since needs
no second write. Refuses to decide anything: `plan.py` does.

The permissions that the operator needs (the chart grants exactly these; the last line is a Role in the
operator's own namespace, all others are cluster-wide or, with --watch-namespace, per namespace):

    serving.tidemill.dev   inferenceservices              get list watch
    serving.tidemill.dev   inferenceservices/status       get patch
    serving.tidemill.dev   inferenceservices/finalizers   update   (ownerReferences with blockOwnerDeletion)
    apps                   deployments                    get list watch create patch delete
    apps                   controllerrevisions            get list watch create patch delete
    apps                   replicasets                    list watch
    ""                     pods                           get list watch patch   (gateway pods are read, too)
    ""                     services                       get list watch create patch delete
    ""                     secrets                        get create
    ""                     secrets                        patch   (operator's namespace, the gateways' keys)
    ""                     persistentvolumeclaims         get list watch create patch delete
    ""                     events                         get create patch
    discovery.k8s.io       endpointslices                 get list watch create patch delete
    networking.k8s.io      ingresses                      get list watch create patch delete
    networking.k8s.io      networkpolicies                get list watch create patch delete
    gateway.networking.k8s.io  httproutes                 get list watch create patch delete
    policy                 poddisruptionbudgets           get list watch create patch delete
    coordination.k8s.io    leases                         get create update   (operator's namespace)
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator import names, views
from tidemill_operator.actions import Delete
from tidemill_operator.admin_secrets import AdminSecrets
from tidemill_operator.api import Api, Object, Place
from tidemill_operator.cache import GATEWAYS, Cache
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key
from tidemill_operator.manifests import Manifest
from tidemill_operator.observed import NAMESPACE_LEAVING_WORDS, ChildView, Observed
from tidemill_operator.plan import Plan

logger = logging.getLogger(__name__)

ObjectKey = tuple[str, str]

# A name that ends in a revision's hash is nobody else's, unless it bears our label too; whether there is a
# Secret was asked of the API itself.
_NOT_LOOKED_UP: Final = frozenset({"Deployment", "ControllerRevision", "Secret"})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was read, at which version each object was, and the tokens of the engines' admin port.

    `admin_tokens`: the one of now, and after it the one before, which engines ask for until the kubelet has
    brought them the new one; the operator that makes the new one writes the former one beside it.
    """

    observed: Observed
    versions: Mapping[ObjectKey, str]
    admin_tokens: tuple[str, ...] = field(default=(), repr=False)


class Cluster:
    """Gives the world of one service, and carries out a plan; `admin_secrets`: its Secrets, remembered.

    `on_rotation` is called when the token of a service turns out to be another one.
    """

    def __init__(self, api: Api, cache: Cache, on_rotation: Callable[[], object] = lambda: None) -> None:
        self._api = api
        self._cache = cache
        self._written: dict[Key, dict[ObjectKey, tuple[str, str]]] = {}
        self.admin_secrets = AdminSecrets(api, on_rotation)

    async def read_service(self, key: Key) -> Object | None:
        """Read the InferenceService itself; None when it is gone."""
        return await self._api.get(Place(kind=names.KIND, namespace=key.namespace, name=key.name))

    def forget(self, key: Key) -> None:
        """Drop what was remembered about a service that is gone."""
        self._written.pop(key, None)
        self.admin_secrets.forget(key)

    async def observe(self, service: Object) -> Reading:
        """Give everything around a service as the watches have shown it; only what it owns counts."""
        metadata = service["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        deployments, replica_sets, pods, revisions = (
            self._cache.of_service(kind, namespace, name)
            for kind in ("Deployment", "ReplicaSet", "Pod", "ControllerRevision")
        )
        own_deployments = views.owned(deployments, [uid])
        own_sets = views.owned(replica_sets, _uids(own_deployments))
        own_pods = views.owned(pods, _uids(own_sets))
        own_revisions = views.owned(revisions, [uid])
        found = [
            obj
            for kind, child in single_children(name)
            if (obj := self._cache.find(kind, namespace, child)) is not None
        ]
        secret = await self.admin_secrets.read(service)
        found += [] if secret is None else [secret]
        children = [views.child_view(obj, service) for obj in (*found, *revisions, *deployments)]
        staying, leaving = views.gateway_views(self._cache.all(GATEWAYS))
        route = self._cache.find("HTTPRoute", namespace, names.http_route_name(name))
        return Reading(
            observed=Observed(
                deployments=tuple(views.deployment_view(d) for d in own_deployments),
                pods=tuple(views.pod_view(p) for p in own_pods),
                templates={views.revision_of(r): r["data"]["template"] for r in own_revisions},
                revision_numbers={views.revision_of(r): r["revision"] for r in own_revisions},
                children=tuple(children),
                route=None if route is None else views.route_view(route),
                knows_routes=self._cache.is_known("HTTPRoute"),
                gateways=staying,
                leaving_gateways=leaving,
            ),
            versions=_versions((*own_deployments, *found)),
            admin_tokens=self.admin_secrets.tokens(Key(namespace, name), secret, uid),
        )

    async def look_up(
        self, service: Object, plan: Plan, versions: Mapping[ObjectKey, str]
    ) -> list[ChildView]:
        """Ask the API for objects that are about to be made and bear names that a person may have given.

        The watches show only what bears our label.
        """
        namespace = service["metadata"]["namespace"]
        wanted = [(m["kind"], m["metadata"]["name"]) for m in (*plan.secrets, *plan.applies)]
        unseen = [key for key in wanted if key not in versions and key[0] not in _NOT_LOOKED_UP]
        places = [Place(kind=kind, namespace=namespace, name=name) for kind, name in unseen]
        found = await asyncio.gather(*(self._get_typed(place) for place in places))
        return [views.child_view(obj, service) for obj in found if obj is not None]

    async def check(self, plan: Plan) -> None:
        """Have the API server check what a plan would write; raise what it says, or what it leaves out."""
        for manifest in plan.checks:
            answer = await self._api.apply(manifest, is_dry_run=True)
            lost = sorted(_volumes_in(manifest) - _volumes_in(answer))
            if lost:
                name = manifest["metadata"]["name"]
                message = f"the API server leaves out volume {lost[0]}, since it does not know its kind"
                raise ApiError(status=422, reason="Invalid", message=message, request=f"PATCH {name}")

    async def is_refused_all(self, key: Key) -> bool:
        """Ask whether the namespace is being deleted, without a right to read namespaces."""
        name = names.controller_revision_name(key.name, "probe")
        metadata = {"name": name, "namespace": key.namespace}
        probe = {"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": metadata, "revision": 0}
        try:
            await self._api.apply(probe, is_dry_run=True)
        except ApiError as error:
            return NAMESPACE_LEAVING_WORDS in error.message
        return False

    async def execute(self, key: Key, plan: Plan, versions: Mapping[ObjectKey, str]) -> None:
        """Carry out everything but status and events; stop at the first failure."""
        for manifest in plan.secrets:
            await self.admin_secrets.create(key, manifest)
        for manifest in plan.applies:
            await self._apply(key, _as_seen(manifest, plan.lowered, versions), versions)
        for delete in plan.deletes:
            await self._delete(key, delete)

    async def patch_pod(self, place: Place, patch: Object) -> None:
        """Merge fields into one pod, and see them at once in the next run."""
        self._cache.put("Pod", "Pod", await self._api.merge(place, patch))

    async def write_status(self, service: Object, status: Mapping[str, Any]) -> None:
        """Apply the status of exactly the service that was read; one that is gone needs none."""
        metadata = service["metadata"]
        identity = {key: metadata[key] for key in ("namespace", "name", "uid")}
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": identity,
            "status": dict(status),
        }
        try:
            await self._api.apply_status(manifest)
        except ApiError as error:
            if not error.is_not_found:
                raise

    async def _get_typed(self, place: Place) -> Object | None:
        obj = await self._api.get(place)
        return None if obj is None else {**obj, "kind": place.kind}

    async def _apply(self, key: Key, manifest: Manifest, versions: Mapping[ObjectKey, str]) -> None:
        """Apply one manifest, unless the object stands as the last apply of the same manifest left it."""
        object_key = (manifest["kind"], manifest["metadata"]["name"])
        digest = _digest(manifest)
        written = self._written.setdefault(key, {})
        if object_key in versions and written.get(object_key) == (digest, versions[object_key]):
            return
        answer = await self._api.apply(manifest)
        self._cache.put(manifest["kind"], manifest["kind"], answer)
        version = answer["metadata"]["resourceVersion"]
        if version != versions.get(object_key):
            logger.info("applied %s %s of %s", *object_key, key)
        written[object_key] = (digest, version)

    async def _delete(self, key: Key, delete: Delete) -> None:
        """Delete one object by its UID; one that was replaced in between is not ours to delete."""
        place = Place(kind=delete.kind, namespace=key.namespace, name=delete.name)
        try:
            await self._api.delete(place, {"uid": delete.uid})
        except ApiError as error:
            if not error.is_conflict:
                raise
        logger.info("deleted %s %s of %s: nothing wants it any more", delete.kind, delete.name, key)


def single_children(name: str) -> list[ObjectKey]:
    """Give the kind and name of every child that exists at most once, the Secret aside."""
    return [
        ("Service", names.client_service_name(name)),
        ("Service", names.replicas_service_name(name)),
        ("EndpointSlice", names.gateway_slice_name(name)),
        ("Ingress", names.ingress_name(name)),
        ("HTTPRoute", names.http_route_name(name)),
        ("NetworkPolicy", names.network_policy_name(name)),
        ("PodDisruptionBudget", names.disruption_budget_name(name)),
        ("PersistentVolumeClaim", names.cache_claim_name(name)),
    ]


def _volumes_in(deployment: Mapping[str, Any]) -> set[str]:
    """Name the volumes of a Deployment's pods; a server drops kinds whose feature is off without a word."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return {volume["name"] for volume in volumes}


def _uids(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    return [obj["metadata"]["uid"] for obj in objects]


def _versions(objects: Iterable[Mapping[str, Any]]) -> dict[ObjectKey, str]:
    return {(obj["kind"], obj["metadata"]["name"]): obj["metadata"]["resourceVersion"] for obj in objects}


def _as_seen(manifest: Manifest, lowered: frozenset[str], versions: Mapping[ObjectKey, str]) -> Manifest:
    """Let a Deployment be lowered only as it was seen: 409 when anything about it has changed since."""
    key = (manifest["kind"], manifest["metadata"]["name"])
    if key[0] != "Deployment" or key[1] not in lowered or key not in versions:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": versions[key]}}


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
