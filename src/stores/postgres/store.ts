// The store port on PostgreSQL, assembled: every verb is one statement, one transaction or one read. The statements are in the other
// files of this folder, one role each.
import type { Emitter } from "../../job/events.ts";
import type { Clock } from "../../job/time.ts";
import { observed } from "../observed.ts";
import type { Finding, Store, TakeBackAnswer } from "../port.ts";
import { wakeupChannel } from "./address.ts";
import { AttemptWriting } from "./attempt-writes.ts";
import { batches } from "./batches.ts";
import { collections } from "./collections.ts";
import { transactions } from "./commit.ts";
import type { Connection } from "./connection.ts";
import { Enqueuing, Kinds } from "./enqueue.ts";
import { wrapError, isOfOneRow, sqlState } from "./errors.ts";
import { inspecting } from "./inspect.ts";
import { declareLimits } from "./keys.ts";
import { losses } from "./incidents.ts";
import { operating } from "./operate.ts";
import { Purging } from "./purge.ts";
import { Recovering } from "./recover.ts";
import { noticeRestore } from "./restore-mark.ts";
import { schedules } from "./schedules.ts";
import { Settling } from "./settle.ts";
import type { PostgresTransaction } from "./transaction.ts";
import { Turns } from "./turn.ts";
import { upkeep } from "./upkeep.ts";
import { WakeupChannel } from "./wakeup.ts";
import { Workers } from "./workers.ts";

export interface PostgresStoreDeps {
  readonly connection: Connection;
  readonly clock: Clock;
  readonly newId: () => string;
  /** How workers are woken. Default: only those of this process. */
  readonly wakeup?: WakeupChannel;
  /** Receives how long each call took. */
  readonly events?: Emitter;
  /** What an operator should know of another server that the store uses. */
  readonly advice?: () => Promise<Finding>;
  /** From how many successes on a worker's turn is two statements at the same time instead of one. Default 16. */
  readonly turnInTwoFrom?: number;
  /** From how many on a settlement that hands over slots is two statements at the same time. Default 100. */
  readonly halvesFrom?: number;
}

const TURN_IN_TWO_FROM = 16;
/** 28 thousand jobs with keys a second instead of 22. */
const HALVES_FROM = 100;

const LOCK_NOT_AVAILABLE = "55P03";

export function postgresStore(deps: PostgresStoreDeps): Store<PostgresTransaction> {
  const { connection, clock, newId, wakeup = new WakeupChannel(connection, clock) } = deps;
  const kinds = new Kinds();
  const workers = new Workers();
  const settling = new Settling(kinds, workers);
  const recovering = new Recovering(kinds);
  const purging = new Purging();
  const enqueuing = new Enqueuing(connection, kinds, clock);
  const shared = { connection, kinds, workers, settling };
  const { turnInTwoFrom: inTwoFrom = TURN_IN_TWO_FROM, halvesFrom = HALVES_FROM } = deps;
  const turns = new Turns({ ...shared, clock, inTwoFrom, halvesFrom });
  const writing = new AttemptWriting(connection, { ...shared, clock });
  const channel = wakeupChannel(connection.schema);
  /** A person or a verdict may make an old job ready: the next claim does not begin behind it. */
  const thenLooking = <Part extends object>(part: Part): Part => withAfter(part, () => turns.lookAgain());

  return observed<PostgresTransaction>(
    {
      name: "postgres",
      // One is inserted while the one before is flushed.
      bulkAtOnce: 2,
      declare(given) {
        const limits = given.flatMap(({ keyed = [] }) => keyed);
        if (limits.length === 0) return kinds.declare(connection, given);
        return connection.transaction(async (tx) => {
          await kinds.declare(tx, given);
          await declareLimits(tx, limits);
        });
      },
      enqueue: (drafts, call) => enqueuing.enqueue(drafts, call),
      async register(worker) {
        await noticeRestore(connection);
        return connection.transaction((tx) => workers.register(tx, worker));
      },
      turn: (worker, settlements, room) => turns.turn(worker, settlements, room),
      write: (writes) => writing.write(writes),
      beat: (worker, beat) =>
        beat.lastWord === undefined
          ? workers.beat(connection, worker, beat)
          : connection.transaction((tx) => workers.beat(tx, worker, beat)),
      leave: (worker) => connection.transaction((tx) => workers.leave(tx, worker)),
      workers: (query) => workers.list(connection, query),
      condemn: (request) =>
        connection
          .maintain((tx) => recovering.condemn(tx, request), "recovery")
          .catch((thrown: unknown) => {
            // A claim or a recovery that stands still holds the worker's row.
            if (sqlState(thrown) !== LOCK_NOT_AVAILABLE) throw thrown;
            return "locked" as const;
          }),
      heldBy: (query) => recovering.heldBy(connection, query),
      takeBack(request) {
        const transaction = (each: boolean): Promise<TakeBackAnswer> =>
          connection.maintain(
            (tx) => recovering.takeBack(tx, request, channel, each),
            request.of ? "recovery" : "upkeep",
          );
        // If the row of one job was refused, each job can fail for itself in a second try.
        const answer = transaction(false).catch((thrown: unknown) => {
          if (isOfOneRow(thrown)) return transaction(true);
          if (sqlState(thrown) !== LOCK_NOT_AVAILABLE) throw thrown;
          // Another recovery of the same worker stands still.
          return { taken: request.verdicts.map(() => "locked" as const), locked: Math.max(1, request.verdicts.length) };
        });
        return answer.finally(() => turns.lookAgain());
      },
      purge: (request) => purging.purge(connection, request),
      async close() {
        wakeup.close();
        await connection.close();
      },
      inspect: inspecting(connection, enqueuing),
      operate: thenLooking(operating(connection, workers)),
      losses: thenLooking(losses(connection, kinds)),
      transactions: transactions({ ...shared, clock, newId }),
      upkeep: upkeep(connection, workers, deps.advice),
      batches: batches(connection, kinds),
      schedules: schedules(connection, kinds),
      collections: collections(connection, kinds),
    },
    // A recovery wakes the other processes when it commits.
    {
      words: wrapError,
      wakeups: wakeup,
      notifyThemselves: ["takeBack"],
      ...(deps.events && { telemetry: { events: deps.events, clock } }),
    },
  );
}

/** The same functions, each followed by `then`, whether it succeeds or not. */
function withAfter<Part extends object>(part: Part, then: () => void): Part {
  const followed = ([name, verb]: [string, unknown]): [string, unknown] => {
    if (typeof verb !== "function") return [name, verb];
    return [
      name,
      async (...args: unknown[]) => {
        try {
          return (await verb.apply(part, args)) as unknown;
        } finally {
          then();
        }
      },
    ];
  };
  return Object.fromEntries(Object.entries(part).map(followed)) as Part;
}
