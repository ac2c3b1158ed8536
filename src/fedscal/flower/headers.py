"""What the headers of a federation's messages hold, beside what is between processes of one machine too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from fedscal.core.types import Groups, Metrics
from fedscal.runtime.messages import Frame, Header, Trained


class RequestHeader(Header):
    """The header of a request to a site: which of its groups are models, and how floats travel."""

    models: Sequence[str]
    transport: str


def request_header(frame: Frame) -> RequestHeader:
    """Return the header of a request; a server is not checked as sites are, it is who they work for."""
    return cast(RequestHeader, frame.header)


class SiteAnswers(Trained, total=False):
    """The plain values of a site's response; it speaks for one client, so its metrics have no names."""

    domain: str
    images: int
    metrics: Metrics
    judged: Metrics
    unlikeness: float
    refused: str


@dataclass(frozen=True)
class SiteResponse:
    """What a site responds: plain values and tensors."""

    scalars: SiteAnswers
    tensors: Groups = field(default_factory=dict)
