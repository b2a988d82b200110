// OpenTelemetry as a middleware: a producer span for each enqueue, a consumer span for each attempt, and a span of an attempt that a death ended, which
// only recovery can write. The trace context is carried in the job's row. The names are those of the semantic conventions for messaging, copied: their
// status is "Development", and the package that has them is not for libraries. The only file that loads `@opentelemetry/api`.
import { createRequire } from "node:module";
import type * as Api from "@opentelemetry/api";
import type { Attributes, Context, MeterProvider, Span, SpanContext, TracerProvider } from "@opentelemetry/api";
import type { JobToEnqueue } from "../job/around.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { EngineEvent, Events } from "../job/events.ts";
import type { Enqueued, JobDetails } from "../job/job.ts";
import { type Duration, durationMs } from "../job/time.ts";
import { VERSION } from "../platform/identity.ts";

/** The options of `openTelemetry`. */
export interface OpenTelemetryOptions {
  /**
   * How the span of an attempt belongs to that of its enqueue. "child": in the same trace. "link": in a trace of its own, with a link. "auto": child if it is the first
   * attempt, not scheduled, and began within `within` of its enqueue; otherwise link, so that a retry hours later does not lengthen the trace of a web request. Default "auto".
   */
  readonly attempts?: "auto" | "child" | "link";
  /** How soon after its enqueue an attempt is a child with "auto". Default "60s". */
  readonly within?: Duration;
  /** What makes the spans. Default: the global one. */
  readonly tracerProvider?: TracerProvider;
  /** What makes the metrics. Default: the global one. */
  readonly meterProvider?: MeterProvider;
}

/** What `middleware` of `open` and `connect` takes. */
interface Telemetry {
  /** As `Middleware.enqueue`. */
  enqueue(job: JobToEnqueue, next: (job: JobToEnqueue) => Promise<Enqueued>): Promise<Enqueued>;
  /** As `Middleware.attempt`. */
  attempt(attempt: TracedAttempt, next: () => Promise<unknown>): Promise<unknown>;
  /** As `Middleware.ended`. */
  ended(end: TracedEnd): void;
  /** As `Middleware.event`. */
  event(event: EngineEvent, details: (id: string) => Promise<JobDetails | null>): void;
}

/** What is traced of an attempt. */
interface TracedAttempt {
  /** The kind of its job. */
  readonly kind: string;
  /** What the handler gets as its second argument. */
  readonly run: {
    /** The job's id. */
    readonly id: string;
    /** The number of the attempt. */
    readonly attempt: number;
    /** The attempt's fence. */
    readonly fence: {
      /** The store's epoch at the claim. */
      readonly epoch: number;
    };
    /** The occurrence that the job is for; undefined: none. */
    readonly scheduled: object | undefined;
  };
  /** Reads the whole job. */
  readonly details: () => Promise<JobDetails | null>;
}

/** How a traced attempt ended. */
interface TracedEnd {
  /** The job's id. */
  readonly jobId: string;
  /** The number of the attempt. */
  readonly attempt: number;
  /** How it ended; null as for `AttemptEnd`. */
  readonly outcome: string | null;
}

/** Spans and metrics of a program's enqueues and attempts. Pass it in `middleware` of `open` and `connect`. Throws if `@opentelemetry/api` is not installed. */
export function openTelemetry(options: OpenTelemetryOptions = {}): Telemetry {
  const { attempts = "auto", within = "60s" } = options;
  if (!["auto", "child", "link"].includes(attempts))
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The option attempts of openTelemetry is ${JSON.stringify(attempts)}.`,
      'Use "auto", "child" or "link".',
      { option: "attempts" },
    );
  return new OpenTelemetry(openTelemetryApi(), { ...options, attempts, withinMs: durationMs(within, "within") });
}

/** Recommended by the conventions for durations, in seconds. */
const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10];
const SYSTEM = { "messaging.system": "outlive" } as const;
/** Deaths whose evidence is kept for the spans of their jobs. */
const MAX_DEATHS = 100;

class OpenTelemetry implements Telemetry {
  readonly #api: typeof Api;
  readonly #options: OpenTelemetryOptions & { readonly withinMs: number };
  /** Of attempts whose handlers run. */
  readonly #spans = new Map<string, { readonly span: Span; readonly kind: string; readonly startedAt: number }>();
  readonly #deaths = new Map<string, Events["worker.gone"]>();

  constructor(api: typeof Api, options: OpenTelemetryOptions & { readonly withinMs: number }) {
    this.#api = api;
    this.#options = options;
  }

  async enqueue(job: JobToEnqueue, next: (job: JobToEnqueue) => Promise<Enqueued>): Promise<Enqueued> {
    const { context, trace, SpanKind } = this.#api;
    const kind = job.job.name;
    const attributes = { ...operation(kind, "enqueue"), "messaging.operation.type": "send" };
    const span = this.#tracer.startSpan(`enqueue ${kind}`, { kind: SpanKind.PRODUCER, attributes });
    const carried = job.options.trace ?? this.#traceparent(span.spanContext());
    const traced = carried === undefined ? job : { ...job, options: { ...job.options, trace: carried } };
    try {
      const enqueued = await context.with(trace.setSpan(context.active(), span), () => next(traced));
      span.setAttributes({ "messaging.message.id": enqueued.id, "outlive.created": enqueued.created });
      this.#counter("messaging.client.sent.messages", "Messages that producers sent.").add(1, attributes);
      return enqueued;
    } catch (thrown) {
      this.#failed(span, thrown);
      throw thrown;
    } finally {
      span.end();
    }
  }

  async attempt(attempt: TracedAttempt, next: () => Promise<unknown>): Promise<unknown> {
    const { context, trace, SpanKind } = this.#api;
    const { kind, run } = attempt;
    const enqueuedIn = await this.#enqueuedIn(attempt);
    const attributes = {
      ...operation(kind, "process"),
      "messaging.operation.type": "process",
      "messaging.message.id": run.id,
      "outlive.attempt": run.attempt,
      "outlive.epoch": run.fence.epoch,
    };
    const start = { kind: SpanKind.CONSUMER, attributes, ...enqueuedIn.start };
    // Never the context that happens to be active: that is of the worker's loop, or of the job that was settled before.
    const span = this.#tracer.startSpan(`process ${kind}`, start, enqueuedIn.parent);
    const name = `${run.id} ${run.attempt}`;
    this.#spans.set(name, { span, kind, startedAt: performance.now() });
    try {
      const result = await context.with(trace.setSpan(enqueuedIn.parent, span), next);
      this.#end(name, "succeeded");
      return result;
    } catch (thrown) {
      this.#failed(span, thrown);
      this.#end(name, "failed", thrown);
      throw thrown;
    }
  }

  /** Of an attempt that waits, was given up, or has committed, the handler returns later or never. */
  ended({ jobId, attempt, outcome }: TracedEnd): void {
    this.#end(`${jobId} ${attempt}`, outcome ?? "ended");
  }

  event(event: EngineEvent, details: (id: string) => Promise<JobDetails | null>): void {
    if (event.name === "worker.gone") {
      if (this.#deaths.size >= MAX_DEATHS) this.#deaths.delete(this.#deaths.keys().next().value!);
      this.#deaths.set(event.incident, event);
    } else if (event.name === "write.rejected") {
      const { lease, tried, text } = event;
      this.#spans.get(`${lease.jobId} ${lease.fence}`)?.span.addEvent("write.rejected", { tried, text });
    } else if (event.name === "job.recovered") {
      const at = Date.now();
      const death = this.#deaths.get(event.incident);
      // What can't be read is a span without its parent.
      void details(event.jobId).then(
        (job) => this.#recovered(event, job, death, at),
        () => this.#recovered(event, null, death, at),
      );
    }
  }

  /** The attempt that the dead process could not report: from its start, if that is still known, to its recovery. */
  #recovered(
    event: Events["job.recovered"],
    job: JobDetails | null,
    death: Events["worker.gone"] | undefined,
    at: number,
  ) {
    const { SpanKind, SpanStatusCode, ROOT_CONTEXT, trace } = this.#api;
    const { kind, jobId, fence, incident, worker, decision } = event;
    const from = this.#parsed(job?.trace);
    const isLink = this.#options.attempts === "link";
    const parent = from && !isLink ? trace.setSpanContext(ROOT_CONTEXT, from) : ROOT_CONTEXT;
    const startTime = job?.attempt === fence && job.startedAt !== null ? Math.min(at, job.startedAt) : at;
    const attributes: Attributes = {
      ...operation(kind, "recover"),
      "messaging.message.id": jobId,
      "outlive.attempt": fence,
      "outlive.worker": worker,
      "outlive.incident": incident,
      "outlive.outcome": decision,
      "error.type": death?.how === "lost" ? "lost" : "crashed",
      ...(death?.evidence && { "outlive.evidence": death.evidence }),
    };
    const links = from && isLink ? [{ context: from }] : [];
    const span = this.#tracer.startSpan(
      `recover ${kind}`,
      { kind: SpanKind.CONSUMER, attributes, startTime, links },
      parent,
    );
    span.setStatus({ code: SpanStatusCode.ERROR, message: death?.evidence ?? "its worker died" });
    span.end(at);
  }

  async #enqueuedIn({
    run,
    details,
  }: TracedAttempt): Promise<{ parent: Context; start: { root?: true; links?: Api.Link[] } }> {
    const { ROOT_CONTEXT, trace } = this.#api;
    const { attempts, withinMs } = this.#options;
    const job = await details().catch(() => null);
    const from = this.#parsed(job?.trace);
    if (!from) return { parent: ROOT_CONTEXT, start: {} };
    // Both instants are of the store's clock.
    const isSoon = job!.startedAt !== null && job!.startedAt - job!.createdAt <= withinMs;
    const isFirst = run.attempt === 1 && run.scheduled === undefined && isSoon;
    if (attempts === "child" || (attempts === "auto" && isFirst))
      return { parent: trace.setSpanContext(ROOT_CONTEXT, from), start: {} };
    return { parent: ROOT_CONTEXT, start: { root: true, links: [{ context: from }] } };
  }

  #end(name: string, outcome: string, thrown?: unknown): void {
    const one = this.#spans.get(name);
    if (!one) return;
    this.#spans.delete(name);
    const { span, kind, startedAt } = one;
    span.setAttribute("outlive.outcome", outcome);
    span.end();
    const attributes = {
      ...operation(kind, "process"),
      ...(thrown !== undefined && { "error.type": errorType(thrown) }),
    };
    this.#counter("messaging.client.consumed.messages", "Messages that consumers got.").add(1, attributes);
    this.#meter
      .createHistogram("messaging.process.duration", {
        description: "How long handlers took.",
        unit: "s",
        advice: { explicitBucketBoundaries: BUCKETS },
      })
      .record((performance.now() - startedAt) / 1_000, attributes);
  }

  #failed(span: Span, thrown: unknown): void {
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    span.setAttribute("error.type", errorType(thrown));
    span.recordException(thrown instanceof Error ? thrown : message);
    span.setStatus({ code: this.#api.SpanStatusCode.ERROR, message });
  }

  #counter(name: string, description: string): Api.Counter {
    return this.#meter.createCounter(name, { description, unit: "{message}" });
  }

  // Taken when they are used: an SDK may be registered after this was made, and the global meter provider has no proxy.

  get #tracer(): Api.Tracer {
    return (this.#options.tracerProvider ?? this.#api.trace.getTracerProvider()).getTracer("outlive", VERSION);
  }

  get #meter(): Api.Meter {
    return (this.#options.meterProvider ?? this.#api.metrics.getMeterProvider()).getMeter("outlive", VERSION);
  }

  /** Undefined: there is no SDK, so nothing is carried. */
  #traceparent(of: SpanContext): string | undefined {
    if (!this.#api.isSpanContextValid(of)) return undefined;
    return `00-${of.traceId}-${of.spanId}-${(of.traceFlags & 0xff).toString(16).padStart(2, "0")}`;
  }

  #parsed(text: string | undefined): SpanContext | undefined {
    const [, traceId, spanId, flags] = /^[\da-f]{2}-([\da-f]{32})-([\da-f]{16})-([\da-f]{2})/.exec(text ?? "") ?? [];
    if (traceId === undefined) return undefined;
    const of = { traceId, spanId: spanId!, traceFlags: Number.parseInt(flags!, 16) & 1, isRemote: true };
    return this.#api.isSpanContextValid(of) ? of : undefined;
  }
}

function operation(kind: string, name: "enqueue" | "process" | "recover"): Attributes {
  return { ...SYSTEM, "messaging.operation.name": name, "messaging.destination.name": kind };
}

function errorType(thrown: unknown): string {
  return thrown instanceof OutliveError ? thrown.code : thrown instanceof Error ? thrown.name : typeof thrown;
}

// `@opentelemetry/api` is an optional peer. Loaded synchronously, because `openTelemetry` is; its state is global, so the program's own import shares it.

const NAME = "@opentelemetry/api";
const load = createRequire(import.meta.url);

function openTelemetryApi(): typeof Api {
  try {
    return load(NAME) as typeof Api;
  } catch (thrown) {
    const { code, message } = thrown as NodeJS.ErrnoException;
    if (code !== "MODULE_NOT_FOUND" || !message.includes(`'${NAME}'`)) throw thrown;
    throw new OutliveError(
      ErrorCode.driverMissing,
      `Tracing needs the package \`${NAME}\`, which is not installed.`,
      `Run \`npm install ${NAME}\` in this program, and an SDK that exports what it records.`,
      {},
      { cause: thrown },
    );
  }
}
