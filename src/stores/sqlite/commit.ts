// The user's writes and the job's success, inside one transaction.
import { APPLIED, type Settlement, type WriteAnswer } from "../../core/store.ts";
import type { Settling } from "./settle.ts";
import { runUserBody, type SqliteTransaction, type TransactionDeps } from "./transaction.ts";

export interface CommitDeps extends TransactionDeps {
  readonly settling: Settling;
}

export interface Committed<T> {
  readonly answer: WriteAnswer;
  readonly value: T | undefined;
  readonly enqueued: number;
}

/** If the fence does not hold, `body` is not run. */
export function commitJob<T>(
  deps: CommitDeps,
  settlement: Settlement,
  body: (tx: SqliteTransaction) => T,
  encode: (value: T) => string | null,
  now: number,
): Committed<T> {
  const { settling } = deps;
  const { lease, change } = settlement;
  if (!settling.owns(lease))
    return { answer: settling.refused(lease, "commit", now, change), value: undefined, enqueued: 0 };
  const { value, enqueued } = runUserBody(deps, now, body);
  const [answer] = settling.settle([{ ...settlement, change: { ...change, result: encode(value) } }], now);
  return { answer: answer ?? APPLIED, value, enqueued };
}
