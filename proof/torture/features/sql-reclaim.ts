// SQL alone takes back the work of dead processes: all workers are killed at once, and then only `SELECT outlive.tick()` is called. It must free
// slots, wake parents and keep what was enqueued for a rerun. At last one worker ends the rest.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, open } from "../../../src/index.ts";
import { migrationsOf } from "../../../src/stores/registry.ts";
import { NO_FINDINGS } from "./audit.ts";
import { type Database, databaseAt } from "./database.ts";
import {
  type Begun,
  child,
  fragile,
  fragileEvent,
  HEARTBEAT,
  KINDS,
  lined,
  tough,
  toughEvent,
  waiter,
} from "./hanging-kinds.ts";
import type { Place, Scenario } from "./stage.ts";
import { Workers } from "./workers.ts";

const WORKERS = 2;
/** Of each kind with keys, with two jobs each; of each kind of events; and parents. */
const KEYS = 10;
const CHILDREN = 3;
const RECLAIMED_WITHIN_MS = 30_000;
const TICK_MS = 250;
const CHECK_MS = 50;

export const sqlReclaim: Scenario = {
  name: "sql-reclaim",
  stores: ["postgres"],

  async run(place, sizes) {
    await (await migrationsOf(place.url)).up();
    await using db = await databaseAt(place.url);
    const kinds = new URL("./hanging-kinds.ts", import.meta.url);
    const fleet = new Workers({ ...place, count: WORKERS, kinds, env: { OUTLIVE_FEATURES_HANG: "1" } });
    let enqueued: number;
    {
      await using engine = await open(place.url, { jobs: KINDS, logger: false, heartbeat: HEARTBEAT! });
      await fleet.start();
      enqueued = await engage(engine, place);
    }
    await fleet.killAll();
    const ticks = await tickUntilReclaimed(db);
    const rows = await wrongRows(db);
    const last = await finish(place, kinds, sizes.endedWithinMs);
    return {
      kills: fleet.killedAt.size,
      enqueued,
      findings: {
        ...NO_FINDINGS,
        stuckKeys: [...rows.stuck, ...last.stuck],
        parentsAsleep: [...rows.asleep, ...last.asleep],
        rerunsLost: [...rows.reruns, ...last.reruns],
      },
      figures: { ticks },
    };
  },
};

/** Every worker's slot, every parent and every event is in the state that the kill must find: running, waiting, marked. */
async function engage(engine: Engine, place: Place): Promise<number> {
  const keys = Array.from({ length: KEYS }, (_, i) => `k${i}`);
  for (const kind of [fragile, tough, lined])
    for (const n of [1, 2])
      await engine.enqueueMany(
        kind,
        keys.map((key) => ({ key: `${kind.name}-${key}`, n })),
      );
  await engine.enqueueMany(
    waiter,
    keys.map((key) => ({ key, n: CHILDREN })),
  );
  for (const kind of [fragileEvent, toughEvent])
    for (const key of keys) await engine.enqueue(kind, { key, n: 1 }, { dedupe: { key, then: "rerun" } });
  const running = KEYS * (3 + CHILDREN + 2);
  while (begun(place).length < running) await pause(CHECK_MS);
  for (const kind of [fragileEvent, toughEvent])
    for (const key of keys) await engine.enqueue(kind, { key, n: 2 }, { dedupe: { key, then: "rerun" } });
  // Parents have enqueued their children before those began; their own wait is stored a moment later.
  while ((await engine.counts()).some(({ kind, running: busy }) => kind === waiter.name && busy > 0))
    await pause(CHECK_MS);
  return KEYS * (6 + 1 + CHILDREN + 4);
}

/** Returns how many ticks it took. What one tick ends wakes its parent with the next one. */
async function tickUntilReclaimed(db: Database): Promise<number> {
  const until = performance.now() + RECLAIMED_WITHIN_MS;
  for (let ticks = 1; ; ticks++) {
    await db.rows("SELECT outlive.tick()");
    const [left] = await db.rows<{ n: string }>("SELECT count(*) AS n FROM outlive.jobs WHERE state = 1");
    if (Number(left!.n) === 0 || performance.now() > until) {
      await db.rows("SELECT outlive.tick()");
      return ticks + 1;
    }
    await pause(TICK_MS);
  }
}

interface Wrong {
  readonly stuck: readonly string[];
  readonly asleep: readonly string[];
  readonly reruns: readonly string[];
}

const JOBS =
  "SELECT j.id, k.name AS kind, j.input::json->>'key' AS key FROM outlive.jobs j JOIN outlive.kinds k ON k.id = j.kind";

/** Before any process looks at them again. */
async function wrongRows(db: Database): Promise<Wrong> {
  const running = await db.rows<{ id: string; kind: string }>(`${JOBS} WHERE j.state = 1`);
  // A fragile job has ended, and nothing of its key takes room. A tough one is queued again, before or behind the second of its key.
  const first = await db.rows<{ id: string; kind: string }>(
    `${JOBS} WHERE k.name IN ('fragile', 'lined') AND (j.input::json->>'n')::int = 1 AND j.state < 2`,
  );
  const full = await db.rows<{ key: string; n: string }>(
    `SELECT key, count(*) AS n FROM (${JOBS} WHERE k.name IN ('fragile', 'tough', 'lined') AND (j.state = 1 OR j.state = 0 AND j.lane IN (1, 2))) AS taken
     GROUP BY key HAVING count(*) > 1`,
  );
  const asleep = await db.rows<{ id: string }>(
    `${JOBS} WHERE k.name = 'waiter' AND NOT (j.state = 0 AND j.lane = 1 AND j.run_at IS NULL)`,
  );
  // An event is kept for the job that it came to, which has ended or not, or is a job of its own by now.
  const reruns = await db.rows<{ id: string; key: string }>(
    `${JOBS} WHERE k.name IN ('fragile-event', 'tough-event') AND (j.input::json->>'n')::int = 1
       AND NOT EXISTS (SELECT 1 FROM outlive.reruns r WHERE r.job = j.seq)
       AND NOT EXISTS (SELECT 1 FROM outlive.jobs l WHERE l.kind = j.kind AND l.dedupe_key = j.dedupe_key AND l.seq > j.seq)`,
  );
  return {
    stuck: [
      ...running.map(({ id, kind }) => `${kind} ${id} runs, and no process is left`),
      ...first.map(({ id, kind }) => `${kind} ${id} has not ended by the reclaim`),
      ...full.map(({ key, n }) => `${n} jobs of key ${key} take room`),
    ],
    asleep: asleep.map(({ id }) => `waiter ${id} was not woken by a tick`),
    reruns: reruns.map(({ id, key }) => `the second event of ${key}, which came to job ${id}, is not kept`),
  };
}

/** One worker that ends every job. */
async function finish(place: Place, kinds: URL, withinMs: number): Promise<Wrong> {
  const { length } = begun(place);
  const fleet = new Workers({ ...place, count: 1, kinds, first: WORKERS + 1 });
  await using engine = await open(place.url, { jobs: KINDS, logger: false, heartbeat: HEARTBEAT! });
  await fleet.start();
  const until = performance.now() + withinMs;
  const left = async (): Promise<readonly { kind: string; n: number }[]> =>
    (await engine.counts())
      .map(({ kind, ready, delayed, held, running }) => ({ kind, n: ready + delayed + held + running }))
      .filter(({ n }) => n > 0);
  while (performance.now() < until && (await left()).length > 0) await pause(CHECK_MS);
  const unfinished = await left();
  await fleet.stop();
  const since = begun(place).slice(length);
  const of = (kinds: readonly string[]): string[] =>
    unfinished.filter(({ kind }) => kinds.includes(kind)).map(({ kind, n }) => `${n} ${kind} jobs never ended`);
  const unseen = [fragileEvent, toughEvent].flatMap(({ name }) =>
    Array.from({ length: KEYS }, (_, i) => `k${i}`)
      .filter((key) => !since.some((line) => line.kind === name && line.key === key && line.n === 2))
      .map((key) => `no attempt saw the second ${name} of ${key}`),
  );
  const woken = since.filter(({ kind, n }) => kind === waiter.name && n === CHILDREN).length;
  return {
    stuck: of([fragile.name, tough.name, lined.name]),
    asleep: [
      ...of([waiter.name, child.name]),
      ...(woken === KEYS ? [] : [`${woken} of ${KEYS} parents saw that all their children had ended dead`]),
    ],
    reruns: [...of([fragileEvent.name, toughEvent.name]), ...unseen],
  };
}

/** The lines of earlier processes come first. */
function begun({ folder }: Place): Begun[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith(".history"))
    .toSorted((a, b) => Number.parseInt(a) - Number.parseInt(b))
    .flatMap((name) => readFileSync(join(folder, name), "utf8").split("\n"))
    .filter((line) => line.endsWith("}"))
    .map((line) => JSON.parse(line) as Begun);
}
