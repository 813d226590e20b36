"""The models that sessions choose from."""

from __future__ import annotations

from workbench.errors import ModelNotFoundError
from workbench.models.base import LanguageModel
from workbench.protocol.disposer import Disposer
from workbench.protocol.messages import ModelInfo


class ModelRegistry:
    """Models by id, one of which is the default; registering an id again replaces the model of that id."""

    def __init__(self, *, default_model: str | None = None) -> None:
        """`default_model` is the default whenever it's registered, unless another is chosen by `set_default`."""
        self._models: dict[str, LanguageModel] = {}
        self._configured = default_model
        self._default = default_model

    @property
    def default_model(self) -> str | None:
        """The id of the default: the one chosen last, else the configured one, else the first registered.

        None where there is none, and once it was disposed of, until another is chosen or registered.
        """
        return self._default

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._models)

    def register(self, model: LanguageModel, *, set_default: bool = False) -> Disposer:
        """Add a model until the disposer is called; with `set_default` as if `set_default()` followed."""
        id = model.info.id
        self._models[id] = model
        if set_default or (self._default is None and self._configured in (None, id)):
            self._default = id

        def remove() -> None:
            if self._models.get(id) is model:
                del self._models[id]
                if self._default == id:
                    self._default = None

        return Disposer(remove)

    def get(self, id: str | None = None) -> LanguageModel:
        """The model of this id, of None the default. Raises ModelNotFoundError (model_not_found, no_default_model)."""
        wanted = self._default if id is None else id
        if wanted is None:
            raise ModelNotFoundError(
                "No model is the default.",
                code="no_default_model",
                hint=f"Name one of these: {', '.join(sorted(self._models))}." if self._models else "Register a model.",
            )
        try:
            return self._models[wanted]
        except KeyError:
            raise ModelNotFoundError(
                f"There is no model {wanted!r}.",
                hint=f"There are these: {', '.join(sorted(self._models))}." if self._models else "Register a model.",
            ) from None

    def has(self, id: str) -> bool:
        """Whether a model of this id is registered."""
        return id in self._models

    def set_default(self, id: str) -> None:
        """Choose the default; registering others doesn't change that. Raises ModelNotFoundError."""
        self._default = self.get(id).info.id

    def list(self) -> tuple[ModelInfo, ...]:
        """What is known of all models, sorted by id."""
        return tuple(model.info for _, model in sorted(self._models.items()))
