"""Builds the endpoint picker, whose gRPC library is an extra."""

from typing import TYPE_CHECKING

from headgate.config.listen import EppConfig
from headgate.gateway.gateway import Gateway
from headgate.model.clock import Clock
from headgate.model.errors import StartupError
from headgate.wire.limits import WireLimits

if TYPE_CHECKING:
    from headgate.epp.server import PickerServer


def picker_server(config: EppConfig, gateway: Gateway, limits: WireLimits, clock: Clock) -> "PickerServer":
    """Raises StartupError where the library is not installed."""
    try:
        from headgate.epp.server import PickerServer
    except ModuleNotFoundError as error:
        raise StartupError("epp needs grpcio: pip install 'headgate[epp]'") from error
    from headgate.epp.picker import EndpointPicker

    return PickerServer(config, EndpointPicker(gateway, clock), limits)
