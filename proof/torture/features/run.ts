// Waiting and keys under kills: workers are killed again and again while a producer enqueues jobs with limits, rates and strict order, families,
// listeners with their signals, and events that come while their job runs. Then the workers finish, and the histories are audited.
import { type ChildProcess, fork } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { type Engine, open } from "../../../src/index.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { atEnd } from "../../../src/torture/run.ts";
import { audit, type Findings } from "./audit.ts";
import { event, instant, KINDS, limited, type Line, listener, ordered, paced, parent } from "./kinds.ts";

export interface FeatureOptions {
  readonly url: string;
  readonly kills: number;
  readonly seed: number;
  readonly workers: number;
  readonly keys: number;
  /** For the histories. */
  readonly folder: string;
}

export interface FeatureOutcome {
  readonly kills: number;
  readonly enqueued: number;
  readonly findings: Findings;
}

const KILL_EVERY_MS = 200;
/** How long the jobs may take to end after the last kill. */
const ENDED_WITHIN_MS = 120_000;
const CHECK_EVERY_MS = 100;

export async function runFeatures(options: FeatureOptions): Promise<FeatureOutcome> {
  const { url, kills, seed, workers, folder } = options;
  const chance = new Chance(seed);
  const fleet = new Workers(url, folder, workers);
  atEnd(() => fleet.destroy());
  await using engine = await open(url, { jobs: KINDS, logger: false });
  const producer = new Producer(engine, chance, options.keys);
  await producer.begin();
  await fleet.start();
  for (let killed = 0; killed < kills; killed++) {
    await pause(KILL_EVERY_MS);
    await producer.more();
    fleet.killOne(chance);
    if ((killed + 1) % 50 === 0) process.stderr.write(`${killed + 1} of ${kills} kills\n`);
  }
  await producer.finish();
  const until = performance.now() + ENDED_WITHIN_MS;
  while (performance.now() < until && !(await hasEnded(engine))) await pause(CHECK_EVERY_MS);
  const unfinished = [];
  for (const state of ["queued", "running"] as const)
    for (const { id, kind } of (await engine.list({ state, limit: 100 })).jobs)
      unfinished.push({ id, kind, why: (await engine.why(id))?.text ?? "it is gone" });
  const ended = [];
  for (const state of ["dead", "cancelled", "quarantined"] as const)
    for (const { id, kind } of (await engine.list({ state, limit: 1_000 })).jobs)
      if (kind !== "ward") ended.push({ id, kind, state });
  await fleet.stop();
  const findings = audit({
    lines: readLines(folder),
    killedAt: fleet.killedAt,
    lastEvents: producer.lastEvents,
    signals: producer.signals,
    unfinished,
    ended,
  });
  return { kills: fleet.killedAt.size, enqueued: producer.enqueued, findings };
}

async function hasEnded(engine: Engine): Promise<boolean> {
  return (await engine.counts()).every(({ ready, delayed, held, running }) => ready + delayed + held + running === 0);
}

function readLines(folder: string): Line[] {
  const lines = readdirSync(folder)
    .filter((name) => name.endsWith(".history"))
    .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n"))
    .filter((line) => line.endsWith("}"))
    .map((line) => JSON.parse(line) as Line);
  return lines.sort((a, b) => a.at - b.at);
}

/** Enqueues a little of everything at a time. */
class Producer {
  readonly lastEvents = new Map<string, { n: number; sentAt: number }>();
  readonly signals = new Map<string, number[]>();
  enqueued = 0;
  readonly #engine: Engine;
  readonly #chance: Chance;
  readonly #keys: number;
  readonly #next = new Map<string, number>();
  #sent = 0;

  constructor(engine: Engine, chance: Chance, keys: number) {
    this.#engine = engine;
    this.#chance = chance;
    this.#keys = keys;
  }

  /** Every key has a job before the first worker starts. */
  async begin(): Promise<void> {
    for (let n = 0; n < this.#keys; n++) await this.#add(limited, `key-${n}`);
    for (let n = 0; n < 5; n++) await this.more();
  }

  async more(): Promise<void> {
    for (let i = 0; i < 6; i++) await this.#add(limited, `key-${this.#chance.whole(0, this.#keys - 1)}`);
    if (this.#chance.whole(0, 3) === 0) await this.#add(paced, "pace");
    await this.#add(ordered, `line-${this.#chance.whole(0, 4)}`);
    await this.#engine.enqueue(parent, { n: this.#chance.whole(0, 1_000) });
    await this.#signal();
    for (let i = 0; i < 3; i++) await this.#event(`doc-${this.#chance.whole(0, 4)}`);
    this.enqueued += 2;
  }

  /** What listeners still have to hear. */
  async finish(): Promise<void> {
    for (const [id, sent] of this.signals) while (sent.length < 3) await this.#send(id, sent);
  }

  async #add(kind: typeof limited, key: string): Promise<void> {
    const n = this.#next.get(`${kind.name} ${key}`) ?? 0;
    this.#next.set(`${kind.name} ${key}`, n + 1);
    await this.#engine.enqueue(kind, { key, n });
    this.enqueued++;
  }

  async #signal(): Promise<void> {
    const waiting = [...this.signals].filter(([, sent]) => sent.length < 3);
    const [first] = waiting;
    if (!first || waiting.length < 5) {
      const { id } = await this.#engine.enqueue(listener, { n: this.enqueued });
      this.signals.set(id, []);
      return;
    }
    await this.#send(...first);
  }

  /** Twice, as a sender does whose first answer was lost. */
  async #send(job: string, sent: number[]): Promise<void> {
    const n = ++this.#sent;
    for (let i = 0; i < 2; i++) await this.#engine.signal(job, "go", n, { id: `signal-${n}` });
    sent.push(n);
  }

  async #event(key: string): Promise<void> {
    const n = (this.lastEvents.get(key)?.n ?? 0) + 1;
    const sentAt = instant();
    await this.#engine.enqueue(event, { key, n }, { dedupe: { key, then: "rerun" } });
    this.lastEvents.set(key, { n, sentAt });
    this.enqueued++;
  }
}

/** Worker processes whose places are filled again. */
class Workers {
  /** By pid: the instant before the signal was sent. */
  readonly killedAt = new Map<number, number>();
  readonly #url: string;
  readonly #folder: string;
  readonly #count: number;
  readonly #living = new Set<ChildProcess>();
  #started = 0;
  #isOver = false;

  constructor(url: string, folder: string, count: number) {
    this.#url = url;
    this.#folder = folder;
    this.#count = count;
  }

  async start(): Promise<void> {
    const first = Array.from({ length: this.#count }, () => this.#fill());
    await Promise.all(first.map((child) => new Promise((resolve) => child.once("message", resolve))));
  }

  killOne(chance: Chance): void {
    const all = [...this.#living];
    const victim = all[chance.whole(0, all.length - 1)];
    if (!victim?.pid) return;
    this.killedAt.set(victim.pid, instant());
    victim.kill("SIGKILL");
  }

  async stop(): Promise<void> {
    this.#isOver = true;
    const exits = [...this.#living].map((child) => new Promise((resolve) => child.once("exit", resolve)));
    for (const child of this.#living) child.kill("SIGTERM");
    await Promise.race([Promise.all(exits), pause(20_000, undefined, { ref: false })]);
    this.destroy();
  }

  destroy(): void {
    this.#isOver = true;
    for (const child of this.#living) child.kill("SIGKILL");
  }

  #fill(): ChildProcess {
    const program = fileURLToPath(new URL("./worker.ts", import.meta.url));
    const child = fork(program, [this.#url], {
      execArgv: ["--disable-warning=ExperimentalWarning"],
      env: { ...process.env, OUTLIVE_FEATURES_HISTORY: join(this.#folder, `${++this.#started}.history`) },
      stdio: ["ignore", "inherit", "inherit", "ipc"],
    });
    this.#living.add(child);
    child.once("exit", () => {
      this.#living.delete(child);
      if (!this.#isOver) this.#fill();
    });
    return child;
  }
}
