// Collections in a worker process: what it runs for each kind of them (the request, what follows the last part, the notification, what follows
// another end, the clean-up). Each is a job whose id is made of the collection, and each may run again after a crash.
import {
  type CollectionJob,
  type CollectionRow,
  followOf,
  isOpen,
  jobIdOf,
  jobKind,
  type Part,
  rangesText,
  STEPS,
} from "../job/collections.ts";
import type { RunnableKind } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, TerminalError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { KindSettings } from "../job/job.ts";
import { encodeJson, type Json } from "../job/json.ts";
import type { Broker, Wire, WiredKind } from "../stores/broker.ts";
import type { Collections } from "../stores/collections.ts";
import type { Run } from "../worker/run.ts";
import { createHash } from "node:crypto";
import { manifestOf, type PartBlobs, prefixOf, sha256 } from "./blob-names.ts";
import type { AnyCollection, Collected, CollectedPart, CollectionEnded } from "./contract.ts";
import { needBlobs } from "./intake.ts";

export interface CollectionWorkerDeps {
  readonly collections: Collections;
  readonly events: Emitter;
  readonly blobs: PartBlobs | null;
  readonly broker: Broker | null;
  /** The settings of a kind with the engine's defaults. */
  readonly settingsOf: (contract: AnyCollection["kinds"]["done"]) => KindSettings;
}

/** Parts that are read at once. */
const PAGE = 500;
/** Rows that one transaction deletes. */
const REMOVED_AT_ONCE = 1_000;
/** A notification that would be longer names a manifest instead. */
const MAX_NOTIFICATION = 1_000_000;
const MAX_RANGES = 1_000;

export class CollectionWorker {
  readonly #deps: CollectionWorkerDeps;

  constructor(deps: CollectionWorkerDeps) {
    this.#deps = deps;
  }

  /** What a worker runs for this kind of collection. Nothing if nothing is attached. */
  kinds(contract: AnyCollection): ReadonlyMap<string, RunnableKind> {
    if (!contract.isRunnable) return new Map();
    const { kinds, name } = contract;
    const runnable = (
      job: CollectionJob,
      kind: AnyCollection["kinds"]["done"],
      run: (contract: AnyCollection, row: CollectionRow, run: Run) => Promise<unknown>,
    ): [string, RunnableKind] => [
      jobKind(name, job),
      {
        settings: this.#deps.settingsOf(kind),
        parse: null,
        handler: async (input: { readonly collection: string } | { readonly opens: Json }, attempt: Run) => {
          const id = "opens" in input ? await this.#open(contract, input.opens, attempt.id) : input.collection;
          const [row] = await this.#deps.collections.get([id]);
          // Cleaned up, or brought back by a restore from before it was opened.
          if (!row) return undefined;
          return run(contract, row, attempt);
        },
        delayMs: kind.backoff,
      },
    ];
    return new Map([
      runnable("done", kinds.done, (...of) => this.#done(...of)),
      runnable("request", kinds.request, (...of) => this.#request(...of)),
      runnable("notify", kinds.notify, (...of) => this.#notify(...of)),
      runnable("ended", kinds.ended, (...of) => this.#ended(...of)),
      runnable("clean-up", kinds.cleanUp, (...of) => this.#cleanUp(...of)),
    ]);
  }

  /** Of an occurrence of a schedule: the collection has the id of the job, so an attempt after a crash finds it. */
  async #open({ name: kind, settings }: AnyCollection, input: Json, id: string): Promise<string> {
    const { collections, events } = this.#deps;
    const { idleMs, totalMs, keepMs } = settings;
    const { created } = await collections.open({
      id,
      kind,
      input: encodeJson(input, `The input of ${kind}`),
      series: settings.series.map((name) => ({ name, expected: null })),
      idleMs,
      totalMs,
      keepMs,
      // This job asks the producer.
      follow: [],
    });
    if (created) events.emit("collection.started", { collection: id, kind });
    return id;
  }

  /** Queues first, then the request, then the state: a crash in between repeats what is harmless. */
  async #request(contract: AnyCollection, row: CollectionRow, run: Run): Promise<void> {
    if (!isOpen(row.state)) return;
    const { broker, collections, events } = this.#deps;
    const { request } = contract.handlers;
    const wired = wiredKind(contract);
    await broker?.prepare(wired, row.id);
    if (request) {
      const input = await parsedInput(contract, row);
      const wire = broker?.wire(wired, row.id) ?? null;
      const own = {
        collection: row.id,
        wire,
        publish: (target: never, body: Json | Uint8Array, options: { headers?: object; messageId?: string } = {}) =>
          this.#brokerFor(contract.name).publish({
            target,
            body,
            messageId: options.messageId ?? row.id,
            headers: { "outlive-collection": row.id, ...(wire && wireHeaders(wire)), ...options.headers },
          }),
      };
      await request(input as never, Object.assign(run, own) as never);
    }
    const moved = await collections.step({
      collection: row.id,
      from: STEPS.collecting,
      to: "collecting",
      why: null,
      follow: [],
    });
    if (moved)
      events.emit("collection.changed", { collection: row.id, kind: row.kind, state: "collecting", why: null });
  }

  async #done(contract: AnyCollection, row: CollectionRow, run: Run): Promise<unknown> {
    const { done } = contract.handlers;
    if (!done || (row.state !== "complete" && row.state !== "notified")) return undefined;
    const input = await parsedInput(contract, row);
    const collected: Collected<unknown> = {
      id: row.id,
      input,
      series: Object.fromEntries(row.series.map(({ name, have, bytes }) => [name, { parts: have, bytes }])),
      parts: (series) => this.#parts(contract, row.id, series),
    };
    return done(collected as never, run as never);
  }

  async *#parts(contract: AnyCollection, id: string, series: string): AsyncGenerator<CollectedPart> {
    const blobs = needBlobs(this.#deps.blobs, contract.name);
    for await (const part of partsOf(this.#deps.collections, id, series)) {
      const { ordinal, blob, bytes, sha256: hash } = part;
      yield { ordinal, blob, bytes, sha256: hash, stream: () => verified(blobs.get(blob), part) };
    }
  }

  /** At least once, with the same message id and the same body. Its state is written when the broker has confirmed it, and then its own queues go. */
  async #notify(contract: AnyCollection, row: CollectionRow, run: Run): Promise<void> {
    if (row.state === "complete") {
      const { collections, events } = this.#deps;
      const { notify } = contract.handlers;
      if (notify)
        await this.#brokerFor(contract.name).publish({
          target: notify,
          body: await this.#notification(contract, row),
          messageId: `${row.id}:complete`,
          headers: { "outlive-collection": row.id, "outlive-kind": contract.name },
        });
      run.signal.throwIfAborted();
      const follow = followOf(row, "notified");
      const step = { collection: row.id, from: STEPS.notified, to: "notified" as const, why: null, follow };
      if (await collections.step(step))
        events.emit("collection.changed", { collection: row.id, kind: row.kind, state: "notified", why: null });
    }
    if (!isOpen(row.state)) await this.#discard(contract, row.id);
  }

  async #discard(contract: AnyCollection, id: string): Promise<void> {
    await this.#deps.broker?.discard(wiredKind(contract), id);
  }

  async #notification(contract: AnyCollection, row: CollectionRow): Promise<Json> {
    const { collections, blobs } = this.#deps;
    const series: Record<string, Json> = {};
    const at = (blob: string): { readonly uri?: string } => (blobs?.uri === undefined ? {} : { uri: blobs.uri + blob });
    for (const { name, bytes } of row.series) {
      const parts: Json[] = [];
      for await (const { ordinal, blob, bytes: size, sha256: hash } of partsOf(collections, row.id, name))
        parts.push({ ordinal, blob, ...at(blob), bytes: size, sha256: hash });
      series[name] = { bytes, parts };
    }
    const { id, kind } = row;
    const head = { collection: id, kind, blobs: blobs?.place ?? null };
    const whole = { ...head, series };
    const text = JSON.stringify(whole);
    if (text.length <= MAX_NOTIFICATION) return whole;
    const blob = manifestOf(kind, id);
    const data = Buffer.from(text);
    await needBlobs(blobs, contract.name).put(blob, data);
    return { ...head, manifest: { blob, ...at(blob), bytes: data.length, sha256: sha256(data) } };
  }

  /** After it was abandoned or cancelled. Its own queues go, whatever becomes of the handler. */
  async #ended(contract: AnyCollection, row: CollectionRow, run: Run): Promise<void> {
    const { state, id, why } = row;
    if (state !== "abandoned" && state !== "cancelled") return;
    const { abandoned } = contract.handlers;
    const discarded = this.#discard(contract, id).catch((thrown: Error) => thrown);
    if (abandoned) {
      const missing: Record<string, string> = {};
      for (const { name, expected } of row.series) {
        const found = await this.#deps.collections.missing(id, name, MAX_RANGES);
        missing[name] = rangesText(expected === null ? { ...found, cut: true } : found);
      }
      const ended: CollectionEnded<unknown> = { id, input: await parsedInput(contract, row), state, why, missing };
      await abandoned(ended as never, run as never);
    }
    const failed = await discarded;
    if (failed) throw failed;
  }

  /** Blobs first, then queues that are left, then what is parked, the rows that name them last: killed in between, it goes on with what is left. Nothing of an open collection is touched. */
  async #cleanUp(contract: AnyCollection, row: CollectionRow, run: Run): Promise<void> {
    if (isOpen(row.state)) return;
    // However long that takes: what follows the end reads the parts, or what is missing of them.
    await run.wait([jobIdOf(row.id, row.state === "notified" ? "done" : "ended")]);
    const { collections, blobs } = this.#deps;
    if (blobs) {
      let keys: string[] = [];
      for await (const { key } of blobs.list(prefixOf(contract.name, row.id))) {
        keys.push(key);
        if (keys.length < PAGE) continue;
        await blobs.delete(keys);
        await run.heartbeat();
        keys = [];
      }
      if (keys.length > 0) await blobs.delete(keys);
    }
    await this.#discard(contract, row.id);
    await this.#unpark(row.id, run);
    while (await collections.remove(row.id, REMOVED_AT_ONCE)) await run.heartbeat();
  }

  /** Forgets what is parked of it. The bodies go first: only the rows name them. */
  async #unpark(id: string, run: Run): Promise<void> {
    const { collections, blobs } = this.#deps;
    for (;;) {
      const rows = await collections.parked({ collection: id }, PAGE, null);
      if (rows.length === 0) return;
      const bodies = rows.flatMap(({ blob }) => blob ?? []);
      if (bodies.length > 0) await blobs?.delete(bodies);
      await collections.unpark(rows.map((one) => one.id));
      await run.heartbeat();
    }
  }

  #brokerFor(kind: string): Broker {
    const { broker } = this.#deps;
    if (broker) return broker;
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `The collection ${kind} publishes a message, but this worker has no broker.`,
      'Pass one to open(), for instance `broker: rabbitmq("amqp://...")` of outlive/rabbitmq.',
      { kind },
    );
  }
}

export function wiredKind({ name, settings }: AnyCollection): WiredKind {
  return { kind: name, queues: settings.queues };
}

/** Where the producer sends, for one that does not read the body. */
function wireHeaders({ exchange, header, part, queues }: Wire): Record<string, string> {
  return {
    "outlive-exchange": exchange,
    "outlive-header-key": header,
    "outlive-part-key": part,
    "outlive-header-queue": queues.header,
    "outlive-part-queue": queues.part,
  };
}

async function* partsOf(collections: Collections, id: string, series: string): AsyncGenerator<Part> {
  let after = 0;
  for (;;) {
    const page = await collections.parts(id, series, after, PAGE);
    yield* page;
    if (page.length < PAGE) return;
    after = page.at(-1)!.ordinal;
  }
}

async function* verified(source: AsyncIterable<Uint8Array>, part: Part): AsyncGenerator<Uint8Array> {
  const hash = createHash("sha256");
  for await (const chunk of source) {
    hash.update(chunk);
    yield chunk;
  }
  if (hash.digest("hex") === part.sha256) return;
  throw new OutliveError(
    ErrorCode.blobChecksum,
    `Part ${part.ordinal} of ${part.series} of collection ${part.collection} is not what was put: the blob ${part.blob} was changed.`,
    "Restore the blob, or collect again.",
    { ...part },
  );
}

async function parsedInput(contract: AnyCollection, { id, input: text, corrupt }: CollectionRow): Promise<unknown> {
  if (corrupt)
    throw new TerminalError(`The stored input of collection ${id} does not match its checksum: the store was damaged.`);
  const input = JSON.parse(text) as Json;
  const checked = await contract.input?.["~standard"].validate(input);
  if (checked?.issues) throw invalidInput(contract.name, checked.issues);
  return checked ? checked.value : input;
}
