"""Headgate serves language models with a predictable latency distribution."""

__version__ = "0.1.0"
