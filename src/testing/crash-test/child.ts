// The process that is killed: runs one job of the user's module on a scratch store, and kills itself with SIGKILL at the point in its order.
// With no such point it runs to the end and reports every point that it passed.
import { closeSync, fsyncSync, openSync, writeSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { openBlobs } from "../../blobs.ts";
import { batchesOf, isBatch } from "../../engine/batch.ts";
import { contractsOf } from "../../engine/client.ts";
import { collectionsOf, isCollection } from "../../engine/collection.ts";
import { Engine } from "../../engine/engine.ts";
import { engineSettings, settingsWithDefaults } from "../../engine/options.ts";
import { batchOfBlockId } from "../../job/batches.ts";
import type { AnyContract } from "../../job/contract.ts";
import { toStoredError } from "../../job/errors.ts";
import { EventBus } from "../../job/events.ts";
import { isTerminal, type JobInfo } from "../../job/job.ts";
import type { Json } from "../../job/json.ts";
import { awaitedAt } from "../../job/waits.ts";
import { systemClock as clock, systemRandom as random } from "../../platform/clock.ts";
import { checkProcess, processIdentity } from "../../platform/identity.ts";
import { openBackend } from "../../stores/registry.ts";
import { requestsOf } from "../../engine/request.ts";
import {
  isSentFor,
  recordingBroker,
  tellingCollections,
  tellingStore,
  tellingSubmission,
  tellSending,
  watchRequests,
} from "./effects.ts";

type AnyCollection = NonNullable<ReturnType<ReturnType<typeof collectionsOf>["get"]>>;
type AnyBatch = NonNullable<ReturnType<ReturnType<typeof batchesOf>["get"]>>;

/** What the parent says. */
export interface Order {
  readonly url: string;
  readonly module: string;
  readonly kind: string;
  readonly jobId: string;
  /** Null: it has been enqueued already. The rows of a batch are submitted again, as their submitter would do it. */
  readonly input: { readonly json: string } | null;
  /** Of a batch. */
  readonly context: string;
  /** Of a collection: the parts of each series, from the first. */
  readonly parts: Readonly<Record<string, readonly string[]>>;
  /** Where output files and parts go. */
  readonly blobs: string;
  /** What is sent when the job waits for a signal, by its name. */
  readonly signals: Readonly<Record<string, Json>>;
  /** The how-manieth point ends the process; null: none does. */
  readonly killAt: number | null;
  /** The file into which it writes the point, before that ends it. */
  readonly note: string;
}

/** What the child says. */
export type Message =
  | { readonly point: string }
  /** `left`: what a batch or a collection has left behind, which has to be the same in every run. */
  | { readonly ended: string; readonly error: string | null; readonly left?: string };

main(JSON.parse(process.argv[2]!) as Order).catch((thrown: unknown) => {
  console.error(thrown);
  process.exit(1);
});

async function main(order: Order): Promise<void> {
  const jobs = await jobsOf(order);
  const contracts = contractsOf(jobs);
  const batch = batchesOf(jobs).get(order.kind);
  const collection = collectionsOf(jobs).get(order.kind);
  const requests = requestsOf(jobs);
  const isRequest = requests.has(order.kind);
  const isRunnable = collection
    ? collection.isRunnable
    : batch
      ? batch.handlers.row !== null || batch.handlers.block !== null
      : isRequest || contracts.get(order.kind)?.handler;
  if (!isRunnable) throw new Error(`${order.module} exports no job named ${order.kind} with a handler.`);
  const isUnderTest = isRequest ? isSentFor(order.jobId) : () => false;
  watchRequests(isUnderTest);
  const settings = engineSettings({ heartbeat: { interval: "100ms", lease: "5s", probe: "20ms" }, poll: "50ms" });
  const bus = new EventBus(toStoredError);
  const identity = processIdentity();
  const deps = { clock, random, events: bus, bootId: identity.bootId };
  const backend = await openBackend(order.url, {}, deps, { ...settings, migrate: true });
  let passed = 0;
  const reached = (point: string): void => {
    if (passed++ === order.killAt) {
      leave(order.note, point);
      process.kill(process.pid, "SIGKILL");
    }
    if (order.killAt === null) process.send!({ point } satisfies Message);
  };
  if (isRequest) tellSending(isUnderTest, reached);
  const store = collection
    ? tellingCollections(tellingStore(backend.store, nameInCollection, reached), reached)
    : batch
      ? tellingSubmission(tellingStore(backend.store, nameInBatch, reached), reached)
      : tellingStore(backend.store, (id) => (id === order.jobId ? "" : null), reached);
  const engine = new Engine({
    backend: { ...backend, store },
    settings,
    contracts,
    batches: batchesOf(jobs),
    collections: collectionsOf(jobs),
    broker: recordingBroker(),
    requests,
    // Whatever a secret is in production, a test has the value of the environment, or none that matters.
    secrets: (name) => process.env[name] ?? "crash-test",
    blobs: openBlobs(order.blobs),
    clock,
    random,
    bus,
    identity,
    processState: checkProcess,
  });
  await backend.store.declare([...contracts.values()].map((one) => settingsWithDefaults(one, settings)));
  await engine.operator.recoverAtOpen();
  const contract = contracts.get(order.kind)!;
  const isEnded = await (collection
    ? collected(engine, collection, order)
    : batch
      ? submitted(engine, batch, order)
      : enqueued(engine, contract, order, isRequest));
  const worker = await engine.start({ concurrency: 1 });
  for (;;) {
    const ended = await isEnded();
    if (ended) {
      process.send!(ended);
      break;
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  await worker.stop();
  await engine.close();
  process.exit(0); // whatever a handler left behind
}

type EndMessage = Extract<Message, { ended: string }>;

async function enqueued(
  engine: Engine,
  contract: AnyContract,
  { jobId, input, signals }: Order,
  isRequest: boolean,
): Promise<() => Promise<EndMessage | null>> {
  if (input) await engine.enqueue(contract, JSON.parse(input.json) as never, { id: jobId });
  return async () => {
    const job = await engine.get(jobId);
    if (job && isTerminal(job.state)) {
      // What follows a request has its own effects.
      if (isRequest && (await isBusy(engine))) return null;
      const isUnknown = isRequest && job.error?.name === "RequestUnknown" && job.state === "dead";
      return { ended: isUnknown ? "unknown" : job.state, error: job.error?.message ?? null };
    }
    if (job) await sendSignal(job, engine, signals);
    return null;
  };
}

async function isBusy(engine: Engine): Promise<boolean> {
  const counts = await engine.counts();
  return counts.some(({ ready, held, running, delayed }) => ready + held + running + delayed > 0);
}

/** With the same key in every process: what is there is not added twice. */
async function submitted(
  engine: Engine,
  batch: AnyBatch,
  { jobId: key, input, context }: Order,
): Promise<() => Promise<EndMessage | null>> {
  const rows = JSON.parse(input!.json) as never[];
  const { id } = await engine.submit(batch, rows, { key, context: JSON.parse(context) as never });
  return async () => {
    const info = await engine.batch(id);
    const done = await engine.get(`${id}:done:1`);
    if (!info?.endedAt || !done || !isTerminal(done.state)) return null;
    const files = Object.entries(info.outputs).map(([file, { sha256 }]) => [file, sha256]);
    const { total, succeeded, failed, quarantined, aborted } = info.rows;
    const isComplete = info.state === "completed" && done.state === "succeeded";
    return {
      ended: isComplete ? "succeeded" : info.state === "completed" ? done.state : info.state,
      error: done.error?.message ?? null,
      left: JSON.stringify({ rows: { total, succeeded, failed, quarantined, aborted }, files }),
    };
  };
}

/** Everything is put by every process, as its producer would do it after a crash. */
async function collected(
  engine: Engine,
  collection: AnyCollection,
  { jobId: id, input, parts }: Order,
): Promise<() => Promise<EndMessage | null>> {
  const expect = Object.fromEntries(Object.entries(parts).map(([series, all]) => [series, all.length]));
  await engine.collect(collection, JSON.parse(input!.json) as never, { id, expect });
  let isPut = false;
  return async () => {
    // A producer sends when it has been asked.
    const asked = await engine.get(`${id}:request`);
    if (!isPut && (!asked || !isTerminal(asked.state))) return null;
    if (!isPut)
      for (const [series, all] of Object.entries(parts))
        for (const [at, text] of all.entries()) await engine.put(collection, id, series, at + 1, Buffer.from(text));
    isPut = true;
    const info = await engine.collection(id);
    const done = await engine.get(`${id}:done`);
    const notify = await engine.get(`${id}:notify`);
    if (!info || !done || !isTerminal(done.state) || !notify || !isTerminal(notify.state)) return null;
    const series = Object.entries(info.series).map(([name, { have, bytes, missing }]) => [name, have, bytes, missing]);
    return {
      ended: info.state === "notified" ? done.state : info.state,
      error: done.error?.message ?? null,
      left: JSON.stringify({ series, completed: info.transitions.filter(({ state }) => state === "complete").length }),
    };
  };
}

function nameInCollection(jobId: string): string {
  return ` (${jobId.slice(jobId.lastIndexOf(":") + 1)})`;
}

/** Ids of batches are new in every run, and points are not. */
function nameInBatch(jobId: string): string {
  const block = batchOfBlockId(jobId);
  return block ? ` (block ${block.number + 1})` : " (what follows the end)";
}

function leave(file: string, text: string): void {
  const note = openSync(file, "wx");
  writeSync(note, text);
  fsyncSync(note);
  closeSync(note);
}

/** Once for each wait: the signal's id is the step at which the job waits. */
async function sendSignal({ id, waitsAt }: JobInfo, engine: Engine, signals: Order["signals"]): Promise<void> {
  const awaited = waitsAt === null ? null : awaitedAt(waitsAt);
  if (awaited?.type !== "signal" || !Object.hasOwn(signals, awaited.name)) return;
  await engine.signal(id, awaited.name, signals[awaited.name], { id: waitsAt! });
}

/** All jobs, batches and collections that the module exports: a parent's children run here, too. */
async function jobsOf({ module }: Order): Promise<readonly object[]> {
  const exports = Object.values((await import(pathToFileURL(module).href)) as object).flatMap((value: unknown) =>
    Array.isArray(value) ? (value as unknown[]) : [value],
  );
  return exports.filter(
    (value): value is object =>
      isBatch(value) ||
      isCollection(value) ||
      (typeof value === "object" && typeof (value as AnyContract | null)?.settings?.name === "string"),
  );
}
