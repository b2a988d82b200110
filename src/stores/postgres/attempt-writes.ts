// The small writes of a running attempt, each one statement under its fence: steps, progress, log, heartbeat, children, signals,
// rows. Steps that are written at the same time share a statement.
import type { Lease } from "../../job/lease.ts";
import type { Clock } from "../../job/time.ts";
import {
  APPLIED,
  type AttemptWrite,
  type FencedWrite,
  MAX_LOG_LINES,
  type ReadSignal,
  triedBy,
  type WriteAnswer,
} from "../port.ts";
import { END_ROWS, endsValue } from "./blocks.ts";
import { checksumSql, list, stepOwnerSql, type Session, texts, type Value } from "./statements.ts";
import type { Connection } from "./connection.ts";
import { insertJobs, type Kinds } from "./enqueue.ts";
import { sqlState } from "./errors.ts";
import { noteNewChildren } from "./families.ts";
import { registered } from "./restore-mark.ts";
import type { Settling } from "./settle.ts";
import type { Workers } from "./workers.ts";

// The row stays locked until the write is committed, so that no recovery takes the job in between.
const MINE = `seq = $1 AND state + 0 = 1 AND fence = $2 AND epoch = $3 AND worker + 0 = $4 AND ${registered("$4", "$5")}`;
const OWNED = `owned AS MATERIALIZED (SELECT seq, id FROM outlive.jobs WHERE ${MINE} FOR NO KEY UPDATE)`;
const ANSWER = "SELECT EXISTS (SELECT 1 FROM owned) AS owned";

// A repeated write of the same step (its answer was lost) keeps the first result, and does not count as progress.
const STEP = `WITH ${OWNED},
  added AS (INSERT INTO outlive.steps (job, name, result, at, fence, result_sum)
    SELECT seq, $6, $7, outlive.now_ms(), $2, ${checksumSql("$7", stepOwnerSql("id", "$6"))} FROM owned ON CONFLICT DO NOTHING RETURNING job),
  progress AS (UPDATE outlive.jobs j SET crashes = 0, blamed = 0, losses = 0 FROM added WHERE j.seq = added.job AND j.crashes + j.losses > 0)
  ${ANSWER}`;
// The same for many. Rows are locked in one order, so that two such statements do not wait for each other in a circle.
const STEPS = `WITH given AS (SELECT * FROM unnest($1::bigint[], $2::int[], $3::bigint[], $6::text[], $7::text[]) AS g (seq, fence, epoch, name, result)),
  owned AS MATERIALIZED (SELECT j.seq, j.id, g.fence, g.name, g.result FROM given g JOIN outlive.jobs j ON j.seq = g.seq
    WHERE j.state + 0 = 1 AND j.fence = g.fence AND j.epoch = g.epoch AND j.worker + 0 = $4 AND ${registered("$4", "$5")}
    ORDER BY j.seq FOR NO KEY UPDATE OF j),
  added AS (INSERT INTO outlive.steps (job, name, result, at, fence, result_sum)
    SELECT seq, name, result, outlive.now_ms(), fence, ${checksumSql("result", stepOwnerSql("id", "name"))} FROM owned ON CONFLICT DO NOTHING RETURNING job),
  progress AS (UPDATE outlive.jobs j SET crashes = 0, blamed = 0, losses = 0 FROM added WHERE j.seq = added.job AND j.crashes + j.losses > 0)
  SELECT seq::float8 AS seq FROM owned`;
const LOG = `WITH ${OWNED},
  added AS (INSERT INTO outlive.logs (job, at, fence, message) SELECT seq, outlive.now_ms(), $2, $6 FROM owned),
  old AS (DELETE FROM outlive.logs WHERE EXISTS (SELECT 1 FROM owned)
    AND ord IN (SELECT ord FROM outlive.logs WHERE job = $1 ORDER BY ord DESC OFFSET ${MAX_LOG_LINES - 1}))
  ${ANSWER}`;
const PROGRESS = `WITH owned AS (UPDATE outlive.jobs SET progress = $6 WHERE ${MINE} RETURNING seq) ${ANSWER}`;
// deadline = the latest heartbeat + timeout, but never beyond the start + the longest run that the kind allows.
const HEARTBEAT = `WITH clock AS MATERIALIZED (SELECT outlive.now_ms() AS now), owned AS (
    UPDATE outlive.jobs j SET heartbeat_at = clock.now, deadline_at = (SELECT CASE WHEN k.timeout_ms IS NOT NULL
      THEN least(clock.now + k.timeout_ms, j.started_at + k.max_runtime_ms) END FROM outlive.kinds k WHERE k.id = j.kind)
    FROM clock WHERE ${MINE} RETURNING seq)
  ${ANSWER}`;
const HOLD_OFF = `WITH ${OWNED},
  key AS (INSERT INTO outlive.keys (id, name, key, held_off_until) SELECT $6, $7, $8, outlive.now_ms() + $9::bigint FROM owned
    ON CONFLICT (id) DO UPDATE SET held_off_until = greatest(keys.held_off_until, excluded.held_off_until))
  ${ANSWER}`;
// A cancel that came while this waited for the row is seen here, and what it wrote only by the next statement.
const LOCK = `WITH owned AS MATERIALIZED (SELECT cancel_requested FROM outlive.jobs WHERE ${MINE} FOR NO KEY UPDATE)
  ${ANSWER}, coalesce((SELECT cancel_requested FROM owned), false) AS cancelled`;
// The rows are ended after the lock is there: the function has its own, later snapshots.
const ROWS = `WITH ${OWNED}, ended AS MATERIALIZED (SELECT ${END_ROWS("$6")} FROM owned) ${ANSWER}, EXISTS (SELECT 1 FROM ended) AS ended`;
const ROW_BEGINS = `WITH ${OWNED}, noted AS (UPDATE outlive.blocks b SET begun = $6, begun_fence = $2 FROM owned WHERE b.job = owned.seq)
  ${ANSWER}`;
// The signal is marked as read only if its step is written by the same statement, so it is read once. A repeated
// read (the reply was lost) finds the step.
const READ_SIGNAL = `WITH ${OWNED},
  step AS MATERIALIZED (SELECT s.result FROM outlive.steps s JOIN owned ON s.job = owned.seq WHERE s.name = $6),
  signal AS MATERIALIZED (SELECT g.ord, g.payload FROM outlive.signals g JOIN owned ON g.job = owned.seq
    WHERE g.name = $7 AND g.read_at IS NULL AND NOT EXISTS (SELECT 1 FROM step) ORDER BY g.ord LIMIT 1),
  outcome AS MATERIALIZED (SELECT payload FROM signal
    UNION ALL SELECT NULL FROM owned WHERE $8::boolean AND NOT EXISTS (SELECT 1 FROM signal) AND NOT EXISTS (SELECT 1 FROM step)),
  added AS (INSERT INTO outlive.steps (job, name, result, at, fence, result_sum)
    SELECT owned.seq, $6, outcome.payload, outlive.now_ms(), $2, ${checksumSql("outcome.payload", stepOwnerSql("owned.id", "$6"))} FROM owned, outcome
    ON CONFLICT DO NOTHING RETURNING job),
  progress AS (UPDATE outlive.jobs j SET crashes = 0, blamed = 0, losses = 0 FROM added WHERE j.seq = added.job AND j.crashes + j.losses > 0),
  read AS (UPDATE outlive.signals g SET read_at = outlive.now_ms() FROM signal, added WHERE g.ord = signal.ord)
  SELECT EXISTS (SELECT 1 FROM owned) AS owned, EXISTS (SELECT 1 FROM step) OR EXISTS (SELECT 1 FROM added) AS kept,
    EXISTS (SELECT 1 FROM outcome) AND NOT EXISTS (SELECT 1 FROM added) AS overtaken,
    coalesce((SELECT result FROM step), (SELECT payload FROM outcome)) AS payload`;

export interface AttemptWriteDeps {
  readonly kinds: Kinds;
  readonly workers: Workers;
  readonly settling: Settling;
}

interface WaitingStep {
  readonly lease: Lease;
  readonly step: Extract<AttemptWrite, { type: "step" }>;
  readonly resolve: (answer: WriteAnswer) => void;
  readonly reject: (thrown: unknown) => void;
}

/** At most this many steps in one statement, and at most about this many characters of their results. */
const MAX_STEPS = 1_000;
const MAX_CHARACTERS = 4 << 20;

/**
 * Group commit: the steps of one turn of the event loop are one statement, and while it is under way the next ones gather. Requests that must not be sent twice
 * have a step each before the first byte goes, thousands at once, and each waited for a flush of its own.
 */
export class AttemptWriting {
  readonly #connection: Connection;
  readonly #deps: AttemptWriteDeps & { readonly clock: Pick<Clock, "soon"> };
  #waiting: WaitingStep[] = [];
  #busy = false;

  constructor(connection: Connection, deps: AttemptWriteDeps & { readonly clock: Pick<Clock, "soon"> }) {
    this.#connection = connection;
    this.#deps = deps;
  }

  async write(writes: readonly FencedWrite[]): Promise<readonly WriteAnswer[]> {
    const [only] = writes;
    if (writes.length !== 1 || only!.write.type !== "step") return recordWrites(this.#connection, this.#deps, writes);
    const { lease, write: step } = only as FencedWrite & { write: WaitingStep["step"] };
    return new Promise((resolve, reject) => {
      this.#waiting.push({ lease, step, resolve: (answer) => resolve([answer]), reject });
      if (this.#busy) return;
      this.#busy = true;
      this.#deps.clock.soon(() => void this.#flush());
    });
  }

  async #flush(): Promise<void> {
    while (this.#waiting.length > 0) await this.#writeGroup(this.#next());
    this.#busy = false;
  }

  /** The first ones, all of one worker. */
  #next(): WaitingStep[] {
    const { worker } = this.#waiting[0]!.lease;
    let characters = 0;
    const end = this.#waiting.findIndex(({ lease, step }, i) => {
      characters += step.result?.length ?? 0;
      return lease.worker !== worker || i >= MAX_STEPS || (i > 0 && characters > MAX_CHARACTERS);
    });
    return this.#waiting.splice(0, end === -1 ? this.#waiting.length : end);
  }

  async #writeGroup(group: readonly WaitingStep[]): Promise<void> {
    if (group.length === 1) return this.#writeAlone(group[0]!);
    try {
      const { worker } = group[0]!.lease;
      const rows = await this.#connection.rows<{ seq: number }>(STEPS, [
        list(group.map(({ lease }) => lease.row)),
        list(group.map(({ lease }) => lease.fence)),
        list(group.map(({ lease }) => lease.epoch)),
        await this.#deps.workers.seqOf(this.#connection, worker),
        worker,
        texts(group.map(({ step }) => step.name)),
        texts(group.map(({ step }) => step.result)),
      ]);
      const owned = new Set(rows.map(({ seq }) => seq));
      // What was refused says why, and is on record.
      for (const one of group)
        if (owned.has(one.lease.row)) one.resolve(APPLIED);
        else await this.#writeAlone(one);
    } catch (thrown) {
      // A value that PostgreSQL does not take fails its own call only. A repeated step changes nothing.
      if (sqlState(thrown)?.startsWith("22")) for (const one of group) await this.#writeAlone(one);
      else for (const { reject } of group) reject(thrown);
    }
  }

  async #writeAlone({ lease, step, resolve, reject }: WaitingStep): Promise<void> {
    await recordWrites(this.#connection, this.#deps, [{ lease, write: step }]).then(
      ([answer]) => resolve(answer!),
      reject,
    );
  }
}

async function recordWrites(
  connection: Connection,
  deps: AttemptWriteDeps,
  writes: readonly FencedWrite[],
): Promise<readonly WriteAnswer[]> {
  const drafts = writes.flatMap(({ write }) => (write.type === "enqueue" ? write.drafts : []));
  const [only] = writes;
  // One small write is one statement, and needs no transaction around it.
  if (writes.length === 1 && drafts.length === 0)
    return [await writeOfAttempt(connection, deps, only!.lease, only!.write)];
  if (drafts.length > 0)
    await deps.kinds.demand(
      connection,
      drafts.map(({ kind }) => kind),
    );
  return connection.transaction(async (tx) => {
    const answers: WriteAnswer[] = [];
    for (const { lease, write } of writes) answers.push(await writeOfAttempt(tx, deps, lease, write));
    return answers;
  });
}

/** Enqueues and refusals are more than one statement: then `session` must be a transaction. */
export async function writeOfAttempt(
  session: Session,
  { kinds, workers, settling }: AttemptWriteDeps,
  lease: Lease,
  write: AttemptWrite,
): Promise<WriteAnswer> {
  const attempt = [lease.row, lease.fence, lease.epoch, await workers.seqOf(session, lease.worker), lease.worker];
  if (write.type === "signal") {
    const signal = await readSignal(session, attempt, write);
    return signal === null ? settling.refused(session, lease, triedBy(write)) : { is: "applied", signal };
  }
  const [statement, ...values] = statementOf(lease, write);
  const [answer] = await session.rows<{ owned: boolean; cancelled?: boolean }>(statement, [...attempt, ...values]);
  if (!answer!.owned) return settling.refused(session, lease, triedBy(write));
  if (write.type !== "enqueue") return APPLIED;
  if (answer!.cancelled) await noteNewChildren(session, lease.row);
  return { is: "applied", enqueued: await insertJobs(session, kinds, write.drafts, { parent: lease.row }) };
}

/** Null: the attempt does not own the job. */
async function readSignal(
  session: Session,
  attempt: readonly Value[],
  { step, name, hasEnded }: Extract<AttemptWrite, { type: "signal" }>,
): Promise<ReadSignal | null> {
  for (;;) {
    const [row] = await session.rows<{ owned: boolean; kept: boolean; overtaken: boolean; payload: string | null }>(
      READ_SIGNAL,
      [...attempt, step, name, hasEnded],
    );
    const { owned, kept, overtaken, payload } = row!;
    if (!owned) return null;
    // The same read, repeated after a lost connection, has written the step while this one waited for the job's row.
    if (!overtaken) return kept ? { kept, payload } : { kept };
  }
}

function statementOf(
  { row: job }: Lease,
  write: Exclude<AttemptWrite, { type: "signal" }>,
): readonly [string, ...Value[]] {
  switch (write.type) {
    case "step":
      return [STEP, write.name, write.result];
    case "progress":
      return [PROGRESS, write.value];
    case "log":
      return [LOG, write.message];
    case "heartbeat":
      return [HEARTBEAT];
    case "holdOff":
      return [HOLD_OFF, write.key.id, write.key.limit, write.key.key, write.forMs];
    case "enqueue":
      return [LOCK];
    case "rows":
      return [ROWS, endsValue([{ job, ends: write.ends, withRest: false }])];
    case "rowBegins":
      return [ROW_BEGINS, write.row];
  }
}
