// Waiting and keys together under kills: jobs with limits, rates and strict order, families, listeners with their signals, sleepers, and events with
// rerun, debounce and throttle, of a producer that goes on while workers are killed every 200 ms.
import type { Engine } from "../../../src/index.ts";
import type { Chance } from "../../../src/torture/killer.ts";
import { audit, type SentEvent } from "./audit.ts";
import {
  BOUNDED,
  CALM_MS,
  calm,
  event,
  instant,
  limited,
  listener,
  napper,
  ordered,
  paced,
  parent,
  slow,
  THROTTLE_EVERY_MS,
  wardsOf,
} from "./kinds.ts";
import { isPlanted } from "./plants.ts";
import { type Scenario, Stage } from "./stage.ts";

const WORKERS = 4;
const KEYS = 50;
const SIGNALS = 3;

export const mixed: Scenario = {
  name: "mixed",
  stores: ["sqlite", "postgres", "redis"],

  async run(place, sizes) {
    await using stage = await Stage.set(place, sizes, WORKERS);
    const producer = new Producer(stage.engine, stage.chance, sizes.keys ?? KEYS);
    await producer.begin();
    await stage.fleet.start();
    await stage.kill(sizes.kills, () => producer.more());
    await producer.finish();
    const seen = await stage.end(sizes.endedWithinMs);
    const counts = [];
    for (const [kind, expected] of producer.expected) counts.push({ kind, expected, found: await stage.found(kind) });
    const { events, signals, enqueued } = producer;
    return { kills: seen.killedAt.size, enqueued, findings: audit({ ...seen, events, signals, counts }) };
  },
};

/** Enqueues a little of everything at a time. */
class Producer {
  readonly events = new Map<string, SentEvent[]>();
  readonly signals = new Map<string, number[]>();
  /** By kind: how many jobs there must be in the end. Of events there are as many as were not met by another one. */
  readonly expected = new Map<string, number>();
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
    for (let i = 0; i < 6; i++) await this.#add(limited, this.#of("key", this.#keys));
    if (this.#chance.whole(0, 3) === 0) await this.#add(paced, "pace");
    // The second has to wait for the first.
    const line = this.#of("line", 5);
    for (let i = 0; i < 2; i++) await this.#add(ordered, line);
    await this.#family();
    await this.#engine.enqueue(napper, { n: this.enqueued });
    this.#count("napper");
    await this.#signal();
    // The second comes while the job of the first is unfinished, most of the time.
    for (const key of [this.#of("doc", 5), this.#of("doc", 5)])
      for (let i = 0; i < 2; i++) await this.#event(event, key);
    for (let i = 0; i < 2; i++) await this.#event(calm, this.#of("quiet", 3));
    await this.#event(calm, this.#of("bounded", 2));
    await this.#event(slow, this.#of("slow", 3));
  }

  #of(name: string, count: number): string {
    return `${name}-${this.#chance.whole(0, count - 1)}`;
  }

  #count(kind: string, jobs = 1): void {
    this.expected.set(kind, (this.expected.get(kind) ?? 0) + jobs);
    this.enqueued += jobs;
  }

  /** What listeners still have to hear. */
  async finish(): Promise<void> {
    for (const [id, sent] of this.signals) while (sent.length < SIGNALS) await this.#send(id, sent);
  }

  async #add(kind: typeof limited, key: string): Promise<void> {
    const n = this.#next.get(`${kind.name} ${key}`) ?? 0;
    this.#next.set(`${kind.name} ${key}`, n + 1);
    await this.#engine.enqueue(kind, { key, n });
    this.#count(kind.name);
  }

  /** A later attempt enqueues the same children again: there are never more of them. */
  async #family(): Promise<void> {
    const n = this.#chance.whole(0, 1_000);
    await this.#engine.enqueue(parent, { n });
    this.#count("parent");
    this.#count("ward", wardsOf(n).length);
  }

  async #signal(): Promise<void> {
    const waiting = [...this.signals].filter(([, sent]) => sent.length < SIGNALS);
    const [first] = waiting;
    if (!first || waiting.length < 5) {
      const { id } = await this.#engine.enqueue(listener, { n: this.enqueued });
      this.#count("listener");
      this.signals.set(id, []);
      return;
    }
    await this.#send(...first);
  }

  /** Twice, as a sender does whose first reply was lost. */
  async #send(job: string, sent: number[]): Promise<void> {
    const n = ++this.#sent;
    for (let i = 0; i < 2; i++) await this.#engine.signal(job, "go", n, { id: `signal-${n}` });
    sent.push(n);
  }

  async #event(kind: typeof event, key: string): Promise<void> {
    const topic = `${kind.name} ${key}`;
    const sent = this.events.get(topic) ?? [];
    this.events.set(topic, sent);
    const n = (sent.at(-1)?.n ?? 0) + 1;
    const sentAt = instant();
    await this.#engine.enqueue(kind, { key, n }, this.#options(kind.name, key));
    sent.push({ n, sentAt });
    this.enqueued++;
  }

  #options(kind: string, key: string): Parameters<Engine["enqueue"]>[2] {
    if (kind === "calm") {
      const max = key.startsWith(BOUNDED.prefix) ? { max: `${BOUNDED.maxMs}ms` as const } : {};
      return { debounce: { key, wait: `${CALM_MS}ms` as const, ...max } };
    }
    if (kind === "slow") return { throttle: { key, every: `${THROTTLE_EVERY_MS}ms` } };
    return isPlanted("events") ? { dedupeKey: key } : { dedupe: { key, then: "rerun" } };
  }
}
