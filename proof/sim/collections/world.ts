// Histories of collections: the real intake, message handling, jobs and maintenance of several processes on the real SQLite store, with a broker that delivers
// at least once and a blob store that keeps what it has confirmed. Processes are killed between and inside their calls, answers are lost, calls are
// slow, producers repeat and contradict themselves, or stop in the middle. The laws (laws.ts) read the rows and what left the processes.
import { setImmediate as turn } from "node:timers/promises";
import { CollectionWorker } from "../../../src/collections/collection-worker.ts";
import type { AnyCollection } from "../../../src/collections/contract.ts";
import { collection } from "../../../src/engine/collection.ts";
import { Intake } from "../../../src/collections/intake.ts";
import { type MessageDeps, Messages, type MessageSuspects } from "../../../src/collections/messages.ts";
import type { PartBlobs } from "../../../src/collections/blob-names.ts";
import { jobOf } from "../../../src/job/collections.ts";
import { toStoredError } from "../../../src/job/errors.ts";
import { EventBus } from "../../../src/job/events.ts";
import { type Clock, pause } from "../../../src/job/time.ts";
import { tendCollections } from "../../../src/recovery/collection-ends.ts";
import type { Broker, Consumer, Delivery, OutgoingMessage } from "../../../src/stores/broker.ts";
import { observed } from "../../../src/stores/observed.ts";
import type { Store } from "../../../src/stores/port.ts";
import { Database } from "../../../src/stores/sqlite/database.ts";
import { migrate } from "../../../src/stores/sqlite/schema.ts";
import { sqliteStore } from "../../../src/stores/sqlite/store.ts";
import { type VirtualClock, virtualClock } from "../../../src/testing/virtual-clock.ts";
import type { Run } from "../../../src/worker/run.ts";
import { SeededRandom } from "../world/random.ts";
import { CollectionLaws, IDLE_MS, KEEP_MS } from "./laws.ts";
import type { CollectionMutant } from "./mutants.ts";

const KIND = "scan";
const SERIES = ["files", "notes"] as const;
const TEND_MS = 1_000;
const JOBS_MS = 500;
const LOOK_MS = 1_000;

export interface CollectionHistory {
  readonly seed: number;
  readonly collections: number;
  readonly messages: number;
  readonly kills: number;
  readonly violation: string | null;
}

/** A message of the broker, and in whose hands it is. */
interface Message {
  readonly queue: "part" | "header";
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body: Buffer;
  readonly id: string;
  redelivered: number;
  holder: Process | null;
}

interface Process {
  readonly name: string;
  readonly clock: Clock;
  readonly store: Store;
  readonly consumers: ReadonlyMap<string, Consumer>;
  readonly jobs: ReturnType<CollectionWorker["kinds"]>;
  alive: boolean;
}

export async function simulateCollections(seed: number, mutant?: CollectionMutant): Promise<CollectionHistory> {
  const world = new CollectionWorld(seed, mutant);
  try {
    return await world.run();
  } finally {
    await world.close();
  }
}

class CollectionWorld {
  readonly #seed: number;
  readonly #random: SeededRandom;
  readonly #clock: VirtualClock = virtualClock(Date.UTC(2026, 5, 1));
  readonly #db: Database;
  readonly #store: Store;
  readonly #mutant: CollectionMutant | undefined;
  readonly #contract: AnyCollection;
  readonly #laws: CollectionLaws;
  readonly #processes: Process[] = [];
  readonly #messages = new Set<Message>();
  readonly #blobs = new Map<string, Buffer>();
  readonly #running = new Map<string, Process>();
  #kills = 0;
  #started = 0;
  #sent = 0;
  /** Since when what follows an end is held back. */
  readonly #heldBack = new Map<string, number>();
  #calm = false;
  #violation: string | null = null;

  constructor(seed: number, mutant: CollectionMutant | undefined) {
    this.#seed = seed;
    this.#random = new SeededRandom(`collections ${seed}`);
    this.#mutant = mutant;
    this.#db = new Database({ path: ":memory:" });
    migrate(this.#db);
    let ids = 0;
    const random = this.#random.fork("store");
    const real = sqliteStore({ db: this.#db, clock: this.#clock, random, newId: () => `id-${ids++}`, wakeup: null });
    this.#store = mutant?.store?.(real, this.#db) ?? real;
    this.#laws = new CollectionLaws(this.#db, this.#blobs, this.#clock);
    const contract = collection(KIND, {
      series: SERIES,
      message: { max: 1_000 },
      memory: 8_000,
      abandonAfter: { idle: `${IDLE_MS}ms`, total: `${50 * IDLE_MS}ms` },
      keep: `${KEEP_MS}ms`,
    });
    contract.done((collected) => this.#laws.done(collected.id));
    contract.notify("results");
    contract.abandoned(({ id, missing }) => this.#laws.abandoned(id, missing));
    this.#contract = contract as unknown as AnyCollection;
  }

  async run(): Promise<CollectionHistory> {
    let collections = 0;
    try {
      await this.#store.declare(Object.values(this.#contract.kinds).map(({ settings }) => settings));
      for (let i = 0; i < 3; i++) this.#start();
      for (; collections < 8; collections++) {
        await this.#open(`tx-${collections}`);
        for (let steps = this.#random.below(6); steps >= 0; steps--) await this.#step();
      }
      this.#calm = true;
      while (this.#processes.length < 2) this.#start();
      // Until everything has ended and was cleaned up, and then the same rows are read again.
      await this.#pass(6 * IDLE_MS + 4 * KEEP_MS);
      this.#laws.audit();
    } catch (thrown) {
      this.#violation ??= (thrown as Error).message;
    }
    return { seed: this.#seed, collections, messages: this.#sent, kills: this.#kills, violation: this.#violation };
  }

  async close(): Promise<void> {
    for (const process of this.#processes) process.alive = false;
    const closing = this.#store.close();
    await this.#clock.advance(1_000);
    await closing;
  }

  /** Opens it, and lets its producer send: in any order, some twice, some with other bytes, and now and then not all. */
  async #open(id: string): Promise<void> {
    const random = this.#random.fork(id);
    const counts = SERIES.map((name) => [name, random.below(name === "files" ? 90 : 4)] as const);
    const { idleMs, totalMs, keepMs } = this.#contract.settings;
    await this.#store.collections!.open({
      id,
      kind: KIND,
      input: "null",
      series: SERIES.map((name) => ({ name, expected: null })),
      idleMs,
      totalMs,
      keepMs,
      follow: [jobOf({ id, kind: KIND }, "request")],
    });
    const parts = counts.flatMap(([series, count]) =>
      Array.from({ length: count }, (_, n) => ({ series, ordinal: n + 1, body: `${id} ${series} ${n + 1}` })),
    );
    const stops = random.chance(0.2) && parts.length > 1;
    const kept = stops ? parts.filter(() => random.chance(0.7)).slice(1) : parts;
    const isWhole = kept.length === parts.length;
    this.#laws.planned(id, Object.fromEntries(counts), isWhole);
    const header = JSON.stringify({ series: Object.fromEntries(counts) });
    const sends: (() => void)[] = [() => this.#send("header", { "outlive-collection": id }, header)];
    for (const { series, ordinal, body } of kept) {
      const headers = { "outlive-collection": id, "outlive-series": series, "outlive-ordinal": ordinal };
      const send = (): void => {
        this.#laws.sent(id, series, ordinal, body);
        this.#send("part", headers, body);
      };
      sends.push(send);
      if (random.chance(0.1)) sends.push(send);
      // The first of the two that is stored stays.
      if (random.chance(0.03)) sends.push(() => this.#send("part", headers, `${body} in other words`));
    }
    // What contradicts an announcement. Before one it would be what the others contradict.
    const late = (send: () => void): void => void sends.push(() => void (this.#isAnnounced(id) && send()));
    if (random.chance(0.3)) late(() => this.#send("header", { "outlive-collection": id }, '{"series":{"files":91}}'));
    const beyond = { "outlive-collection": id, "outlive-series": "files", "outlive-ordinal": 95 };
    if (random.chance(0.3)) late(() => this.#send("part", beyond, "beyond"));
    let at = 0;
    const paceMs = random.pick([300, 900, 3_000]);
    for (const send of shuffled(sends, random)) this.#clock.after((at += random.between(0, paceMs)), send);
  }

  #isAnnounced(id: string): boolean {
    const found = this.#db
      .sql(
        "SELECT min(s.expected) AS n FROM outlive_series s JOIN outlive_collections c ON c.seq = s.collection WHERE c.id = ?",
      )
      .get(id) as { n: number | null };
    return found.n !== null;
  }

  #send(queue: Message["queue"], headers: Message["headers"], body: string): void {
    const id = `m${this.#sent++}`;
    this.#messages.add({ queue, headers, body: Buffer.from(body), id, redelivered: 0, holder: null });
  }

  async #step(): Promise<void> {
    const random = this.#random.fork(`step ${this.#clock.mono()}`);
    if (random.chance(0.5) && this.#processes.length > 0) this.#kill(random.pick(this.#processes));
    await this.#pass(random.between(100, 20_000));
  }

  async #pass(duration: number): Promise<void> {
    for (let left = duration; left > 0; left -= LOOK_MS) {
      await this.#clock.advance(Math.min(LOOK_MS, left));
      await turn();
      if (this.#violation !== null) throw new Error(this.#violation);
      this.#laws.look();
    }
  }

  #start(): void {
    const name = `process-${this.#started++}`;
    const random = this.#random.fork(name);
    const clock = clockOf(this.#clock, () => process.alive);
    const faults = { lost: random.chance(0.5) ? 0.02 : 0, slow: random.chance(0.5) ? 0.1 : 0, kill: 0.004 };
    const gone = new Promise<never>(() => {});
    const around = async (call: () => Promise<unknown>): Promise<unknown> => {
      if (!this.#calm && random.chance(faults.slow)) await pause(this.#clock, random.between(1, 2_000));
      if (!this.#calm && random.chance(faults.kill)) this.#kill(process);
      if (!process.alive) return gone;
      const answer = await call();
      if (!this.#calm && random.chance(faults.kill)) this.#kill(process);
      if (!process.alive) return gone;
      if (!this.#calm && random.chance(faults.lost)) throw new Error("the answer was lost");
      return answer;
    };
    const store = observed(this.#store, { around: (_verb, _args, call) => around(call) });
    const events = new EventBus(toStoredError);
    const real = this.#blobStore(around, random);
    const blobs = this.#mutant?.blobs?.(real, this.#clock) ?? real;
    const collections = this.#mutant?.process?.(store.collections!) ?? store.collections!;
    const intake = new Intake(collections, blobs, events, clock);
    const queues = { part: "part", header: "header" };
    // Its jobs are not run by workers, so none of them is a suspect.
    const suspects: MessageSuspects = { areHeld: () => false, apart: (_alone, work) => work() };
    const { signal } = new AbortController();
    const oneByOne: MessageDeps["oneByOne"] = (work) => work();
    const deps = { collections, blobs, intake, events, suspects, oneByOne, signal };
    const consumers = new Messages(deps, this.#contract).consumers(queues);
    const broker = this.#brokerOf(around);
    const worker = new CollectionWorker({
      collections,
      events,
      blobs,
      broker: this.#mutant?.broker?.(broker, this.#clock) ?? broker,
      settingsOf: (kind) => kind.settings,
    });
    const process: Process = {
      name,
      clock,
      store,
      consumers: new Map(consumers.map((one) => [one.queue, one])),
      jobs: worker.kinds(this.#contract),
      alive: true,
    };
    this.#processes.push(process);
    const every = (ms: number, work: () => Promise<void>): void => {
      const again = (): void =>
        void clock.after(
          ms,
          () =>
            void work()
              .catch(() => {})
              .then(again),
        );
      again();
    };
    every(TEND_MS, () => tendCollections(collections, events, () => process.alive));
    every(JOBS_MS, () => this.#runJobs(process));
    every(150, async () => this.#deliver(process));
  }

  #kill(process: Process): void {
    if (!process.alive) return;
    process.alive = false;
    this.#kills++;
    this.#processes.splice(this.#processes.indexOf(process), 1);
    for (const message of this.#messages) {
      if (message.holder !== process) continue;
      message.holder = null;
      message.redelivered++;
    }
    for (const [id, by] of this.#running) if (by === process) this.#running.delete(id);
    this.#clock.after(this.#random.between(10, 8_000), () => this.#start());
  }

  /** What it may have in hand at once; all of it shares a turn, and is acknowledged together. */
  #deliver(process: Process): void {
    const inHand = [...this.#messages].filter(({ holder }) => holder === process).length;
    const free = [...this.#messages].filter(({ holder }) => holder === null).slice(0, 8 - inHand);
    for (const [queue, consumer] of process.consumers) {
      const mine = free.filter((message) => message.queue === queue);
      if (mine.length === 0) continue;
      for (const message of mine) message.holder = process;
      void this.#handle(process, consumer, mine);
    }
  }

  async #handle(process: Process, consumer: Consumer, messages: readonly Message[]): Promise<void> {
    const deliveries = messages.map(({ body, headers, id, redelivered }): Delivery => ({
      body,
      headers,
      messageId: id,
      redelivered,
      died: null,
    }));
    try {
      await consumer.handle(deliveries);
    } catch {
      if (process.alive) process.clock.after(200, () => void this.#handle(process, consumer, messages));
      return;
    }
    if (!process.alive) return;
    for (const message of messages) {
      this.#messages.delete(message);
      this.#judge(() => this.#laws.acknowledged(message.headers, message.body));
    }
  }

  /** Each job until it ends; a job whose process died, or that failed, runs again. */
  async #runJobs(process: Process): Promise<void> {
    const due = this.#db
      .sql(
        `SELECT j.id, k.name AS kind, j.input FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
         WHERE j.state = 0 AND (j.run_at IS NULL OR j.run_at <= ?) ORDER BY j.seq LIMIT 20`,
      )
      .all(this.#clock.now()) as { id: string; kind: string; input: string }[];
    for (const { id, kind, input } of due) {
      if (!process.alive || this.#running.has(id) || this.#isHeldBack(id)) continue;
      this.#running.set(id, process);
      const real = { id, signal: new AbortController().signal, heartbeat: async () => {}, wait: this.#wait };
      const run = (this.#mutant?.run?.(real) ?? real) as unknown as Run;
      try {
        await process.jobs.get(kind)!.handler(JSON.parse(input) as never, run);
        if (process.alive) this.#db.sql("UPDATE outlive_jobs SET state = 2, lane = 0 WHERE id = ?").run(id);
      } catch {
        // It stays queued.
      }
      if (this.#running.get(id) === process) this.#running.delete(id);
    }
  }

  /** What follows an end is sometimes late, as of a kind that is paused: later than parts are kept. */
  #isHeldBack(id: string): boolean {
    if (!/-\d*[37]:(done|ended)$/.test(id)) return false;
    const since = this.#heldBack.get(id) ?? this.#clock.now();
    this.#heldBack.set(id, since);
    return this.#clock.now() < since + KEEP_MS + 30_000;
  }

  /** A job that waits runs again later. */
  readonly #wait = async (ids: readonly string[]): Promise<void> => {
    for (const id of ids) {
      const [job] = this.#db.sql("SELECT state FROM outlive_jobs WHERE id = ?").all(id) as { state: number }[];
      if (job?.state === 0) throw new Error(`${id} has not ended`);
    }
  };

  #blobStore(around: (call: () => Promise<unknown>) => Promise<unknown>, random: SeededRandom): PartBlobs {
    const blobs = this.#blobs;
    return {
      place: "the blobs of the simulator",
      put: async (key, data) => {
        await pause(this.#clock, random.between(1, 20));
        const put = async (): Promise<void> => void blobs.set(key, Buffer.from(data));
        await around(put);
        return { size: data.length, sha256: "" };
      },
      async *get(key) {
        await around(async () => {});
        const found = blobs.get(key);
        if (found === undefined) throw new Error(`there is no blob ${key}`);
        yield found;
      },
      async delete(keys) {
        await around(async () => keys.forEach((key) => blobs.delete(key)));
      },
      async *list(prefix = "") {
        await around(async () => {});
        for (const key of blobs.keys()) if (key.startsWith(prefix)) yield { key };
      },
    };
  }

  #brokerOf(around: (call: () => Promise<unknown>) => Promise<unknown>): Broker {
    const judge = (message: OutgoingMessage): void => this.#judge(() => this.#laws.notified(message));
    return {
      place: "the broker of the simulator",
      consumes: [],
      publish: async (message) => void (await around(async () => judge(message))),
      wire: () => ({ exchange: "", header: "header", part: "part", queues: { header: "header", part: "part" } }),
      prepare: async () => {},
      discard: async () => {},
      startConsuming: () => ({ set: () => {}, stop: async () => {} }),
      close: async () => {},
    };
  }

  /** A law that is broken inside of a process ends the history, not the process. */
  #judge(law: () => void): void {
    try {
      law();
    } catch (thrown) {
      this.#violation ??= (thrown as Error).message;
    }
  }
}

/** A dead process has no timers. */
function clockOf(clock: VirtualClock, isAlive: () => boolean): Clock {
  return {
    now: () => clock.now(),
    mono: () => clock.mono(),
    after: (ms, task) => clock.after(ms, () => isAlive() && task()),
    soon: (task) => clock.soon(() => isAlive() && task()),
  };
}

function shuffled<T>(list: readonly T[], random: SeededRandom): T[] {
  return list
    .map((one) => [random.next(), one] as const)
    .toSorted(([a], [b]) => a - b)
    .map(([, one]) => one);
}
