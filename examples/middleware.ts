// Middleware: code around every enqueue and every attempt, here a log of both, and OpenTelemetry. Outside of this repository write:
//   import { job, type Middleware, open } from "outlive";
//   import { openTelemetry } from "outlive/otel";
import { trace } from "@opentelemetry/api";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { job, type Middleware, open } from "../src/index.ts";
import { openTelemetry } from "../src/otel.ts";

// A program in production registers an SDK that sends its spans somewhere.
const exporter = new InMemorySpanExporter();
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));

const mail = job<{ to: string }>("mail").handle(({ to }) => `sent to ${to}`);

const timing: Middleware = {
  async enqueue(job, next) {
    const enqueued = await next({ ...job, options: { priority: 5, ...job.options } });
    console.log(`${job.job.name} was enqueued: ${enqueued.created}`);
    return enqueued;
  },
  async attempt({ kind, run }, next) {
    console.log(`attempt ${run.attempt} of ${kind} begins`);
    return next();
  },
  ended({ kind, attempt, outcome }) {
    console.log(`attempt ${attempt} of ${kind}: ${outcome}`);
  },
};

const engine = await open("sqlite::memory:", {
  jobs: [mail],
  logger: false,
  middleware: [timing, openTelemetry()],
});
const { id } = await engine.enqueue(mail, { to: "ann" });
await engine.runUntilIdle();
console.log(`priority ${(await engine.get(id))!.priority}`);
const [sent, processed] = exporter.getFinishedSpans();
console.log(
  `${sent!.name}, ${processed!.name}: one trace: ${sent!.spanContext().traceId === processed!.spanContext().traceId}`,
);
await engine.close();
