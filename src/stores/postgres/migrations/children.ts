// The end of a child writes nothing for its parent but a wake. It marked the child's row in extras as ended, which was half of the settlement (7 of 14 us
// for each of 500 children), because the mark was in the index by which a parent finds unfinished children. Now the check of a wait reads the states
// of the children themselves: up to one that is unfinished, and all of them before the parent wakes. `waits.child` says where it begins.
//
// Two steps, each of which locks little. When the first end omits the mark, no check may rely on it any more: it would take the wake of that end and find no
// mark, and the parent would never wake. So the second step waits for every transaction that has taken a wake, and the first one has replaced what those after
// it call. `extras.ended` stays, because workers of earlier versions read it: it is false for jobs that ended after the second step.
import type { Migration } from "../migrate.ts";
import { addUnratedChildren, wakeWaiters } from "./consequences.ts";
import { LANE, OUTCOME, STATE } from "./frozen.ts";
import { noteEndsAndHandOver } from "./handed-slots.ts";
import { PLACE } from "./keys.ts";
import { noteEndsWithoutExtras, noteMoveOfBlocks } from "./lone-batches.ts";
import { replacing } from "./seed-views.ts";

const INDEX = "extras_children";
const create = (schema: string, how: string): string =>
  `${how} IF NOT EXISTS ${INDEX} ON ${schema}.extras (parent, job) WHERE parent IS NOT NULL;`;

export const childrenByState: Migration = {
  name: "children by state",
  drops: "nothing but speed of jobs that wait for their children",
  locks: ["waits", "extras"],
  ahead: (schema) => ({ indexes: [INDEX], texts: [create(schema, "CREATE INDEX CONCURRENTLY")] }),
  up: (schema) => `
  DO $$ BEGIN
    IF EXISTS (SELECT 1 FROM pg_index WHERE NOT indisvalid AND indexrelid = to_regclass('${schema}.${INDEX}')) THEN
      RAISE EXCEPTION 'an index of extras was left half-built' USING HINT = 'Nothing was changed. Run: outlive migrate up';
    END IF;
  END $$;
  ALTER TABLE ${schema}.waits ADD COLUMN child bigint; -- a child that was unfinished when it was checked; null: none is known
  ${create(schema, "CREATE INDEX")}
  DROP INDEX ${schema}.extras_parent;
  ${addHashedChildren(schema)}
  ${wakeWaitersByState(schema)}`,
  down: (schema) => `
  ${replacing(wakeWaiters(schema))}
  ${replacing(addUnratedChildren(schema))}
  CREATE INDEX extras_parent ON ${schema}.extras (parent, ended) WHERE parent IS NOT NULL;
  DROP INDEX ${schema}.${INDEX};
  ALTER TABLE ${schema}.waits DROP COLUMN child;`,
};

export const unmarkedEnds: Migration = {
  name: "unmarked ends",
  drops: "nothing but speed of jobs that a job has enqueued",
  locks: ["wakes"],
  up: (schema) =>
    [
      readsExtras(noteEndsWithoutExtras(schema)),
      readsExtras(replacing(noteEndsAndHandOver(schema))),
      noteMoveWithoutMark(schema),
    ].join("\n"),
  down: (schema) => `
  LOCK TABLE ${schema}.jobs IN ACCESS EXCLUSIVE MODE;
  ${noteMoveOfBlocks(schema)}
  ${replacing(noteEndsAndHandOver(schema))}
  ${noteEndsWithoutExtras(schema)}
  UPDATE ${schema}.extras e SET ended = j.state >= ${STATE.succeeded} FROM ${schema}.jobs j WHERE j.seq = e.job AND e.ended <> (j.state >= ${STATE.succeeded});`,
};

/** With the hash that claims compare first: without it each claim of a child computed a SHA-256, 3 of 9 us. */
function addHashedChildren(schema: string): string {
  return addUnratedChildren(schema)
    .replace("input_sum, extras, rated) OVERRIDING", "input_sum, input_hash, extras, rated) OVERRIDING")
    .replace(
      ", true, false FROM drafts d",
      `, hashtextextended(d.input COLLATE "C", hashtextextended(d.id COLLATE "C", 0)), true, false FROM drafts d`,
    );
}

/** A job that waits, by its row. The sum keeps the planner off the index of delayed jobs, which it may believe to be empty. */
const waits = (job: string): string =>
  `${job}.state + 0 = ${STATE.queued} AND ${job}.lane = ${LANE.delayed} AND ${job}.outcome = ${OUTCOME.waiting}`;

/** A check that has passed so many numbers of jobs keeps where it stopped. Those of small families write nothing. */
const FAR = 64;
const HIGHEST = "9223372036854775807";

/** SQL: the last unfinished child of the waiting job `o`, of those that `which` names. A row that is not there is not unfinished. */
const unfinished = (schema: string, which: string): string =>
  `(SELECT e.job FROM ${schema}.extras e WHERE e.parent = o.seq AND ${which} AND (SELECT c.state FROM ${schema}.jobs c WHERE c.seq = e.job) < ${STATE.succeeded}
          ORDER BY e.job DESC LIMIT 1)`;

/**
 * From the last child down: children begin in the order of their numbers, so the last one is unfinished nearly to the end, and until then a check reads one
 * child. `waits.child` is only where it begins. If nothing from there down is unfinished, the same statement reads the rest, so a parent wakes only if
 * all its children have ended in one snapshot. A child that was retried by hand, or a `waits.child` of an earlier wait, costs time and nothing
 * else. Of two checks of a parent at the same moment one keeps where it stopped, and the other does not wait for it.
 */
function wakeWaitersByState(schema: string): string {
  const ends = `CASE WHEN o.signal IS NOT NULL THEN EXISTS (SELECT 1 FROM ${schema}.signals s WHERE s.job = o.seq AND s.name = o.signal AND s.read_at IS NULL)
        WHEN o.of_children THEN o.child IS NULL
        WHEN o.jobs THEN NOT EXISTS (SELECT 1 FROM ${schema}.awaits a WHERE a.waiter = o.seq AND a.fence = o.fence AND a.ended IS NOT TRUE)
        ELSE false END`;
  const [before, after] = replacing(wakeWaiters(schema)).split(/ {4}SELECT array_agg\(j\.seq\).*?ELSE false END;\n/s);
  return `${before!.replace("    woken integer;\n", "    woken integer;\n    parents bigint[];\n    children bigint[];\n")}    WITH own AS MATERIALIZED (
      SELECT j.seq, j.fence, w.signal, w.jobs, w.signal IS NULL AND w.children AS of_children, w.child AS start
      FROM ${schema}.jobs j JOIN ${schema}.waits w ON w.job = j.seq WHERE j.seq = ANY (waiters) AND ${waits("j")}),
    looked AS MATERIALIZED (
      SELECT o.*, CASE WHEN o.of_children THEN coalesce(
        ${unfinished(schema, `e.job <= coalesce(o.start, ${HIGHEST})`)},
        CASE WHEN o.start IS NOT NULL THEN
          ${unfinished(schema, "e.job > o.start")} END) END AS child
      FROM own o),
    decided AS MATERIALIZED (
      SELECT o.*, ${ends} AS ends,
        CASE WHEN o.child IS NULL THEN false WHEN o.start IS NOT NULL THEN o.child > o.start OR o.start - o.child >= ${FAR}
          ELSE (SELECT e.job FROM ${schema}.extras e WHERE e.parent = o.seq ORDER BY e.job DESC LIMIT 1) - o.child >= ${FAR} END AS is_far
      FROM looked o)
    SELECT array_agg(o.seq) FILTER (WHERE o.ends), array_agg(o.fence) FILTER (WHERE o.ends), array_agg(o.seq) FILTER (WHERE o.is_far), array_agg(o.child) FILTER (WHERE o.is_far)
    INTO found, fences, parents, children FROM decided o;
    IF parents IS NOT NULL THEN
      UPDATE ${schema}.waits w SET child = n.child FROM (
        SELECT v.job, f.child FROM unnest(parents, children) AS f (job, child) JOIN ${schema}.waits v ON v.job = f.job FOR NO KEY UPDATE OF v SKIP LOCKED) n
      WHERE w.job = n.job;
    END IF;
${after!}`;
}

/**
 * All that the end of a job changes in its row is its place among its keys, so the row of a job without keys is read and not written. The first row shows what
 * most of them are: a turn whose first job has keys does what it did before, and writes its other rows as they are.
 */
function readsExtras(noteEnds: string): string {
  const [before, rest] = noteEnds.split(
    / {4}IF EXISTS \(SELECT 1 FROM \S+\.extras e WHERE e\.job = ANY \(note_ends\.ended\)\) THEN\n/,
  );
  const extras = /FROM (\S+\.extras) e WHERE e\.job = ANY \(note_ends\.ended\)\) THEN\n/.exec(noteEnds)![1]!;
  const at = rest!.indexOf("    IF parents IS NOT NULL THEN\n");
  const write = rest!.slice(0, at).replace("SET ended = true, place", "SET place");
  return `${before!.replace("    noted text;\n", "    noted text;\n    has_keys boolean;\n")}    has_keys := (SELECT e.key1 IS NOT NULL FROM ${extras} e WHERE e.job = ANY (note_ends.ended) LIMIT 1);
    IF has_keys IS NOT NULL THEN
    IF NOT has_keys THEN
      SELECT array_agg(DISTINCT e.parent) FILTER (WHERE e.parent IS NOT NULL), bool_or(e.watched), bool_or(e.key1 IS NOT NULL)
      INTO parents, is_watched, has_keys FROM ${extras} e WHERE e.job = ANY (note_ends.ended);
    END IF;
    IF has_keys THEN
${write}    END IF;
${rest!.slice(at)}`;
}

/** The row is locked, as the update locked it: in a user's transaction with a single snapshot, a row that has changed since is an error. */
function noteMoveWithoutMark(schema: string): string {
  return noteMoveOfBlocks(schema).replace(
    /UPDATE (\S+) e SET ended = true, place = \d, door = NULL WHERE e\.job = NEW\.seq RETURNING \* INTO own;/,
    `SELECT * INTO own FROM $1 e WHERE e.job = NEW.seq FOR NO KEY UPDATE;
      IF own.key1 IS NOT NULL THEN UPDATE $1 e SET place = ${PLACE.away}, door = NULL WHERE e.job = NEW.seq; END IF;`,
  );
}
