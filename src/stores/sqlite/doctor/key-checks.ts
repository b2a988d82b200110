// Contradictions in what belongs to limits, waits and signals. It only reads.
import type { Inconsistency } from "../../store-parts.ts";
import { LANE, STATE } from "../../rows.ts";
import type { Database } from "../database.ts";
import { AT_DOOR, CLAIMED_AT_DOOR, PLACE } from "../keys.ts";

/** At most this many of each are read. */
const MOST = 1_000;

const HELD = `j.state = ${STATE.queued} AND j.lane = ${LANE.held}`;
/** Its extras are its slot. */
const TAKEN = `j.state = ${STATE.running} AND j.lane <> ${LANE.held} OR j.state = ${STATE.queued} AND j.lane IN (${LANE.open}, ${LANE.suspect})`;
const WITH_JOB = "FROM outlive_extras e JOIN outlive_jobs j ON j.seq = e.job";

/** How many count against a key, for limits without an order. */
const COUNTED = ["key1", "key2", "key3"]
  .map(
    (column) =>
      `(SELECT count(*) FROM outlive_extras t WHERE t.${column} = d.door AND t.place = ${PLACE.taken} AND t.place > 1)`,
  )
  .concat(`(SELECT count(*) FROM outlive_jobs WHERE only_key = d.door AND ${CLAIMED_AT_DOOR})`)
  .join(" + ");
/** The limit at whose door a job is held. */
const NAME_AT_DOOR =
  "json_extract(e.keys, CASE d.door WHEN e.key1 THEN '$[0][0]' WHEN e.key2 THEN '$[1][0]' ELSE '$[2][0]' END)";

const CHECKS: readonly (readonly [what: Inconsistency["what"], detail: (n: string) => string, sql: string])[] = [
  [
    "held-without-door",
    (n) => `${n} job(s) are held, but are in no key's queue, so they are never admitted`,
    `SELECT j.id AS name FROM outlive_jobs j LEFT JOIN outlive_extras e ON e.job = j.seq
     WHERE ${HELD} AND (e.place IN (${PLACE.held}, ${PLACE.first}) AND e.door IS NOT NULL AND EXISTS (SELECT 1 FROM outlive_doors d WHERE ${AT_DOOR})) IS NOT 1`,
  ],
  [
    "door-without-held",
    (n) => `${n} job(s) wait in a key's queue, but are not held`,
    `SELECT j.id AS name ${WITH_JOB} WHERE e.door IS NOT NULL AND j.lane <> ${LANE.held}`,
  ],
  [
    "slot-disagrees",
    (n) => `${n} job(s) count against their keys and are not admitted, or vice versa`,
    `SELECT j.id AS name ${WITH_JOB} WHERE e.key1 IS NOT NULL AND (e.place = ${PLACE.taken}) <> (${TAKEN})`,
  ],
  // A key that is full, closed, or has a rate may keep its jobs waiting; one that will be looked at does not for long.
  [
    "key-stuck",
    (n) => `${n} key(s) have room for a job that is held, and are not marked to be checked`,
    `SELECT DISTINCT ${NAME_AT_DOOR} || ' of ' || d.door AS name
     FROM (SELECT e.door, min(e.job) AS job ${WITH_JOB} WHERE e.door > 0 AND ${HELD} GROUP BY e.door) d JOIN outlive_extras e ON e.job = d.job
     LEFT JOIN outlive_keys o ON o.id = d.door LEFT JOIN outlive_limits l ON l.name = ${NAME_AT_DOOR}
     WHERE NOT EXISTS (SELECT 1 FROM outlive_key_wakes w WHERE w.key = d.door) AND o.due_at IS NULL AND o.paused_at IS NULL
       AND ifnull(o.held_off_until, 0) = 0 AND ifnull(o.interval_ms, l.interval_ms) IS NULL AND ifnull(l.strict, 0) = 0
       AND l.name IS NOT NULL AND (${COUNTED}) < ifnull(ifnull(o.running, l.running), 1000000000)`,
  ],
  [
    "end-disagrees",
    (n) => `${n} job(s) count as ended for those that wait for them and have not, or vice versa`,
    `SELECT j.id AS name ${WITH_JOB} WHERE e.ended <> (j.state >= ${STATE.succeeded})
       AND NOT (e.ended = 0 AND e.place = ${PLACE.held} AND e.parent IS NULL)`,
  ],
  ...(["outlive_extras", "outlive_waits", "outlive_signals", "outlive_reruns", "outlive_traces"] as const).map(
    (table) =>
      [
        "orphan-extras",
        (n: string) => `${n} job(s) that do not exist have rows in ${table} (named by number)`,
        `SELECT DISTINCT CAST(t.job AS TEXT) AS name FROM ${table} t WHERE NOT EXISTS (SELECT 1 FROM outlive_jobs j WHERE j.seq = t.job)`,
      ] as const,
  ),
];

export function keyInconsistencies(db: Database): Inconsistency[] {
  return CHECKS.flatMap(([what, detail, sql]) => {
    const rows = db.sql(`${sql} LIMIT ${MOST}`).all() as { name: string }[];
    if (rows.length === 0) return [];
    const count = `${rows.length === MOST ? "at least " : ""}${rows.length}`;
    return [{ what, detail: detail(count), names: rows.slice(0, 20).map(({ name }) => name), count: rows.length }];
  });
}
