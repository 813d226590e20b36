"""The person's own configuration.

It's `config.toml` in `$WORKBENCH_CONFIG`, else `$XDG_CONFIG_HOME/workbench`, else `~/.config/workbench`: never the
workspace's. Each room reads the tables that are its own.
"""

from __future__ import annotations

import os
import tomllib
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import OptionsError

M = TypeVar("M", bound=BaseModel)

_FILE = "config.toml"


def read(model: type[M], *tables: str, hint: str) -> M:
    """What the file says in `tables`, each a field of `model`; in one alone, whose fields are the model's own.

    Where there is no file, or no such table, everything is as by default. Raises OptionsError with the `hint` where the
    file can't be read or says something else.
    """
    directory = os.environ.get("WORKBENCH_CONFIG") or os.path.join(
        os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "workbench"
    )
    path = os.path.join(directory, _FILE)
    try:
        with open(path, "rb") as file:
            said = tomllib.load(file)
    except FileNotFoundError:
        said = {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise OptionsError(f"{path} can't be read: {error}.", hint=hint) from error
    wanted = said.get(tables[0], {}) if len(tables) == 1 else {name: said[name] for name in tables if name in said}
    try:
        return model.model_validate(wanted)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (*(tables if len(tables) == 1 else ()), *first["loc"])))
        raise OptionsError(f"{path}: {where}: {first['msg']}.", hint=hint) from error
