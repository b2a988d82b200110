// Waiting jobs: ends and signals of which a waiting job never hears, waits that end too early, signals that are lost or read twice.
import { withVerbs } from "../../../src/stores/observed.ts";
import type { FencedWrite, Settlement, Store, WriteAnswer } from "../../../src/stores/port.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import { ignoring, present, refencing, rewriting } from "./instead.ts";
import { type Mutant, only, zombies } from "./mutant.ts";

const QUIET = only(["waiting"], {}, {});
const KILLS = only(["waiting"], { kill: 1 }, {});
const SLOW = only(["waiting"], {}, { slow: 0.15, slowMs: 500, durability: "full" });

/** The end of a job has no consequences, if the latest entry of its history is like this. */
function unheard(latest: string): (db: Database) => void {
  const entry = "SELECT * FROM outlive_history WHERE job = NEW.job ORDER BY ord DESC LIMIT 1";
  return ignoring(
    "UPDATE OF ended ON outlive_extras",
    `NEW.ended = 1 AND EXISTS (SELECT 1 FROM (${entry}) WHERE ${latest})`,
  );
}

/** Small writes that are changed before they reach the store. */
function writing(change: (write: FencedWrite, db: Database) => FencedWrite): (store: Store, db: Database) => Store {
  return (store, db) => withVerbs(store, { write: (writes) => store.write(writes.map((one) => change(one, db))) });
}

function counted(settlement: Settlement): Settlement {
  const { change } = settlement;
  return change.name === "wait" ? { ...settlement, change: { ...change, add: { interruptions: 1 } } } : settlement;
}

export const waitMutants: readonly Mutant[] = [
  {
    name: "familyCancelForgotten",
    what: "the cancel of a parent does not record that its children are included",
    focus: QUIET,
    schema: ignoring("INSERT ON outlive_family_cancels", "1"),
  },
  {
    name: "familyCancelWithoutNewChildren",
    what: "children that a running parent enqueues after its cancel are not cancelled with it",
    focus: QUIET,
    schema: ignoring("UPDATE OF due ON outlive_family_cancels", "NEW.due = 1"),
  },
  {
    name: "familyCancelOutlivesRetry",
    what: "a parent that was retried has its new children cancelled by the former cancel",
    focus: QUIET,
    schema: ignoring(
      "DELETE ON outlive_family_cancels",
      "EXISTS (SELECT 1 FROM outlive_jobs WHERE seq = OLD.job AND state = 0)",
    ),
  },
  {
    name: "familyCancelWhileItRuns",
    what: "a child that has begun and is queued again is cancelled with its parent",
    focus: QUIET,
    schema: (db) =>
      db.exec(`CREATE TRIGGER sim_begun AFTER INSERT ON outlive_family_cancels BEGIN
        UPDATE outlive_jobs SET state = 4, outcome = 5, finished_at = created_at WHERE state = 0 AND fence > 0
          AND seq IN (SELECT job FROM outlive_extras WHERE parent = NEW.job); END`),
  },
  {
    name: "endUnheardOfSuccess",
    what: "a child succeeds, and its parent does not hear of it",
    focus: QUIET,
    schema: ignoring(
      "UPDATE OF ended ON outlive_extras",
      "NEW.ended = 1 AND EXISTS (SELECT 1 FROM outlive_jobs WHERE seq = NEW.job AND state = 2)",
    ),
  },
  {
    name: "endUnheardOfFailure",
    what: "a child dies of its own error, and its parent does not hear of it",
    focus: QUIET,
    schema: unheard("event = 'fail' AND actor LIKE 'worker/%'"),
  },
  {
    name: "endUnheardOfTimeout",
    what: "a child has used up its timeouts, and its parent does not hear of it",
    focus: QUIET,
    schema: unheard("event = 'timeOut'"),
  },
  {
    name: "endUnheardOfCrash",
    what: "recovery ends a child whose worker died, and its parent does not hear of it",
    focus: KILLS,
    schema: unheard("event = 'crash'"),
  },
  {
    name: "endUnheardOfCancel",
    what: "a queued child is cancelled by hand, and its parent does not hear of it",
    focus: QUIET,
    schema: unheard("event = 'cancel'"),
  },
  {
    name: "endUnheardOfJudgedLoss",
    what: "a child is quarantined when a loss of contact turns out to be a death, and its parent does not hear of it",
    focus: only(
      ["waiting"],
      {},
      { workers: 4, sessions: true, processesProve: false, slow: 0, stall: 0, requestLost: 0, answerLost: 0 },
    ),
    schema: unheard("event = 'countLoss'"),
  },
  {
    name: "endUnheardOfExpiry",
    what: "another process fences out a child that is overdue, for the last time, and its parent does not hear of it",
    focus: only(["waiting"], { pause: 1, block: 2 }, { workers: 3 }),
    schema: unheard("event = 'timeOut' AND actor = 'system/recovery'"),
  },
  {
    name: "strangerUnmarkedAtItsEnd",
    what: "a job that was waited for is retried by hand, and its second end wakes nothing",
    focus: only(["waiting"], {}, { consoleEveryMs: 300 }),
    schema: (db) =>
      db.exec(
        `CREATE TRIGGER sim_unmarked AFTER INSERT ON outlive_wakes BEGIN
           DELETE FROM outlive_awaits WHERE waiter = NEW.job AND job IN (SELECT job FROM outlive_extras WHERE ended = 1); END`,
      ),
  },
  {
    name: "strangerNotMarked",
    what: "a job that waits for one that is not its child does not hear of its end",
    focus: QUIET,
    schema: ignoring("INSERT ON outlive_awaits", "1"),
  },
  {
    name: "wakesDeletedUnchecked",
    what: "several jobs may have stopped waiting; one of them is checked, and the wakes of all are deleted",
    focus: QUIET,
    connection: rewriting(
      ["FROM outlive_wakes ORDER BY id LIMIT 500", "FROM outlive_wakes ORDER BY id LIMIT 1"],
      ["DELETE FROM outlive_wakes WHERE id <= ?", "DELETE FROM outlive_wakes WHERE id <= ? + 9"],
    ),
  },
  {
    name: "waitWithoutItsOwnWake",
    what: "a job begins to wait, and nothing checks whether what it waits for has come meanwhile",
    focus: SLOW,
    schema: ignoring(
      "INSERT ON outlive_wakes",
      "EXISTS (SELECT 1 FROM outlive_history h WHERE h.job = NEW.job AND h.event = 'wait' AND h.at = NEW.at)",
    ),
  },
  {
    name: "anyChildEnded",
    what: "a parent that waits for all its children is woken when one of them has ended",
    focus: QUIET,
    connection: rewriting([
      "SELECT 1 FROM outlive_extras WHERE parent = ? AND ended = 0 LIMIT 1",
      "SELECT 1 FROM outlive_extras WHERE parent = ?1 AND ended = 0 AND NOT EXISTS (SELECT 1 FROM outlive_extras WHERE parent = ?1 AND ended = 1) LIMIT 1",
    ]),
  },
  {
    name: "sleeperPromotedEarly",
    what: "a sleeping job is made ready a little before its time",
    focus: QUIET,
    connection: rewriting(
      [
        "SELECT run_at FROM outlive_jobs WHERE state = 0 AND lane = 0 ORDER BY run_at",
        "SELECT run_at - 400 * (outcome IS 9) AS run_at FROM outlive_jobs WHERE state = 0 AND lane = 0 ORDER BY 1",
      ],
      ["lane = 0 AND run_at <= ?", "lane = 0 AND run_at - 400 * (outcome IS 9) <= ?"],
    ),
  },
  {
    name: "backoffEndedByAnOldWait",
    what: "a job in backoff is made ready because what it waited for before has come again",
    focus: SLOW,
    connection: rewriting([" AND j.outcome = 9", ""]),
  },
  {
    name: "waitForgetsItsTime",
    what: "a job is claimed out of a wait, and the claim does not say when the wait ends",
    focus: QUIET,
    connection: rewriting(["SELECT step, due_at FROM outlive_waits", "SELECT step, NULL AS due_at FROM outlive_waits"]),
  },
  {
    name: "waitOfAStaleAttempt",
    what: "the wait of a zombie is accepted",
    focus: zombies("waiting"),
    store: refencing(({ name }) => name === "wait"),
  },
  {
    name: "waitIsCounted",
    what: "a wait counts as an interruption",
    focus: QUIET,
    store: (store) =>
      withVerbs(store, { turn: (worker, settlements, room) => store.turn(worker, settlements.map(counted), room) }),
  },
  {
    name: "signalNotKept",
    what: "a signal is marked as read, and no step keeps it",
    focus: QUIET,
    schema: ignoring("INSERT ON outlive_steps", "NEW.name LIKE 'run.signal%' AND NEW.result IS NOT NULL"),
  },
  {
    name: "signalNotMarked",
    what: "a signal is kept as a step and not marked as read: the next wait reads it again",
    focus: QUIET,
    schema: ignoring("UPDATE OF read_at ON outlive_signals", "1"),
  },
  {
    name: "signalKeptTwice",
    what: "a signal that is sent again with the same id is kept again",
    focus: QUIET,
    schema: (db) => db.exec("DROP INDEX outlive_signals_id"),
    connection: rewriting([
      "SELECT 1 FROM outlive_signals WHERE job = ? AND id = ?",
      "SELECT 1 FROM outlive_signals WHERE job = ? AND id = ? AND 0",
    ]),
  },
  {
    name: "signalSwallowed",
    what: "a signal to a job that does not wait is answered as kept and is not",
    focus: QUIET,
    store: (store, db) =>
      withVerbs(store, {
        operate: {
          async signal(signal) {
            const job = db.sql("SELECT outcome, state FROM outlive_jobs WHERE id = ?").get(signal.job);
            const isAsleep = job === undefined || job["outcome"] === 9 || Number(job["state"]) > 1;
            return isAsleep ? store.operate.signal(signal) : { is: "kept" };
          },
        },
      }),
  },
  {
    name: "signalReadByAZombie",
    what: "a signal is read for an attempt that does not own the job any more",
    focus: zombies("waiting"),
    store: writing(({ lease, write }, db) => ({ write, lease: write.type === "signal" ? present(db, lease) : lease })),
  },
  {
    name: "latestSignalFirst",
    what: "of two signals of one name the one that came last is read first",
    focus: QUIET,
    connection: rewriting(["read_at IS NULL ORDER BY ord LIMIT 1", "read_at IS NULL ORDER BY ord DESC LIMIT 1"]),
  },
  {
    name: "timeBeforeSignals",
    what: "a wait that ended by time keeps nothing, although its signal came in time",
    focus: SLOW,
    store: (store) =>
      withVerbs(store, {
        async write(writes) {
          const answers = await store.write(
            writes.map(({ lease, write }) =>
              write.type === "signal" && write.hasEnded
                ? { lease, write: { type: "step", name: write.step, result: null } }
                : { lease, write },
            ),
          );
          return answers.map((answer, i): WriteAnswer => {
            const { write } = writes[i]!;
            const gaveUp = answer.is === "applied" && write.type === "signal" && write.hasEnded;
            return gaveUp ? { is: "applied", signal: { kept: true, payload: null } } : answer;
          });
        },
      }),
  },
  {
    name: "resultsOfAnother",
    what: "a parent gets the result of one child as that of another",
    focus: QUIET,
    asks: (store) =>
      withVerbs(store, {
        inspect: {
          async outcomes(ids) {
            const outcomes = await store.inspect.outcomes(ids);
            return outcomes.map((one, i) => ({ ...one, result: outcomes[(i + 1) % outcomes.length]!.result }));
          },
        },
      }),
  },
];
