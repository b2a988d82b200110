// The program of a worker process: loads the jobs, opens the store, works, and drains when asked to, on SIGTERM, or
// when its supervisor is gone. It always exits when it should, whatever a handler left running.
import { registerHooks } from "node:module";
import { fileURLToPath } from "node:url";
import { loadConfig } from "../../engine/config.ts";
import type { Engine } from "../../engine/engine.ts";
import { open } from "../../engine/open.ts";
import type { EngineOptions } from "../../engine/options.ts";
import type { WorkerHandle } from "../../engine/work.ts";
import { ErrorCode, Interruption, OutliveError, whyStoreReplaced } from "../../job/errors.ts";
import type { EngineEvent } from "../../job/events.ts";
import { nearest } from "../../job/text.ts";
import { jsonWriter, prettyWriter } from "../../log.ts";
import { logEvent } from "../../telemetry/log.ts";
import type { MetricsSnapshot } from "../../metrics.ts";
import { exitCodeOf } from "../terminal.ts";
import type { FromChild, ToChild, WorkOrder } from "./child.ts";
import { loadJobs, loadMiddleware, loadSchedules } from "./job-modules.ts";

class WorkerProcess {
  #order: WorkOrder | undefined;
  #engine: Engine | undefined;
  #worker: WorkerHandle | undefined;
  #snapshot: () => Promise<MetricsSnapshot | null> = async () => null;
  /** Set once it has to end: how long its jobs may still run. */
  #graceMs: number | undefined;

  hear(message: ToChild): void {
    switch (message.outlive) {
      case "work":
        this.#order = message.order;
        void this.#work(message.order).catch((thrown: unknown) => this.#fail(thrown));
        return;
      case "stop":
        return this.stop(message.graceMs);
      case "metrics":
        void this.#snapshot().then((snapshot) => snapshot && say({ outlive: "metrics", ask: message.ask, snapshot }));
        return;
    }
  }

  stop(graceMs = this.#order?.graceMs ?? 0): void {
    if (this.#graceMs !== undefined) return;
    this.#graceMs = graceMs;
    // Before it works, it ends at its next step; see #work.
    if (this.#worker) void this.#leave().catch((thrown: unknown) => this.#fail(thrown));
    else if (!this.#order) exit(0);
  }

  async #work(order: WorkOrder): Promise<void> {
    process.title = `outlive worker ${order.place}`;
    if (order.watch) reportLoadedFiles();
    const jobs = await loadJobs(order.globs);
    assertKnown(order.only ?? [], jobs);
    const schedules = await loadSchedules(order.globs);
    const middleware = await loadMiddleware(order.middleware);
    if (this.#graceMs !== undefined) return this.#leave();
    const write = order.log === "json" ? jsonWriter : prettyWriter;
    const logger = write({ who: { place: order.place }, colours: order.colours });
    const early: EngineEvent[] = [];
    let opening = true;
    const onEvent = (event: EngineEvent): void => {
      // The supervisor has logged that there was nothing to recover.
      logEvent(logger, event, false);
      if (opening && order.metrics) early.push(event);
      if (event.name === "worker.started") say({ outlive: "registered" });
      if (event.name !== "worker.registering") return;
      const { worker, pid, namespace, startTicks } = event;
      say({ outlive: "registering", worker, pid, namespace, startTicks });
    };
    const made = order.madeBy === null ? {} : await madeBy(order.madeBy);
    this.#engine = await open(order.store, {
      ...order.engine,
      ...made,
      jobs: [...jobs, ...schedules],
      middleware,
      logger: false,
      onEvent,
    });
    if (order.metrics) this.#snapshot = await measure(this.#engine, early);
    opening = false;
    if (this.#graceMs !== undefined) return this.#leave();
    const { worker, kinds, sent } = await this.#engine.operator.startShare(order.share, {
      ...(order.only ? { only: order.only.map((name) => ({ name })) } : {}),
      ...(order.concurrency === null ? {} : { concurrency: order.concurrency }),
    });
    this.#worker = worker;
    say({ outlive: "ready", worker: worker.id, kinds: kinds ?? order.only ?? jobs.map(({ name }) => name), sent });
    if (this.#graceMs !== undefined) return this.#leave();
    // It gives up on its own only if it is unfit: too old for the store, on a file that another machine uses, or on a
    // store that was replaced.
    await worker.stopped;
  }

  async #leave(): Promise<void> {
    await this.#worker?.stop({ grace: `${this.#graceMs!}ms` });
    const snapshot = await this.#snapshot();
    await this.#engine?.close();
    say({ outlive: "stopped", snapshot }, () => exit(0));
  }

  #fail(thrown: unknown): void {
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    const exitCode = exitCodeOf(thrown) || 1;
    const isFinal = whyStoreReplaced(thrown) !== null;
    say({ outlive: "failed", message, exitCode, isFinal }, () => exit(exitCode));
  }
}

/** A misspelt `--only` would leave the kind that was meant without a worker. */
function assertKnown(only: readonly string[], jobs: readonly { readonly name: string }[]): void {
  const names = jobs.map(({ name }) => name);
  const unknown = only.find((name) => !names.includes(name));
  if (unknown === undefined) return;
  const near = nearest(unknown, names);
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `--only names ${JSON.stringify(unknown)}, and no module exports a job of that name.`,
    near === null ? `There are: ${names.join(", ")}.` : `Did you mean ${near}?`,
    { only, names },
  );
}

/** The blob store and the broker that the configuration file makes. */
async function madeBy(file: string): Promise<Pick<EngineOptions, "blobs" | "broker">> {
  const { blobs, broker } = (await loadConfig({ cwd: process.cwd(), env: process.env, flags: { file } })).engine;
  return { ...(blobs !== undefined && { blobs }), ...(broker !== undefined && { broker }) };
}

/** Loaded only when metrics are wanted: it costs memory. */
async function measure(engine: Engine, early: readonly EngineEvent[]): Promise<() => Promise<MetricsSnapshot>> {
  const [{ promClient }, { attachMetrics }] = await Promise.all([
    import("../../telemetry/metrics.ts"),
    import("../../metrics.ts"),
  ]);
  const registry = new (promClient().Registry)();
  attachMetrics(engine, { registry, only: "process", early });
  return () => registry.getMetricsAsJSON();
}

/** Reports every file of the program itself, so that a change to any of them triggers a restart. */
function reportLoadedFiles(): void {
  let files: string[] = [];
  registerHooks({
    load(url, context, nextLoad) {
      if (url.startsWith("file:") && !url.includes("/node_modules/")) {
        if (files.length === 0)
          setImmediate(() => {
            say({ outlive: "loaded", files });
            files = [];
          });
        files.push(fileURLToPath(url));
      }
      return nextLoad(url, context);
    },
  });
}

/** A message to a supervisor that is gone is lost. That is not an error, and `then` is still called. */
function say(message: FromChild, then: () => void = () => {}): void {
  if (!process.send || !process.connected) return then();
  process.send(message, undefined, undefined, () => then());
}

function isOwnRefusal(reason: unknown): boolean {
  return reason instanceof Interruption || (reason instanceof OutliveError && reason.code === ErrorCode.stale);
}

function exit(code: number): void {
  process.exit(code);
}

const worker = new WorkerProcess();
process.on("message", (message: ToChild) => worker.hear(message));
process.on("disconnect", () => worker.stop());
process.on("SIGTERM", () => worker.stop());
// Ctrl-C reaches the whole group; the supervisor decides what it means.
process.on("SIGINT", () => {});
// The supervisor reads stderr. If it is gone, a failed write must not end this process before it has drained.
for (const stream of [process.stdout, process.stderr]) stream.on("error", () => {});
// The same for a handler that sends something over the channel of a supervisor that is gone.
process.on("error", () => {});
// A promise that a handler started and did not await was rejected because its attempt has ended. That is already in the
// log, and not a reason to end the other jobs of this process. Any other rejection ends the process as it would without
// a listener, unless the program has one.
process.on("unhandledRejection", (reason) => {
  if (isOwnRefusal(reason) || process.listenerCount("unhandledRejection") > 1) return;
  throw reason;
});
