"""An image without a file, for containers that run our own tools only, also before there is any other image."""

from __future__ import annotations

from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.labels import LABEL_SHARED

_NAME = "tbench/nothing:1"
_EMPTY_TAR = bytes(10240)


async def ensure_nothing(engine: Engine) -> str:
    """The id of the image, made where the engine lacks it. Raises EngineError."""
    try:
        return str((await engine.call(engine.api.inspect_image, _NAME))["Id"])
    except EngineError as error:
        if error.status != 404:
            raise
    # The whole name: Podman ignores a tag that is given separately.
    changes = [f"LABEL {LABEL_SHARED}=nothing"]
    await engine.call(engine.api.import_image_from_data, _EMPTY_TAR, repository=_NAME, changes=changes, again=True)
    return str((await engine.call(engine.api.inspect_image, _NAME))["Id"])
