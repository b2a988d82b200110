// From every end of an attempt of a prologue one sequel follows (`Change.follow`), whose id names the attempt and how it ended. Nothing in
// the public API asks for that yet, so it is added here to what the engine asks of its store.
import type { Change } from "../../../src/job/transitions.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Settlement, Store } from "../../../src/stores/port.ts";
import { sqlite } from "../../../src/stores/sqlite/transaction.ts";
import { noRows } from "../oracle/audit-rows.ts";
import { ORDINARY, type Workload } from "./workload.ts";

export const PROLOGUE = "prologue";
export const SEQUEL = "sequel";

interface Attempt {
  readonly id: string;
  readonly epoch: number;
  readonly fence: number;
}

export const sequels: Workload = {
  name: "sequels",
  share: 0.4,
  weight: 4,
  kinds: { [PROLOGUE]: ORDINARY, [SEQUEL]: ORDINARY },

  wish: () => ({ kind: PROLOGUE, input: null }),

  handlers({ work, random, commits }) {
    return {
      async [PROLOGUE](_, run) {
        await work(400);
        if (random.chance(0.2)) throw new Error("not yet");
        if (random.chance(0.3)) await run.commit(sqlite, () => commits(run));
      },
      [SEQUEL]: () => work(100),
    };
  },

  audit(db) {
    noRows(
      db,
      `SELECT j.id, j.input FROM outlive_jobs j JOIN outlive_kinds k ON k.id = j.kind
       WHERE k.name = '${SEQUEL}' AND j.input <> json_quote(j.id)`,
      "sequels that are not as they were drafted",
    );
  },
};

/** The id of what follows when this attempt ends in the state `to`. */
export function sequelOf({ id, epoch, fence }: Attempt, to: string): string {
  return `${id}/after-${epoch}.${fence}-${to}`;
}

/** The store as it is asked by an engine whose prologues have sequels. */
export function withSequels(store: Store): Store {
  const transactions = store.transactions!;
  return withVerbs(store, {
    turn: (worker, settlements, room) => store.turn(worker, settlements.map(settled), room),
    takeBack: (request) =>
      store.takeBack({
        ...request,
        verdicts: request.verdicts.map((verdict) =>
          verdict.job.kind.name === PROLOGUE && verdict.change
            ? { ...verdict, change: followed(verdict.change, verdict.job) }
            : verdict,
        ),
      }),
    transactions: {
      commit: (settlement, body, encode, control) => transactions.commit(settled(settlement), body, encode, control),
    },
  });
}

function settled(settlement: Settlement): Settlement {
  const { lease, change } = settlement;
  if (lease.kind !== PROLOGUE) return settlement;
  return { ...settlement, change: followed(change, { ...lease, id: lease.jobId }) };
}

function followed(change: Change, attempt: Attempt): Change {
  const id = sequelOf(attempt, change.to);
  const draft = { id, kind: SEQUEL, input: JSON.stringify(id), priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
  const { ifCancelled } = change;
  return { ...change, follow: [draft], ...(ifCancelled && { ifCancelled: followed(ifCancelled, attempt) }) };
}
