// Spans and metrics, recorded by the SDK of OpenTelemetry: names, parents and links, and the span of an attempt whose process was killed.
import assert from "node:assert/strict";
import { after, beforeEach, test } from "node:test";
import { context, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { InMemoryMetricExporter, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import {
  BasicTracerProvider,
  InMemorySpanExporter,
  type ReadableSpan,
  SimpleSpanProcessor,
} from "@opentelemetry/sdk-trace-base";
import { ErrorCode, job, open } from "../../src/index.ts";
import { openTelemetry } from "../../src/otel.ts";
import { virtualClock } from "../../src/testing/index.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { slow } from "../support/jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

const exporter = new InMemorySpanExporter();
const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
trace.setGlobalTracerProvider(provider);
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
after(() => {
  trace.disable();
  context.disable();
});
beforeEach(() => exporter.reset());

function span(name: string): ReadableSpan {
  const all = exporter.getFinishedSpans().filter((one) => one.name === name);
  assert.equal(
    all.length,
    1,
    `${name} of ${exporter
      .getFinishedSpans()
      .map((one) => one.name)
      .join()}`,
  );
  return all[0]!;
}

const idOf = (of: ReadableSpan): string => of.spanContext().spanId;
const traceOf = (of: ReadableSpan): string => of.spanContext().traceId;

test("an enqueue is a producer span, its attempt a consumer span in the same trace, and children of the run continue it", async (t) => {
  const child = job("child").handle(() => {});
  const parent = job<{ n: number }>("parent").handle(async (_, run) => {
    await run.enqueue(child, null);
    return "done";
  });
  const engine = await memory(t, [parent, child], { middleware: [openTelemetry()] });
  const request = trace.getTracer("test").startSpan("GET /");
  const { id } = await context.with(trace.setSpan(context.active(), request), () => engine.enqueue(parent, { n: 1 }));
  request.end();
  await engine.runUntilIdle();
  const sent = span("enqueue parent");
  const processed = span("process parent");
  assert.deepEqual([sent.kind, processed.kind], [SpanKind.PRODUCER, SpanKind.CONSUMER]);
  assert.deepEqual(sent.attributes, {
    "messaging.system": "outlive",
    "messaging.operation.name": "enqueue",
    "messaging.operation.type": "send",
    "messaging.destination.name": "parent",
    "messaging.message.id": id,
    "outlive.created": true,
  });
  assert.deepEqual(processed.attributes, {
    "messaging.system": "outlive",
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
    "messaging.destination.name": "parent",
    "messaging.message.id": id,
    "outlive.attempt": 1,
    "outlive.epoch": processed.attributes["outlive.epoch"],
    "outlive.outcome": "succeeded",
  });
  assert.equal(sent.parentSpanId, request.spanContext().spanId);
  assert.equal(processed.parentSpanId, idOf(sent));
  assert.equal(span("enqueue child").parentSpanId, idOf(processed));
  assert.equal(span("process child").parentSpanId, idOf(span("enqueue child")));
  for (const one of exporter.getFinishedSpans()) assert.equal(traceOf(one), request.spanContext().traceId);
  assert.equal(
    (await engine.get(id))?.trace,
    `00-${traceOf(sent)}-${idOf(sent)}-01`,
    "the trace context is in the job's row",
  );
});

test("a later attempt is a separate trace with a link, and an error is recorded", async (t) => {
  const one = job("one", { retry: { attempts: 2, backoff: AT_ONCE } }).handle((_, run) => {
    if (run.attempt === 1) throw new TypeError("no");
  });
  const engine = await memory(t, [one], { middleware: [openTelemetry()] });
  await engine.enqueue(one, null);
  await engine.runUntilIdle();
  const sent = span("enqueue one");
  const [first, second] = exporter.getFinishedSpans().filter(({ name }) => name === "process one");
  assert.equal(first!.parentSpanId, idOf(sent));
  assert.deepEqual(first!.status, { code: SpanStatusCode.ERROR, message: "no" });
  assert.deepEqual([first!.attributes["error.type"], first!.attributes["outlive.outcome"]], ["TypeError", "failed"]);
  assert.equal(first!.events[0]?.name, "exception");
  assert.equal(second!.parentSpanId, undefined);
  assert.notEqual(traceOf(second!), traceOf(sent));
  assert.deepEqual(
    second!.links.map((link) => link.context.spanId),
    [idOf(sent)],
  );
});

test("a delayed job and a wait: links, and each attempt has its end", async (t) => {
  const clock = virtualClock();
  const one = job("one").handle(async (_, run) => {
    await run.sleep("10m");
  });
  const engine = await memory(t, [one], { clock, middleware: [openTelemetry()] });
  const worker = await engine.start();
  t.after(() => worker.stop({ grace: "0ms" }));
  const { id } = await engine.enqueue(one, null, { delay: "5m" });
  await clock.advance(16 * 60_000);
  assert.equal((await engine.get(id))?.state, "succeeded");
  const attempts = exporter.getFinishedSpans().filter(({ name }) => name === "process one");
  assert.deepEqual(
    attempts.map(({ attributes, links, parentSpanId }) => [attributes["outlive.outcome"], links.length, parentSpanId]),
    [
      ["waiting", 1, undefined],
      ["succeeded", 1, undefined],
    ],
  );
});

test('"child" and "link" say it for all attempts', async (t) => {
  const one = job("one").handle(() => {});
  for (const [attempts, parents] of [
    ["child", 1],
    ["link", 0],
  ] as const) {
    exporter.reset();
    const engine = await memory(t, [one], { middleware: [openTelemetry({ attempts })] });
    await engine.enqueue(one, null);
    await engine.runUntilIdle();
    const { parentSpanId, links } = span("process one");
    assert.deepEqual([parentSpanId === undefined ? 0 : 1, links.length], [parents, 1 - parents]);
  }
  assert.throws(() => openTelemetry({ attempts: "both" as never }), says(ErrorCode.optionInvalid, "attempts"));
});

test("an enqueue that is refused is a failed span, and carries nothing", async (t) => {
  const one = job("one").handle(() => {});
  const engine = await memory(t, [one], { middleware: [openTelemetry()] });
  await assert.rejects(engine.enqueue(one, null, { priority: 5_000 }));
  const { status, attributes } = span("enqueue one");
  assert.deepEqual([status.code, attributes["error.type"]], [SpanStatusCode.ERROR, ErrorCode.optionInvalid]);
});

test("messages and durations are metrics of the provider that is there when they are recorded", async (t) => {
  const metrics = new InMemoryMetricExporter(0);
  const reader = new PeriodicExportingMetricReader({ exporter: metrics, exportIntervalMillis: 3_600_000 });
  const meterProvider = new MeterProvider({ readers: [reader] });
  t.after(() => meterProvider.shutdown());
  const one = job<number>("one").handle(() => {});
  const engine = await memory(t, [one], { middleware: [openTelemetry({ meterProvider })] });
  await engine.enqueueMany(one, [1, 2, 3]);
  await engine.runUntilIdle();
  await reader.forceFlush();
  const found = metrics.getMetrics().flatMap(({ scopeMetrics }) => scopeMetrics.flatMap((scope) => scope.metrics));
  const value = (name: string): unknown =>
    found.find(({ descriptor }) => descriptor.name === name)?.dataPoints[0]?.value;
  assert.equal(value("messaging.client.sent.messages"), 3);
  assert.equal(value("messaging.client.consumed.messages"), 3);
  assert.equal((value("messaging.process.duration") as { count: number }).count, 3);
});

test("an attempt whose process was killed has a span, written by the recovery, in the trace of its job", async (t) => {
  const place = new Place(t);
  const engine = await open(place.url, { jobs: [slow], logger: false, middleware: [openTelemetry()] });
  t.after(() => engine.close({ grace: "0ms" }));
  const worker = place.child();
  const { id } = await engine.enqueue(slow, { ms: 3_600_000 });
  await worker.untilFact("started", { id });
  worker.kill("SIGKILL");
  await worker.exited;
  await engine.operator.recover();
  await untilTrue(
    () => exporter.getFinishedSpans().map(({ name }) => name),
    (names) => names.includes("recover slow"),
    "the span of the recovery",
  );
  const sent = span("enqueue slow");
  const recovered = span("recover slow");
  assert.deepEqual([recovered.parentSpanId, traceOf(recovered)], [idOf(sent), traceOf(sent)]);
  assert.equal(recovered.status.code, SpanStatusCode.ERROR);
  const { attributes } = recovered;
  assert.deepEqual(
    [attributes["messaging.message.id"], attributes["outlive.attempt"], attributes["error.type"]],
    [id, 1, "crashed"],
  );
  const [incident] = await engine.incidents();
  assert.equal(attributes["outlive.incident"], incident?.id);
  assert.equal(attributes["outlive.worker"], incident?.worker);
  const startedAt = (await engine.get(id))!.startedAt!;
  assert.equal(Math.round(recovered.startTime[0] * 1_000 + recovered.startTime[1] / 1e6), startedAt);
});
