"""The generation routes: from body to answer, in the order in which a request is checked."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from ferrite.api import errors
from ferrite.api.body import ClientGone, read_body
from ferrite.api.checks import check_model, report_dropped
from ferrite.api.config import ServerConfig
from ferrite.api.context import RequestContext, context_of
from ferrite.api.fields import Field, check_fields
from ferrite.api.limits import (
    Budget,
    check_budget,
    check_choices,
    check_size,
    choice_params,
    sampling_params,
    too_large,
    wants_cache_trace,
)
from ferrite.api.model import GenerationEngine, LoadedModel
from ferrite.api.prompts import LARGE_BODY_BYTES, Prompt
from ferrite.api.records import RequestRecord
from ferrite.api.replies import Builder, ReplyOptions, usage_of
from ferrite.api.running import Running
from ferrite.api.schema import BodyDecoder
from ferrite.api.services import Services
from ferrite.api.streams import Reply, run_while_connected
from ferrite.api.wire import GenerationBody
from ferrite.engine.errors import EngineBusy, EngineStopped, GenerationFailed, RequestTooLarge
from ferrite.engine.events import Finished
from ferrite.engine.request import GenerationRequest
from ferrite.grammar import Constraint

T = TypeVar("T")
BodyT = TypeVar("BodyT", bound=GenerationBody)

LARGE_ANSWER_ENTRIES = 2048
"""Log-probabilities that are told between two events of the loop; they take some 20 milliseconds."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a worker thread made of a body."""

    prompts: list[Prompt]
    make_builder: Callable[[ReplyOptions], Builder]
    constraint: Callable[[], Constraint] | None = None
    """Makes what an answer must follow, in a worker thread; called for each choice."""


@dataclass(frozen=True, slots=True)
class GenerationRoute(Generic[BodyT]):
    """What one generation route does differently from the others."""

    body_type: type[BodyT]
    fields: Mapping[str, Field]
    check: Callable[[BodyT], None]
    """Raises 400 for what the types of the body cannot say."""
    budget: Callable[[BodyT, int], Budget]
    """Body and default budget → budget; raises 400."""
    prepare: Callable[[BodyT, LoadedModel], Prepared]
    """Renders and compiles, in a worker thread; raises 400."""
    stops: Callable[[BodyT, LoadedModel], tuple[str, ...]]
    """Stop strings."""
    choices: Callable[[BodyT], int]
    """Answers to each prompt."""
    logprobs: Callable[[BodyT], int | None]
    """Likeliest tokens to tell of beside each token, None to tell nothing."""
    scores_prompt: Callable[[BodyT], bool] = lambda _: False
    """Whether the answer tells how likely the prompt's own tokens are."""
    drop: Callable[[BodyT], list[str]] = lambda _: []
    """Removes what ``--unknown-fields ignore`` lets go besides unknown fields; returns the removed paths."""

    def check_body(self, body: BodyT) -> None:
        """Raise 400 for a body that says what no server honours."""
        check_fields(body, self.fields)
        wants_cache_trace(body)
        self.check(body)

    def check_limits(self, body: BodyT, config: ServerConfig) -> Budget:
        """Return the token budget; raises 400 for a body that asks for more than this server gives."""
        budget = self.budget(body, config.default_max_tokens)
        check_budget(budget, config.hard_max_tokens)
        check_choices(self.choices(body), config)
        return budget


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and its choices."""

    prompt: tuple[int, ...]
    n: int
    requests: tuple[GenerationRequest, ...]
    """What the engine has to do: fewer than ``n`` where choices are empty."""


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
            if answer.status == 429 and not isinstance(error, EngineBusy):
                # The engine counts its own.
                self._services.turned_away.count += 1
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
        if self._config.unknown_fields == "ignore":
            dropped += self._route.drop(body)
        report_dropped(context, dropped)
        self._route.check_body(body)
        check_model(body.model, self._config.model_id)
        budget = self._route.check_limits(body, self._config)
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
        if budget.tokens > 0 or self._route.scores_prompt(body):
            # Before any work: a full server has none to spare.
            model.engine.check_room()
        with self._services.preparation.place():
            loop = asyncio.get_running_loop()
            jobs, builder = await loop.run_in_executor(workers, self._jobs, context, body, model, budget)
        reply.failure = builder.failure
        try:
            for number, job in enumerate(jobs):
                async with _admitted(model.engine, job, record, continues=number > 0) as running:
                    await self._run(body, job, number, builder, running, record, reply)
            # Before the client can see the end, so that what it reads next counts this request.
            record.end(finish_reasons=builder.finish_reasons)
            if body.stream:
                await reply.end(builder.closing(), done_mark=builder.done_mark)
            else:
                scored = self._route.scores_prompt(body)
                shown = sum(u.completion_tokens + scored * u.prompt_tokens for u in builder.usages)
                await reply.send_whole(await self._aside(body, shown, partial(_encoded, builder)))
        finally:
            _report_usage(context, builder)

    async def _run(
        self,
        body: BodyT,
        job: Job,
        number: int,
        builder: Builder,
        running: Running,
        record: RequestRecord,
        reply: Reply,
    ) -> None:
        """Run the choices of prompt ``number`` to their ends."""
        first = number * job.n
        scored = len(job.prompt) if self._route.scores_prompt(body) else 0
        if body.stream:
            await reply.send_events(builder.opening())
        async for choice, event in running:
            record.add(choice, event)
            shown = scored if event.prompt_logprobs is not None else 0
            sent = await self._aside(body, shown, partial(builder.add, first + choice, event))
            if not isinstance(event, Finished) and builder.ended(first + choice):
                running.stop(choice)
            if body.stream:
                await reply.send_events(sent)

    async def _aside(self, body: BodyT, n_shown: int, work: Callable[[], T]) -> T:
        """Do what tells the log-probabilities of ``n_shown`` tokens; in a worker if that may take long."""
        logprobs = self._route.logprobs(body)
        if logprobs is None or n_shown * (1 + logprobs) <= LARGE_ANSWER_ENTRIES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._services.workers.large, work)

    def _jobs(
        self, context: RequestContext, body: BodyT, model: LoadedModel, budget: Budget
    ) -> tuple[list[Job], Builder]:
        sampling = sampling_params(body, model.tokenizer.vocab_size)
        prepared = self._route.prepare(body, model)
        for prompt in prepared.prompts:
            # Before any is tokenized, which can take longer than generating.
            at_least = prompt.least_tokens(model.longest_token)
            check_size(model.engine, at_least, budget, prompt.param, exact=False)
        namespace = (body.prompt_cache_key or "") if self._config.experimental_prefix_cache else ""
        n, scores = self._route.choices(body), self._route.scores_prompt(body)
        jobs = []
        for prompt in prepared.prompts:
            tokens = tuple(prompt.encode())
            if not tokens:
                raise errors.invalid("The prompt has no tokens.", prompt.param)
            check_size(model.engine, len(tokens), budget, prompt.param)
            first = partial(
                GenerationRequest,
                context.request_id,
                tokens,
                budget.tokens,
                stop=self._route.stops(body, model),
                end_ids=model.tokenizer.end_ids,
                cache_namespace=namespace,
                top_logprobs=self._route.logprobs(body),
            )
            n_running = n if budget.tokens > 0 else int(scores)
            requests = (
                first(
                    sampling=choice_params(sampling, choice),
                    constraint=prepared.constraint() if prepared.constraint is not None else None,
                    # Once is enough.
                    prompt_logprobs=scores and choice == 0,
                )
                for choice in range(n_running)
            )
            jobs.append(Job(tokens, n, tuple(requests)))
        options = self._reply_options(context, body, model, tuple(job.prompt for job in jobs))
        return jobs, prepared.make_builder(options)

    def _reply_options(
        self, context: RequestContext, body: BodyT, model: LoadedModel, prompts: tuple[tuple[int, ...], ...]
    ) -> ReplyOptions:
        stream_options = body.stream_options
        return ReplyOptions(
            unique=uuid.uuid4().hex,
            request_id=context.request_id,
            model_id=model.id,
            prompts=prompts,
            n=self._route.choices(body),
            stream=bool(body.stream),
            include_usage=bool(stream_options and stream_options.include_usage),
            include_obfuscation=bool(stream_options and stream_options.include_obfuscation),
            # Stop strings take text away that the ids still spell.
            token_ids=bool(body.return_token_ids) and not self._route.stops(body, model),
            logprobs=self._route.logprobs(body),
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
                return too_large("The request does not fit", error, None)
            case GenerationFailed():
                return errors.server_error(str(error))
            case TimeoutError():
                return errors.timed_out(self._config.request_timeout_ms)
            case _:
                return errors.api_error_of(error, context.request_id)


@asynccontextmanager
async def _admitted(
    engine: GenerationEngine, job: Job, record: RequestRecord, *, continues: bool
) -> AsyncIterator[Running]:
    """Hold the running generations of ``job``; leaving them early cancels them."""
    generations = engine.submit_group(job.requests, continues=continues) if job.requests else ()
    async with aclosing(Running(generations, len(job.prompt), job.n)) as running:
        record.taken(len(job.prompt), job.n)
        for generation in generations:
            await generation.admitted()
        if generations:
            record.admitted()
        yield running


def _encoded(builder: Builder) -> bytes:
    return msgspec.json.encode(builder.whole())


def _room_options(config: ServerConfig) -> str:
    """Return the options that would have made room for a refused request."""
    if config.experimental_batched_decode:
        waiting = ", --inference-wait-ms" if config.inference_wait_ms is not None else ""
        return f"--max-batch-streams, --max-batch-queue{waiting}"
    return "--max-concurrent-inferences, --inference-wait-ms"


def _report_usage(context: RequestContext, builder: Builder) -> None:
    usage = usage_of(builder)
    if usage is not None:
        context.log_fields["prompt_tokens"] = usage.prompt_tokens
        context.log_fields["cached_tokens"] = usage.prompt_tokens_details.cached_tokens
        context.log_fields["completion_tokens"] = usage.completion_tokens
        context.log_fields["finish_reason"] = ",".join(builder.finish_reasons)
