// Two transactions of a user's own stay open for a minute, each with enqueues of jobs with keys inside. Jobs of other keys and of the same keys go on
// meanwhile, and workers are killed. Then one transaction is committed and the other is rolled back.
import { setTimeout as pause } from "node:timers/promises";
import pg from "pg";
import { enqueue } from "../../../src/postgres.ts";
import { audit, NO_FACTS } from "./audit.ts";
import { instant, type Keyed, type Line, limited, ordered, paced } from "./kinds.ts";
import { type Place, type Scenario, Stage } from "./stage.ts";

const OPEN_MS = 60_000;
const WORKERS = 3;
const TURN_MS = 250;
/** Turns between two kills. */
const KILL_EVERY = 4;
/** A job that others do not hold back starts within this time, on a busy machine with workers that are killed. */
const STARTED_WITHIN_MS = 10_000;
/** An enqueue that waits for no other transaction takes less. */
const ENQUEUED_WITHIN_MS = 2_000;

export const openTransaction: Scenario = {
  name: "open-transaction",
  stores: ["postgres"],

  async run(place, sizes) {
    await using stage = await Stage.set(place, sizes, WORKERS);
    const { engine, fleet, chance } = stage;
    await fleet.start();
    await using committed = await begin(place);
    await using rolledBack = await begin(place);
    const others = new Map<string, number>();
    const slow: string[] = [];
    const counts = new Map<string, number>();
    const add = async (kind: typeof limited, key: string): Promise<void> => {
      const at = instant();
      const n = counts.get(`${kind.name} ${key}`) ?? 0;
      counts.set(`${kind.name} ${key}`, n + 1);
      const { id } = await engine.enqueue(kind, { key, n });
      const tookMs = instant() - at;
      others.set(id, at);
      if (tookMs > ENQUEUED_WITHIN_MS)
        slow.push(`the enqueue of ${kind.name} ${id} of key ${key} took ${tookMs.toFixed(0)} ms`);
    };
    const until = instant() + OPEN_MS * sizes.scale;
    for (let turn = 1; instant() < until; turn++) {
      for (const key of ["same", `other-${turn % 10}`]) {
        await add(limited, key);
        await add(ordered, key);
        if (turn % 2 === 0) await add(paced, key);
      }
      if (turn % KILL_EVERY === 0) fleet.killOne(chance);
      await pause(TURN_MS);
    }
    const early = await stage.db.rows<{ id: string }>(
      `SELECT id FROM outlive.jobs WHERE id IN (${[...committed.ids, ...rolledBack.ids].map((id) => `'${id}'`).join()})`,
    );
    const committedAt = instant();
    await committed.client.query("COMMIT");
    await rolledBack.client.query("ROLLBACK");
    const seen = await stage.end(sizes.endedWithinMs);
    const enqueued = others.size + committed.ids.length;
    const expected = [limited, ordered, paced].map(({ name: kind }) => ({
      kind,
      expected: 1 + [...counts].filter(([topic]) => topic.startsWith(`${kind} `)).reduce((sum, [, n]) => sum + n, 0),
    }));
    const found = [];
    for (const one of expected) found.push({ ...one, found: await stage.found(one.kind) });
    const starts = firstStarts(seen.lines);
    const findings = audit({ ...NO_FACTS, ...seen, counts: found });
    const waits = [...others].map(([id, at]) => ({ id, ms: (starts.get(id)?.at ?? Number.POSITIVE_INFINITY) - at }));
    const late = waits.filter(({ ms }) => ms > STARTED_WITHIN_MS);
    const unseen = committed.ids.filter((id) => !((starts.get(id)?.at ?? 0) >= committedAt));
    const ghosts = rolledBack.ids.filter((id) => starts.has(id));
    return {
      kills: seen.killedAt.size,
      enqueued,
      findings: {
        ...findings,
        stuckKeys: [
          ...findings.stuckKeys,
          ...slow,
          ...late.map(({ id, ms }) => `job ${id} waited for ${ms.toFixed(0)} ms next to an open transaction`),
        ],
        lost: [...findings.lost, ...unseen.map((id) => `job ${id} was committed and did not run after that`)],
        doubled: [
          ...findings.doubled,
          ...[...early.map(({ id }) => id), ...ghosts].map((id) => `job ${id} was there without its transaction`),
        ],
      },
      figures: { openMs: OPEN_MS * sizes.scale, longestWaitMs: Math.round(Math.max(...waits.map(({ ms }) => ms))) },
    };
  },
};

interface OpenTransaction extends AsyncDisposable {
  readonly client: pg.Client;
  readonly ids: readonly string[];
}

/** One job of each limit in it, of the key that others have, too. */
async function begin({ url }: Place): Promise<OpenTransaction> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query("BEGIN");
  const ids: string[] = [];
  const input: Keyed = { key: "same", n: -1 };
  for (const kind of [limited, ordered, paced]) ids.push((await enqueue(client, kind, input)).id);
  return { client, ids, [Symbol.asyncDispose]: () => client.end() };
}

function firstStarts(lines: readonly Line[]): Map<string, Line> {
  const first = new Map<string, Line>();
  for (const line of lines) if (line.what === "start" && !first.has(line.job)) first.set(line.job, line);
  return first;
}
