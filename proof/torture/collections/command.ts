// The rig for collections: workers, a producer, the broker and the store's server are killed with SIGKILL while parts come from RabbitMQ. In the end every
// part is stored once, each collection has one blob for each part, one job that follows, and a notification.
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import amqplib from "amqplib";
import { attach, type Engine, type ListPage } from "../../../src/index.ts";
import { rabbitmq } from "../../../src/rabbitmq.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { atEnd, cleanUpInEveryCase } from "../../../src/torture/run.ts";
import { scratchFolder } from "../../../src/torture/scratch-store.ts";
import { PostgresServer } from "../../servers/postgres-server.ts";
import { RedisServer } from "../../servers/redis-server.ts";
import { RabbitmqServer } from "../../servers/rabbitmq-server.ts";
import { wholeNumber } from "../arguments.ts";
import { confirmedIn, hashOf, idOf, KIND, RESULTS } from "./plan.ts";
import { POINTS } from "./point-plan.ts";
import { killAtPoints, VICTIMS } from "./points.ts";
import type { Task } from "./worker.ts";

const PARTS = 20;
const WORKERS = 3;
/** Collections in a run without a kill. */
const MIN_COLLECTIONS = 20;
/** The share of kills that strike a worker in the middle of its work. The others may strike one that starts. */
const STRIKES_WORKING = 0.9;
/** Without progress for this long nothing will come any more. */
const PATIENCE_MS = 90_000;
/** One broker death costs 10 s of waiting for its return. */
const KILLS_PER_BROKER_DEATH = 50;
/** How often a run says how far it is. */
const PROGRESS_MS = 10_000;
/** A quorum queue younger than this may lose what it has confirmed. */
const QUEUE_AGE_MS = 2_000;

export async function collections(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      collections: { type: "boolean" },
      store: { type: "string", default: "sqlite" },
      kills: { type: "string", default: "200" },
      seed: { type: "string", default: "1" },
      json: { type: "boolean", default: false },
      keep: { type: "boolean", default: false },
      seconds: { type: "string" },
      points: { type: "boolean", default: false },
      victim: { type: "string" },
    },
  });
  const { store } = values;
  if (store !== "sqlite" && store !== "postgres" && store !== "redis")
    throw new Error(`--store ${store}: use sqlite, postgres or redis.`);
  const [kills, seed] = [wholeNumber(values.kills, "kills"), wholeNumber(values.seed, "seed")];
  const forMs = values.seconds === undefined ? null : wholeNumber(values.seconds, "seconds") * 1_000;
  cleanUpInEveryCase();
  const scratch = scratchFolder(tmpdir(), values.keep, "torture");
  await using end = new AsyncDisposableStack();
  const broker = await RabbitmqServer.create();
  atEnd(() => broker.destroyNow());
  end.defer(() => broker.destroy());
  let server: PostgresServer | RedisServer | null = null;
  let url = `sqlite:${join(scratch.folder, "jobs.db")}`;
  if (store === "postgres") {
    const made = await PostgresServer.create({ fsync: true });
    atEnd(() => made.destroyNow());
    end.defer(() => made.destroy());
    await (await migrationsOf(made.url())).up();
    [server, url] = [made, made.url()];
  }
  if (store === "redis") {
    const made = await RedisServer.create({ fsync: "always" });
    atEnd(() => made.destroyNow());
    end.defer(() => made.destroy());
    [server, url] = [made, made.url()];
  }
  if (values.points) {
    const isSound = await everyPoint({ url, folder: scratch.folder, broker, store: server }, values.victim);
    if (!isSound) scratch.keep();
    return isSound;
  }
  const run = new Run(url, scratch.folder, { broker, store: server }, { kills, seed, forMs });
  const counts = await run.all();
  const line = {
    store,
    seed,
    ...counts,
    notRun: ["power loss: --power-loss"],
  };
  const isSound = run.broken.length === 0;
  for (const one of run.broken.slice(0, 10)) process.stderr.write(`${one}\n`);
  process.stdout.write(values.json ? `${JSON.stringify(line)}\n` : `${JSON.stringify(line, null, 2)}\n`);
  if (!isSound) {
    scratch.keep();
    process.stderr.write(
      `npm run torture -- --collections --store ${store} --kills ${kills} --seed ${seed}${forMs === null ? "" : ` --seconds ${forMs / 1_000}`}\nThe store is kept in ${scratch.folder}.\n`,
    );
  }
  return isSound;
}

/** The table of points and victims, one line of JSON for each victim. */
async function everyPoint(
  place: { url: string; folder: string; broker: RabbitmqServer; store: PostgresServer | RedisServer | null },
  only: string | undefined,
): Promise<boolean> {
  const victims = VICTIMS.filter((victim) => (only ?? victim) === victim && (victim !== "store" || place.store));
  if (victims.length === 0) throw new Error(`--victim ${only}: use ${VICTIMS.join(", ")}; SQLite has no server.`);
  let isSound = true;
  for (const [at, victim] of victims.entries()) {
    const { url, folder, broker, store } = place;
    const name = (point: string): string => `p${at}-${point.replaceAll(" ", "-")}`;
    const of = { url, folder, points: POINTS, victim, name, store, broker: { url: broker.url(), server: broker } };
    const since = performance.now();
    const broken = await killAtPoints(of);
    for (const text of broken) process.stderr.write(`${text}\n`);
    const ms = Math.round(performance.now() - since);
    process.stdout.write(
      `${JSON.stringify({ store: url.split(":")[0], victim, points: POINTS.length, broken, ms })}\n`,
    );
    isSound &&= broken.length === 0;
  }
  return isSound;
}

class Run {
  readonly broken: string[] = [];
  readonly #task: Omit<Task, "role">;
  readonly #broker: RabbitmqServer;
  /** Null: the store is in the process of each worker. */
  readonly #store: PostgresServer | RedisServer | null;
  readonly #folder: string;
  readonly #kills: number;
  readonly #forMs: number | null;
  #state: number;
  readonly #workers: ChildProcess[] = [];
  /** Those of them that have stored a part or ended a job. */
  readonly #working = new Set<ChildProcess>();
  #producer: ChildProcess | null = null;
  /** The producer has ended, with everything confirmed. */
  #isSent = false;
  #stopping = false;
  /** A short run has one, too. */
  readonly #perBrokerDeath: number;

  constructor(
    url: string,
    folder: string,
    { broker, store }: { broker: RabbitmqServer; store: PostgresServer | RedisServer | null },
    { kills, seed, forMs }: { kills: number; seed: number; forMs: number | null },
  ) {
    this.#folder = folder;
    this.#broker = broker;
    this.#store = store;
    this.#kills = kills;
    this.#forMs = forMs;
    this.#state = seed;
    this.#perBrokerDeath = Math.min(KILLS_PER_BROKER_DEATH, Math.max(1, kills));
    this.#task = {
      url,
      blobs: join(folder, "blobs"),
      broker: broker.url(),
      parts: PARTS,
      acked: join(folder, "acked"),
      enough: join(folder, "enough"),
      atLeast: MIN_COLLECTIONS,
    };
  }

  async all(): Promise<Record<string, unknown>> {
    const since = performance.now();
    await this.#declareQueues();
    for (let n = 0; n < WORKERS; n++) this.#startWorker();
    atEnd(() => this.#killAll());
    try {
      const engine = await this.#untilThere();
      this.#startProducer();
      const acts: Record<string, number> = {};
      const untilMono = this.#forMs === null ? Infinity : performance.now() + this.#forMs;
      let [kills, saidMono] = [0, performance.now()];
      while (kills < this.#kills && performance.now() < untilMono) {
        if (performance.now() - saidMono >= PROGRESS_MS) {
          saidMono = performance.now();
          const sent = confirmedIn(this.#task.acked);
          process.stderr.write(`${kills} of ${this.#kills} kills, ${sent} collections sent\n`);
        }
        await pause(100 + this.#random() * 250);
        const what = await this.#kill(++kills);
        acts[what] = (acts[what] ?? 0) + 1;
      }
      const collections = await this.#untilSent();
      await this.#untilAll(engine, collections);
      const counts = await this.#audit(engine, collections);
      await engine.close();
      return { kills, seconds: Math.round((performance.now() - since) / 1_000), faults: acts, ...counts };
    } finally {
      this.#stopping = true;
      this.#killAll();
    }
  }

  async #kill(number: number): Promise<string> {
    if (number % this.#perBrokerDeath === 0) {
      // Alone, and together with a worker in turn.
      const alone = (number / this.#perBrokerDeath) % 2 === 1;
      if (!alone) this.#strike(this.#workers[0]);
      await this.#broker.kill();
      await this.#broker.start();
      return alone ? "broker" : "worker and broker";
    }
    if (this.#store !== null && number % this.#perBrokerDeath === Math.ceil(this.#perBrokerDeath / 2)) {
      await this.#store.kill();
      await this.#store.start();
      return "store";
    }
    const dice = this.#random();
    if (dice < 0.2 && this.#producer) {
      this.#producer.kill("SIGKILL");
      return "producer";
    }
    const isAny = this.#random() >= STRIKES_WORKING;
    const which = this.#random();
    await this.#untilWorking();
    const some = isAny ? this.#workers : [...this.#working];
    const victims = dice < 0.3 ? [...this.#workers] : [some[Math.floor(which * some.length)]!];
    for (const victim of victims) this.#strike(victim);
    return victims.length > 1 ? "all workers" : "worker";
  }

  #strike(worker: ChildProcess | undefined): void {
    if (!worker) return;
    this.#working.delete(worker);
    worker.kill("SIGKILL");
  }

  /** Kills at a faster pace would strike only workers that start, and nothing would ever be collected. */
  async #untilWorking(): Promise<void> {
    for (const since = performance.now(); this.#working.size === 0; await pause(5))
      if (performance.now() - since > PATIENCE_MS)
        throw new Error(this.#stalled("no worker has stored a part or ended a job"));
  }

  /** Lets the producer end. Resolves with how many collections it has sent. */
  async #untilSent(): Promise<number> {
    writeFileSync(this.#task.enough, "");
    for (const since = performance.now(); !this.#isSent; await pause(20))
      if (performance.now() - since > PATIENCE_MS) throw new Error(this.#stalled("the producer has not ended"));
    return confirmedIn(this.#task.acked);
  }

  /** Seeded: a run can be repeated, as far as processes can. */
  #random(): number {
    this.#state = (Math.imul(this.#state, 1_664_525) + 1_013_904_223) >>> 0;
    return this.#state / 2 ** 32;
  }

  #spawn(role: Task["role"]): ChildProcess {
    const program = fileURLToPath(new URL("./worker.ts", import.meta.url));
    const args = ["--disable-warning=ExperimentalWarning", program, JSON.stringify({ role, ...this.#task })];
    return spawn(process.execPath, args, {
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      env: { ...process.env, NODE_COMPILE_CACHE: join(this.#folder, "code") },
    });
  }

  #startWorker(): void {
    const child = this.#spawn("worker");
    this.#workers.push(child);
    child.once("message", () => this.#working.add(child));
    child.once("exit", (code, signal) => {
      this.#workers.splice(this.#workers.indexOf(child), 1);
      this.#working.delete(child);
      if (this.#stopping) return;
      if (signal !== "SIGKILL") this.broken.push(`a worker ended without a kill, with ${code ?? signal}`);
      this.#startWorker();
    });
  }

  #startProducer(): void {
    const child = this.#spawn("producer");
    this.#producer = child;
    child.once("exit", (code) => {
      this.#producer = null;
      this.#isSent = code === 0;
      // The broker may be away: not at once.
      if (!this.#stopping && code !== 0) setTimeout(() => !this.#stopping && this.#startProducer(), 200);
    });
  }

  #killAll(): void {
    this.#stopping = true;
    for (const child of this.#workers) child.kill("SIGKILL");
    this.#producer?.kill("SIGKILL");
  }

  /** All before the first kill, and old enough: a broker that is killed while a queue is new may lose what it has confirmed. */
  async #declareQueues(): Promise<void> {
    const own = rabbitmq(this.#task.broker);
    await own.prepare({ kind: KIND, queues: "shared" }, "");
    await own.close();
    const model = await amqplib.connect(this.#task.broker);
    const channel = await model.createChannel();
    await channel.assertQueue(RESULTS, { durable: true, arguments: { "x-queue-type": "quorum" } });
    await model.close();
    await pause(QUEUE_AGE_MS);
  }

  /** Until the workers have made the store and its queues. */
  async #untilThere(): Promise<Engine> {
    for (const since = performance.now(); ; await pause(100)) {
      try {
        const engine = await attach(this.#task.url, { logger: false });
        if ((await engine.workers()).length > 0) {
          await pause(500);
          return engine;
        }
        await engine.close();
      } catch (thrown) {
        if (performance.now() - since > PATIENCE_MS) throw thrown;
      }
    }
  }

  async #untilAll(engine: Engine, collections: number): Promise<void> {
    let [last, since] = [-1, performance.now()];
    while (performance.now() - since < PATIENCE_MS) {
      const counts = await engine.collectionCounts().catch(() => []);
      const notified = counts.reduce((sum, { state, count }) => sum + (state === "notified" ? count : 0), 0);
      const kinds = await engine.counts().catch(() => []);
      const done = kinds.find(({ kind }) => kind === KIND)?.succeeded ?? 0;
      if (notified === collections && done === notified) return;
      if (notified + done !== last) [last, since] = [notified + done, performance.now()];
      await pause(100);
    }
    this.broken.push(this.#stalled("nothing has ended, and some collections are open"));
  }

  /** What stands still, and what the broker has: afterwards it is gone. */
  #stalled(what: string): string {
    const columns = ["name", "state", "consumers", "messages_ready", "messages_unacknowledged", "messages"];
    const queues = ((): string => {
      try {
        return this.#broker.control("list_queues", ...columns);
      } catch (thrown) {
        return (thrown as Error).message;
      }
    })();
    return `For ${PATIENCE_MS / 1_000} s ${what}. The broker's queues (${columns.slice(1).join(", ")}):\n${queues}`;
  }

  async #audit(engine: Engine, collections: number): Promise<Record<string, number>> {
    const counts = {
      collections,
      parts: 0,
      partsLost: 0,
      partsTwice: 0,
      notifiedNever: 0,
      notifiedAgain: 0,
      doneNever: 0,
      doneTwice: 0,
      parked: 0,
    };
    const notes = await this.#notifications();
    const blobs = blobsIn(this.#task.blobs);
    for (let n = 0; n < collections; n++) {
      const id = idOf(n);
      const found = await engine.collection(id);
      if (found?.state !== "notified")
        this.broken.push(`collection ${id} is ${found?.state ?? "not there"}: ${found?.why ?? ""}`);
      const listed = notes.get(id);
      if (!listed) {
        counts.notifiedNever++;
        this.broken.push(`collection ${id} was never notified`);
      } else if (listed.times > 1) counts.notifiedAgain++;
      const own = blobs.get(id) ?? [];
      for (let ordinal = 1; ordinal <= PARTS; ordinal++) {
        counts.parts++;
        const kept = listed?.parts.get(ordinal);
        const there = own.filter((name) => name.startsWith(`${ordinal}-`)).length;
        if (kept !== hashOf(n, ordinal) || there === 0) {
          counts.partsLost++;
          this.broken.push(`part ${ordinal} of ${id} is lost`);
        }
        if (there > 1) {
          counts.partsTwice++;
          this.broken.push(`part ${ordinal} of ${id} has ${there} blobs`);
        }
      }
      if ((found?.series["files"]?.have ?? 0) > PARTS) counts.partsTwice++;
    }
    await this.#auditDone(engine, counts);
    const others = (await engine.collectionCounts()).reduce((sum, { count }) => sum + count, -collections);
    if (others !== 0) this.broken.push(`${others} more collections than the producer has opened`);
    const parked = await engine.parked({ limit: 1_000 });
    counts.parked = parked.length;
    for (const { reason } of parked) this.broken.push(`an innocent message is parked: ${reason}`);
    for (const found of await engine.operator.inconsistencies()) this.broken.push(JSON.stringify(found));
    return counts;
  }

  /** One job that follows, which has run, for each collection. */
  async #auditDone(
    engine: Engine,
    counts: { readonly collections: number; doneNever: number; doneTwice: number },
  ): Promise<void> {
    const ends = new Map<string, number>();
    let after: string | null = null;
    do {
      const page: ListPage = await engine.list({ kind: KIND, limit: 1_000, ...(after !== null && { after }) });
      for (const { id: job, state } of page.jobs) {
        const [id] = job.split(":") as [string];
        ends.set(id, (ends.get(id) ?? 0) + 1);
        if (state !== "succeeded") this.broken.push(`what follows ${id} is ${state}`);
      }
      after = page.next;
    } while (after !== null);
    for (let n = 0; n < counts.collections; n++) {
      const times = ends.get(idOf(n)) ?? 0;
      if (times === 1) continue;
      if (times === 0) counts.doneNever++;
      else counts.doneTwice++;
      this.broken.push(`${idOf(n)} has ${times} jobs that follow`);
    }
  }

  /** What a consumer of the notifications sees, by collection. */
  async #notifications(): Promise<Map<string, { times: number; parts: Map<number, string> }>> {
    const model = await amqplib.connect(this.#task.broker);
    const channel = await model.createChannel();
    const notes = new Map<string, { times: number; parts: Map<number, string> }>();
    for (;;) {
      const message = await channel.get(RESULTS, { noAck: true });
      if (message === false) break;
      const { collection, series } = JSON.parse(message.content.toString()) as {
        collection: string;
        series: Record<string, { parts: { ordinal: number; sha256: string }[] }>;
      };
      const known = notes.get(collection);
      const parts = new Map(series["files"]!.parts.map(({ ordinal, sha256 }) => [ordinal, sha256]));
      notes.set(collection, { times: (known?.times ?? 0) + 1, parts });
      if (message.properties.messageId !== `${collection}:complete`)
        this.broken.push(`${collection} has another message id`);
    }
    await model.close();
    return notes;
  }
}

/** The names of blobs, by collection. */
function blobsIn(folder: string): Map<string, string[]> {
  const names = new Map<string, string[]>();
  if (!existsSync(folder)) return names;
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const id = /\/(c\d{5})\/files$/.exec(entry.parentPath)?.[1];
    if (id !== undefined) names.set(id, [...(names.get(id) ?? []), entry.name]);
  }
  return names;
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
