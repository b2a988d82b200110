// What a worker process consumes from its broker: the shared queues of its kinds of collections, the queues of each open collection where each has
// its own, and queues whose messages become jobs.
import { isOpen } from "../job/collections.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { JobDraft } from "../job/job.ts";
import type { Clock } from "../job/time.ts";
import type { Broker, Consumer, Consumption, Delivery, Verdict } from "../stores/broker.ts";
import type { Collections } from "../stores/collections.ts";
import { parkedBlobOf, type PartBlobs, sha256 } from "./blob-names.ts";
import { wiredKind } from "./collection-worker.ts";
import type { AnyCollection } from "./contract.ts";
import { type Intake, needBlobs } from "./intake.ts";
import { apart, Messages, type MessageSuspects, roomOf } from "./messages.ts";
import { QueueShares } from "./queue-shares.ts";

/** How often open collections with queues of their own are looked for. */
const LOOK_MS = 1_000;
/** How long one of them has its turn, if there are more than fit into memory and nothing comes from it. */
const TURN_MS = 200;
/** How many of them one process consumes. */
const MAX_OWN = 1_000;
const JOBS_PREFETCH = 100;
/** After this many deliveries a message for a job is parked: the check of its input may have ended the process each time. */
const MAX_DELIVERIES = 20;

export interface ConsumingDeps {
  readonly broker: Broker;
  readonly collections: Collections;
  readonly blobs: PartBlobs | null;
  readonly intake: (kind: string) => Intake;
  readonly events: Emitter;
  readonly clock: Clock;
  readonly enqueue: (drafts: readonly JobDraft[]) => Promise<unknown>;
  /** Of a message for a kind. Rejects if it does not fit. */
  readonly draft: (kind: { readonly name: string }, input: unknown, id: string) => Promise<JobDraft>;
  readonly newId: () => string;
  readonly suspects: MessageSuspects;
}

/** A kind of which each collection has its own queues. */
interface OwnQueues {
  readonly contract: AnyCollection;
  readonly shares: QueueShares;
  /** The collections that are open, as far as is known. */
  open: readonly string[];
  /** Those of which something has come since the latest round. */
  readonly busy: Set<string>;
}

export class Consuming {
  readonly #deps: ConsumingDeps;
  readonly #consumption: Consumption;
  readonly #fixed: readonly Consumer[];
  readonly #own: readonly OwnQueues[];
  #callOff: (() => void) | null = null;
  #callOffTurn: (() => void) | null = null;
  #looking: Promise<void> = Promise.resolve();
  #stopped = false;
  /** For messages that wait for a job: they are returned. */
  readonly #calledOff = new AbortController();
  #stopping: Promise<void> | undefined;

  constructor(deps: ConsumingDeps, kinds: readonly AnyCollection[]) {
    this.#deps = deps;
    const { broker, events } = deps;
    this.#own = kinds
      .filter(({ settings }) => settings.queues === "per-collection")
      .map((contract) => ({ contract, shares: new QueueShares(roomOf(contract)), open: [], busy: new Set() }));
    this.#fixed = [
      ...kinds.flatMap((contract) => this.#consumersOf(contract)),
      ...broker.consumes.map(({ queue, kind }) => this.#jobsFrom(queue, kind)),
    ];
    this.#consumption = broker.startConsuming(kinds.map(wiredKind), ({ state, text }) =>
      events.emit("broker.changed", { broker: broker.place, state, text }),
    );
    this.#consumption.set(this.#fixed);
    if (this.#own.length > 0) this.#look();
  }

  stop(): Promise<void> {
    return (this.#stopping ??= this.#stop());
  }

  async #stop(): Promise<void> {
    this.#stopped = true;
    this.#calledOff.abort();
    this.#callOff?.();
    this.#callOffTurn?.();
    await this.#looking;
    await this.#consumption.stop();
  }

  #messages(contract: AnyCollection): Messages {
    const { collections, intake, events, suspects } = this.#deps;
    const { signal } = this.#calledOff;
    const blobs = needBlobs(this.#deps.blobs, contract.name);
    return new Messages({ collections, blobs, intake: intake(contract.name), events, suspects, signal }, contract);
  }

  #consumersOf(contract: AnyCollection): readonly Consumer[] {
    const parked = `outlive.${contract.name}.parked`;
    if (contract.settings.queues === "per-collection") return this.#messages(contract).consumers({ parked });
    const { queues } = this.#deps.broker.wire(wiredKind(contract), "");
    return this.#messages(contract).consumers({ ...queues, parked });
  }

  /** Again and again: collections come and go, and no process owns one. */
  #look(): void {
    this.#looking = this.#lookOnce().catch((thrown: unknown) => {
      const error = toStoredError(thrown);
      this.#deps.events.emit("store.failed", { doing: "looking for open collections", error, retryInMs: LOOK_MS });
    });
    void this.#looking.then(() => {
      if (!this.#stopped) this.#callOff = this.#deps.clock.after(LOOK_MS, () => this.#look());
    });
  }

  async #lookOnce(): Promise<void> {
    for (const own of this.#own) {
      const lists = ["requested", "collecting"] as const;
      const open: string[] = [];
      for (const state of lists)
        for (const row of await this.#deps.collections.list({ kind: own.contract.name, state }, MAX_OWN, null))
          if (isOpen(row.state)) open.push(row.id);
      own.open = [...new Set(open)].slice(0, MAX_OWN);
    }
    this.#callOffTurn?.();
    this.#callOffTurn = null;
    this.#share();
  }

  /** Divides the room of each kind among its open collections, again and again while there are more than fit. */
  #share(): void {
    if (this.#stopped) return;
    const shares = this.#own.map((own) => this.#shareOf(own));
    this.#consumption.set([...this.#fixed, ...shares.flatMap(({ consumers }) => consumers)]);
    if (shares.some(({ areMore }) => areMore)) this.#callOffTurn = this.#deps.clock.after(TURN_MS, () => this.#share());
  }

  #shareOf({ contract, shares, open, busy }: OwnQueues): { consumers: readonly Consumer[]; areMore: boolean } {
    const { ids, parts, headers, areMore } = shares.next(open, (id) => busy.has(id));
    busy.clear();
    const wired = wiredKind(contract);
    const messages = this.#messages(contract);
    const consumers = ids.flatMap((id) => {
      const { queues } = this.#deps.broker.wire(wired, id);
      return messages.consumers(queues, { parts, headers }).map((consumer): Consumer => ({
        ...consumer,
        handle: (deliveries) => {
          busy.add(id);
          return consumer.handle(deliveries);
        },
      }));
    });
    return { consumers, areMore };
  }

  /** One job for each message id, however often the message comes. A message that no job can be made of is parked; without a blob store its body stays with the broker. */
  #jobsFrom(queue: string, kind: { readonly name: string }): Consumer {
    const handle = async (deliveries: readonly Delivery[]): Promise<readonly Verdict[]> => {
      const { enqueue, draft, newId, blobs } = this.#deps;
      const drafts: JobDraft[] = [];
      const refused = new Set<Delivery>();
      for (const delivery of deliveries) {
        const { messageId, body, redelivered } = delivery;
        const id = messageId === null ? newId() : `m${sha256(Buffer.from(`${queue}\n${messageId}`)).slice(0, 31)}`;
        try {
          if (redelivered >= MAX_DELIVERIES)
            throw new Error(`it was delivered ${redelivered + 1} times, and making one may end the process`);
          drafts.push(await draft(kind, JSON.parse(Buffer.from(body).toString()), id));
        } catch (thrown) {
          refused.add(delivery);
          await this.#park(queue, kind.name, delivery, thrown);
        }
      }
      if (drafts.length > 0) await enqueue(drafts);
      return deliveries.map((delivery) => (refused.has(delivery) && !blobs ? "keep" : "ack"));
    };
    return {
      queue,
      kind: kind.name,
      prefetch: JOBS_PREFETCH,
      handle: (deliveries) =>
        apart({ suspects: this.#deps.suspects, signal: this.#calledOff.signal }, deliveries, handle),
    };
  }

  async #park(queue: string, kind: string, { body, messageId }: Delivery, thrown: unknown): Promise<void> {
    const { collections, blobs, events } = this.#deps;
    const hash = sha256(body);
    const blob = blobs ? parkedBlobOf(kind, hash) : null;
    if (blobs && blob !== null) await blobs.put(blob, body);
    const id = sha256(Buffer.from(JSON.stringify([queue, hash, messageId]))).slice(0, 32);
    const left = blobs ? "" : ` (it stays in the queue ${queue}: its worker has no blob store to keep its body)`;
    const reason = `no ${kind} job can be made of it: ${(thrown as Error).message}${left}`;
    const none = { collection: null, series: null, ordinal: null };
    await collections.park([{ id, kind, ...none, reason, blob, bytes: body.length }]);
    events.emit("message.parked", { id, kind, ...none, reason });
  }
}
