"""The generation routes: from body to answer, in the order in which a request is checked."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from ferrite.api import errors
from ferrite.api.answers import usage_answer
from ferrite.api.body import ClientGone, read_body
from ferrite.api.config import ServerConfig
from ferrite.api.context import RequestContext, context_of
from ferrite.api.fields import Field, check_fields
from ferrite.api.limits import (
    Budget,
    check_budget,
    check_size,
    sampling_params,
    too_large,
    wants_cache_trace,
)
from ferrite.api.model import GenerationEngine, LoadedModel
from ferrite.api.prompts import LARGE_BODY_BYTES, Prompt
from ferrite.api.records import RequestRecord
from ferrite.api.replies import ReplyBuilder, ReplyOptions, Shape
from ferrite.api.schema import BodyDecoder
from ferrite.api.services import Services
from ferrite.api.streams import Reply, run_while_connected
from ferrite.api.wire import GenerationBody
from ferrite.engine.errors import EngineBusy, EngineStopped, GenerationFailed, RequestTooLarge
from ferrite.engine.events import Event, Finished, Timings, Usage
from ferrite.engine.request import GenerationRequest

BodyT = TypeVar("BodyT", bound=GenerationBody)

_IGNORED_HEADER_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class GenerationRoute(Generic[BodyT]):
    """What one generation route does differently from the others."""

    body_type: type[BodyT]
    fields: Mapping[str, Field]
    shape: Shape
    check: Callable[[BodyT], None]
    """Raises 400 for what the types of the body cannot say."""
    budget: Callable[[BodyT, int], Budget]
    """Body and default budget → budget; raises 400."""
    prompts: Callable[[BodyT, LoadedModel], list[Prompt]]
    """Renders, in a worker thread; raises 400."""
    stops: Callable[[BodyT, LoadedModel], tuple[str, ...]]
    """Stop strings."""


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to continue; ``request`` is None when not a single token is wanted."""

    n_prompt: int
    request: GenerationRequest | None


class GenerationEndpoint(Generic[BodyT]):
    """ASGI application of one generation route."""

    def __init__(self, route: GenerationRoute[BodyT], services: Services) -> None:
        self._route = route
        self._services = services
        self._config = services.config
        self._decoder = BodyDecoder(route.body_type, ignore_unknown=self._config.unknown_fields == "ignore")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; an error is raised until a stream has begun, and an event of it after that."""
        context = context_of(scope)
        reply = Reply(send)
        record: RequestRecord | None = None
        try:
            async with asyncio.timeout(self._config.request_timeout_ms / 1000 or None):
                data = await read_body(scope, receive, self._config.max_body_bytes, self._services.bodies)
                large = len(data) > LARGE_BODY_BYTES
                body, model, budget = (
                    await self._checked_aside(context, data) if large else self._checked(context, data)
                )
                del data
                record = RequestRecord(
                    self._services.serving, context.request_id, scope["path"], streamed=bool(body.stream)
                )
                workers = self._services.workers.large if large else self._services.workers.small
                work = self._generate(context, body, model, budget, workers, reply, record)
                await run_while_connected(receive, work)
        except (ClientGone, asyncio.CancelledError) as error:
            if record is not None:
                record.end(cancelled=True, error=None if isinstance(error, ClientGone) else "not_ready")
            raise
        except Exception as error:
            answer = self._answer_of(error, context)
            context.log_fields["error"] = answer.body.code
            cancelled = isinstance(error, TimeoutError)
            if record is None or not record.end(cancelled=cancelled, error=answer.body.code):
                self._services.refused[answer.status] += 1
            if not reply.streaming:
                raise answer from error
            await reply.fail(answer)

    async def _checked_aside(self, context: RequestContext, data: bytes) -> tuple[BodyT, LoadedModel, Budget]:
        loop = asyncio.get_running_loop()
        with self._services.bodies.held(len(data)):
            return await loop.run_in_executor(self._services.workers.small, self._checked, context, data)

    def _checked(self, context: RequestContext, data: bytes) -> tuple[BodyT, LoadedModel, Budget]:
        body, dropped = self._decoder.decode(data)
        if dropped:
            _report_dropped(context, dropped)
        check_fields(body, self._route.fields)
        wants_cache_trace(body)
        self._route.check(body)
        if body.model != self._config.model_id:
            message = (
                f"The model {body.model[:256]!r} does not exist; this server has {self._config.model_id!r}."
            )
            raise errors.not_found(message, param="model", code="model_not_found")
        budget = self._route.budget(body, self._config.default_max_tokens)
        check_budget(budget, self._config.hard_max_tokens)
        return body, self._services.state.ready_model(), budget

    async def _generate(
        self,
        context: RequestContext,
        body: BodyT,
        model: LoadedModel,
        budget: Budget,
        workers: Executor,
        reply: Reply,
        record: RequestRecord,
    ) -> None:
        if budget.tokens > 0:
            # Before any work: a full server has none to spare.
            model.engine.check_room()
        with self._services.preparation.place():
            loop = asyncio.get_running_loop()
            jobs = await loop.run_in_executor(workers, self._jobs, context.request_id, body, model, budget)
        options = self._reply_options(context, body, model)
        builder = ReplyBuilder(self._route.shape, options, uuid.uuid4().hex, len(jobs))
        try:
            for index, job in enumerate(jobs):
                async with _admitted(model.engine, job, record, continues=index > 0) as events:
                    if body.stream:
                        await reply.send_chunks(builder.opening())
                    async for event in events:
                        record.add(event)
                        chunks = builder.add(index, event)
                        if body.stream:
                            await reply.send_chunks(chunks)
            # Before the client can see the end, so that what it reads next counts this request.
            record.end()
            if body.stream:
                await reply.end(builder.closing())
            else:
                await reply.send_whole(builder.whole())
        finally:
            _report_usage(context, builder)

    def _jobs(self, request_id: str, body: BodyT, model: LoadedModel, budget: Budget) -> list[Job]:
        sampling = sampling_params(body, model.tokenizer.vocab_size)
        prompts = self._route.prompts(body, model)
        for prompt in prompts:
            # Before any is tokenized, which can take longer than generating.
            at_least = prompt.least_tokens(model.longest_token)
            check_size(model.engine, at_least, budget, prompt.param, exact=False)
        stop, end_ids = self._route.stops(body, model), model.tokenizer.end_ids
        namespace = (body.prompt_cache_key or "") if self._config.experimental_prefix_cache else ""
        jobs = []
        for prompt in prompts:
            tokens = tuple(prompt.encode())
            if not tokens:
                raise errors.invalid("The prompt has no tokens.", prompt.param)
            check_size(model.engine, len(tokens), budget, prompt.param)
            request = None
            if budget.tokens > 0:
                request = GenerationRequest(
                    request_id,
                    tokens,
                    budget.tokens,
                    sampling,
                    stop,
                    end_ids,
                    cache_namespace=namespace,
                )
            jobs.append(Job(len(tokens), request))
        return jobs

    def _reply_options(self, context: RequestContext, body: BodyT, model: LoadedModel) -> ReplyOptions:
        stream_options = body.stream_options
        return ReplyOptions(
            request_id=context.request_id,
            model_id=model.id,
            stream=bool(body.stream),
            include_usage=bool(stream_options and stream_options.include_usage),
            include_obfuscation=bool(stream_options and stream_options.include_obfuscation),
            # Stop strings take text away that the ids still spell.
            token_ids=bool(body.return_token_ids) and not self._route.stops(body, model),
            cache_trace=wants_cache_trace(body),
            cache_key_given=bool(body.prompt_cache_key),
        )

    def _answer_of(self, error: Exception, context: RequestContext) -> errors.ApiError:
        match error:
            case EngineBusy():
                return errors.busy(f"{error} ({_room_options(self._config)})", error.retry_after_seconds)
            case EngineStopped():
                return errors.not_ready(self._services.state.unready_reason or "stopped")
            case RequestTooLarge():
                return too_large(f"The request needs {error.needed} tokens", error, None)
            case GenerationFailed():
                return errors.server_error(str(error))
            case TimeoutError():
                return errors.timed_out(self._config.request_timeout_ms)
            case _:
                return errors.api_error_of(error, context.request_id)


@asynccontextmanager
async def _admitted(
    engine: GenerationEngine, job: Job, record: RequestRecord, *, continues: bool
) -> AsyncIterator[AsyncIterator[Event]]:
    """Hold a running generation; leaving it early cancels it."""
    if job.request is None:
        record.taken(job.n_prompt)
        yield _nothing(job.n_prompt)
        return
    generation = engine.submit(job.request, continues=continues)
    try:
        record.taken(job.n_prompt)
        await generation.admitted()
        record.admitted()
        yield aiter(generation)
    finally:
        generation.cancel()


async def _nothing(n_prompt: int) -> AsyncIterator[Event]:
    yield Finished("length", Usage(n_prompt, 0), Timings(0.0, 0.0, 0.0), (), None)


def _room_options(config: ServerConfig) -> str:
    """Return the options that would have made room for a refused request."""
    if config.experimental_batched_decode:
        waiting = ", --inference-wait-ms" if config.inference_wait_ms is not None else ""
        return f"--max-batch-streams, --max-batch-queue{waiting}"
    return "--max-concurrent-inferences, --inference-wait-ms"


def _report_dropped(context: RequestContext, dropped: list[str]) -> None:
    names = (name[:_IGNORED_HEADER_CHARACTERS] for name in dropped[:_IGNORED_HEADER_CHARACTERS])
    header = ", ".join(quote(name, safe="[]._-") for name in names)
    if len(header) > _IGNORED_HEADER_CHARACTERS:
        header = header[:_IGNORED_HEADER_CHARACTERS].rpartition(", ")[0] + ", ..."
    context.answer_headers["x-ferrite-ignored"] = header
    context.log_fields["ignored"] = header


def _report_usage(context: RequestContext, builder: ReplyBuilder) -> None:
    if builder.usages:
        usage = usage_answer(builder.usages)
        context.log_fields["prompt_tokens"] = usage.prompt_tokens
        context.log_fields["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        context.log_fields["completion_tokens"] = usage.completion_tokens
        context.log_fields["finish_reason"] = ",".join(builder.finish_reasons)
