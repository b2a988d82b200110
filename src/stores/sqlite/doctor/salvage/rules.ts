// Restores the store's rules in the tables of a salvaged file: every job has a kind, every running one a worker that recovery finds, no
// key is held twice, counts agree, and no process from before can write. It also finds out what was lost, by the
// temporary tables `indexed_*` that write.ts fills from the indexes of the damaged file.
import { KIND_DEFAULTS } from "../../../../engine/kind-options.ts";
import { OUTCOMES } from "../../../../job/job.ts";
import { LANE, STATE, toStored } from "../../../rows.ts";
import { COUNTED, SUMMED } from "../../blocks.ts";
import type { DatabaseSync } from "../../database.ts";
import { versionByColumns } from "../../schema.ts";
import type { PartialJob } from "./write.ts";

/** How many ids are named; counts are complete. */
const MAX_NAMED = 10_000;

export interface Restored {
  readonly partial: readonly string[];
  readonly lost: readonly string[];
  readonly recoveryPointAt: number | null;
}

/** How many jobs there were, by the counts in the rows of the kinds. */
export function statedJobs(db: DatabaseSync): number {
  return (db.prepare("SELECT ifnull(sum(jobs), 0) AS n FROM outlive_kinds").get() as { n: number }).n;
}

/** Called inside a transaction, before the indexes are created: until then two rows may have the same key. */
export function restoreRules(
  db: DatabaseSync,
  partialJobs: readonly PartialJob[],
  indexIsSound: boolean,
  now: number,
): Restored {
  const recoveryPointAt = newestChange(db, now);
  const lost = lostJobs(db, indexIsSound);
  const partial = new Partials(db, now);
  for (const { seq, missing, unfit } of partialJobs) partial.add(seq, `its ${missing.join(", ")} can't be read`, unfit);
  dropDuplicates(db, partial);
  restoreKinds(db, partial);
  noteMissingParts(db, partial);
  restoreWorkers(db);
  restoreDoors(db, partial, now);
  for (const table of ["outlive_steps", "outlive_history", "outlive_logs"])
    db.exec(`DELETE FROM ${table} WHERE job NOT IN (SELECT seq FROM outlive_jobs)`);
  partial.write();
  db.exec("UPDATE outlive_kinds SET jobs = (SELECT count(*) FROM outlive_jobs j WHERE j.kind = outlive_kinds.id)");
  restoreBatches(db);
  restoreSchedules(db);
  restoreCollections(db);
  restoreAudit(db);
  raiseEpoch(db, now);
  return { partial: partial.ids(), lost, recoveryPointAt };
}

/**
 * What waits at doors is as the extras say, and every door is checked: the wake for one may be lost. A job whose extras are lost may have had keys, and would run
 * without its limits, or never.
 */
function restoreDoors(db: DatabaseSync, partial: Partials, now: number): void {
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_doors'").get() === undefined) return;
  const bare = db
    .prepare(
      `SELECT seq FROM outlive_jobs WHERE extras = 1 AND state < ${STATE.succeeded}
         AND seq NOT IN (SELECT job FROM outlive_extras) AND seq NOT IN (SELECT job FROM outlive_blocks)`,
    )
    .all() as { seq: number }[];
  for (const { seq } of bare) partial.add(seq, "its keys, if it had any, are lost, and with them its limits", true);
  db.exec(`DELETE FROM outlive_doors;
    INSERT INTO outlive_doors (door, ring, rank, job) SELECT door, ring, rank, job FROM outlive_extras
      WHERE door IS NOT NULL AND job IN (SELECT seq FROM outlive_jobs WHERE state = ${STATE.queued} AND lane = ${LANE.held});
    INSERT INTO outlive_key_wakes (key, at) SELECT DISTINCT door, ${now} FROM outlive_doors WHERE door > 0`);
}

/**
 * What is kept of a batch becomes what its blocks and failures come to now, so that it ends: rows of a job that is lost are gone with it, and those of
 * a job that must not run are quarantined. A batch without its context can be seen, and nothing runs with it.
 */
function restoreBatches(db: DatabaseSync): void {
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_blocks'").get() === undefined) return;
  const once = (table: string, key: string, by: string, first: string): void =>
    db.exec(
      `DELETE FROM ${table} WHERE ${key} IN (SELECT ${key} FROM (SELECT ${key}, row_number() OVER (PARTITION BY ${by} ORDER BY ${first}) AS n FROM ${table}) WHERE n > 1)`,
    );
  once("outlive_batches", "seq", "id", "round DESC, seq DESC");
  once("outlive_blocks", "job", "batch, round, number", "length(replace(ifnull(marks, ''), '0', '')) DESC, job DESC");
  db.exec(`UPDATE outlive_batches SET key = NULL WHERE seq IN
    (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY kind, key ORDER BY seq) AS n FROM outlive_batches WHERE key IS NOT NULL) WHERE n > 1)`);
  db.exec(`INSERT INTO outlive_batch_texts (batch, context, context_sum) SELECT seq, 'null', 0 FROM outlive_batches WHERE seq NOT IN (SELECT batch FROM outlive_batch_texts);
    DELETE FROM outlive_blocks WHERE job > 0 AND job NOT IN (SELECT seq FROM outlive_jobs);
    UPDATE outlive_jobs SET extras = 1 WHERE seq IN (SELECT job FROM outlive_blocks)`);
  // A new batch must not get the number, and with it the blocks, of one whose row is lost.
  const used =
    "SELECT max(n) FROM (SELECT max(seq) AS n FROM outlive_batches UNION SELECT max(batch) FROM outlive_blocks UNION SELECT max(batch) FROM outlive_row_failures UNION SELECT max(batch) FROM outlive_row_outputs)";
  db.exec(`DELETE FROM sqlite_sequence WHERE name = 'outlive_batches';
    INSERT INTO sqlite_sequence (name, seq) SELECT 'outlive_batches', ifnull((${used}), 0)`);
  const set = SUMMED.map((name) => `${name} = ?`).join(", ");
  const counted = db.prepare(COUNTED).all() as Record<string, number | string>[];
  const write = db.prepare(`UPDATE outlive_batches SET ${set}, touched = 1 WHERE id = ?`);
  for (const row of counted) write.run(...SUMMED.map((name) => row[`own_${name}`]!), row["id"]!);
}

/** Of two rows of one schedule the later one is kept: the ids of its jobs do not let an occurrence be enqueued twice. Live workers declare theirs again. */
function restoreSchedules(db: DatabaseSync): void {
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_schedules'").get() === undefined) return;
  db.exec(`DELETE FROM outlive_schedules WHERE seq IN
      (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY name ORDER BY version DESC, seq DESC) AS n FROM outlive_schedules) WHERE n > 1);
    DELETE FROM outlive_occurrences WHERE seq IN
      (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY job ORDER BY seq) AS n FROM outlive_occurrences) WHERE n > 1);
    DELETE FROM outlive_declarations`);
}

/**
 * What is kept of a collection becomes what its parts come to now: parts whose rows are lost are missing, and are accepted when they come again. A
 * collection without its texts can be seen, and nothing runs with it.
 */
function restoreCollections(db: DatabaseSync): void {
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_parts'").get() === undefined) return;
  db.exec(`DELETE FROM outlive_collections WHERE seq NOT IN (SELECT max(seq) FROM outlive_collections GROUP BY id);
    INSERT INTO outlive_collection_texts (collection, input, input_sum, transitions)
      SELECT seq, 'null', 0, 'requested ' || created_at FROM outlive_collections WHERE seq NOT IN (SELECT collection FROM outlive_collection_texts);
    UPDATE outlive_series SET have = (SELECT count(*) FROM outlive_parts p WHERE p.collection = outlive_series.collection AND p.series = outlive_series.place),
      bytes = (SELECT ifnull(sum(bytes), 0) FROM outlive_parts p WHERE p.collection = outlive_series.collection AND p.series = outlive_series.place);
    UPDATE outlive_collections SET touched = due_at IS NOT NULL AND NOT EXISTS
      (SELECT 1 FROM outlive_series s WHERE s.collection = outlive_collections.seq AND (s.expected IS NULL OR s.have < s.expected))`);
  // Counted again as parts come: a page without a count is gone through.
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_part_pages'").get() !== undefined)
    db.exec("DELETE FROM outlive_part_pages");
  // A new collection must not get the number, and with it the parts, of one whose row is lost.
  db.exec(`DELETE FROM sqlite_sequence WHERE name = 'outlive_collections';
    INSERT INTO sqlite_sequence (name, seq) SELECT 'outlive_collections', ifnull((SELECT max(n) FROM (SELECT max(seq) AS n FROM outlive_collections
      UNION SELECT max(collection) FROM outlive_parts)), 0)`);
}

function restoreAudit(db: DatabaseSync): void {
  if (db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'outlive_audit'").get() === undefined) return;
  db.exec("DELETE FROM outlive_audit WHERE seq NOT IN (SELECT max(seq) FROM outlive_audit GROUP BY id)");
}

/** Collects what is missing of each job, and writes it once per job. */
class Partials {
  readonly #db: DatabaseSync;
  readonly #now: number;
  readonly #jobs = new Map<number, { why: string[]; unfit: boolean }>();

  constructor(db: DatabaseSync, now: number) {
    this.#db = db;
    this.#now = now;
  }

  add(seq: number, why: string, unfit: boolean): void {
    const known = this.#jobs.get(seq);
    if (!known) this.#jobs.set(seq, { why: [why], unfit });
    else {
      known.why.push(why);
      known.unfit ||= unfit;
    }
  }

  /** A job that must not run is quarantined, unless it has ended. The history says what is missing, for the others as well. */
  write(): void {
    const read = this.#db.prepare("SELECT state, epoch, fence FROM outlive_jobs WHERE seq = ?");
    const history = this.#db.prepare(
      "INSERT INTO outlive_history (job, at, event, from_state, to_state, actor, epoch, fence, reason, incident) VALUES (?, ?, 'salvaged', ?, ?, 'system/repair', ?, ?, ?, NULL)",
    );
    for (const [seq, { why, unfit }] of this.#jobs) {
      const row = read.get(seq) as { state: number; epoch: number; fence: number } | undefined;
      if (!row) continue;
      const quarantine =
        unfit && (row.state === STATE.queued || row.state === STATE.running || row.state === STATE.quarantined);
      const reason = `corrupt: ${why.join("; ")}`;
      if (quarantine) this.#quarantine(seq, reason);
      history.run(seq, this.#now, row.state, quarantine ? STATE.quarantined : row.state, row.epoch, row.fence, reason);
    }
  }

  #quarantine(seq: number, reason: string): void {
    const outcome = (OUTCOMES as readonly string[]).indexOf("corrupt");
    const message = `${reason.slice("corrupt: ".length)}: the store was damaged, and this is what could be saved. It was not run.`;
    this.#db
      .prepare(
        "UPDATE outlive_jobs SET state = ?, lane = ?, outcome = ifnull(?, outcome), finished_at = ?, error = ?, cancel_requested = 0, incident = NULL WHERE seq = ?",
      )
      .run(
        STATE.quarantined,
        LANE.open,
        outcome < 0 ? null : outcome,
        this.#now,
        JSON.stringify({ name: "Corrupt", code: "CORRUPT", message }),
        seq,
      );
  }

  ids(): string[] {
    const read = this.#db.prepare("SELECT id FROM outlive_jobs WHERE seq = ?");
    return [...this.#jobs.keys()].slice(0, MAX_NAMED).flatMap((seq) => {
      const row = read.get(seq) as { id: string } | undefined;
      return row ? [row.id] : [];
    });
  }
}

/** Ids of jobs whose row is lost: by the index of ids or, without it, by other rows that name them. */
function lostJobs(db: DatabaseSync, indexIsSound: boolean): string[] {
  const gone = db
    .prepare(
      "SELECT w.id FROM temp.indexed_jobs w LEFT JOIN outlive_jobs j ON j.seq = w.seq WHERE j.seq IS NULL LIMIT ?",
    )
    .all(MAX_NAMED) as { id: string }[];
  if (indexIsSound) return gone.map(({ id }) => id);
  const named = db
    .prepare(
      `SELECT DISTINCT n.job, i.job_id AS id FROM (SELECT job FROM outlive_history UNION SELECT job FROM outlive_steps UNION SELECT job FROM outlive_logs) n
       LEFT JOIN outlive_incident_jobs i ON i.job = n.job LEFT JOIN outlive_jobs j ON j.seq = n.job
       WHERE j.seq IS NULL AND n.job NOT IN (SELECT seq FROM temp.indexed_jobs) LIMIT ?`,
    )
    .all(MAX_NAMED) as { job: number; id: string | null }[];
  return [...new Set([...gone.map(({ id }) => id), ...named.map(({ job, id }) => id ?? `(job number ${job})`)])];
}

/** Two rows with one id: the later attempt stays. Two unfinished jobs with one key: the older one keeps it. */
function dropDuplicates(db: DatabaseSync, partial: Partials): void {
  db.exec(
    `DELETE FROM outlive_jobs WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY id ORDER BY epoch DESC, fence DESC, seq) AS n FROM outlive_jobs) WHERE n > 1)`,
  );
  const second = db
    .prepare(
      `SELECT seq, dedupe_key AS key FROM (SELECT seq, dedupe_key, row_number() OVER (PARTITION BY kind, dedupe_key ORDER BY state DESC, seq) AS n
         FROM outlive_jobs WHERE dedupe_key IS NOT NULL AND state < 2) WHERE n > 1`,
    )
    .all() as { seq: number; key: string }[];
  for (const { seq, key } of second) {
    db.prepare("UPDATE outlive_jobs SET dedupe_key = NULL WHERE seq = ?").run(seq);
    partial.add(seq, `its dedupe key ${JSON.stringify(key)} is held by another job too`, false);
  }
  db.exec(
    "DELETE FROM outlive_steps WHERE ord IN (SELECT ord FROM (SELECT ord, row_number() OVER (PARTITION BY job, name ORDER BY ord) AS n FROM outlive_steps) WHERE n > 1)",
  );
}

/** A kind whose row is lost gets its name from the index of names, and default settings until a program declares it again. */
function restoreKinds(db: DatabaseSync, partial: Partials): void {
  const { timeoutMs, graceMs, limits, backoff, onCrash } = KIND_DEFAULTS;
  const add = db.prepare(
    `INSERT INTO outlive_kinds (id, name, timeout_ms, grace_ms, max_errors, max_timeouts, max_crashes, backoff_type, backoff_base_ms, backoff_max_ms, backoff_jitter, on_crash)
     VALUES (:id, :name, :timeoutMs, :graceMs, :errors, :timeouts, :crashes, :type, :baseMs, :maxMs, :jitter, :onCrash)`,
  );
  const gone = db
    .prepare(
      `SELECT j.kind AS id, w.name FROM (SELECT DISTINCT kind FROM outlive_jobs) j LEFT JOIN temp.indexed_kinds w ON w.seq = j.kind
       WHERE j.kind NOT IN (SELECT id FROM outlive_kinds)`,
    )
    .all() as { id: number; name: string | null }[];
  for (const { id, name } of gone) {
    add.run({
      id,
      name: name ?? `lost-kind-${id}`,
      timeoutMs,
      graceMs,
      ...limits,
      ...backoff,
      onCrash: toStored(onCrash),
    });
    if (name !== null) continue;
    for (const { seq } of db.prepare("SELECT seq FROM outlive_jobs WHERE kind = ?").all(id) as { seq: number }[])
      partial.add(seq, "the name of its kind is lost", true);
  }
}

/** By the indexes of steps and history. A lost step would run again, so a person must decide whether it may. */
function noteMissingParts(db: DatabaseSync, partial: Partials): void {
  const steps = db
    .prepare(
      `SELECT w.job, w.name FROM temp.indexed_steps w LEFT JOIN outlive_steps s ON s.ord = w.seq JOIN outlive_jobs j ON j.seq = w.job WHERE s.ord IS NULL`,
    )
    .all() as { job: number; name: string }[];
  for (const { job, name } of steps)
    partial.add(job, `the result of its step ${JSON.stringify(name)} is lost, and a retry would run it again`, true);
  const history = db
    .prepare(
      `SELECT DISTINCT w.job FROM temp.indexed_history w LEFT JOIN outlive_history h ON h.ord = w.seq JOIN outlive_jobs j ON j.seq = w.job WHERE h.ord IS NULL`,
    )
    .all() as { job: number }[];
  for (const { job } of history) partial.add(job, "a part of its history is lost", false);
}

/** A running job whose worker's row is lost: a row that says so lets recovery find it. What is unknown of the worker is empty or 0. */
function restoreWorkers(db: DatabaseSync): void {
  db.prepare(
    `INSERT INTO outlive_workers (seq, id, state, host, boot_id, pid, version, epoch, lease_ms, concurrency, kinds, started_at, heartbeat_at, last_word)
     SELECT j.worker, ifnull(w.id, 'lost-worker-' || j.worker), 'gone', '', '', 0, '', 0, 0, 1, '[]', j.first, j.last, 'its row was lost with a part of the store'
     FROM (SELECT worker, min(started_at) AS first, max(started_at) AS last FROM outlive_jobs WHERE state = 1 GROUP BY worker) j LEFT JOIN temp.indexed_workers w ON w.seq = j.worker
     WHERE j.worker NOT IN (SELECT seq FROM outlive_workers)`,
  ).run();
  // A worker's number is never used again: jobs name their owner by it.
  db.exec(
    `DELETE FROM sqlite_sequence WHERE name = 'outlive_workers' AND seq < (SELECT max(s) FROM (SELECT max(seq) AS s FROM outlive_workers UNION SELECT max(worker) FROM outlive_jobs));
     INSERT INTO sqlite_sequence (name, seq) SELECT 'outlive_workers', max(0, ifnull(max(s), 0)) FROM (SELECT max(seq) AS s FROM outlive_workers UNION SELECT max(worker) FROM outlive_jobs)
       WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'outlive_workers')`,
  );
}

/** Above every epoch that was ever issued, as far as that is known. */
function raiseEpoch(db: DatabaseSync, now: number): void {
  db.prepare(
    `INSERT OR REPLACE INTO outlive_meta (key, value)
     SELECT 'epoch', max(?, 1 + ifnull((SELECT value FROM outlive_meta WHERE key = 'epoch'), 0), 1 + ifnull((SELECT max(epoch) FROM outlive_jobs), 0))`,
  ).run(now);
  db.prepare("INSERT OR IGNORE INTO outlive_meta (key, value) VALUES ('schema', ?)").run(
    versionByColumns((sql) => db.prepare(sql).all()),
  );
}

/** The newest instant in any row, without placeholders (schema.ts) and instants in the future. */
function newestChange(db: DatabaseSync, now: number): number | null {
  const { at } = db
    .prepare(
      `SELECT max(at) AS at FROM (
         SELECT created_at AS at FROM outlive_jobs UNION ALL SELECT started_at FROM outlive_jobs WHERE fence > 0
         UNION ALL SELECT finished_at FROM outlive_jobs WHERE state > 1 UNION ALL SELECT at FROM outlive_steps UNION ALL SELECT at FROM outlive_history
         UNION ALL SELECT at FROM outlive_logs UNION ALL SELECT heartbeat_at FROM outlive_workers UNION ALL SELECT completed_at FROM outlive_incidents
       ) WHERE at <= ?`,
    )
    .get(now) as { at: number | null };
  return at;
}
