// The tools of mutants: turns, statements and leases that are others than they were.
import type { Lease } from "../../../src/job/lease.ts";
import type { Change } from "../../../src/job/transitions.ts";
import type { TurnAnswer, Settlement, Store } from "../../../src/stores/port.ts";
import { withVerbs } from "../../../src/stores/observed.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";

/** Turns that do more after their end: `then` spoils the rows, or gives another answer. */
export function afterTurns(
  then: (answer: TurnAnswer, db: Database, settlements: readonly Settlement[]) => TurnAnswer | void,
): (store: Store, db: Database) => Store {
  return (store, db) =>
    withVerbs(store, {
      async turn(worker, settlements, room) {
        const answer = await store.turn(worker, settlements, room);
        return then(answer, db, settlements) ?? answer;
      },
    });
}

/** A connection on which these texts inside the store's statements are others. One that is never met changes nothing: it is missed. */
export function rewriting(...texts: readonly (readonly [from: string, to: string])[]): (db: Database) => Database {
  return (db) =>
    new Proxy(db, {
      get(target, name) {
        const member: unknown = Reflect.get(target, name, target);
        if (typeof member !== "function") return member;
        if (name !== "sql" && name !== "sqlArrays") return member.bind(target) as unknown;
        return (text: string) => target[name](texts.reduce((sql, [from, to]) => sql.replace(from, to), text));
      },
    });
}

/** A table whose rows are not written when this holds of NEW, or of the tables. */
export function ignoring(what: string, when: string): (db: Database) => void {
  return (db) => db.exec(`CREATE TRIGGER sim_ignored BEFORE ${what} WHEN ${when} BEGIN SELECT RAISE(IGNORE); END`);
}

/** The lease with whatever fence and owner the row has now, if it runs. */
export function present(db: Database, lease: Lease): Lease {
  const row = db
    .sql(
      "SELECT j.epoch, j.fence, w.id AS worker FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.worker WHERE j.id = ? AND j.state = 1",
    )
    .get(lease.jobId) as { epoch: number; fence: number; worker: string } | undefined;
  return row ? { ...lease, ...row } : lease;
}

/** A turn in which the settlements that `which` names are sent with a lease that fits. */
export function refencing(which: (change: Change) => boolean): (store: Store, db: Database) => Store {
  return (store, db) =>
    withVerbs(store, {
      turn: (worker, settlements, room) =>
        store.turn(
          worker,
          settlements.map((settlement) => (which(settlement.change) ? refenced(db, settlement) : settlement)),
          room,
        ),
    });
}

export function refenced(db: Database, settlement: Settlement): Settlement {
  return { ...settlement, lease: present(db, settlement.lease) };
}
