// The facts of keys that `admit` decides by, and the starts of keys with a rate: what a claim spends, and what the release of a job that never began returns. Inside a
// transaction.
import { type KeyFacts, returnedMs, startOf, THROTTLE } from "../../job/limits.ts";
import { STATE } from "../rows.ts";
import type { Database } from "./database.ts";
import { CLAIMED_AT_DOOR, closedUntil, keysIn, Limits, namesIn, type OwnColumns, PLACE, SPENT } from "./keys.ts";

type FactColumns = readonly [
  id: number,
  taken: number,
  running: number | null,
  intervalMs: number | null,
  burst: number | null,
  arrivalAt: number | null,
  heldOffUntil: number | null,
  pausedAt: number | null,
  pausedUntil: number | null,
];

const takenIn = (...columns: string[]): string =>
  [
    `(SELECT count(*) FROM outlive_jobs WHERE only_key = k.value AND ${CLAIMED_AT_DOOR})`,
    ...columns.map(
      (column) => `(SELECT count(*) FROM outlive_extras WHERE ${column} = k.value AND place > 1 AND place <= ?2 + 0)`,
    ),
  ].join(" + ");
/** Whether a job counts against more than one key. If none does, only the first is counted. */
const ANY_SECOND = "SELECT 1 FROM outlive_extras WHERE key2 IS NOT NULL AND place > 1 LIMIT 1";
const facts = (
  taken: string,
): string => `SELECT k.value, ${taken}, o.running, o.interval_ms, o.burst, o.arrival_at, o.held_off_until, o.paused_at, o.paused_until
  FROM json_each(?1) AS k LEFT JOIN outlive_keys o ON o.id = k.value`;
const FACTS = facts(takenIn("key1", "key2", "key3"));
const FACTS_OF_FIRST = facts(takenIn("key1"));

const TAKEN_AT = `SELECT ${takenIn("key1", "key2", "key3")} FROM json_each(?1) AS k`;
const TAKEN_AT_FIRST = `SELECT ${takenIn("key1")} FROM json_each(?1) AS k`;

/** How many jobs count against each of these keys of limits without an order, in their order. Null: a key has something of its own, which `factsOf` knows. */
export function takenAt(db: Database, ids: readonly number[]): readonly (readonly [number])[] | null {
  if (db.sql("SELECT 1 FROM outlive_keys LIMIT 1").get() !== undefined) return null;
  const text = db.sql(ANY_SECOND).get() === undefined ? TAKEN_AT_FIRST : TAKEN_AT;
  return db.sqlArrays(text).all(JSON.stringify(ids), PLACE.taken) as unknown as [number][];
}

/** What is stored about these keys, and how many jobs count against them. `strict`: whether they are of strict limits. */
export function factsOf(
  db: Database,
  limits: Limits,
  ids: readonly number[],
  limitOf: (id: number) => string,
  strict: boolean,
): KeyFacts[] {
  const highest = strict ? PLACE.first : PLACE.taken;
  const onlyFirst = db.sql(ANY_SECOND).get() === undefined;
  const text = onlyFirst ? FACTS_OF_FIRST : FACTS;
  const rows = db.sqlArrays(text).all(JSON.stringify(ids), highest) as unknown as FactColumns[];
  const facts = rows.map(
    ([id, taken, running, interval, burst, arrivalAt, heldOff, pausedAt, pausedUntil]): KeyFacts => {
      const own: OwnColumns | undefined =
        arrivalAt === null
          ? undefined
          : {
              running,
              interval_ms: interval,
              burst,
              weight: null,
              arrival_at: arrivalAt,
              held_off_until: heldOff!,
              paused_at: pausedAt,
              paused_until: pausedUntil,
            };
      const limit = limits.settingsOf(limitOf(id), own);
      const heldOffUntil = own === undefined ? 0 : closedUntil(own);
      return { id, limit, taken, unclaimed: 0, arrivalAt: arrivalAt ?? 0, heldOffUntil };
    },
  );
  const rated = facts.flatMap(({ id, limit }) => (limit.intervalMs === null ? [] : [id]));
  if (rated.length === 0) return facts;
  const unclaimed = unclaimedOf(db, rated, onlyFirst);
  return facts.map((one) => ({ ...one, unclaimed: unclaimed.get(one.id) ?? 0 }));
}

const unclaimedIn = (...columns: string[]): string =>
  `SELECT k.value, ${columns
    .map(
      (column) =>
        `(SELECT count(*) FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
          WHERE e.${column} = k.value AND e.place = ${PLACE.taken} AND e.place > 1 AND j.state = ${STATE.queued})`,
    )
    .join(" + ")} FROM json_each(?) AS k`;
const UNCLAIMED = unclaimedIn("key1", "key2", "key3");
const UNCLAIMED_OF_FIRST = unclaimedIn("key1");

/** Of each of these keys, how many jobs are admitted and not claimed by a worker yet. */
function unclaimedOf(db: Database, ids: readonly number[], onlyFirst: boolean): ReadonlyMap<number, number> {
  const text = onlyFirst ? UNCLAIMED_OF_FIRST : UNCLAIMED;
  return new Map(db.sqlArrays(text).all(JSON.stringify(ids)) as unknown as [id: number, count: number][]);
}

export function setDue(db: Database, id: number, [name, key]: readonly [string, string], at: number): void {
  db.sql(
    "INSERT INTO outlive_keys (id, name, key, due_at) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET due_at = excluded.due_at",
  ).run(id, name, key, at);
}

// ---- starts of a rate

// Asked in every turn that claims, and there is nearly always nothing.
const ANY_TAKEN = "SELECT 1 FROM outlive_extras WHERE key1 IS NOT NULL AND place > 1 LIMIT 1";
/** Whether a limit or a key of its own has a rate. Throttled jobs have one by the name of their limit. */
const ANY_RATE = `SELECT 1 WHERE EXISTS (SELECT 1 FROM outlive_limits WHERE interval_ms IS NOT NULL)
  OR EXISTS (SELECT 1 FROM outlive_keys WHERE interval_ms IS NOT NULL)`;
const KEYS_OF = `SELECT e.key1, e.key2, e.key3, e.keys, e.job FROM json_each(?1) AS i CROSS JOIN outlive_extras e ON e.job = i.value
  WHERE e.key1 IS NOT NULL AND (?2 = 1 OR instr(e.keys, '["${THROTTLE}') > 0)`;
/** Keys without a rate in their limit that have one of their own. */
const OWN_RATES =
  "SELECT o.id FROM json_each(?) AS k CROSS JOIN outlive_keys o ON o.id = k.value WHERE o.interval_ms IS NOT NULL";

/** What starts cost their keys, all in one statement: one for each of 1,000 keys that are due at once kept a turn for 20 ms. */
const SPEND = `INSERT INTO outlive_keys (id, name, key, arrival_at, due_at)
  SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(?) WHERE true
  ON CONFLICT DO UPDATE SET arrival_at = excluded.arrival_at, due_at = ifnull(excluded.due_at, due_at)`;

/** These jobs were claimed: those with a rate start now. */
export function spendStarts(db: Database, jobs: readonly number[], now: number): void {
  if (jobs.length === 0 || db.sql(ANY_TAKEN).get() === undefined) return;
  const anyRate = db.sql(ANY_RATE).get() !== undefined;
  const rows = db.sqlArrays(KEYS_OF).all(JSON.stringify(jobs), anyRate ? 1 : 0) as unknown as [
    number,
    number | null,
    number | null,
    string,
    number,
  ][];
  if (rows.length === 0) return;
  const starts = new Map<number, { readonly name: readonly [limit: string, key: string]; count: number }>();
  for (const [key1, key2, key3, keys] of rows)
    keysIn({ key1, key2, key3 }).forEach((id, at) => {
      const known = starts.get(id);
      if (known) known.count++;
      else starts.set(id, { name: namesIn(keys)[at]!, count: 1 });
    });
  const limits = new Limits(db);
  const all = JSON.stringify([...starts.keys()]);
  const own = new Set((db.sqlArrays(OWN_RATES).all(all) as unknown as [number][]).map(([id]) => id));
  const limitOf = (id: number): string => starts.get(id)!.name[0];
  const spent = [false, true].flatMap((strict) => {
    const ids = [...starts.keys()].filter((id) => {
      const limit = limits.of(limitOf(id));
      return limit.strict === strict && (limit.intervalMs !== null || own.has(id));
    });
    return ids.length === 0 ? [] : factsOf(db, limits, ids, limitOf, strict);
  });
  if (spent.length === 0) return;
  const written = spent.map((facts) => {
    const { name, count } = starts.get(facts.id)!;
    let [arrivalAt, due]: [number, number | null] = [facts.arrivalAt, null];
    // The claims are written: these jobs are not among the unclaimed any more.
    for (let i = 0; i < count; i++)
      ({ arrivalAt, due } = startOf({ ...facts, arrivalAt, unclaimed: facts.unclaimed + 1 }, now));
    return [facts.id, ...name, arrivalAt, due];
  });
  db.sql(SPEND).run(JSON.stringify(written));
  const rated = new Set(spent.map(({ id }) => id));
  const spenders = rows.flatMap(([key1, key2, key3, , job]) =>
    keysIn({ key1, key2, key3 }).some((id) => rated.has(id)) ? [job] : [],
  );
  db.sql(`UPDATE outlive_extras SET rank = ${SPENT} WHERE job IN (SELECT value FROM json_each(?))`).run(
    JSON.stringify(spenders),
  );
}

const SPENT_BY = `SELECT e.key1, e.key2, e.key3, e.keys, j.started_at FROM outlive_extras e CROSS JOIN outlive_jobs j ON j.seq = e.job
  WHERE e.job = ? AND e.place = ${PLACE.taken} AND e.rank = ${SPENT}`;
/** Jobs of a key that were claimed at this instant, and run. */
const ALIKE = `SELECT ${["key1", "key2", "key3"]
  .map(
    (key) =>
      `(SELECT count(*) FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job
        WHERE e.${key} = ?1 AND e.place = ${PLACE.taken} AND e.place > 1 AND j.state = ${STATE.running} AND j.started_at = ?2)`,
  )
  .join(" + ")} AS n`;

/** This job was claimed, is not running any more, and never began: the starts that its claim has spent are returned. */
export function returnStarts(db: Database, job: number, now: number): void {
  const row = db.sqlArrays(SPENT_BY).get(job) as
    | [number, number | null, number | null, string, startedAt: number]
    | undefined;
  if (row === undefined) return;
  const [key1, key2, key3, keys, startedAt] = row;
  const ids = keysIn({ key1, key2, key3 });
  const limits = new Limits(db);
  for (const [at, name] of namesIn(keys).entries()) {
    const id = ids[at]!;
    const [{ limit, arrivalAt }] = factsOf(db, limits, [id], () => name[0], false) as [KeyFacts];
    if (limit.intervalMs === null) continue;
    const { n } = db.sql(ALIKE).get(id, startedAt) as { n: number };
    db.sql(SPEND).run(
      JSON.stringify([[id, ...name, arrivalAt - returnedMs(limit.intervalMs, startedAt, n + 1, now), null]]),
    );
  }
}
