"""Define the code that a job adds to an image."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from drumline_api.base import ApiModel, Subdomain
from drumline_contract import MAX_CODE_PARTS


class CodeSource(ApiModel):
    """A folder that `drumline run` packed. Every pod gets the same bytes, in /code."""

    digest: Annotated[str, Field(min_length=71, max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")]
    """sha256 of the packed folder. A pod whose parts have another digest does not start."""
    config_maps: Annotated[
        list[Subdomain],
        Field(min_length=1, max_length=MAX_CODE_PARTS),
    ]
    """ConfigMaps in the job's namespace with the parts of the folder, in order. Each holds its part
    in the key `part`."""
