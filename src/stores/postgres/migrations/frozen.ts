// The engine's constants as migrations wrote them into the functions and views of a schema. They never change, because what
// is released is never changed: when the engine moves on, a new migration replaces the functions that hold the old value.
// test/stores/steps-of-record.test.ts reports when that is due.

export const ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz";
export const MAX_PRIORITY = 1_000;
export const MAX_JSON_BYTES = 1_048_576;
export const ALONE_FROM_CRASHES = 2;
export const HARD_LIMIT = 3;
export const BACKGROUND_MS = 600_000;

export const JOB_STATES = ["queued", "running", "succeeded", "dead", "cancelled", "quarantined"] as const;
export const STATE = { queued: 0, running: 1, succeeded: 2, dead: 3, cancelled: 4, quarantined: 5 } as const;
export const OUTCOME = { "timed-out": 2, crashed: 3, released: 4, cancelled: 5, lost: 8, waiting: 9 } as const;
export const LANE = { delayed: 0, open: 1, alone: 2, held: 3 } as const;
export const NEVER_DUE = 253_402_300_799_999;

/** As `deathsElsewhere` of the store was in migrations 1 to 3. `job`, `crashes` and `now` are SQL. */
export function deathsElsewhere(schema: string, job: string, crashes: string, now: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event = 'crash' ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now}))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}

/** The same in migration 7: a loss of contact counts once it has turned out to be a death. */
export function resolvedDeathsElsewhere(schema: string, job: string, crashes: string, now: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE (i.how = 'gone' OR i.resolution IN ('died', 'away')) AND i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event IN ('crash', 'countLoss') ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now}))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}

/** The same since migration 8: a death counts from the moment that its worker is condemned. `own`: the incident that is not elsewhere. */
export function condemnedElsewhere(schema: string, job: string, crashes: string, now: string, own: string): string {
  return `(SELECT count(*)::integer FROM ${schema}.incidents i
    WHERE i.id IS DISTINCT FROM ${own} AND (i.how = 'gone' OR i.resolution IN ('died', 'away'))
    AND (i.completed_at IS NULL OR i.completed_at >= least(${now} - ${BACKGROUND_MS}, coalesce((SELECT min(c.at) FROM
      (SELECT h.at FROM ${schema}.history h WHERE h.job = ${job} AND h.event IN ('crash', 'countLoss') ORDER BY h.ord DESC LIMIT ${crashes}) c), ${now})))
    AND NOT EXISTS (SELECT 1 FROM ${schema}.incident_jobs x WHERE x.incident = i.id AND x.job = ${job}))`;
}

/** As `checksumSql` of the store. `content` and `owner` are SQL. */
export function checksum(content: string, owner: string): string {
  return `substr(sha256(convert_to(${owner} || chr(10) || ${content}, 'UTF8')), 1, 4)`;
}

/** As `boundSql` of the store: an index is used only if both are the same. */
export const suspectBound = "CASE WHEN together > 0 THEN together WHEN crashes + losses > 1 THEN 1 ELSE 2147483647 END";
