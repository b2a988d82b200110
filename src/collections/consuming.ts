// What a worker process consumes from its broker: the shared queues of its kinds of collections, the queues of each open collection where each has
// its own, and queues whose messages become jobs.
import type { CollectionRow } from "../job/collections.ts";
import { toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { JobDraft } from "../job/job.ts";
import { type Clock, pause } from "../job/time.ts";
import type { Broker, ConsumedQueue, Consumer, Consumption, Delivery, Verdict } from "../stores/broker.ts";
import type { Collections } from "../stores/collections.ts";
import { parkedBlobOf, type PartBlobs, sha256 } from "./blob-names.ts";
import { wiredKind } from "./collection-worker.ts";
import type { AnyCollection } from "./contract.ts";
import { type Intake, needBlobs } from "./intake.ts";
import { apart, type MessageDeps, Messages, type MessageSuspects, roomOf } from "./messages.ts";
import { QueueShares } from "./queue-shares.ts";

/** How often open collections with queues of their own are read, for each page of them: so many are read in that time, however many are open. */
const POLL_MS = 1_000;
const PAGE = 1_000;
/** After a message of a parked queue that could not be handled: suspect jobs are claimed meanwhile. */
const REST_MS = 100;
/** How long one of them has its turn, if there are more than fit into memory and nothing comes from it. */
const TURN_MS = 200;
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
  #polling: Promise<void> = Promise.resolve();
  #stopped = false;
  /** For messages that wait for a job: they are returned. */
  readonly #calledOff = new AbortController();
  /** Of messages without an id. */
  readonly #ownIds = new WeakMap<Delivery, string>();
  /** The latest message of a parked queue, of whatever kind. */
  #alone: Promise<unknown> = Promise.resolve();
  #stopping: Promise<void> | undefined;

  constructor(deps: ConsumingDeps, kinds: readonly AnyCollection[]) {
    this.#deps = deps;
    const { broker, events } = deps;
    this.#own = kinds
      .filter(({ settings }) => settings.queues === "per-collection")
      .map((contract) => ({ contract, shares: new QueueShares(roomOf(contract)), open: [], busy: new Set() }));
    this.#fixed = [
      ...kinds.flatMap((contract) => this.#consumersOf(contract)),
      ...broker.consumes.map((consumed) => this.#jobsFrom(consumed)),
    ];
    this.#consumption = broker.startConsuming(kinds.map(wiredKind), ({ state, text }) =>
      events.emit("broker.changed", { broker: broker.place, state, text }),
    );
    this.#consumption.set(this.#fixed);
    if (this.#own.length > 0) this.#poll();
  }

  stop(): Promise<void> {
    return (this.#stopping ??= this.#stop());
  }

  async #stop(): Promise<void> {
    this.#stopped = true;
    this.#calledOff.abort();
    this.#callOff?.();
    this.#callOffTurn?.();
    await this.#polling;
    await this.#consumption.stop();
  }

  #messages(contract: AnyCollection): Messages {
    const { collections, intake, events, suspects } = this.#deps;
    const { signal } = this.#calledOff;
    const blobs = needBlobs(this.#deps.blobs, contract.name);
    const oneByOne = this.#oneByOne;
    const deps = { collections, blobs, intake: intake(contract.name), events, suspects, oneByOne, signal };
    return new Messages(deps, contract);
  }

  /** A death while it is handled must count for this message alone. Next to no suspect job; after one that failed, those go first. */
  readonly #oneByOne: MessageDeps["oneByOne"] = (work) => {
    const { suspects, clock } = this.#deps;
    const { signal } = this.#calledOff;
    const working = this.#alone.then(() => (signal.aborted ? null : suspects.apart(true, work, signal)));
    this.#alone = working.catch(() => pause(clock, REST_MS, signal));
    return working;
  };

  #consumersOf(contract: AnyCollection): readonly Consumer[] {
    const parked = `outlive.${contract.name}.parked`;
    if (contract.settings.queues === "per-collection") return this.#messages(contract).consumers({ parked });
    const { queues } = this.#deps.broker.wire(wiredKind(contract), "");
    return this.#messages(contract).consumers({ ...queues, parked });
  }

  /** Again and again: collections come and go, and no process owns one. */
  #poll(): void {
    const polling = this.#pollOnce().catch((thrown: unknown) => {
      const error = toStoredError(thrown);
      this.#deps.events.emit("store.failed", { doing: "reading open collections", error, retryInMs: POLL_MS });
      return 1;
    });
    this.#polling = polling.then((pages) => {
      if (!this.#stopped) this.#callOff = this.#deps.clock.after(POLL_MS * pages, () => this.#poll());
    });
  }

  /** Returns how many full pages a kind has, at least 1. */
  async #pollOnce(): Promise<number> {
    let maxPages = 1;
    for (const own of this.#own) {
      const { pages, ids } = await this.#openOf(own.contract.name);
      own.open = ids;
      maxPages = Math.max(maxPages, pages);
    }
    this.#callOffTurn?.();
    this.#callOffTurn = null;
    this.#share();
    return maxPages;
  }

  /** All of them, the oldest first. One that moves on meanwhile is in the second list. */
  async #openOf(kind: string): Promise<{ readonly ids: readonly string[]; readonly pages: number }> {
    const ids: string[] = [];
    let pages = 0;
    for (const state of ["requested", "collecting"] as const) {
      for (let after: string | null = null; ; pages++) {
        const rows: readonly CollectionRow[] = await this.#deps.collections.list({ kind, state }, PAGE, after);
        ids.push(...rows.map(({ id }) => id));
        if (rows.length < PAGE || this.#stopped) break;
        after = rows.at(-1)!.id;
      }
    }
    return { ids: [...new Set(ids.toReversed())], pages };
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
  #jobsFrom({ queue, kind, prefetch }: ConsumedQueue): Consumer {
    const handle = async (deliveries: readonly Delivery[]): Promise<readonly Verdict[]> => {
      const { enqueue, draft, blobs } = this.#deps;
      const drafts: JobDraft[] = [];
      const refused = new Set<Delivery>();
      for (const delivery of deliveries) {
        const { body, redelivered } = delivery;
        const id = this.#jobIdOf(queue, delivery);
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
      prefetch,
      handle: (deliveries) =>
        apart({ suspects: this.#deps.suspects, signal: this.#calledOff.signal }, deliveries, handle),
    };
  }

  /** Made of the message id. A message without one has an id for as long as it is in hand, however often it is tried. */
  #jobIdOf(queue: string, delivery: Delivery): string {
    const { messageId } = delivery;
    if (messageId !== null) return jobIdFrom(`${queue}\n${messageId}`);
    const id = this.#ownIds.get(delivery) ?? this.#deps.newId();
    this.#ownIds.set(delivery, id);
    return id;
  }

  async #park(queue: string, kind: string, delivery: Delivery, thrown: unknown): Promise<void> {
    const { collections, blobs, events } = this.#deps;
    const { body, messageId } = delivery;
    // Of two equal ones without a message id each may become a job. One that stays with the broker comes again and again, and is the same.
    const own = messageId ?? (blobs ? this.#jobIdOf(queue, delivery) : null);
    const id = sha256(Buffer.from(JSON.stringify([queue, sha256(body), own]))).slice(0, 32);
    const job = messageId === null ? jobIdFrom(id) : this.#jobIdOf(queue, delivery);
    const blob = blobs ? parkedBlobOf(kind, id, { is: "job", job }) : null;
    if (blobs && blob !== null) await blobs.put(blob, body);
    const left = blobs ? "" : ` (it stays in the queue ${queue}: its worker has no blob store to keep its body)`;
    const reason = `no ${kind} job can be made of it: ${(thrown as Error).message}${left}`;
    const none = { collection: null, series: null, ordinal: null };
    await collections.park([{ id, kind, ...none, reason, blob, bytes: body.length }]);
    events.emit("message.parked", { id, kind, ...none, reason });
  }
}

/** Of the same message always the same. */
function jobIdFrom(text: string): string {
  return `m${sha256(Buffer.from(text)).slice(0, 31)}`;
}
