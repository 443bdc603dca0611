"""Request bodies as vLLM reads them, as far as they are simulated; and its refusals."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

B = TypeVar("B", bound=BaseModel)
TokenIds = list[int]
Xarg = str | int | float | list[str | int | float]


class RefusedError(Exception):
    """A request that is answered with an error. ``kind`` and ``param`` are vLLM's words."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.kind = kind or {404: "NotFoundError"}.get(status, "BadRequestError")

    def body(self) -> dict[str, Any]:
        """Return the answer's JSON."""
        return {
            "error": {
                "message": str(self),
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StreamOptions(_Body):
    """``include_usage``: one more chunk at the end tells the usage."""

    include_usage: bool = False


class Generation(_Body):
    """What both generating APIs take."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] = 1
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    cache_salt: str | None = None
    vllm_xargs: dict[str, Xarg] | None = None
    return_token_ids: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """Return the stop strings."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionBody(Generation):
    """POST /v1/completions."""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    max_tokens: int | None = 16

    def prompts(self) -> list[str | TokenIds]:
        """Return one or several prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [[each for each in self.prompt if isinstance(each, int)]]
        return [each for each in self.prompt if not isinstance(each, int)]


class ChatBody(Generation):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]
    tools: list[Any] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def shown_tools(self) -> list[Any] | None:
        """Return the tools that the template sees."""
        return None if self.tool_choice == "none" else self.tools


class TokenizeBody(_Body):
    """POST /tokenize: a prompt, or a chat."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True


class LoadAdapterBody(_Body):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapterBody(_Body):
    """POST /v1/unload_lora_adapter."""

    lora_name: str


def read(model: type[B], content_type: str, content: bytes) -> B:
    """Return the body; raise `RefusedError` as vLLM refuses what it can't read."""
    if content_type.partition(";")[0].strip() != "application/json":
        message = (
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )
        raise RefusedError(400, message, kind="Bad Request")
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        place = "body." + ".".join(str(part) for part in found[0]["loc"])
        many = f"{len(found)} validation error{'s' if len(found) > 1 else ''}"
        lines = [f"{{'type': '{each['type']}', 'msg': '{each['msg']}'}}" for each in found]
        message = f"{many}:\n  " + "\n  ".join(lines)
        raise RefusedError(400, message, place, "Bad Request") from None
