"""Connects model names and their versions to the gateway, the admin API and the page."""

from headgate.config.gateway import GatewayConfig
from headgate.gateway.catalog import Catalog
from headgate.gateway.gateway import Gateway
from headgate.gateway.intake.models import Models, room_in
from headgate.model.clock import Clock, wall
from headgate.policy.scaling.board import PoolBoard
from headgate.surface.access import AdminAccess
from headgate.surface.instruments import Instruments
from headgate.surface.rollout_admin import RolloutAdmin
from headgate.upkeep.rollouts import Rollouts
from headgate.wire.router import Routes


class RolloutWiring:
    """Built within the running loop. Raises StartupError if the stored state of rollouts can't be used."""

    def __init__(
        self,
        config: GatewayConfig,
        gateway: Gateway,
        catalog: Catalog,
        instruments: Instruments,
        access: AdminAccess,
        clock: Clock,
    ) -> None:
        self._gateway = gateway
        self._catalog = catalog
        self._models = Models({}, room_in(gateway.dispatcher))
        self.rollouts = Rollouts(config.models, self._models, gateway.shadows, config.rollout.state, wall, clock)
        self._admin = RolloutAdmin(self.rollouts, access, instruments.catch_up)
        instruments.add(self.rollouts.take)
        instruments.show_rollouts(self._admin.news)
        self._install(config)

    def scale_with(self, board: PoolBoard, clock: Clock) -> None:
        """Pools grow for a version before its share does, and its share waits for them."""
        board.plan_by(self.rollouts.plans)
        self.rollouts.wait_for(lambda models, model: board.holds(models, model, clock()))

    def routes(self) -> Routes:
        return self._admin.routes()

    def reconfigure(self, config: GatewayConfig) -> None:
        self.rollouts.reconfigure(config.models)
        self._install(config)

    def _install(self, config: GatewayConfig) -> None:
        """Without any configured names, the gateway looks none up."""
        models = self._models if config.models else None
        self._gateway.acceptor.serve_models(models)
        self._catalog.serve_models(models)
