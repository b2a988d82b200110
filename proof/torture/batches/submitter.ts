// One submitter process of the rig for batches: `node submitter.ts URL FOLDER SEED NUMBER POISON SIZES`. It submits its batches one after the other (in
// a campaign several at once), from the first that no earlier life of it saw acknowledged, and goes on with what a killed life of it left.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, type EngineEvent, open } from "../../../src/index.ts";
import { runUnderParent, tellParent } from "../../../src/torture/fleet.ts";
import { readHistories, say } from "./history.ts";
import { KINDS, kindOf } from "./kinds.ts";
import { type Input, keyOf, type Planned, planOf } from "./plan.ts";
import { COUNTED_MS_OF_MANY, ENOUGH, HEARTBEAT, LANES_OF_MANY, MAX_LEFT, MAX_LEFT_OF_MANY } from "./settings.ts";

const [url, folder, seed, place, poison, sizes] = process.argv.slice(2) as [
  string,
  string,
  string,
  string,
  string,
  string,
];
const isSmall = sizes === "small";

function heard(event: EngineEvent): void {
  if (event.name === "batch.ended") say({ what: "ended", id: event.batch, round: event.round });
}

/** Slow enough that a kill falls between two appends. */
async function* source({ rows }: Planned): AsyncGenerator<Input> {
  for (const row of rows) {
    if (row.n % 100 === 99) await pause(5);
    yield row;
  }
}

/** The batches that no life of this submitter saw acknowledged, in their order. */
function* unacknowledged(): Generator<number, never> {
  const acked = new Set(
    readHistories(join(folder, "histories")).flatMap((line) => (line.what === "ack" ? [line.key] : [])),
  );
  for (let number = 0; ; number++) if (!acked.has(keyOf(Number(place), number))) yield number;
}

/** A second round of what failed, once, also if an earlier life has begun it. False: this process is asked to end. */
async function retried(engine: Engine, id: string, stop: AbortSignal): Promise<boolean> {
  while (!stop.aborted) {
    const info = (await engine.batch(id))!;
    if (info.round > 1 || (info.endedAt !== null && info.rows.failed === 0)) return true;
    // Before that it is refused.
    const isDone = info.endedAt !== null && (await engine.get(`${id}:done:1`))?.state === "succeeded";
    if (isDone) await engine.retryBatch(id);
    else await pause(20);
  }
  return false;
}

const asked = new Set<string>();
/** By this life or an earlier one. */
function wasAsked(key: string): boolean {
  if (asked.size === 0)
    for (const line of readHistories(join(folder, "histories"))) if (line.what === "ask") asked.add(line.key);
  return asked.has(key);
}

runUnderParent(async (stop) => {
  await using engine = await open(url, { jobs: KINDS, heartbeat: HEARTBEAT, logger: false, onEvent: heard });
  tellParent({});
  const numbers = unacknowledged();
  const full = new Full(engine);
  const lane = async (): Promise<void> => {
    let number = numbers.next().value;
    while (!stop.aborted) {
      const plan = planOf(Number(seed), keyOf(Number(place), number), poison === "poison", isSmall);
      const { key } = plan;
      // What was begun is brought to its end also if there is enough.
      if (existsSync(join(folder, ENOUGH)) && !wasAsked(key)) {
        await pause(50, undefined, { signal: stop }).catch(() => {});
        continue;
      }
      try {
        if (!wasAsked(key) && (await full.isSo())) {
          await pause(30);
          continue;
        }
        say({ what: "ask", key });
        asked.add(key);
        const { id, rows } = await engine.submit(kindOf(plan.kind), source(plan), { key });
        if (plan.act === "abort") await engine.abortBatch(id);
        else if (plan.act === "retry" && !(await retried(engine, id, stop))) break;
        say({ what: "ack", key, id, rows });
        number = numbers.next().value;
      } catch (thrown) {
        // The server is away. Whether anything was added is found out by submitting again.
        process.stderr.write(`${key}: ${(thrown as Error).message}\n`);
        await pause(100);
      }
    }
  };
  await Promise.all(Array.from({ length: isSmall ? LANES_OF_MANY : 1 }, lane));
});

/** Whether enough batches have not ended. Counted now and then: it reads them all. */
class Full {
  readonly #engine: Engine;
  #countedMono = Number.NEGATIVE_INFINITY;
  #is = false;

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  async isSo(): Promise<boolean> {
    if (performance.now() - this.#countedMono < (isSmall ? COUNTED_MS_OF_MANY : 0)) return this.#is;
    this.#countedMono = performance.now();
    const states = ["open", "sealed"] as const;
    const left = await Promise.all(states.map((state) => this.#engine.batches({ state, limit: 1_000 })));
    this.#is = left.flat().length > 2 * (isSmall ? MAX_LEFT_OF_MANY : MAX_LEFT);
    return this.#is;
  }
}
