// The user's writes and the job's success in one transaction. When the answer to its COMMIT is lost, the rows are read, never guessed.
// Apart from transaction.ts, whose types users import: they must compile without `pg`, and a Connection does not.
import { ErrorCode, OutliveError, toStoredError } from "../../job/errors.ts";
import type { Lease } from "../../job/lease.ts";
import { type Clock, pause } from "../../job/time.ts";
import type { CommitControl } from "../../worker/run.ts";
import {
  APPLIED,
  type Committed,
  type FencedWrite,
  REPEATED,
  type Settlement,
  type Transacted,
  type TransactionBody,
  type Transactions,
  triedBy,
} from "../port.ts";
import { OUTCOME, STATE } from "../rows.ts";
import { writeOfAttempt } from "./attempt-writes.ts";
import { haveEnded } from "./blocks.ts";
import { type Connection, OutcomeUnknown, rolledBack } from "./connection.ts";
import { sqlState } from "./errors.ts";
import { registered } from "./restore-mark.ts";
import { WHICH } from "./session-gate.ts";
import { LOCK_OWNED, RESULT_SUM, type Settling, THIS_ATTEMPT, wasRedriven } from "./settle.ts";
import type { Transaction, UserTransaction, Value } from "./statements.ts";
import type { Workers } from "./workers.ts";
import { callUserBody, ended, type PostgresTransaction, runUserBody, type TransactionDeps } from "./transaction.ts";

/** How long the server is asked what became of a transaction whose answer was lost, and how often. */
const ASK_FOR_MS = 30_000;
const ASK_EVERY_MS = 250;

export interface CommitDeps extends TransactionDeps {
  readonly connection: Connection;
  readonly settling: Settling;
  readonly workers: Workers;
  readonly clock: Clock;
}

export function transactions(deps: CommitDeps): Transactions<PostgresTransaction> {
  return {
    commit: (settlement, body, encode, control) => commitJob(deps, settlement, body, encode, control),
    write: (write, body, control) => commitWrite(deps, write, body, control),
    transact: (body) => transact(deps, body),
  };
}

async function commitJob<T>(
  deps: CommitDeps,
  settlement: Settlement,
  body: TransactionBody<PostgresTransaction, T>,
  encode: (value: T) => string | null,
  control?: CommitControl,
): Promise<Committed<T>> {
  const { connection, kinds, settling } = deps;
  const { lease, change } = settlement;
  const attempt = await attemptOf(deps, lease);
  let ready: Committed<T> | undefined;
  const work = async (tx: UserTransaction): Promise<Committed<T>> => {
    if (!tx.opened<{ owned: boolean }>().owned)
      return { answer: await settling.refused(tx, lease, "commit", change), value: undefined, enqueued: 0 };
    if (change.follow !== undefined)
      await kinds.demand(
        tx,
        change.follow.map(({ kind }) => kind),
      );
    control?.runs();
    if (change.follow === undefined && change.rows === undefined) {
      const { value, enqueued, signalled } = await callUserBody(deps, tx, body);
      tx.endWith(SUCCEED_OPENED, [...attempt.slice(0, -1), encode(value), tx.id]);
      ready = { answer: APPLIED, value, enqueued, signalled };
      return ready;
    }
    const { value, enqueued, signalled } = await runUserBody(deps, tx, body);
    const [answer] = await settling.settle(tx, [{ ...settlement, change: { ...change, result: encode(value) } }]);
    ready = { answer: answer!, value, enqueued, signalled };
    return ready;
  };
  try {
    return await connection.userTransaction(work, control, {
      opening: [OPEN_OWNED, attempt],
      closing: SUCCEED_OPENED,
    });
  } catch (thrown) {
    if (!(thrown instanceof OutcomeUnknown) || !ready) throw (ready && whyNot(thrown, lease.jobId)) ?? thrown;
    if (await succeeded(deps, settlement, thrown)) return { ...ready, answer: APPLIED };
    throw new OutliveError(
      ErrorCode.storeFailed,
      `The connection was lost while job ${lease.jobId} was committed; the server says that the commit did not happen.`,
      "Nothing was written. The attempt fails and the job is tried again.",
      { jobId: lease.jobId },
      { cause: thrown },
    );
  }
}

// The attempt is checked in the message of the BEGIN, and its success is written in that of the COMMIT: three messages with one of the callback's, not six.

/** Locks the job that this attempt still owns, until the end of the transaction: a recovery that comes now waits, and then finds that the job has ended. */
const OPEN_OWNED = `${WHICH},
  (SELECT true FROM outlive.jobs j WHERE ${THIS_ATTEMPT} AND ${registered("$4", "$5::text")} FOR UPDATE OF j) IS TRUE AS owned`;

const MARK = "outlive commit";
/** SQL that fails with this text. It depends on a volatile function, so that it is not computed when the statement is planned. */
const fail = (text: string): string => `('${MARK}: ${text} at ' || outlive.now_ms())::integer`;

/** Writes the success of an attempt that `OPEN_OWNED` has locked, or fails: then there is no COMMIT. */
const SUCCEED_OPENED = `WITH ended AS (
    UPDATE outlive.jobs j SET state = 2, outcome = 0, finished_at = outlive.now_ms(), result = $5::text, ${RESULT_SUM("$5::text")}
    WHERE ${THIS_ATTEMPT} AND pg_current_xact_id() = $6::text::xid8 RETURNING 1)
  SELECT CASE WHEN EXISTS (SELECT 1 FROM ended) THEN 0 WHEN pg_current_xact_id() = $6::text::xid8 THEN ${fail("changed")} ELSE ${fail("ended")} END`;

async function attemptOf({ connection, workers }: CommitDeps, lease: Lease): Promise<Value[]> {
  const { row, fence, epoch, worker } = lease;
  const seq = workers.known(worker) ?? (await workers.seqOf(connection, worker));
  return [row, fence, epoch, seq, worker];
}

/** Why `SUCCEED_OPENED` failed; null: it did not, or for another reason. */
function whyNot(thrown: unknown, jobId: string): OutliveError | null {
  const state = sqlState(thrown);
  if (state === "25P02") return rolledBack();
  const { message } = thrown as Error;
  if (state !== "22P02" || !message.includes(MARK)) return null;
  return message.includes(`${MARK}: ended`) ? ended() : changed(jobId);
}

function changed(jobId: string): OutliveError {
  return new OutliveError(
    ErrorCode.commitDenied,
    `The callback changed the row of job ${jobId} by its own statements, so that the job can't be completed.`,
    "Nothing was written. Do not change Outlive's own tables.",
    { jobId },
  );
}

/** The user's writes and a small write of the attempt. If the fence does not hold, or the rows of the write have ended, `body` is not run. */
async function commitWrite<T>(
  deps: CommitDeps,
  { lease, write }: FencedWrite,
  body: TransactionBody<PostgresTransaction, T>,
  control?: CommitControl,
): Promise<Committed<T>> {
  const { connection, settling } = deps;
  let ready: (Committed<T> & { readonly id: string }) | undefined;
  try {
    return await connection.userTransaction(async (tx): Promise<Committed<T>> => {
      if (!(await lockOwned(tx, settling, lease)))
        return { answer: await settling.refused(tx, lease, triedBy(write)), value: undefined, enqueued: 0 };
      if (write.type === "rows" && (await haveEnded(tx, lease.row, write.ends)))
        return { answer: REPEATED, value: undefined, enqueued: 0 };
      control?.runs();
      const { value, enqueued, id } = await runUserBody(deps, tx, body);
      ready = { answer: await writeOfAttempt(tx, deps, lease, write), value, enqueued, id };
      return ready;
    }, control);
  } catch (thrown) {
    if (!(thrown instanceof OutcomeUnknown) || !ready) throw thrown;
    if (await committed(deps, ready.id, `a row of job ${lease.jobId}`, thrown)) return ready;
    throw new OutliveError(
      ErrorCode.storeFailed,
      `The connection was lost while a row of job ${lease.jobId} was committed; the server says that the commit did not happen.`,
      "Nothing was written. The attempt fails, and its rows that have not ended are tried again.",
      { jobId: lease.jobId },
      { cause: thrown },
    );
  }
}

async function transact<T>(deps: CommitDeps, body: TransactionBody<PostgresTransaction, T>): Promise<Transacted<T>> {
  let ready: (Transacted<T> & { readonly id: string }) | undefined;
  try {
    return await deps.connection.userTransaction(async (tx) => {
      ready = await runUserBody(deps, tx, body);
      return ready;
    });
  } catch (thrown) {
    if (!(thrown instanceof OutcomeUnknown) || !ready) throw thrown;
    if (await committed(deps, ready.id, "a transaction of yours", thrown)) return ready;
    throw new OutliveError(
      ErrorCode.storeFailed,
      "The connection was lost while a transaction of yours was committed; the server says that the commit did not happen.",
      "Nothing was written; run it again.",
      {},
      { cause: thrown },
    );
  }
}

/** The row stays locked to the end of the transaction: a recovery that comes now waits, and then finds the job over. */
async function lockOwned(tx: Transaction, settling: Settling, lease: Lease): Promise<boolean> {
  return (await tx.rows(LOCK_OWNED, await settling.attempts(tx, [lease]))).length > 0;
}

/** Whether the job succeeded by this attempt. The lost transaction holds its row: the lock waits until it has ended either way. */
function succeeded(deps: CommitDeps, { lease }: Settlement, cause: unknown): Promise<boolean> {
  return ask(deps, `job ${lease.jobId}`, cause, async (tx) => {
    const [row] = await tx.rows<{ state: number; epoch: number; fence: number; outcome: number | null }>(
      "SELECT state, epoch, fence, outcome FROM outlive.jobs WHERE seq = $1 AND id = $2 FOR UPDATE",
      [lease.row, lease.jobId],
    );
    if (!row) return false;
    const same = row.epoch === lease.epoch && row.fence === lease.fence;
    if (same && row.state !== STATE.running && row.outcome === OUTCOME.succeeded) return true;
    return wasRedriven(tx, lease);
  });
}

function committed(deps: CommitDeps, transaction: string, what: string, cause: unknown): Promise<boolean> {
  return ask(deps, what, cause, async (tx) => {
    const [row] = await tx.rows<{ status: string }>("SELECT pg_xact_status($1::text::xid8) AS status", [transaction]);
    if (row!.status === "in progress") throw new Error("it is still under way");
    return row!.status === "committed";
  });
}

async function ask(
  deps: CommitDeps,
  what: string,
  cause: unknown,
  read: (tx: Transaction) => Promise<boolean>,
): Promise<boolean> {
  const { connection, clock } = deps;
  const until = clock.mono() + ASK_FOR_MS;
  for (;;) {
    try {
      return await connection.once(async (tx) => {
        await tx.run("SELECT set_config('lock_timeout', '1s', true)");
        return read(tx);
      });
    } catch (thrown) {
      if (clock.mono() >= until) throw unknown(what, cause, thrown);
      await pause(clock, ASK_EVERY_MS);
    }
  }
}

function unknown(what: string, cause: unknown, last: unknown): OutliveError {
  return new OutliveError(
    ErrorCode.commitUnknown,
    `The connection was lost while ${what} was committed, and the server did not respond for ${ASK_FOR_MS / 1_000} s: whether it happened is unknown.`,
    "Read your rows when the server is back. A job whose commit did happen is succeeded and does not run again: its fence is refused.",
    { lastError: toStoredError(last).message },
    { cause },
  );
}
