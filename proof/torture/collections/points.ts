// Kills at ten points of a collection's life: of its worker, its broker, its store, and of worker and broker together. Each point has a kind, a collection
// and a worker of its own, which stands still there (point-worker.ts); when all of them do, the kill comes, and everything goes on. In the end every part
// is stored once, with one blob, one job follows, and all notifications have one id; of what is abandoned, nothing is left.
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import amqplib from "amqplib";
import { type Engine, open } from "../../../src/index.ts";
import { rabbitmq } from "../../../src/rabbitmq.ts";
import {
  collectionOf,
  contentOf,
  ID,
  isAbandoned,
  PARTS,
  type Point,
  type PointTask,
  resultsOf,
} from "./point-plan.ts";

export const VICTIMS = ["worker", "broker", "store", "worker and broker"] as const;
export type Victim = (typeof VICTIMS)[number];

interface Killable {
  kill(): Promise<void>;
  start(): Promise<void>;
}

export interface PointsOptions {
  readonly url: string;
  readonly folder: string;
  readonly points: readonly Point[];
  readonly victim: Victim;
  readonly broker: { readonly url: string; readonly server: Killable | null };
  /** Null: it is in the process of each worker. */
  readonly store: Killable | null;
  /** Makes names that no other run has. */
  readonly name: (point: Point) => string;
}

/** Without any of it for this long, it will not come. */
const PATIENCE_MS = 90_000;
/** A quorum queue younger than this may lose what it has confirmed when its broker is killed. */
const QUEUE_AGE_MS = 2_000;

/** Returns what is broken, a sentence for each; empty: nothing. */
export async function killAtPoints(options: PointsOptions): Promise<string[]> {
  const { url, folder, points, victim, broker, store, name } = options;
  await using end = new AsyncDisposableStack();
  const cases = points.map((point) => new Case({ url, broker: broker.url, kind: name(point), point, folder }));
  const contracts = new Map(cases.map(({ kind, point }) => [kind, collectionOf(kind, point)]));
  const engine = await open(url, { jobs: [...contracts.values()], blobs: join(folder, "none"), logger: false });
  end.defer(() => engine.close({ grace: "0ms" }));
  end.defer(() => Promise.all(cases.map((one) => one.stop())).then(() => {}));
  await declareQueues(broker.url, cases);
  end.defer(() => deleteQueues(broker.url, cases));
  if (victim !== "worker" && victim !== "store") await pause(QUEUE_AGE_MS);
  for (const { kind } of cases) await engine.collect(contracts.get(kind)!, null, { id: idOf(kind) });
  await send(broker.url, cases);
  for (const one of cases) one.startWorker();
  await Promise.all(cases.map((one) => one.untilThere(engine)));
  if (victim === "worker" || victim === "worker and broker") await Promise.all(cases.map((one) => one.stop()));
  for (const server of [victim === "store" ? store : null, /broker/.test(victim) ? broker.server : null]) {
    await server?.kill();
    await server?.start();
  }
  for (const one of cases) {
    writeFileSync(one.go, "");
    if (!one.isRunning) one.startWorker();
  }
  const broken: string[] = [];
  await Promise.all(
    cases.map(async (one) => {
      const found = await one.verdict(engine, broker.url).catch((thrown: unknown) => [(thrown as Error).message]);
      broken.push(...found.map((text) => `${victim} killed ${one.point}: ${text}`));
    }),
  );
  return broken;
}

function idOf(kind: string): string {
  return `${ID}-${kind}`;
}

class Case {
  readonly kind: string;
  readonly point: Point;
  readonly at: string;
  readonly go: string;
  readonly #task: PointTask;
  #worker: ChildProcess | null = null;

  constructor(task: PointTask) {
    const folder = join(task.folder, task.kind);
    mkdirSync(folder, { recursive: true });
    this.#task = { ...task, folder };
    [this.kind, this.point] = [task.kind, task.point];
    [this.at, this.go] = [join(folder, "at"), join(folder, "go")];
  }

  get isRunning(): boolean {
    return this.#worker !== null;
  }

  startWorker(): void {
    const program = fileURLToPath(new URL("./point-worker.ts", import.meta.url));
    const args = ["--disable-warning=ExperimentalWarning", program, JSON.stringify(this.#task)];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "ignore", "inherit"] });
    this.#worker = child;
    child.once("exit", () => this.#worker === child && (this.#worker = null));
  }

  async untilThere(engine: Engine): Promise<void> {
    if (isAbandoned(this.point)) {
      const id = idOf(this.kind);
      const isReady = async (): Promise<boolean> => {
        const { expected, have } = (await engine.collection(id))!.series["files"]!;
        return expected === PARTS && have === PARTS - 1;
      };
      await until(isReady, "it is announced, and all parts but one are stored");
      await engine.abandonCollection(id);
    }
    await until(() => existsSync(this.at), `${this.point} is reached`);
  }

  async stop(): Promise<void> {
    const child = this.#worker;
    if (child === null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  /** What is not as it must be, when nothing more is to come. */
  verdict(engine: Engine, broker: string): Promise<string[]> {
    return isAbandoned(this.point) ? this.#gone(engine) : this.#notified(engine, broker);
  }

  async #notified(engine: Engine, broker: string): Promise<string[]> {
    const id = idOf(this.kind);
    await until(async () => (await engine.collection(id))?.state === "notified", "it is notified");
    await until(async () => (await engine.get(`${id}:done`))?.state === "succeeded", "its job has succeeded");
    const broken: string[] = [];
    const expect = (isSo: boolean, text: string): void => void (isSo || broken.push(text));
    const { series, transitions, parked } = (await engine.collection(id))!;
    const { have, missing } = series["files"]!;
    expect(have === PARTS && missing === "", `it has ${have} parts, and lacks "${missing}"`);
    expect(parked.length === 0, `parked: ${parked.map(({ reason }) => reason).join("; ")}`);
    const ends = transitions.filter(({ state }) => state === "complete").length;
    expect(ends === 1, `it became complete ${ends} times`);
    const { jobs } = await engine.list({ kind: this.kind });
    expect(jobs.length === 1, `${jobs.length} jobs follow the last part`);
    const blobs = this.#blobs();
    expect(blobs.length === PARTS, `it has the blobs ${blobs.join(", ")}`);
    const whole = `done ${id} ${Array.from({ length: PARTS }, (_, n) => n + 1).join(" ")}`;
    expect(this.#effects().length > 0 && this.#effects().every((line) => line === whole), `${this.#effects().join()}`);
    const ids = await notifications(broker, this.kind);
    expect(
      ids.length > 0 && ids.every((one) => one === `${id}:complete`),
      `notified as ${ids.join(", ") || "nothing"}`,
    );
    return broken;
  }

  async #gone(engine: Engine): Promise<string[]> {
    await until(async () => (await engine.collection(idOf(this.kind))) === null, "it is cleaned up");
    const broken: string[] = [];
    const blobs = this.#blobs();
    if (blobs.length > 0) broken.push(`the blobs ${blobs.join(", ")} are left`);
    const line = `abandoned ${idOf(this.kind)} ${PARTS}`;
    if (this.#effects().length === 0 || !this.#effects().every((effect) => effect === line))
      broken.push(`it did ${this.#effects().join(", ") || "nothing"}`);
    return broken;
  }

  #effects(): string[] {
    const path = join(this.#task.folder, "effects");
    return existsSync(path) ? readFileSync(path, "utf8").split("\n").filter(Boolean) : [];
  }

  #blobs(): string[] {
    const folder = join(this.#task.folder, "blobs");
    if (!existsSync(folder)) return [];
    return readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile() && !entry.parentPath.includes(".incoming"))
      .map(({ name }) => name);
  }
}

async function declareQueues(url: string, cases: readonly Case[]): Promise<void> {
  const own = rabbitmq(url);
  for (const { kind } of cases) await own.prepare({ kind, queues: "shared" }, "");
  await own.close();
  await withChannel(url, async (channel) => {
    for (const { kind } of cases)
      await channel.assertQueue(resultsOf(kind), { durable: true, arguments: { "x-queue-type": "quorum" } });
  });
}

async function deleteQueues(url: string, cases: readonly Case[]): Promise<void> {
  await withChannel(url, async (channel) => {
    for (const { kind } of cases) {
      for (const queue of ["header", "part", "parked"]) await channel.deleteQueue(`outlive.${kind}.${queue}`);
      await channel.deleteQueue(resultsOf(kind));
    }
  }).catch(() => {});
}

async function send(url: string, cases: readonly Case[]): Promise<void> {
  await withChannel(url, async (channel) => {
    for (const { kind, point } of cases) {
      const headers = { "outlive-collection": idOf(kind) };
      const options = { persistent: true, mandatory: true };
      const header = Buffer.from(`{"series":{"files":${PARTS}}}`);
      channel.publish("outlive.collections", `${kind}.header`, header, { ...options, headers });
      for (let ordinal = 1; ordinal <= (isAbandoned(point) ? PARTS - 1 : PARTS); ordinal++)
        channel.publish("outlive.collections", `${kind}.part`, contentOf(ordinal), {
          ...options,
          headers: { ...headers, "outlive-series": "files", "outlive-ordinal": ordinal },
        });
    }
    await channel.waitForConfirms();
  });
}

/** Their message ids. */
async function notifications(url: string, kind: string): Promise<string[]> {
  const ids: string[] = [];
  await withChannel(url, async (channel) => {
    for (;;) {
      const message = await channel.get(resultsOf(kind), { noAck: true });
      if (message === false) return;
      ids.push(String(message.properties.messageId));
    }
  });
  return ids;
}

async function withChannel(url: string, work: (channel: amqplib.ConfirmChannel) => Promise<void>): Promise<void> {
  const model = await amqplib.connect(url);
  model.on("error", () => {});
  const channel = await model.createConfirmChannel();
  await work(channel);
  await model.close();
}

/** Asks again and again; a store that is away says so later. */
async function until(is: () => Promise<boolean> | boolean, what: string): Promise<void> {
  const since = performance.now();
  let last = "";
  for (;;) {
    try {
      if (await is()) return;
    } catch (thrown) {
      last = `: ${(thrown as Error).message}`;
    }
    if (performance.now() - since > PATIENCE_MS) throw new Error(`never came true: ${what}${last}`);
    await pause(20);
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
