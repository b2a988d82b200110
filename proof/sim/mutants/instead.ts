// The tools of mutants: a store with some methods replaced, and leases that always fit.
import type { Lease } from "../../../src/core/lease.ts";
import type { SettleAndClaim, Settlement, Store } from "../../../src/core/store.ts";
import type { Change } from "../../../src/core/transitions.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";

/** The store with some methods of its own; all others stay bound to the real one. */
export function instead(store: Store, own: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      const replaced: unknown = Reflect.get(own, name);
      if (replaced !== undefined) return replaced;
      const member: unknown = Reflect.get(target, name, target);
      return typeof member === "function" ? (member.bind(target) as unknown) : member;
    },
  });
}

/** Turns that go on when they are over: `then` spoils the rows, or gives another answer. */
export function afterTurns(
  then: (answer: SettleAndClaim, db: Database, settlements: readonly Settlement[]) => SettleAndClaim | void,
): (store: Store, db: Database) => Store {
  return (store, db) =>
    instead(store, {
      async settleAndClaim(worker, settlements, room) {
        const answer = await store.settleAndClaim(worker, settlements, room);
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
        if (name !== "sql") return member.bind(target) as unknown;
        return (text: string) => target.sql(texts.reduce((sql, [from, to]) => sql.replace(from, to), text));
      },
    });
}

/** The lease with whatever fence and owner the row has now, if somebody runs it. */
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
    instead(store, {
      settleAndClaim: (worker, settlements, room) =>
        store.settleAndClaim(
          worker,
          settlements.map((settlement) => (which(settlement.change) ? refenced(db, settlement) : settlement)),
          room,
        ),
    });
}

export function refenced(db: Database, settlement: Settlement): Settlement {
  return { ...settlement, lease: present(db, settlement.lease) };
}
