from __future__ import annotations

import pytest

from drumline_contract.config import ConfigError, DataConfig, TrainerConfig
from drumline_contract.config.data import Packing


@pytest.mark.parametrize(
    "source",
    ["python-stdlib", "/data/text", "s3://bucket", "s3://my.bucket-1/a/b_c=1/", "s3://bucket/"],
)
def test_sources_that_can_be(source: str) -> None:
    assert DataConfig(source=source).source == source


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "text"}, "data.source: must be python-stdlib, an absolute folder, s3://"),
        ({"source": "/data/../etc"}, r"data.source: must not contain '\.\.'"),
        ({"source": "s3://bucket/a/../b"}, r"data.source: must not contain '\.\.'"),
        ({"source": "s3://b"}, "data.source: must be s3://bucket/prefix and nothing else"),
        ({"source": "s3://Bucket/a"}, "data.source: must be s3://bucket/prefix and nothing else"),
        ({"source": "s3://bucket/a?x=1"}, "data.source: must be s3://bucket/prefix and nothing"),
        ({"pattern": "../*"}, "data.pattern: must be a pattern of file names within the folder"),
        ({"sequence_length": 0}, "data.sequence_length: must be greater than 0, not 0"),
        ({"cache_bytes": 0}, "data.cache_bytes: must be greater than 0, not 0"),
        ({"tokenizer": "tokenizer.json"}, "data.tokenizer: must be the absolute path"),
    ],
)
def test_what_cannot_work_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainerConfig.from_dict({"data": fields})


def test_a_password_in_the_source_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="AWS environment variables") as caught:
        DataConfig(source="s3://key:password@bucket/prefix")
    assert "password" not in str(caught.value)


def test_packing_by_its_name() -> None:
    config = TrainerConfig.from_dict({"data": {"packing": "documents"}})
    assert config.data.packing is Packing.DOCUMENTS
    assert TrainerConfig.from_dict(config.to_dict()) == config
    with pytest.raises(
        ConfigError,
        match=r"data\.packing",
    ):
        TrainerConfig.from_dict({"data": {"packing": "tight"}})
