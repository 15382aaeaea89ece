"""What is wrong with an image of a request."""

from __future__ import annotations


class BadImage(Exception):
    """Its text goes to the client; it says what to change and quotes nothing that was sent."""
