from headgate.config.gateway import ClassifyConfig, GatewayConfig, Tenant
from headgate.model.tier import Tier
from headgate.sim.intake import SimIntake
from headgate.workload.arrival import Arrival


def test_a_request_is_what_the_gateway_would_make_of_it() -> None:
    intake = SimIntake(GatewayConfig())
    request, output = intake.request(Arrival(1.0, 400, 70, tenant="x", session="s"), 5, 2.0)
    assert (request.lane, request.priority, request.tenant, request.session) == ("fast", 0, "x", "s")
    assert request.prompt_tokens == 406  # a quarter of its bytes: four for each token, and the message around it
    assert (request.max_output, output) == (70, 70)
    assert (request.arrived, request.wait_until, request.first_token_by) == (2.0, 2.4, 2.5)


def test_what_such_requests_usually_say_is_learned_from_how_they_end() -> None:
    intake = SimIntake(GatewayConfig())
    arrival = Arrival(1.0, 400, 500)
    request, _ = intake.request(arrival, 1, 0.0)
    assert request.max_output == 128
    for _ in range(200):
        intake.learn(request, arrival, 400, 20)
    request, output = intake.request(Arrival(1.0, 400, 500), 2, 0.0)
    assert request.max_output == 20
    assert output == 500
    assert request.prompt_tokens == 400  # so is how many tokens there are in its bytes


def test_lines_between_lanes_and_ceilings_are_the_configs() -> None:
    config = GatewayConfig(
        classify=ClassifyConfig(long_above_tokens=1000, fast_below_tokens=50),
        tenants=(Tenant(name="capped", key_sha256=("0" * 64,), tier="premium", max_tokens=40),),
        tiers=(Tier(name="premium", max_tokens=30), Tier(name="free")),
    )
    intake = SimIntake(config)
    lanes = [intake.request(Arrival(0.0, tokens, 1), 1, 0.0)[0].lane for tokens in (30, 100, 2000)]
    assert lanes == ["fast", "slow", "long"]
    request, output = intake.request(Arrival(0.0, 10, 100, tenant="capped"), 1, 0.0)
    assert output == 30
    assert request.tier == "premium"


def test_only_the_same_prompt_as_a_whole_is_known_again() -> None:
    intake = SimIntake(GatewayConfig())

    def prefix(number: int, tokens: int, ids: tuple[int, ...]) -> tuple[bytes, ...]:
        return intake.request(Arrival(0.0, tokens, 1, prefix=ids), number, 0.0)[0].prefix

    assert prefix(1, 1024, (1, 2)) == prefix(2, 1024, (1, 2))
    assert prefix(1, 1024, (1, 2)) != prefix(2, 1000, (1, 2))
    assert prefix(1, 1024, (1, 2)) != prefix(2, 1024, (1, 3))
    assert prefix(1, 1025, (1, 2)) != prefix(2, 1025, (1, 2))
    assert prefix(1, 10, ()) != prefix(2, 10, ())


def test_what_a_lane_allows_at_most_is_all_that_is_said_unless_the_tenant_has_no_caps() -> None:
    free = Tenant(name="free of caps", key_sha256=("0" * 64,), caps=False)
    intake = SimIntake(GatewayConfig(tenants=(free,)))
    most = GatewayConfig().lanes[0].max_tokens
    assert intake.request(Arrival(0.0, 10, most + 900), 1, 0.0)[1] == most
    assert intake.request(Arrival(0.0, 10, most + 900, tenant="free of caps"), 2, 0.0)[1] == most + 900
