// Bugs on purpose, each made by wrapping the real store: the oracle must find every one of them, or it proves nothing. They are
// never in src.
import type { Lease } from "../../src/core/lease.ts";
import type { JobDraft } from "../../src/core/job.ts";
import { APPLIED, type Settlement, type Store } from "../../src/core/store.ts";
import type { Database } from "../../src/stores/sqlite/database.ts";
import type { Plant } from "../world/world.ts";

/** A stale settlement is reported as applied: the worker believes that its work counted. */
const staleSaidApplied: Plant = (store) =>
  instead(store, {
    async settleAndClaim(worker, settlements, room) {
      const answer = await store.settleAndClaim(worker, settlements, room);
      return { ...answer, settled: answer.settled.map((one) => (one.is === "stale" ? APPLIED : one)) };
    },
  });

/** The fence is read from the row right before the settlement, so that it always fits: a zombie ends the newer attempt. */
const settleWithoutFence: Plant = (store, db) =>
  instead(store, {
    settleAndClaim: (worker, settlements, room) =>
      store.settleAndClaim(
        worker,
        settlements.map((settlement) => refenced(db, settlement)),
        room,
      ),
  });

/** As above, in `commit`: the user's rows of a zombie appear. */
const commitWithoutFence: Plant = (store, db) =>
  instead(store, { commit: (settlement, body, encode) => store.commit(refenced(db, settlement), body, encode) });

/** As above, for steps, progress and log. */
const recordWithoutFence: Plant = (store, db) =>
  instead(store, {
    record: (writes) => store.record(writes.map((write) => ({ ...write, lease: present(db, write.lease) }))),
  });

/** Recovery queues again without counting: a job that kills its workers does so for ever. */
const crashesNotCounted: Plant = (store) =>
  instead(store, {
    recover: (request) =>
      store.recover({
        ...request,
        decide(job, heldAtDeath) {
          const verdict = request.decide(job, heldAtDeath);
          const { counters } = job;
          return { decision: "retry", change: { ...verdict.change, to: "queued", counters } };
        },
      }),
  });

/** Everybody in flight is blamed for a death, as if each had run alone. */
const innocentsBlamed: Plant = (store) =>
  instead(store, {
    recover: (request) => store.recover({ ...request, decide: (job) => request.decide(job, 1) }),
  });

/** A worker is taken for dead whose lock is held and who beats: every look finds the neighbours dead. */
const liveTakenForDead: Plant = (store) =>
  instead(store, {
    async workers(query) {
      const rows = await store.workers(query);
      return rows.map((row) => ({ ...row, leaseMs: Math.min(row.leaseMs, 1_000) }));
    },
    recover: (request) => store.recover({ ...request, death: { ...request.death, how: "gone" } }),
  });

/** An enqueue is acknowledged before it is durable, and the last of a group is forgotten. */
const enqueueForgotten: Plant = (store) =>
  instead(store, {
    async enqueue(drafts) {
      if (drafts.length > 1) await store.enqueue(drafts.slice(0, -1));
      else return store.enqueue(drafts);
      return drafts.map(({ id }: JobDraft) => ({ id, created: true }));
    },
  });

/** The user's rows and the job's success are two transactions: a death between them commits twice. */
const commitInTwoParts: Plant = (store) =>
  instead(store, {
    async commit(settlement, body, encode) {
      const value = await store.transact(body);
      return store.commit(settlement, () => value, encode);
    },
  });

/** A settlement that was accepted before is reported as accepted now: it counts twice. */
const repeatedSaidApplied: Plant = (store) =>
  instead(store, {
    async settleAndClaim(worker, settlements, room) {
      const answer = await store.settleAndClaim(worker, settlements, room);
      return { ...answer, settled: answer.settled.map((one) => (one.is === "repeated" ? APPLIED : one)) };
    },
  });

export const PLANTED_BUGS: Readonly<Record<string, Plant>> = {
  staleSaidApplied,
  settleWithoutFence,
  commitWithoutFence,
  recordWithoutFence,
  crashesNotCounted,
  innocentsBlamed,
  liveTakenForDead,
  enqueueForgotten,
  commitInTwoParts,
  repeatedSaidApplied,
};

/** The store with some methods of its own; all others stay bound to the real one. */
function instead(store: Store, own: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      const replaced: unknown = Reflect.get(own, name);
      if (replaced !== undefined) return replaced;
      const member: unknown = Reflect.get(target, name, target);
      return typeof member === "function" ? (member.bind(target) as unknown) : member;
    },
  });
}

function refenced(db: Database, settlement: Settlement): Settlement {
  return { ...settlement, lease: present(db, settlement.lease) };
}

/** The lease with whatever fence and owner the row has now. */
function present(db: Database, lease: Lease): Lease {
  const row = db
    .sql(
      "SELECT j.epoch, j.fence, w.id AS worker FROM outlive_jobs j JOIN outlive_workers w ON w.seq = j.worker WHERE j.id = ?",
    )
    .get(lease.jobId) as { epoch: number; fence: number; worker: string } | undefined;
  return row ? { ...lease, ...row } : lease;
}
