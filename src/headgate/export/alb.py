"""Renders an AWS Application Load Balancer in front of the gateway, as a CloudFormation template.

An ALB forwards tokens as they come, and closes its connection to the gateway when the client closes its own. The
template sets the rest: an idle timeout longer than the default 60 s, no slow start and no stickiness (the gateway knows
better), and routing to the gateway with the fewest outstanding requests. An ALB keeps unused connections for as long as
its idle timeout, so the gateway must keep them longer: `timeouts.idle_s`.
"""

from typing import Any

import yaml

from headgate.config.gateway import GatewayConfig
from headgate.export.proxy import Facing

MOST_PATIENCE_S = 4000
"""Maximum of idle_timeout.timeout_seconds."""

Part = dict[str, Any]


def alb(config: GatewayConfig, facing: Facing) -> str:
    patience_s = min(facing.quiet_s, MOST_PATIENCE_S)
    template = {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": "A load balancer in front of Headgate",
        "Parameters": {
            "VpcId": {"Type": "AWS::EC2::VPC::Id"},
            "SubnetIds": {"Type": "List<AWS::EC2::Subnet::Id>"},
            "SecurityGroupIds": {"Type": "List<AWS::EC2::SecurityGroup::Id>"},
            "CertificateArn": {"Type": "String", "Description": "Of the certificate that clients see"},
        },
        "Resources": {
            "LoadBalancer": _balancer(patience_s),
            "Gateways": _gateways(facing),
            "Listener": _listener(),
        },
        "Outputs": {
            "Address": {"Value": {"Fn::GetAtt": ["LoadBalancer", "DNSName"]}},
            "TargetGroup": {"Value": {"Ref": "Gateways"}, "Description": "Register the gateways here"},
        },
    }
    return _notes(config, facing, patience_s) + yaml.safe_dump(template, sort_keys=False, width=120)


def _notes(config: GatewayConfig, facing: Facing, patience_s: int) -> str:
    lines = ["Made by `headgate export alb`: change the config, not this file."]
    if config.timeouts.idle_s <= patience_s:
        lines += [
            f"BEFORE USE: set timeouts.idle_s to {patience_s + 60} or more in the gateway's config; it is",
            f"{config.timeouts.idle_s:g}. The load balancer keeps unused connections for {patience_s} s, and a request",
            "written to one that the gateway is just closing is answered 502.",
        ]
    if facing.quiet_s > patience_s:
        lines.append(f"The gateway may be silent for {facing.quiet_s} s, and an ALB waits at most {MOST_PATIENCE_S} s.")
    return "".join(f"# {line}\n" for line in lines)


def _balancer(patience_s: int) -> Part:
    return {
        "Type": "AWS::ElasticLoadBalancingV2::LoadBalancer",
        "Properties": {
            "Type": "application",
            "Scheme": "internal",
            "Subnets": {"Ref": "SubnetIds"},
            "SecurityGroups": {"Ref": "SecurityGroupIds"},
            "LoadBalancerAttributes": _attributes(
                {
                    "idle_timeout.timeout_seconds": patience_s,
                    "client_keep_alive.seconds": 3600,
                    "routing.http2.enabled": "true",
                    "routing.http.drop_invalid_header_fields.enabled": "true",
                }
            ),
        },
    }


def _gateways(facing: Facing) -> Part:
    return {
        "Type": "AWS::ElasticLoadBalancingV2::TargetGroup",
        "Properties": {
            "VpcId": {"Ref": "VpcId"},
            "TargetType": "ip",
            "Port": facing.gateways[0].port,
            "Protocol": "HTTPS" if facing.tls else "HTTP",
            "ProtocolVersion": "HTTP1",
            "HealthCheckPath": "/health/ready",
            "HealthCheckIntervalSeconds": 5,
            "HealthCheckTimeoutSeconds": 2,
            "HealthyThresholdCount": 2,
            "UnhealthyThresholdCount": 2,
            "Matcher": {"HttpCode": "200"},
            "TargetGroupAttributes": _attributes(
                {
                    "deregistration_delay.timeout_seconds": min(3600, facing.drain_s),
                    "load_balancing.algorithm.type": "least_outstanding_requests",
                    "slow_start.duration_seconds": 0,
                    "stickiness.enabled": "false",
                }
            ),
        },
    }


def _listener() -> Part:
    return {
        "Type": "AWS::ElasticLoadBalancingV2::Listener",
        "Properties": {
            "LoadBalancerArn": {"Ref": "LoadBalancer"},
            "Port": 443,
            "Protocol": "HTTPS",
            "Certificates": [{"CertificateArn": {"Ref": "CertificateArn"}}],
            "DefaultActions": [{"Type": "forward", "TargetGroupArn": {"Ref": "Gateways"}}],
        },
    }


def _attributes(values: dict[str, int | str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": str(value)} for key, value in values.items()]
