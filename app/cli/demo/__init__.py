"""`graft demo`: what a newcomer sees first, told through the same REST calls that anyone would make."""

from app.cli.demo.command import demo

__all__ = ["demo"]
