"""The parts of a running service, and who may use them."""

from dataclasses import dataclass

from relograph.models.shipped import LoadedMatchGNN, load_match_gnn
from relograph.serving.answering import Answering, on_device
from relograph.serving.bodies import Receiving
from relograph.serving.config import ServeConfig
from relograph.serving.errors import ServiceError, forbidden, not_found, read_only, unauthorized
from relograph.serving.keys import ApiKey, KeyRing
from relograph.serving.metrics import Metrics
from relograph.serving.served_maps import ServedMap, open_maps


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    key: ApiKey | None
    """None where nobody has to show one, or nobody did."""
    needs_key: bool

    @property
    def is_known(self) -> bool:
        return self.key is not None or not self.needs_key

    def require_known(self) -> None:
        if not self.is_known:
            raise unauthorized()

    def require_all_maps(self) -> None:
        """Raises for those who may not see everything."""
        self.require_known()
        if self.key is not None and self.key.maps is not None:
            raise ServiceError(
                403, "forbidden", "Expected a key for all maps, found one for some of them. Ask for such a key."
            )

    def may_see(self, map_name: str) -> bool:
        return not self.needs_key if self.key is None else self.key.may_see(map_name)

    @property
    def may_write(self) -> bool:
        return not self.needs_key if self.key is None else self.key.may_write


class Service:
    """One process: its network, its maps, its queue."""

    def __init__(self, config: ServeConfig, network: LoadedMatchGNN | None = None) -> None:
        self.config = config
        network = on_device(network or load_match_gnn(config.weights), config.device)
        self.metrics = Metrics()
        self.keys = None if config.keys is None else KeyRing(config.keys)
        self.maps = open_maps(config, network, self.metrics)
        self.answering = Answering(network, config, self.metrics)
        self.receiving = Receiving(round(1e6 * config.max_bodies_mb))

    def start(self) -> None:
        """Reads the maps, those that can be read, and begins to answer."""
        for served in self.maps.values():
            served.start()
        self.answering.start()

    def stop(self) -> None:
        """Ends when what was accepted is done."""
        self.answering.stop()
        for served in self.maps.values():
            served.stop()

    def caller(self, authorization: str | None) -> Caller:
        """Who shows that header; whether that is enough is asked later."""
        if self.keys is None:
            return Caller(None, needs_key=False)
        scheme, _, secret = (authorization or "").partition(" ")
        key = self.keys.find(secret.strip()) if scheme.lower() == "bearer" else None
        return Caller(key, needs_key=True)

    def map(self, name: str, caller: Caller) -> ServedMap:
        """A map that the caller may see."""
        caller.require_known()
        served = self.maps.get(name)
        if served is None or not caller.may_see(name):
            raise not_found()
        return served

    def map_to_change(self, name: str, caller: Caller) -> ServedMap:
        """A map that the caller may change."""
        served = self.map(name, caller)
        if not self.config.allow_writes:
            raise read_only()
        if not caller.may_write:
            raise forbidden("write")
        return served

    def may_change(self, caller: Caller) -> bool:
        return self.config.allow_writes and caller.may_write
